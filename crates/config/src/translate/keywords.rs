//! Dicts of keyword arguments, trackers, and the side that is cut.

use super::{Key, Translation, is_translated};
use crate::commands::COMMANDS;
use crate::fault::Fault;
use crate::foreign;
use crate::raw::Raw;
use crate::source::{Written, canonical};
use crate::value::OptionValue;

/// Trackers of Transformers that burnish does not write for.
const TRACKERS: &[&str] = &[
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "kubeflow",
    "neptune",
    "swanlab",
    "trackio",
];

/// Optimizers by how their names begin, and why they are not here.
const OPTIMIZERS: &[(&str, &str)] = &[
    (
        "galore",
        "it takes apart every gradient by a singular value decomposition; adafactor and adamw_8bit need little memory too",
    ),
    ("apollo", "it projects gradients; adafactor and adamw_8bit need little memory too"),
    ("lomo", "it updates weights within the backward pass; adafactor and sgd need little memory too"),
    ("adalomo", "it updates weights within the backward pass; adafactor and sgd need little memory too"),
    ("adamw_torch_4bit", "its states have four bits; set adamw_8bit"),
    ("adamw_torch_8bit", "its eight bits are torchao's; adamw_8bit are those of bitsandbytes"),
];

/// The default of `beta` in SimPO's script.
const SIMPO_BETA: f64 = 2.0;

impl Translation<'_> {
    /// Each entry as if it were written by itself.
    pub(super) fn keywords(&mut self, key: &Key, raw: &Raw) {
        let Raw::Map(entries) = raw else { return self.expect(key, "a mapping", raw) };
        for (name, raw) in entries {
            let name = match (key.name, name.as_str()) {
                ("generation_kwargs", "max_new_tokens") => "max_completion_length",
                ("generation_kwargs", "do_sample") if *raw == Raw::Bool(true) => continue,
                (_, "quantization_config") if !raw.is_nothing() => {
                    self.keywords(key, raw);
                    continue;
                }
                (_, "revision") => "model_revision",
                (_, name) => name,
            };
            let option = canonical(name);
            let is_option =
                COMMANDS.iter().any(|command| (command.entries)().iter().any(|entry| entry.name == option));
            if is_option || is_translated(name) || foreign::find(name).is_some() {
                self.say(key, name, raw.clone());
            } else {
                let (origin, name) = (key.origin.clone(), format!("{}.{name}", key.name));
                self.faults.push(Fault::Unknown { origin, name, nearest: None });
            }
        }
    }

    pub(super) fn dataset_kwargs(&mut self, key: &Key, raw: &Raw) {
        let Raw::Map(entries) = raw else { return self.expect(key, "a mapping", raw) };
        for (name, raw) in entries {
            match name.as_str() {
                "skip_prepare_dataset" | "add_special_tokens" | "append_concat_token" => {
                    if name != "skip_prepare_dataset" || !foreign::nothing(raw) {
                        self.note(
                            "dataset_kwargs",
                            "rows become tokens as TRL 1.16 makes them; rows with input_ids are taken as they are",
                        );
                        return;
                    }
                }
                _ => self.refuse(key, format!("{name}: {raw}"), "write the option itself; take it out here"),
            }
        }
    }

    /// Takes trackers that are not there out of `report_to`; metrics.jsonl is written for them.
    pub(super) fn trackers(&mut self) {
        let Some(at) = self.out.iter().rposition(|w| canonical(&w.name) == "report_to") else { return };
        let Some(words) = Vec::<String>::read(&self.out[at].raw) else { return };
        let (other, kept): (Vec<_>, Vec<_>) =
            words.into_iter().partition(|word| TRACKERS.contains(&word.to_ascii_lowercase().as_str()));
        if other.is_empty() {
            return;
        }
        self.note(
            "report_to",
            &format!("{} can import metrics.jsonl, which is always written", other.join(", ")),
        );
        let kept = if kept.is_empty() { vec!["none".to_owned()] } else { kept };
        self.out[at].raw = Raw::List(kept.into_iter().map(Raw::Text).collect());
    }

    /// Refuses optimizers that Transformers knows and burnish does not have, each for its reason.
    pub(super) fn optimizer(&mut self) {
        let Some(at) = self.out.iter().rposition(|w| canonical(&w.name) == "optim") else { return };
        let word = self.out[at].raw.plain().to_lowercase();
        let Some((_, reason)) = OPTIMIZERS.iter().find(|(begin, _)| word.starts_with(begin)) else { return };
        let Written { origin, .. } = self.out.remove(at);
        self.faults.push(Fault::Refused { origin, name: "optim".into(), got: word, reason });
    }

    /// TRL's older weight of the chosen completions' own loss beside that of pairs.
    pub(super) fn rpo_alpha(&mut self, key: &Key, raw: &Raw) {
        let losses = self.last("loss_type").cloned().unwrap_or_else(|| Raw::Text("sigmoid".into()));
        let Some(mut losses) = Vec::<String>::read(&losses) else { return };
        if self.last("loss_weights").is_some_and(|weights| !weights.is_nothing()) {
            return self.refuse(key, raw.to_string(), "add sft to loss_type and its weight to loss_weights");
        }
        let mut weights = vec![Raw::Float(1.0); losses.len()];
        weights.push(raw.clone());
        losses.push("sft".into());
        self.say(key, "loss_type", Raw::List(losses.into_iter().map(Raw::Text).collect()));
        self.say(key, "loss_weights", Raw::List(weights));
    }

    /// SimPO's margin as its script has it: a part of beta.
    pub(super) fn gamma_beta_ratio(&mut self, key: &Key, raw: &Raw, sft_weight: Option<&Raw>) {
        if self.command != "cpo" {
            let mend = "SimPO is a loss of `burnish cpo`, which reads this file as it is";
            return self.refuse(key, raw.to_string(), mend);
        }
        let beta = self.last("beta").map_or(Some(SIMPO_BETA), f64::read);
        let (Some(ratio), Some(beta)) = (f64::read(raw), beta) else {
            return self.expect(key, "a number", raw);
        };
        self.simpo(key, ratio * beta, sft_weight);
    }

    /// The margin itself, as the script's first version has it.
    pub(super) fn simpo_gamma(&mut self, key: &Key, raw: &Raw) {
        if self.command != "cpo" {
            let mend =
                "rewards are not discounted here; write what a completion is worth as a reward function";
            return self.refuse(key, raw.to_string(), mend);
        }
        match f64::read(raw) {
            Some(gamma) => self.simpo(key, gamma, None),
            None => self.expect(key, "a number", raw),
        }
    }

    /// The loss of SimPO's script, which averages over tokens whatever its `loss_type`.
    fn simpo(&mut self, key: &Key, gamma: f64, sft_weight: Option<&Raw>) {
        let loss = self.last("loss_type").and_then(String::read).unwrap_or_else(|| "sigmoid".into());
        match loss.as_str() {
            "sigmoid" => self.say(key, "loss_type", Raw::Text("simpo".into())),
            "simpo" | "alphapo" => {}
            _ => return self.refuse(key, format!("loss_type: {loss}"), "use loss_type: sigmoid or simpo"),
        }
        if self.last("beta").is_none() {
            self.say(key, "beta", Raw::Float(SIMPO_BETA));
        }
        self.say(key, "simpo_gamma", Raw::Float(gamma));
        self.say(key, "cpo_alpha", sft_weight.cloned().unwrap_or(Raw::Float(0.0)));
    }

    pub(super) fn ignore_data_skip(&mut self, key: &Key, raw: &Raw) {
        if self.is_on("resume_from_checkpoint") {
            self.refuse(key, raw.to_string(), "a resumed run goes on with the next row; take it out");
        } else {
            self.note(key.name, "it has an effect only on a run that is resumed");
        }
    }

    /// The model that TRL's former RLOO trained, beside one that gave the tokenizer.
    pub(super) fn sft_model(&mut self, key: &Key, raw: &Raw) {
        match self.last("model_name_or_path") {
            None => self.say(key, "model_name_or_path", raw.clone()),
            Some(model) if model.plain() == raw.plain() => {
                self.note(key.name, "training starts from model_name_or_path, which names the same model");
            }
            Some(_) => {
                self.refuse(
                    key,
                    raw.to_string(),
                    "training starts from model_name_or_path: name this model there",
                );
            }
        }
    }

    pub(super) fn truncation_side(&mut self, key: &Key, raw: &Raw) {
        let mode = match raw {
            Raw::Text(side) if side == "right" => "keep_start",
            Raw::Text(side) if side == "left" => "keep_end",
            _ => return self.expect(key, "left or right", raw),
        };
        let command = COMMANDS.iter().find(|command| command.name == self.command);
        if command.is_some_and(|c| (c.entries)().iter().any(|entry| entry.name == "truncation_mode")) {
            let raw = Raw::Text(mode.into());
            self.out.push(Written { name: "truncation_mode".into(), raw, origin: key.origin.clone() });
        } else {
            self.note(key.name, "rows of this trainer are not cut");
        }
    }
}
