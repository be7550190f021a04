//! From the words after a command's name, and the file they name, to its options.

use std::collections::BTreeMap;

use crate::checks::Checks;
use crate::command::Command;
use crate::fault::{self, ConfigError, Fault};
use crate::foreign;
use crate::help;
use crate::invocation::{Invocation, Resolved};
use crate::nearest::{elsewhere, nearest};
use crate::raw::{Raw, is_null_word};
use crate::source::{self, Written};
use crate::table::{COMMANDS, Entry, Mismatch};
use crate::translate::translate;
use crate::value::OptionValue;

/// Reads flags and file, sets options and checks rules; `required` options have to be there. `plans` where nothing is run.
pub(crate) fn parse<C: Command>(
    words: &[String],
    required: &[&str],
    plans: bool,
) -> Result<Invocation<C>, ConfigError> {
    let entries = C::entries();
    let mut faults = Vec::new();
    let flags = source::flags(words, &entries, &mut faults);
    if let Some(topic) = flags.help {
        let Some(topic) = topic else { return Ok(Invocation::Help(C::help())) };
        return help::topic::<C>(&topic).map(Invocation::Help).map_err(|nearest| {
            faults.push(Fault::Topic { topic, command: C::NAME, nearest });
            ConfigError { command: C::NAME, faults }
        });
    }
    let mut written = Vec::new();
    if let Some(path) = &flags.config {
        written = source::file(path, &mut faults);
    }
    written.extend(flags.written);
    let mut notes = Vec::new();
    let written = translate(C::NAME, written, &mut faults, &mut notes);

    let mut noted = Noted::default();
    let mut options = C::default();
    let mut given = BTreeMap::new();
    for Written { name, raw, origin } in &written {
        if faults.len() >= fault::MOST {
            break;
        }
        let meant = source::canonical(name);
        let no_processes = meant == "nproc" && foreign::nothing(raw);
        if meant != name && (*raw == Raw::Null || no_processes) {
            // The older names of options are null in the libraries, and 0 processes are as many as there are.
            continue;
        }
        if scores_texts::<C>(meant, raw) {
            continue;
        }
        if let Some(entry) = entries.iter().find(|entry| entry.name == meant) {
            // As vLLM spells it.
            let everything =
                entry.name == "top_k" && foreign::says(raw, "-1") && entry.default == Raw::Int(0);
            let raw = if everything { &entry.default } else { raw };
            match options.set(entry.name, raw) {
                Some(Ok(())) => {
                    given.insert(entry.name, origin.clone());
                }
                Some(Err(_)) if says_nothing(raw) && null(entry, &mut options) => {
                    given.remove(entry.name);
                }
                Some(Err(Mismatch { expected })) => faults.push(Fault::Type {
                    origin: origin.clone(),
                    name: entry.name,
                    expected,
                    got: raw.to_string(),
                }),
                None => unreachable!("invariant: every entry of a command can be set"),
            }
        } else if let Some(foreign) = foreign::find(meant) {
            if !foreign.takes(raw) {
                faults.push(Fault::Refused {
                    origin: origin.clone(),
                    name: name.clone(),
                    got: raw.to_string(),
                    reason: foreign.reason,
                });
            } else if foreign.is_noted(raw) {
                noted.add(name, foreign.reason);
            }
        } else if let Some((known, of)) = elsewhere(meant) {
            let unused = foreign::UNUSED.iter().find(|foreign| foreign.has(known));
            match unused.filter(|_| C::trains()) {
                _ if foreign::nothing(raw) || is_default_of(known, raw) => {}
                Some(foreign) => noted.add(name, foreign.reason),
                None => {
                    let origin = origin.clone();
                    faults.push(Fault::Elsewhere { origin, name: known, of, command: C::NAME });
                }
            }
        } else {
            faults.push(Fault::Unknown {
                origin: origin.clone(),
                name: name.clone(),
                nearest: nearest(meant, &entries),
            });
        }
    }

    notes.extend(noted.lines());
    let values = options.values();
    let mut checks = Checks::new((&given, &values), plans, &mut faults, &mut notes);
    for name in required {
        checks.required(name, &entries);
    }
    options.check(&mut checks);
    if faults.is_empty() {
        Ok(Invocation::Run(Resolved { options, given, notes }))
    } else {
        Err(ConfigError { command: C::NAME, faults })
    }
}

/// Keys that are noted, by what is said of them.
#[derive(Default)]
struct Noted(Vec<(&'static str, Vec<String>)>);

impl Noted {
    fn add(&mut self, name: &str, reason: &'static str) {
        let at = self.0.iter().position(|(known, _)| *known == reason).unwrap_or_else(|| {
            self.0.push((reason, Vec::new()));
            self.0.len() - 1
        });
        let names = &mut self.0[at].1;
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }

    /// A line for each.
    fn lines(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|(reason, names)| format!("`{}`: {reason}", names.join("`, `")))
    }
}

fn says_nothing(raw: &Raw) -> bool {
    *raw == Raw::Null || matches!(raw, Raw::Text(text) if is_null_word(text))
}

/// Options that are null in the libraries unless they are given, where the type here has no null: then they keep their
/// default. What null means otherwise is beside it.
const NULLABLE: &[(&str, Option<&str>)] = &[
    ("alora_invocation_tokens", None),
    ("bias", None),
    ("dataset_name", None),
    ("dataset_text_field", None),
    ("datasets", None),
    ("dtype", Some("auto")),
    ("gradient_accumulation_steps", None),
    ("gradient_checkpointing", None),
    ("layers_pattern", None),
    ("layers_to_transform", None),
    ("lora_alpha", None),
    ("lora_dropout", None),
    ("lora_modules_to_save", None),
    ("lora_r", None),
    ("lora_target_parameters", None),
    ("max_completion_length", None),
    ("max_grad_norm", Some("0")),
    ("model_name_or_path", None),
    ("model_revision", None),
    ("num_generations", None),
    ("output_dir", None),
    ("push_to_hub", None),
    ("reward_funcs", None),
    ("reward_model_name_or_path", None),
    ("shuffle_dataset", None),
    ("top_k", None),
    ("warmup_steps", None),
    ("zero_stage", None),
];

/// Sets an option to what null means for it; false where it means nothing.
fn null<C: Command>(entry: &Entry, options: &mut C) -> bool {
    let Some((_, meant)) = NULLABLE.iter().find(|(name, _)| *name == entry.name) else { return false };
    let raw = meant.map_or_else(|| entry.default.clone(), |word| Raw::Text(word.to_owned()));
    // A default that is empty is what the options have.
    raw == Raw::Null || matches!(options.set(entry.name, &raw), Some(Ok(())))
}

/// Whether a value is what an option is without being given, in the commands that have it.
fn is_default_of(name: &str, raw: &Raw) -> bool {
    let entries = COMMANDS.iter().flat_map(|command| (command.entries)());
    entries.filter(|entry| entry.name == name).any(|entry| {
        entry.default.plain() == raw.plain()
            || matches!((f64::read(&entry.default), f64::read(raw)), (Some(a), Some(b)) if a == b)
    })
}

/// PEFT's task of a model that scores texts, where such a model is trained.
fn scores_texts<C: Command>(name: &str, raw: &Raw) -> bool {
    C::NAME == "reward" && matches!(name, "lora_task_type" | "task_type") && foreign::says(raw, "SEQ_CLS")
}
