//! `burnish plan`: what a run will hold and send, without running it.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::{
    LoggingOptions, LoraOptions, ModelOptions, MuonOptions, PackingOptions, PreparationOptions,
    QuantizationOptions, RankOptions, SourceOptions, SupervisedOptions, TrainingOptions,
};

command! {
    /// Options of `burnish plan`.
    PlanOptions, "plan", "Say what a fine-tuning run will hold and send on each rank, without running it",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// How its base rests.
        quantization: QuantizationOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Rows to batches.
        packing: PackingOptions,
        /// The loss.
        loss: SupervisedOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }
}

impl PlanOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.loss.rules(checks);
        self.lora.rules(&self.model, checks);
        self.ranks.rules(&self.model, &self.training, checks);
        self.muon.rules(&self.training, checks);
        let adapter = self.lora.use_peft || self.model.adapter_name_or_path.is_some();
        self.quantization.rules(adapter, checks);
        self.lora.rules_of_loftq(&self.quantization, checks);
    }
}
