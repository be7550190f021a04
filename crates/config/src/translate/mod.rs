//! Keys that are honoured by what they say in terms of options: a launcher's file becomes `zero_stage` and `nproc`, a dict of
//! keyword arguments its entries, a recipe's mixture `datasets`.

mod budget;
mod deepspeed;
mod keywords;
mod mixture;
mod sharding;

use crate::fault::{Fault, Origin};
use crate::foreign;
use crate::raw::Raw;
use crate::source::Written;

/// The keys, each with what is made of it, in the order of the reference page.
pub const TRANSLATED: &[(&[&str], &str)] = &[
    (
        &["model_init_kwargs", "model_kwargs", "generation_kwargs", "quantization_config"],
        "its entries are options by their own names: dtype, temperature, load_in_4bit and so on",
    ),
    (
        &["dataset_kwargs"],
        "rows with input_ids are taken as they are, whatever skip_prepare_dataset says; TRL reads no other entry any more",
    ),
    (
        &["accelerate_config", "config_file"],
        "zero1, zero2, zero3, fsdp1, fsdp2, multi_gpu, single_gpu, or Accelerate's file: zero_stage, nproc, tp_size",
    ),
    (
        &["deepspeed", "deepspeed_config_file"],
        "DeepSpeed's file or its contents: zero_stage, reduce_bucket_size, stage3_param_persistence_threshold, batch sizes; optim and lr_scheduler_type",
    ),
    (
        &[
            "fsdp",
            "fsdp_config",
            "fsdp_sharding_strategy",
            "fsdp_reshard_after_forward",
            "fsdp_activation_checkpointing",
        ],
        "zero_stage: 2 for SHARD_GRAD_OP, 3 for FULL_SHARD, by ranks and hybrid alike; gradient_checkpointing",
    ),
    (&["parallelism_config"], "tp_size; other axes are refused"),
    (
        &["dataset_mixer", "dataset_splits", "dataset_configs"],
        "datasets and eval_datasets: each data set with its share of rows, its split and configuration",
    ),
    (&["dataset_mixture"], "datasets and test_split_size"),
    (&["lora_target_linear"], "lora_target_modules: all-linear"),
    (&["truncation_side"], "truncation_mode: keep_start for right, keep_end for left"),
    (&["adafactor"], "optim: adafactor"),
    (&["group_by_length"], "train_sampling_strategy: group_by_length"),
    (
        &["max_train_samples", "max_eval_samples"],
        "the first rows of dataset_train_split or dataset_test_split: train[:1000]",
    ),
    (
        &["gamma"],
        "of SimPO's first script, cpo: loss_type: simpo with this simpo_gamma; elsewhere refused, as rewards are not discounted",
    ),
    (
        &["ignore_data_skip"],
        "nothing in a run that is not resumed; refused in one that is, which goes on with the next row",
    ),
    (
        &["gamma_beta_ratio", "sft_weight"],
        "SimPO's script: loss_type: simpo with simpo_gamma = gamma_beta_ratio * beta, and cpo_alpha",
    ),
    (&["rpo_alpha"], "the loss sft after those of loss_type, with this weight in loss_weights"),
    (
        &["total_episodes", "num_mini_batches"],
        "max_steps, from the completions of a step; steps_per_generation",
    ),
    (
        &["sft_model_path"],
        "of TRL's former RLOO: model_name_or_path, where training starts; refused where that names another model",
    ),
];

/// The key as the table has it.
fn known(name: &str) -> Option<&'static str> {
    TRANSLATED.iter().flat_map(|(names, _)| *names).copied().find(|known| *known == name)
}

/// Whether a key is one of these.
pub(crate) fn is_translated(name: &str) -> bool {
    known(name).is_some()
}

/// What is made of written values on the way.
pub(crate) struct Translation<'a> {
    command: &'static str,
    /// In the order in which they count, the last winning.
    out: Vec<Written>,
    /// What a launcher's file says, which any option that is written wins over.
    launched: Vec<Written>,
    faults: &'a mut Vec<Fault>,
    notes: &'a mut Vec<String>,
}

/// A translated key with its place, to speak of.
#[derive(Clone)]
struct Key {
    name: &'static str,
    origin: Origin,
}

/// Replaces every key of [`TRANSLATED`] by what it says.
pub(crate) fn translate(
    command: &'static str,
    written: Vec<Written>,
    faults: &mut Vec<Fault>,
    notes: &mut Vec<String>,
) -> Vec<Written> {
    let mut translation = Translation { command, out: Vec::new(), launched: Vec::new(), faults, notes };
    let (translated, kept): (Vec<_>, Vec<_>) = written.into_iter().partition(|w| is_translated(&w.name));
    translation.out = kept;
    translation.trackers();
    translation.optimizer();
    translation.data_files();
    let find = |name: &str| translated.iter().rev().find(|w| w.name == name);
    let key = |w: &Written| Key { name: known(&w.name).unwrap_or_default(), origin: w.origin.clone() };
    for w in &translated {
        if foreign::nothing(&w.raw) {
            continue;
        }
        let (at, raw) = (key(w), parsed(&w.raw));
        match at.name {
            "model_init_kwargs" | "model_kwargs" | "generation_kwargs" | "quantization_config" => {
                translation.keywords(&at, &raw)
            }
            "dataset_kwargs" => translation.dataset_kwargs(&at, &raw),
            "accelerate_config" | "config_file" => translation.accelerate(&at, &raw),
            "deepspeed" | "deepspeed_config_file" => translation.deepspeed(&at, &raw),
            "fsdp" => translation.fsdp(&at, &raw),
            "fsdp_config" => {
                if find("fsdp").is_some_and(|fsdp| !foreign::nothing(&fsdp.raw)) {
                    translation.fsdp_config(&at, &raw);
                }
            }
            "fsdp_sharding_strategy" | "fsdp_reshard_after_forward" | "fsdp_activation_checkpointing" => {
                if translation.is_on("use_fsdp") {
                    translation.fsdp_entry(&at, at.name, &raw);
                }
            }
            "parallelism_config" => translation.parallelism(&at, &raw),
            "dataset_mixer" => {
                let splits = find("dataset_splits").map(|w| parsed(&w.raw));
                let configs = find("dataset_configs").map(|w| parsed(&w.raw));
                translation.mixer(&at, &raw, splits.as_ref(), configs.as_ref());
            }
            "dataset_splits" | "dataset_configs" => {
                if find("dataset_mixer").is_none() {
                    translation.note(at.name, "it has an effect only with dataset_mixer");
                }
            }
            "dataset_mixture" => translation.mixture(&at, &raw),
            "lora_target_linear" => {
                translation.say(&at, "lora_target_modules", Raw::Text("all-linear".into()))
            }
            "adafactor" => translation.say(&at, "optim", Raw::Text("adafactor".into())),
            "group_by_length" => {
                translation.say(&at, "train_sampling_strategy", Raw::Text("group_by_length".into()));
            }
            "max_train_samples" | "max_eval_samples" => {
                let mixed =
                    ["dataset_mixer", "dataset_mixture", "datasets"].iter().any(|name| find(name).is_some());
                translation.first_rows(&at, mixed, &raw);
            }
            "rpo_alpha" => translation.rpo_alpha(&at, &raw),
            "gamma" => translation.simpo_gamma(&at, &raw),
            "ignore_data_skip" => translation.ignore_data_skip(&at, &raw),
            "gamma_beta_ratio" => translation.gamma_beta_ratio(&at, &raw, find("sft_weight").map(|w| &w.raw)),
            "sft_weight" => {
                if find("gamma_beta_ratio").is_none() {
                    translation.note(at.name, "it has an effect only with gamma_beta_ratio");
                }
            }
            "truncation_side" => translation.truncation_side(&at, &raw),
            "sft_model_path" => translation.sft_model(&at, &raw),
            "total_episodes" | "num_mini_batches" => {}
            other => unreachable!("invariant: `{other}` is one of TRANSLATED"),
        }
    }
    translation.budget(find("total_episodes"), find("num_mini_batches"));
    let Translation { out, launched, .. } = translation;
    launched.into_iter().chain(out).collect()
}

/// A dict or list that stands in a text, as on the command line.
fn parsed(raw: &Raw) -> Raw {
    match raw {
        Raw::Text(text) if text.trim_start().starts_with(['{', '[']) => {
            Raw::from_json(text).unwrap_or_else(|| raw.clone())
        }
        _ => raw.clone(),
    }
}

impl Translation<'_> {
    /// Says an option.
    fn say(&mut self, key: &Key, option: &str, raw: Raw) {
        self.out.push(Written { name: option.to_owned(), raw, origin: key.origin.clone() });
    }

    /// Says an option that any other place wins over.
    fn say_launched(&mut self, key: &Key, option: &str, raw: Raw) {
        self.launched.push(Written { name: option.to_owned(), raw, origin: key.origin.clone() });
    }

    fn note(&mut self, name: &str, reason: &str) {
        self.notes.push(format!("`{name}`: {reason}"));
    }

    fn refuse(&mut self, key: &Key, got: String, reason: &'static str) {
        self.faults.push(Fault::Refused {
            origin: key.origin.clone(),
            name: key.name.to_owned(),
            got,
            reason,
        });
    }

    fn expect(&mut self, key: &Key, expected: &str, raw: &Raw) {
        let (origin, name) = (key.origin.clone(), key.name);
        self.faults.push(Fault::Type { origin, name, expected: expected.to_owned(), got: raw.to_string() });
    }

    /// The last value that was written for an option, under any of its names.
    fn last(&self, option: &str) -> Option<&Raw> {
        self.out.iter().rev().find(|w| crate::source::canonical(&w.name) == option).map(|w| &w.raw)
    }

    fn is_on(&self, name: &str) -> bool {
        self.last(name).is_some_and(|raw| !foreign::nothing(raw))
    }
}
