//! `burnish reward`: a reward model.

use crate::checks::Checks;
use crate::groups::{RewardLossOptions, RewardRowOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish reward`.
    RewardOptions, "reward", "Train a reward model: a head that scores chosen texts above rejected ones",
    default { training.learning_rate: 1e-4, training.router_aux_loss_coef: Some(0.0) }, {
        /// Rows to tokens.
        preparation: RewardRowOptions,
        /// The loss.
        loss: RewardLossOptions,
    }
}

impl RewardOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.run_options().rules_by_rows(checks);
        self.loss.rules(checks);
        if self.logging.sample_prompt.0.is_some() {
            checks.conflict("sample_prompt", "a reward model, which says nothing", "take it out");
        }
    }
}
