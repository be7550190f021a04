//! `burnish kto`: Kahneman-Tversky optimisation.

use burnish_data::Order;

use crate::checks::Checks;
use crate::groups::{KtoLossOptions, PrecomputeOptions, PreferenceRowOptions, ReferenceOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish kto`.
    KtoOptions, "kto", "Teach a model from completions that are marked desirable or not (Kahneman-Tversky optimisation)",
    default { training.learning_rate: 1e-6, training.train_sampling_strategy: Order::Sequential },
    against reference, {
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: KtoLossOptions,
        /// The model that log-ratios are taken against.
        reference: ReferenceOptions,
        /// Its log-probabilities, computed once before training.
        precompute: PrecomputeOptions,
    }
}

impl KtoOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        let run = self.run_options();
        run.rules_by_rows(checks);
        self.loss.rules(checks);
        self.reference.rules(run.trains_adapter(), checks);
        self.precompute.rules(&self.reference, checks);
    }
}
