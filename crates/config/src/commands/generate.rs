//! `burnish generate`: continue prompts.

use crate::checks::{AT_LEAST_1, Checks};
use crate::command::command;
use crate::fault::Fault;
use crate::groups::{
    GenerationOptions, InferenceRankOptions, ModelOptions, PromptOptions, QuantizationOptions,
    RowAdapterOptions,
};

command! {
    /// Options of `burnish generate`.
    GenerateOptions, "generate", "Continue a prompt, or every prompt of a file",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// How its matrices are held.
        quantization: QuantizationOptions,
        /// The prompts.
        prompts: PromptOptions,
        /// Adapters that rows name.
        adapters: RowAdapterOptions,
        /// The choice of tokens.
        generation: GenerationOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }
}

impl GenerateOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.quantization.rules(true, checks);
        match (&self.prompts.prompt.0, &self.prompts.dataset_name) {
            (None, None) if checks.plans() => {}
            (None, None) => checks.fault(Fault::Required {
                name: "prompt",
                doc: "the text to continue, or --dataset_name with a file of prompts".into(),
            }),
            (Some(_), Some(rows)) => {
                checks.conflict("prompt", format!("dataset_name: {rows:?}"), "keep one of the two");
            }
            (None, Some(rows)) => {
                checks.rows("dataset_name", rows);
            }
            (Some(_), None) => {}
        }
        self.adapters.rules(self.model.adapter_name_or_path.is_some(), checks);
        if !self.adapters.lora_modules.is_empty() && self.prompts.prompt.0.is_some() {
            checks.conflict("lora_modules", "prompt", "give adapter_name_or_path, or rows that name them");
        }
        let batch = self.prompts.per_device_eval_batch_size;
        checks.range("per_device_eval_batch_size", batch >= 1, AT_LEAST_1);
        self.generation.rules(checks);
        self.ranks.rules(checks);
        if self.prompts.prompt.0.is_some() && self.ranks.nproc > self.ranks.tp_size {
            checks.note("one prompt takes tp_size ranks; the others have nothing to do");
        }
    }
}
