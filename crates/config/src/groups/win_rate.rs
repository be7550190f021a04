//! Comparing two models by what they write.

use std::path::PathBuf;

use crate::table::options;

options! {
    /// What is compared, and on which prompts.
    WinRateTargetOptions, "Comparison";
    /// A JSONL file, a folder of them, or a glob, with a prompt in each row.
    Trl dataset_name: String = String::new();
    /// In a folder, the files named after this; without any, all files.
    Trl dataset_test_split: String = "test".into();
    /// Folder of the model to win over; by default model_name_or_path without the adapter.
    Burnish reference_model_name_or_path: Option<PathBuf> = None;
    /// Folder of an adapter over it.
    Burnish reference_adapter_name_or_path: Option<PathBuf> = None;
    /// File for JSON lines with prompt, both completions and both scores.
    Burnish output_file: PathBuf = "completions.jsonl".into();
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default those of generation_config.json.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's.
    Trl pad_token: Option<String> = None;
    /// Prompts that are continued together on each rank.
    Transformers per_device_eval_batch_size: usize = 8;
}
