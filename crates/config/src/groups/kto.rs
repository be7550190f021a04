//! The loss of Kahneman-Tversky optimisation.

use burnish_losses::{KtoLoss, KtoOptions};

use crate::checks::Checks;
use crate::table::options;

options! {
    /// The loss over completions that are desirable or not.
    KtoLossOptions, "KTO";
    /// The loss; `apo_zero_unpaired` has no KL term.
    Trl loss_type: KtoLoss = KtoLoss::Kto;
    /// Strength of the reference: greater stays closer to it.
    Trl beta: f64 = 0.1;
    /// Weight of desirable completions.
    Trl desirable_weight: f64 = 1.0;
    /// Weight of undesirable completions.
    Trl undesirable_weight: f64 = 1.0;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = true;
}

impl From<&KtoLossOptions> for KtoOptions {
    fn from(options: &KtoLossOptions) -> Self {
        let KtoLossOptions { loss_type, beta, desirable_weight, undesirable_weight, .. } = *options;
        Self { loss_type, beta, desirable_weight, undesirable_weight }
    }
}

impl KtoLossOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.owner(KtoOptions::from(self).faults());
    }
}
