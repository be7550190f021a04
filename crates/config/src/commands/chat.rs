//! `burnish chat`: a conversation in the terminal.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::{ChatTargetOptions, GenerationOptions, ModelOptions, QuantizationOptions};

command! {
    /// Options of `burnish chat`.
    ChatOptions, "chat", "Talk with a model in the terminal",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// How its matrices are held.
        quantization: QuantizationOptions,
        /// The conversation.
        target: ChatTargetOptions,
        /// The choice of tokens.
        generation: GenerationOptions,
    }
}

impl ChatOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.quantization.rules(true, checks);
        self.generation.rules(checks);
        self.target.rules(checks);
    }
}
