//! `burnish sft`: supervised fine-tuning.

use crate::checks::Checks;
use crate::groups::{PackingOptions, PreparationOptions, SupervisedOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish sft`.
    SftOptions, "sft", "Fine-tune a language model on text, prompts with completions, or conversations", {
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Rows to batches.
        packing: PackingOptions,
        /// The loss.
        loss: SupervisedOptions,
    }
}

impl SftOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.run_options().rules(checks);
        self.loss.rules(checks);
        self.packing.rules(self.preparation.max_length, checks);
    }
}
