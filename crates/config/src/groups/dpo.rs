//! The losses of direct preference optimisation.

use burnish_losses::{Divergence, DpoOptions, PreferenceLoss};

use crate::checks::Checks;
use crate::table::options;

options! {
    /// The loss over pairs.
    DpoLossOptions, "DPO";
    /// The losses of a pair, summed with their weights.
    Trl loss_type: Vec<PreferenceLoss> = vec![PreferenceLoss::Sigmoid];
    /// One weight per loss; by default all 1.
    Trl loss_weights: Option<Vec<f64>> = None;
    /// Strength of the reference: greater stays closer to it.
    Trl beta: f64 = 0.1;
    /// How a log-ratio of policy and reference becomes a score.
    Trl f_divergence_type: Divergence = Divergence::ReverseKl;
    /// The coefficient of `alpha_divergence`.
    Trl f_alpha_divergence_coef: f64 = 0.5;
    /// Probability that a label is wrong, for exo_pair (above 0), robust (below 0.5), aot and aot_unpaired.
    Trl label_smoothing: f64 = 0.0;
    /// Weight of the tokens beyond the shorter completion's length (LD-DPO), from 0 to 1; by default all count.
    Trl ld_alpha: Option<f64> = None;
    /// Weigh pairs by the policy's own likelihood (WPO).
    Trl use_weighting: bool = false;
    /// The temperature of discopop.
    Trl discopop_tau: f64 = 0.05;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = true;
}

impl From<&DpoLossOptions> for DpoOptions {
    fn from(options: &DpoLossOptions) -> Self {
        Self {
            loss_type: options.loss_type.clone(),
            loss_weights: options.loss_weights.clone(),
            beta: options.beta,
            label_smoothing: options.label_smoothing,
            f_divergence_type: options.f_divergence_type,
            f_alpha_divergence_coef: options.f_alpha_divergence_coef,
            ld_alpha: options.ld_alpha,
            use_weighting: options.use_weighting,
            discopop_tau: options.discopop_tau,
        }
    }
}

impl DpoLossOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.owner(DpoOptions::from(self).faults());
    }
}
