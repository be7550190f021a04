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
        if self.loss.loss_type.needs_kl() && run.training.per_device_train_batch_size == 1 {
            checks.conflict(
                "per_device_train_batch_size",
                "a KL term, which is of other rows' completions in the batch",
                "give at least 2, or loss_type: apo_zero_unpaired",
            );
        }
        self.reference.rules(run.trains_adapter(), checks);
        self.precompute.rules(&self.reference, checks);
    }
}
