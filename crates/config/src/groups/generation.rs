//! Sampling text.

use std::path::PathBuf;

use crate::checks::{AT_LEAST_1, Checks};
use crate::groups::serving::check_adapters;
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
    /// On a GPU, launch every step as it is; otherwise one is recorded and run again for each token (CUDA graphs), where
    /// the model allows.
    Transformers disable_compile: bool = false;
    /// Leave special tokens out of the printed text.
    Transformers skip_special_tokens: bool = true;
}

options! {
    /// What a conversation begins with.
    ChatTargetOptions, "Conversation";
    /// What the model is told before the conversation.
    Burnish system_prompt: Verbatim = Verbatim(None);
    /// More adapters over the model, each as `name=folder`, to change between with `/adapter`. That of adapter_name_or_path is
    /// called by its folder's name.
    Burnish lora_modules: Vec<String> = Vec::new();
    /// A JSON file with a list of tools that the template writes.
    Burnish tools_path: Option<PathBuf> = None;
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default those of generation_config.json.
    Trl eos_token: Option<String> = None;
}

impl ChatTargetOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        check_adapters(&self.lora_modules, checks);
    }
}

impl GenerationOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.range("max_new_tokens", self.max_new_tokens != Some(0), AT_LEAST_1);
        let positive = |value: Option<f64>| value.is_none_or(|v| v > 0.0 && v.is_finite());
        let sampling_off = self.do_sample == Some(false);
        checks.range(
            "temperature",
            positive(self.temperature),
            "a number above 0; for no sampling, do_sample: false",
        );
        checks.range("repetition_penalty", positive(self.repetition_penalty), "a number above 0");
        checks.range(
            "top_p",
            self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
            "a number above 0 and at most 1",
        );
        checks.range("min_p", self.min_p.is_none_or(|p| (0.0..=1.0).contains(&p)), "a number from 0 to 1");
        if let (Some(min), Some(max)) = (self.min_new_tokens, self.max_new_tokens)
            && min > max
        {
            checks.conflict("min_new_tokens", format!("max_new_tokens: {max}"), "raise max_new_tokens");
        }
        if sampling_off {
            for name in ["temperature", "top_k", "top_p", "min_p"] {
                if checks.is_given(name) {
                    checks.conflict(name, "do_sample: false", "set do_sample: true, or take it out");
                }
            }
        }
    }
}
