//! `burnish export`: a model or an adapter as a file of other programs.

use burnish_gguf::OutType;

use crate::checks::{AT_LEAST_1, Checks, MODEL_HINT};
use crate::choice::ExportFormat;
use crate::command::command;
use crate::groups::ExportTargetOptions;

command! {
    /// Options of `burnish export`.
    ExportOptions, "export", "Write a model, or an adapter, as a GGUF file for llama.cpp, and compare what was written with its source",
    needs ["model_name_or_path", "output_file"], {
        /// What is read and written.
        export: ExportTargetOptions,
    }
}

impl ExportOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        let export = &self.export;
        checks.folder("model_name_or_path", &export.model_name_or_path, MODEL_HINT);
        if let Some(adapter) = &export.adapter_name_or_path {
            checks.folder("adapter_name_or_path", adapter, "");
        }
        checks.range("threads", export.threads != Some(0), AT_LEAST_1);
        if export.format == ExportFormat::PerExpert {
            checks.range(
                "adapter_name_or_path",
                export.adapter_name_or_path.is_some(),
                "the folder of the adapter that is written (format: per_expert)",
            );
            let float = matches!(export.outtype.0, None | Some(OutType::F32 | OutType::F16 | OutType::Bf16));
            if !float {
                checks.conflict(
                    "outtype",
                    "format",
                    "take f32, f16 or bf16: it is a folder for PEFT's readers",
                );
            }
            if export.tokenizer_pre.is_some() {
                checks.conflict("tokenizer_pre", "format", "take it out: an adapter has no tokenizer");
            }
            return;
        }
        if !export.adapter_only {
            return;
        }
        if export.adapter_name_or_path.is_none() {
            checks.range(
                "adapter_name_or_path",
                false,
                "the folder of the adapter that is written (adapter_only)",
            );
        }
        if matches!(export.outtype.0, Some(OutType::Q4_0 | OutType::Q4KM)) {
            checks.conflict(
                "outtype",
                "adapter_only",
                "take f32, f16, bf16 or q8_0: an adapter's factors are small",
            );
        }
        if export.tokenizer_pre.is_some() {
            checks.conflict("tokenizer_pre", "adapter_only", "take it out: an adapter has no tokenizer");
        }
    }
}
