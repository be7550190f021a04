//! Completions that are sampled while training.

use std::path::PathBuf;

use burnish_data::Tokenizer;
use burnish_zero::Stage;

use crate::checks::{ABOVE_0, AT_LEAST_1, Checks};
use crate::choice::RolloutQuantization;
use crate::groups::ranks::MOST_SECONDS;
use crate::groups::{PreparationOptions, RankOptions};
use crate::setting::{PadToMultiple, Verbatim};
use crate::table::options;

options! {
    /// From a prompt to token ids.
    PromptRowOptions, "Preparation";
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The chat template itself, or a file of it (alignment-handbook, open-r1).
    Burnish chat_template: Verbatim = Verbatim(None);
    /// The end-of-sequence token; by default the tokenizer's.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's, then its end-of-sequence token.
    Trl pad_token: Option<String> = None;
    /// Batches never have padding here, whatever this says.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
    /// A text of more bytes than this is an error: tokenising it takes up to 220 times as much memory.
    Burnish max_text_bytes: usize = Tokenizer::MAX_TEXT_BYTES;
}

impl From<PromptRowOptions> for PreparationOptions {
    fn from(options: PromptRowOptions) -> Self {
        let PromptRowOptions {
            chat_template_path, chat_template, eos_token, pad_token, max_text_bytes, ..
        } = options;
        Self {
            max_length: None,
            chat_template_path,
            chat_template,
            eos_token,
            pad_token,
            max_text_bytes,
            ..Self::default()
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
    /// Taken off the reward of a completion that is cut off at max_completion_length, as in TRL's former RLOO.
    Trl missing_eos_penalty: Option<f64> = None;
    /// A completion that is cut off at max_completion_length gets penalty_reward_value as its reward, whatever the reward
    /// functions say, as in TRL's former RLOO.
    Trl non_eos_penalty: bool = false;
    /// With non_eos_penalty, the reward of a completion that is cut off.
    Trl penalty_reward_value: f64 = -1.0;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = false;
    /// At stage 3, hold the whole model while sampling; without, every token would travel for all weights.
    Trl ds3_gather_for_generation: bool = true;
    /// On a GPU, launch every step of sampling as it is; otherwise one is recorded and run again for each token (CUDA
    /// graphs), where the model allows.
    Transformers disable_compile: bool = false;
    /// Sequences that are sampled side by side on each rank; as one ends, the next prompt takes its place.
    Burnish generation_max_sequences: usize = 64;
    /// int8: sample from a copy of the model whose blocks' matrices are in int8, on the CPU; grpo corrects for it as for a
    /// server (vllm_importance_sampling_*).
    Burnish rollout_quantization: RolloutQuantization = RolloutQuantization::None;
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

impl RolloutOptions {
    /// Whether completions are sampled from something else than the model as it trains.
    #[must_use]
    pub fn samples_elsewhere(&self) -> bool {
        self.rollout_url.is_some() || self.rollout_quantization != RolloutQuantization::None
    }

    pub(crate) fn rules(&self, ranks: &RankOptions, checks: &mut Checks<'_>) {
        let group = "at least 2: an advantage compares completions of one prompt";
        checks.range("num_generations", self.num_generations >= 2, group);
        checks.range("num_generations_eval", self.num_generations_eval.is_none_or(|n| n >= 2), group);
        checks.range("max_completion_length", self.max_completion_length >= 1, AT_LEAST_1);
        checks.range(
            "missing_eos_penalty",
            self.missing_eos_penalty.is_none_or(|penalty| penalty > 0.0),
            ABOVE_0,
        );
        if self.non_eos_penalty && self.missing_eos_penalty.is_some() {
            let mend = "both say what a completion without an end is worth; keep one of the two";
            checks.conflict("missing_eos_penalty", "non_eos_penalty", mend);
        }
        checks.range("penalty_reward_value", self.penalty_reward_value.is_finite(), "a finite number");
        checks.range("num_iterations", self.num_iterations >= 1, AT_LEAST_1);
        checks.range(
            "num_iterations",
            self.num_iterations <= 1 << 20,
            "a whole number that is at most 1048576",
        );
        checks.range("steps_per_generation", self.steps_per_generation != Some(0), AT_LEAST_1);
        checks.range("generation_batch_size", self.generation_batch_size != Some(0), AT_LEAST_1);
        checks.range("generation_max_sequences", self.generation_max_sequences >= 1, AT_LEAST_1);
        checks.range("num_completions_to_print", self.num_completions_to_print != Some(0), AT_LEAST_1);
        checks.range("rollout_timeout", self.rollout_timeout > 0.0, ABOVE_0);
        checks.range("rollout_timeout", self.rollout_timeout <= MOST_SECONDS, "at most 1e9 seconds");
        if let Some(url) = &self.rollout_url
            && !url.starts_with("http://")
        {
            let url = "null or an address that begins with http:// (a proxy on this machine can speak https)";
            checks.range("rollout_url", false, url);
        }
        if self.rollout_url.is_some() && self.rollout_quantization != RolloutQuantization::None {
            let mend = "the server chooses how its weights rest; leave rollout_quantization out";
            checks.conflict("rollout_quantization", "rollout_url", mend);
        }
        if checks.value("auto_find_batch_size") == "true" {
            let mend = "take it out, and lower per_device_train_batch_size where memory is full";
            checks.conflict("auto_find_batch_size", "groups of completions, which fill whole batches", mend);
        }
        if self.generation_batch_size.is_some() && self.steps_per_generation.is_some() {
            let mend = "keep one of the two: each says how much is sampled at once";
            checks.conflict("generation_batch_size", "steps_per_generation", mend);
        }
        let temperature = self.temperature > 0.0 && self.temperature.is_finite();
        checks.range("temperature", temperature, ABOVE_0);
        checks.range("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0 and at most 1");
        checks.range(
            "min_p",
            self.min_p.is_none_or(|p| (0.0..=1.0).contains(&p)),
            "null or a number from 0 to 1",
        );
        let penalty = self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite();
        checks.range("repetition_penalty", penalty, ABOVE_0);
        if !self.ds3_gather_for_generation && ranks.zero_stage == Stage::Three {
            let mend = "leave it on: sampling from a part of the weights would send all of them for every token; use \
                        tp_size where the whole model does not fit";
            checks.conflict("ds3_gather_for_generation", "zero_stage: 3", mend);
        }
    }
}
