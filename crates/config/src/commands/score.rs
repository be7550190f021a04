//! `burnish score`: log-probabilities of rows, or their scores.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::{
    BatchOptions, InferenceRankOptions, InputOptions, ModelOptions, PreparationOptions, QuantizationOptions,
    RowAdapterOptions,
};

command! {
    /// Options of `burnish score`.
    ScoreOptions, "score", "Write each row's log-probability under a model, or its score by a reward model",
    needs ["model_name_or_path", "dataset_name"], {
        /// The model.
        model: ModelOptions,
        /// How its matrices are held.
        quantization: QuantizationOptions,
        /// The rows.
        input: InputOptions,
        /// Adapters that rows name.
        adapters: RowAdapterOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Batches.
        batches: BatchOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }
}

impl ScoreOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.quantization.rules(true, checks);
        checks.rows("dataset_name", &self.input.dataset_name);
        self.adapters.rules(self.model.adapter_name_or_path.is_some(), checks);
        self.preparation.rules(checks);
        self.batches.rules(checks);
        self.ranks.rules(checks);
    }
}
