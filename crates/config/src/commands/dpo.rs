//! `burnish dpo`: direct preference optimisation.

use crate::checks::Checks;
use crate::groups::{DpoLossOptions, PrecomputeOptions, PreferenceRowOptions, ReferenceOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish dpo`.
    DpoOptions, "dpo", "Teach a model to prefer chosen completions over rejected ones (direct preference optimisation)",
    default { training.learning_rate: 1e-6 },
    against reference, {
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: DpoLossOptions,
        /// The model that log-ratios are taken against.
        reference: ReferenceOptions,
        /// Its log-probabilities, computed once before training.
        precompute: PrecomputeOptions,
    }
}

impl DpoOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        let run = self.run_options();
        run.rules_by_rows(checks);
        self.loss.rules(checks);
        self.reference.rules(run.trains_adapter(), checks);
        self.precompute.rules(&self.reference, checks);
    }
}
