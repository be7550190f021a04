//! `burnish orpo`: odds ratio preference optimisation.

use crate::checks::Checks;
use crate::groups::{OrpoLossOptions, PreferenceRowOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish orpo`.
    OrpoOptions, "orpo", "Teach a base model answers and the preference between them at once (odds ratio preference optimisation)",
    default { training.learning_rate: 1e-6, training.router_aux_loss_coef: Some(0.0) }, {
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: OrpoLossOptions,
    }
}

impl OrpoOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.run_options().rules_by_rows(checks);
        self.loss.rules(checks);
    }
}
