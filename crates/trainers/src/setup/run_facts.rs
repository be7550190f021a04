//! Facts that a run has in common with the checkpoint that it goes on from: rows, their order, the base, options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::TrainError;
use crate::rows::prepared::token_digest;
use crate::setup::Setup;

/// Options that decide which tokens come in which order: a run that goes on with another value would skip some and repeat
/// others.
const ORDER: [&str; 19] = [
    "assistant_only_loss",
    "chat_template",
    "chat_template_kwargs",
    "completion_only_loss",
    "data_seed",
    "dataloader_drop_last",
    "dataset_prompt_column",
    "dataset_text_field",
    "eos_token",
    "max_length",
    "packing",
    "packing_strategy",
    "pad_token",
    "shuffle_dataset",
    "system_prompt",
    "test_split_size",
    "train_sampling_strategy",
    "truncation_mode",
    "use_peft",
];

/// Options of where things are and what is said: they may differ without a word. Folders and files are compared by what
/// they hold, ranks and batches by the global batch, optimizers by their slots.
const ELSEWHERE: [&str; 80] = [
    "adapter_name_or_path",
    "auto_find_batch_size",
    "bind_core_list",
    "bind_cores_to_rank",
    "chat_template_path",
    "dataset_config",
    "dataset_name",
    "dataset_test_split",
    "dataset_train_split",
    "datasets",
    "ddp_encryption",
    "ddp_secret_file",
    "ddp_timeout",
    "device",
    "disable_tqdm",
    "ep_size",
    "eval_dataset_name",
    "eval_datasets",
    "eval_delay",
    "eval_on_start",
    "eval_packing",
    "eval_steps",
    "eval_strategy",
    "generation_max_sequences",
    "global_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "greater_is_better",
    "hub_always_push",
    "hub_model_id",
    "hub_private_repo",
    "hub_revision",
    "hub_strategy",
    "keep_attention",
    "load_best_model_at_end",
    "log_completions",
    "log_unique_prompts",
    "logging_dir",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
    "max_text_bytes",
    "metric_for_best_model",
    "model_name_or_path",
    "model_revision",
    "nproc",
    "num_completions_to_print",
    "num_generations_eval",
    "output_dir",
    "overwrite_output_dir",
    "per_device_eval_batch_size",
    "per_device_train_batch_size",
    "precompute_ref_batch_size",
    "precompute_ref_dir",
    "precompute_ref_log_probs",
    "push_to_hub",
    "ref_model_name_or_path",
    "report_to",
    "resume_from_checkpoint",
    "resume_strict",
    "reward_command_timeout",
    "rollout_model",
    "rollout_sync",
    "rollout_timeout",
    "rollout_url",
    "row_cache",
    "run_name",
    "sample_prompt",
    "save_only_model",
    "save_steps",
    "save_strategy",
    "save_total_limit",
    "stage3_keep_root",
    "stage3_prefetch",
    "threads",
    "tokenizer_name_or_path",
    "tp_adapter_reduce",
    "tp_size",
    "transport",
    "zero_reduce",
];

/// Digests that are made once, when they are asked for.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    rows: OnceLock<String>,
    base: OnceLock<String>,
}

impl Setup {
    /// The training rows are those of this digest.
    pub(crate) fn rows_are(&self, digest: String) {
        // Rows that are asked for again are the same.
        let _ = self.digests.rows.set(digest);
    }

    /// What a checkpoint keeps of this run, for [`Self::differences`].
    pub(crate) fn facts_of_checkpoint(&self) -> Result<Value, TrainError> {
        Ok(json!({
            "rows": self.digests.rows.get(),
            "base": self.base_digest()?,
            "tokens": token_digest(self.folder.tokenizer_path(), &self.options.preparation),
            "options": self.changed.iter().cloned().collect::<BTreeMap<_, _>>(),
        }))
    }

    /// A digest of the weights that an adapter or a reference rests on: of samples of each of their tensors, since another
    /// training moves all of them. `None` where a checkpoint holds the whole model and nothing else is compared with.
    fn base_digest(&self) -> Result<Option<String>, TrainError> {
        let rests = self.config.is_some() || self.adapter.is_some() || self.options.reference.is_some();
        if !rests {
            return Ok(None);
        }
        if let Some(known) = self.digests.base.get() {
            return Ok(Some(known.clone()));
        }
        let digest = self.folder.sampled_digest()?;
        Ok(Some(self.digests.base.get_or_init(|| digest).clone()))
    }

    /// How this run differs from the one that left `then` in a checkpoint: what forbids to go on, with its value then and
    /// now, and what is worth saying.
    pub(crate) fn differences(&self, then: &Value) -> Result<Differences, TrainError> {
        let mut found = Differences::default();
        let now = self.facts_of_checkpoint()?;
        // A checkpoint of an older version says nothing.
        let Some(options) = then["options"].as_object() else { return Ok(found) };
        for (key, what) in [
            ("rows", "the training rows (a digest of their files)"),
            ("base", "the base model's weights (a digest of samples of them)"),
        ] {
            if let (Some(then), Some(now)) = (then[key].as_str(), now[key].as_str())
                && then != now
            {
                let short = |text: &str| text.chars().take(16).collect();
                found.forbid(what, short(then), short(now));
            }
        }
        if then["tokens"] != now["tokens"] && then["tokens"].is_string() {
            found.said.push("the files of the tokenizer or of its chat template are others".to_owned());
        }
        let now: BTreeMap<&str, &str> = self.changed.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let names: BTreeSet<&str> = options.keys().map(String::as_str).chain(now.keys().copied()).collect();
        for name in names.into_iter().filter(|name| !ELSEWHERE.contains(name)) {
            let word = |value: Option<&str>| value.unwrap_or("its default").to_owned();
            let (then, now) = (options.get(name).and_then(Value::as_str), now.get(name).copied());
            if then == now {
                continue;
            }
            match ORDER.iter().find(|&&order| order == name) {
                Some(order) => found.forbid(order, word(then), word(now)),
                None => found.said.push(format!("{name} was {}, is {}", word(then), word(now))),
            }
        }
        Ok(found)
    }
}

/// How two runs differ.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// The first thing that forbids to go on, then and now.
    pub(crate) forbidden: Option<(&'static str, String, String)>,
    /// What is said.
    pub(crate) said: Vec<String>,
}

impl Differences {
    fn forbid(&mut self, what: &'static str, then: String, now: String) {
        self.forbidden.get_or_insert((what, then, now));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use burnish_config::{
        Command as _, DpoOptions, GrpoOptions, KtoOptions, RewardOptions, RlooOptions, SftOptions,
    };

    use super::*;

    #[test]
    fn every_name_is_an_options() {
        let known: BTreeSet<&str> = [
            SftOptions::default().values(),
            DpoOptions::default().values(),
            KtoOptions::default().values(),
            RewardOptions::default().values(),
            GrpoOptions::default().values(),
            RlooOptions::default().values(),
        ]
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
        .collect();
        let unknown: Vec<_> = ORDER.iter().chain(&ELSEWHERE).filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(ORDER.iter().all(|name| !ELSEWHERE.contains(name)));
    }
}
