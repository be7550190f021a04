//! `burnish serve`: a model for clients.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::{ModelOptions, QuantizationOptions, ServingOptions};

command! {
    /// Options of `burnish serve`.
    ServeOptions, "serve", "Serve a model and its adapters to OpenAI's clients",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// How its matrices are held.
        quantization: QuantizationOptions,
        /// The server.
        serving: ServingOptions,
    }
}

impl ServeOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.quantization.rules(true, checks);
        self.serving.rules(checks);
    }
}
