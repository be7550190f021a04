//! Keys of TRL, Transformers, PEFT and Accelerate that are not options here, and what becomes of each.
//!
//! A key that a config or a command line names has one of three fates. It is honoured: as an option, under another
//! spelling of one ([`ALIASES`]), or by what it says in terms of options ([`TRANSLATED`]). It is noted ([`NOTED`]): it
//! changes no result here, or has an equivalent; a line at the start says which, and the run goes on. Or it is refused
//! ([`REFUSED`]), since a run without it would be another run; values that ask for nothing are accepted.

mod noted;
mod refused;

use crate::raw::Raw;

pub use crate::translate::TRANSLATED;
pub use noted::{NOTED, UNUSED};
pub use refused::REFUSED;

/// Keys that burnish knows but does not have, for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// The keys; one that ends in `*` stands for all that begin so.
    pub names: &'static [&'static str],
    /// What becomes of them.
    pub fate: Fate,
    /// What replaces them, or why they are refused.
    pub reason: &'static str,
}

/// What becomes of a key that is not an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is said that the key does nothing here, and the run goes on.
    Noted,
    /// It is refused, unless it says nothing (null, false, 0, empty) or one of these words.
    RefusedBut(&'static [&'static str]),
}

impl Foreign {
    /// Whether the run can go on with this value.
    #[must_use]
    pub fn takes(&self, raw: &Raw) -> bool {
        match self.fate {
            Fate::Noted => true,
            Fate::RefusedBut(words) => nothing(raw) || words.iter().any(|word| says(raw, word)),
        }
    }

    /// Whether this value is worth a line.
    #[must_use]
    pub fn is_noted(&self, raw: &Raw) -> bool {
        self.fate == Fate::Noted && !nothing(raw)
    }

    /// Whether one of the keys is this one.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => *known == name,
        })
    }
}

/// Whether a value asks for nothing.
pub(crate) fn nothing(raw: &Raw) -> bool {
    raw.is_nothing()
        || match raw {
            Raw::Bool(value) => !value,
            Raw::Int(value) => *value == 0,
            Raw::Float(value) => *value == 0.0,
            Raw::Text(text) => {
                matches!(text.to_ascii_lowercase().as_str(), "false" | "no" | "0" | "0.0" | "{}" | "[]")
            }
            Raw::List(items) => items.iter().all(nothing),
            Raw::Null | Raw::Map(_) => false,
        }
}

/// Whether a value is this word, number or boolean, alone or in a list.
pub(crate) fn says(raw: &Raw, word: &str) -> bool {
    match raw {
        Raw::Text(text) => text.eq_ignore_ascii_case(word),
        Raw::Float(value) => word.parse() == Ok(*value),
        Raw::Bool(_) | Raw::Int(_) => raw.to_string() == word,
        Raw::List(items) => matches!(items.as_slice(), [one] if says(one, word)),
        Raw::Null | Raw::Map(_) => false,
    }
}

/// Every key that is noted or refused.
pub fn all() -> impl Iterator<Item = &'static Foreign> {
    NOTED.iter().chain(REFUSED)
}

/// What becomes of a key, by its name.
pub(crate) fn find(name: &str) -> Option<&'static Foreign> {
    all().find(|foreign| foreign.names.contains(&name)).or_else(|| all().find(|foreign| foreign.has(name)))
}

/// Keys that are noted and take several words.
const LISTS: &[&str] = &["debug", "include_for_metrics", "label_names", "tags"];

/// Whether a key is noted and takes one word.
pub(crate) fn is_one_value(name: &str) -> bool {
    find(name).is_some_and(|key| key.fate == Fate::Noted) && !LISTS.contains(&name)
}

/// Older or newer names of options that burnish has: (written, meant). Null under such a name says nothing.
pub const ALIASES: &[(&str, &str)] = &[
    ("activation_checkpointing", "gradient_checkpointing"),
    ("adapter_path", "adapter_name_or_path"),
    ("batch_size", "per_device_train_batch_size"),
    ("bnb_4bit_use_double_quant", "use_bnb_nested_quant"),
    ("cliprange", "epsilon"),
    ("data_path", "dataset_name"),
    ("dataset", "dataset_name"),
    ("dataset_id_or_path", "dataset_name"),
    ("dataset_path", "dataset_name"),
    ("dataset_split", "dataset_train_split"),
    ("eval_data", "eval_dataset_name"),
    ("eval_data_path", "eval_dataset_name"),
    ("eval_dataset", "eval_dataset_name"),
    ("eval_dataset_id_or_path", "eval_dataset_name"),
    ("eval_dataset_path", "eval_dataset_name"),
    ("eval_dataset_split", "dataset_test_split"),
    ("evaluation_strategy", "eval_strategy"),
    ("hub_model_revision", "hub_revision"),
    ("kl_coef", "beta"),
    ("log_with", "report_to"),
    ("max_completion_len", "overlong_max_completion_len"),
    ("max_seq_len", "max_length"),
    ("max_seq_length", "max_length"),
    ("max_train_steps", "max_steps"),
    ("model", "model_name_or_path"),
    ("model_id", "model_name_or_path"),
    ("model_name", "model_name_or_path"),
    ("model_path", "model_name_or_path"),
    ("modules_to_save", "lora_modules_to_save"),
    ("nproc_per_node", "nproc"),
    ("num_gpus", "nproc"),
    ("num_ppo_epochs", "num_iterations"),
    ("num_processes", "nproc"),
    ("optimizer_type", "optim"),
    ("parallelism_config_tp_size", "tp_size"),
    ("peft_enabled", "use_peft"),
    ("peft_lora_alpha", "lora_alpha"),
    ("peft_lora_r", "lora_r"),
    ("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
    ("per_gpu_train_batch_size", "per_device_train_batch_size"),
    ("private", "hub_private_repo"),
    ("push_to_hub_model_id", "hub_model_id"),
    ("push_to_hub_revision", "hub_revision"),
    ("r", "lora_r"),
    ("ref_model", "ref_model_name_or_path"),
    ("ref_model_name", "ref_model_name_or_path"),
    ("repetition_n_grams", "repetition_ngram_size"),
    ("response_length", "max_completion_length"),
    ("reward_model_path", "reward_model_name_or_path"),
    ("rloo_k", "num_generations"),
    ("scheduler_specific_kwargs", "lr_scheduler_kwargs"),
    ("seq_length", "max_length"),
    ("soft_punish_cache", "overlong_soft_punish_cache"),
    ("split", "dataset_train_split"),
    ("target_modules", "lora_target_modules"),
    ("target_parameters", "lora_target_parameters"),
    ("test_size", "test_split_size"),
    ("text_column", "dataset_text_field"),
    ("tokenizer", "tokenizer_name_or_path"),
    ("tokenizer_name", "tokenizer_name_or_path"),
    ("torch_dtype", "dtype"),
    ("train_data_path", "dataset_name"),
    ("train_dataset", "dataset_name"),
    ("train_file", "dataset_name"),
    ("train_split", "dataset_train_split"),
    ("use_4bit", "load_in_4bit"),
    ("use_8bit", "load_in_8bit"),
    ("use_lora", "use_peft"),
    ("use_nested_quant", "use_bnb_nested_quant"),
    ("use_packing", "packing"),
    ("use_qlora", "load_in_4bit"),
    ("validation_file", "eval_dataset_name"),
    ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"),
    ("vllm_server_base_url", "rollout_url"),
    ("vllm_server_timeout", "rollout_timeout"),
];
