//! `burnish rloo`: REINFORCE leave-one-out.

use crate::checks::Checks;
use crate::groups::{
    PromptRowOptions, ReferenceOptions, RewardFunctionOptions, RlooLossOptions, RolloutOptions,
};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish rloo`.
    RlooOptions, "rloo", "Teach a model by rewards of its own completions (REINFORCE leave-one-out)",
    default { training.learning_rate: 1e-6, data.shuffle_dataset: true, rollouts.num_generations: 2 },
    against reference, {
        /// Rows to tokens.
        preparation: PromptRowOptions,
        /// Prompts to completions.
        rollouts: RolloutOptions,
        /// What completions are worth.
        rewards: RewardFunctionOptions,
        /// The loss.
        loss: RlooLossOptions,
        /// The model that the KL divergence is taken from.
        reference: ReferenceOptions,
    }
}

impl RlooOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        let run = self.run_options();
        run.rules_by_rows(checks);
        run.lora.starts_without_loss("completions that are not there before training", checks);
        self.rollouts.rules(&run.ranks, checks);
        self.rewards.rules(checks);
        self.loss.rules(checks);
        self.reference.rules(run.trains_adapter(), checks);
        self.reference.rules_with(self.loss.beta, checks);
    }
}
