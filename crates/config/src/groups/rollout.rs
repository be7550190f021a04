//! Completions that are sampled while training.

use std::path::PathBuf;

use crate::groups::PreparationOptions;
use crate::setting::PadToMultiple;
use crate::table::options;

options! {
    /// From a prompt to token ids.
    PromptRowOptions, "Preparation";
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default the tokenizer's.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's, then its end-of-sequence token.
    Trl pad_token: Option<String> = None;
    /// Batches never have padding here, whatever this says.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
}

impl PromptRowOptions {
    /// What it shares with the preparation of other rows.
    #[must_use]
    pub fn preparation(&self) -> PreparationOptions {
        let Self { chat_template_path, eos_token, pad_token, .. } = self.clone();
        PreparationOptions {
            max_length: None,
            chat_template_path,
            eos_token,
            pad_token,
            ..PreparationOptions::default()
        }
    }
}

options! {
    /// How prompts become completions, and completions steps.
    RolloutOptions, "Rollouts";
    /// Completions of a prompt: the group that a completion is compared with, at least 2.
    Trl num_generations: usize = 8;
    /// The same in evaluation; by default num_generations.
    Trl num_generations_eval: Option<usize> = None;
    /// At most this many tokens of a completion.
    Trl max_completion_length: usize = 512;
    /// Completions that are sampled at once on all ranks, a multiple of num_generations; by default those of
    /// steps_per_generation micro-batches.
    Trl generation_batch_size: Option<usize> = None;
    /// Micro-batches on every rank that are sampled at once; by default gradient_accumulation_steps.
    Trl steps_per_generation: Option<usize> = None;
    /// How often a sampled batch is trained on.
    Trl num_iterations: usize = 1;
    /// Logits are divided by this, in sampling and in the loss.
    Trl temperature: f64 = 1.0;
    /// Sample from the likeliest tokens that hold this much probability.
    Trl top_p: f64 = 1.0;
    /// Sample from this many likeliest tokens; 0 from all.
    Trl top_k: usize = 0;
    /// Sample from tokens at least this likely, relative to the likeliest.
    Trl min_p: Option<f64> = None;
    /// Above 1, tokens that already occurred become less likely.
    Trl repetition_penalty: f64 = 1.0;
    /// Completions that are cut off at max_completion_length do not train.
    Trl mask_truncated_completions: bool = false;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = false;
    /// At stage 3, hold the whole model while sampling; without, every token would travel for all weights.
    Trl ds3_gather_for_generation: bool = true;
    /// Sequences that are sampled side by side on each rank; as one ends, the next prompt takes its place.
    Burnish generation_max_sequences: usize = 64;
    /// Sample on this OpenAI-compatible server (vLLM), such as `http://localhost:8000/v1`, instead of here.
    Burnish rollout_url: Option<String> = None;
    /// The model's name there; by default the first that it names.
    Burnish rollout_model: Option<String> = None;
    /// Seconds to wait for an answer of the server.
    Burnish rollout_timeout: f64 = 240.0;
    /// Have the server read the adapter in training before it samples; a server without adapters samples from the model
    /// that it was started with.
    Burnish rollout_sync: bool = true;
    /// Write sampled completions with their rewards to completions.jsonl, at every log line.
    Trl log_completions: bool = false;
    /// Of these, at most this many of a step; by default all.
    Trl num_completions_to_print: Option<usize> = None;
    /// Of these, one for each prompt.
    Trl log_unique_prompts: bool = false;
}
