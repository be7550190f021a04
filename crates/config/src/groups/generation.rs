//! Sampling text.

use std::path::PathBuf;

use crate::setting::Verbatim;
use crate::table::options;

options! {
    /// What to continue, and where the text goes.
    PromptOptions, "Prompts";
    /// The prompt. With a chat template it is the user's turn.
    Burnish prompt: Verbatim = Verbatim(None);
    /// A JSONL file, a folder of them, or a glob, with a prompt in each row.
    Trl dataset_name: Option<String> = None;
    /// In a folder, the files named after this; without any, all files.
    Trl dataset_test_split: String = "test".into();
    /// File for JSON lines with prompt, completion, token_ids and finish_reason.
    Burnish output_file: Option<PathBuf> = None;
    /// Put a prompt through the chat template; by default exactly when the model has one.
    Burnish apply_chat_template: Option<bool> = None;
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default those of generation_config.json.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's.
    Trl pad_token: Option<String> = None;
    /// Prompts that are continued together on each rank.
    Transformers per_device_eval_batch_size: usize = 8;
}

options! {
    /// How the next token is chosen. What is not given comes from the model's generation_config.json.
    GenerationOptions, "Sampling";
    /// At most this many new tokens; by default 256.
    Transformers max_new_tokens: Option<usize> = None;
    /// At least this many new tokens; tokens that end a text cannot come before.
    Transformers min_new_tokens: Option<usize> = None;
    /// Sample instead of taking the likeliest token.
    Transformers do_sample: Option<bool> = None;
    /// Logits are divided by this before sampling.
    Transformers temperature: Option<f64> = None;
    /// Sample from this many likeliest tokens; 0 from all.
    Transformers top_k: Option<usize> = None;
    /// Sample from the likeliest tokens that hold this much probability.
    Transformers top_p: Option<f64> = None;
    /// Sample from tokens at least this likely, relative to the likeliest.
    Transformers min_p: Option<f64> = None;
    /// Above 1, tokens that already occurred become less likely.
    Transformers repetition_penalty: Option<f64> = None;
    /// Seed of sampling.
    Transformers seed: u64 = 42;
    /// Leave special tokens out of the printed text.
    Transformers skip_special_tokens: bool = true;
}
