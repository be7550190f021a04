//! `burnish grpo`: group relative policy optimisation.

use crate::checks::Checks;
use crate::groups::{
    GrpoLossOptions, PromptRowOptions, ReferenceOptions, RewardFunctionOptions, RolloutOptions,
};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish grpo`.
    GrpoOptions, "grpo",
    "Teach a model by rewards of its own completions, compared within groups (group relative policy optimisation)",
    default { training.learning_rate: 1e-6, data.shuffle_dataset: true },
    against reference, {
        /// Rows to tokens.
        preparation: PromptRowOptions,
        /// Prompts to completions.
        rollouts: RolloutOptions,
        /// What completions are worth.
        rewards: RewardFunctionOptions,
        /// The loss.
        loss: GrpoLossOptions,
        /// The model that the KL term is taken against.
        reference: ReferenceOptions,
    }
}

impl GrpoOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        let run = self.run_options();
        run.rules_by_rows(checks);
        run.lora.starts_without_loss("completions that are not there before training", checks);
        self.rollouts.rules(&run.ranks, checks);
        self.rewards.rules(checks);
        self.loss.rules(&self.rollouts, checks);
        self.reference.rules(run.trains_adapter(), checks);
        self.reference.rules_with(self.loss.beta, checks);
    }
}
