//! The loss of Kahneman-Tversky optimisation.

use crate::choice::KtoLossType;
use crate::table::options;

options! {
    /// The loss over completions that are desirable or not.
    KtoLossOptions, "KTO";
    /// The loss; `apo_zero_unpaired` has no KL term.
    Trl loss_type: KtoLossType = KtoLossType::Kto;
    /// Strength of the reference: greater stays closer to it.
    Trl beta: f64 = 0.1;
    /// Weight of desirable completions.
    Trl desirable_weight: f64 = 1.0;
    /// Weight of undesirable completions.
    Trl undesirable_weight: f64 = 1.0;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = true;
}
