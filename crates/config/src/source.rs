//! Reading flags and files into names and raw values, before any option gives them a type.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fault::{Fault, Origin};
use crate::foreign;
use crate::raw::Raw;
use crate::table::Entry;
use crate::value::{OptionValue, ValueKind};

/// A value as written, with its place.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// The name as written, with `-` turned into `_`.
    pub(crate) name: String,
    /// The value.
    pub(crate) raw: Raw,
    /// Where.
    pub(crate) origin: Origin,
}

/// What the command line says.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) written: Vec<Written>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) help: bool,
}

/// Resolves an alias to the option it means.
pub(crate) fn canonical(name: &str) -> &str {
    foreign::ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, meant)| meant)
}

/// Reads the words after the command's name.
pub(crate) fn flags(words: &[String], entries: &[Entry], faults: &mut Vec<Fault>) -> Flags {
    let mut flags = Flags::default();
    let mut at = 0;
    while at < words.len() {
        let word = &words[at];
        at += 1;
        if word == "-h" || word == "--help" {
            flags.help = true;
            continue;
        }
        let Some(body) = word.strip_prefix("--").filter(|body| !body.is_empty()) else {
            faults.push(Fault::Stray { word: word.clone() });
            continue;
        };
        let (name, inline) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        let mut name = name.replace('-', "_");
        if name == "config" {
            match inline.or_else(|| take_word(words, &mut at)) {
                Some(path) => flags.config = Some(path.into()),
                None => faults.push(Fault::MissingValue { name: "config", expected: PathBuf::expected() }),
            }
            continue;
        }
        let mut kind = kind_of(&name, entries);
        let mut negated = false;
        if let (None, Some(positive)) = (kind, name.strip_prefix("no_"))
            && kind_of(positive, entries) == Some(ValueKind::Bool)
        {
            negated = true;
            kind = Some(ValueKind::Bool);
            name = positive.to_owned();
        }
        let raw = match (inline, kind) {
            (Some(value), _) if !negated => Raw::Text(value),
            (Some(value), _) => match bool::read(&Raw::Text(value.clone())) {
                Some(value) => Raw::Bool(!value),
                None => Raw::Text(value),
            },
            (None, Some(ValueKind::Bool)) => {
                let value = words.get(at).and_then(|next| bool::read(&Raw::Text(next.clone())));
                at += usize::from(value.is_some());
                Raw::Bool(value.unwrap_or(true) != negated)
            }
            (None, Some(ValueKind::List)) => {
                let mut items = Vec::new();
                while let Some(item) = take_word(words, &mut at) {
                    items.push(Raw::Text(item));
                }
                match items.len() {
                    0 => {
                        missing(&name, entries, faults);
                        continue;
                    }
                    1 => items.remove(0),
                    _ => Raw::List(items),
                }
            }
            (None, Some(_)) => match take_word(words, &mut at) {
                Some(value) => Raw::Text(value),
                None => {
                    missing(&name, entries, faults);
                    continue;
                }
            },
            // An option of TRL's that burnish does not have, or an unknown one: take the words that belong to it, so
            // that one mistake is reported once.
            (None, None) => {
                let mut items = Vec::new();
                while let Some(item) = take_word(words, &mut at) {
                    items.push(Raw::Text(item));
                }
                match items.len() {
                    0 => Raw::Bool(true),
                    1 => items.remove(0),
                    _ => Raw::List(items),
                }
            }
        };
        flags.written.push(Written { name, raw, origin: Origin::Flag });
    }
    flags
}

fn kind_of(name: &str, entries: &[Entry]) -> Option<ValueKind> {
    let name = canonical(name);
    entries.iter().find(|entry| entry.name == name).map(|entry| entry.kind)
}

fn missing(name: &str, entries: &[Entry], faults: &mut Vec<Fault>) {
    let name = canonical(name);
    if let Some(entry) = entries.iter().find(|entry| entry.name == name) {
        faults.push(Fault::MissingValue { name: entry.name, expected: entry.kind.placeholder() });
    }
}

/// The next word, unless it is a flag. A lone `-` and negative numbers are values.
fn take_word(words: &[String], at: &mut usize) -> Option<String> {
    let word = words.get(*at)?;
    if word.starts_with("--") || word == "-h" {
        return None;
    }
    *at += 1;
    Some(word.clone())
}

/// Reads a configuration file.
pub(crate) fn file(path: &Path, faults: &mut Vec<Fault>) -> Vec<Written> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    let toml = match extension.as_str() {
        "yaml" | "yml" | "json" => false,
        "toml" => true,
        _ => {
            faults.push(Fault::Format { path: path.to_owned() });
            return Vec::new();
        }
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) => {
            faults.push(Fault::Unreadable { path: path.to_owned(), cause });
            return Vec::new();
        }
    };
    let parsed = if toml {
        toml::from_str::<Raw>(&text)
            .map_err(|cause| Fault::Toml { path: path.to_owned(), cause: Box::new(cause) })
    } else {
        serde_saphyr::from_str::<Raw>(&text)
            .map_err(|cause| Fault::Yaml { path: path.to_owned(), cause: Box::new(cause) })
    };
    let entries = match parsed {
        Ok(Raw::Map(entries)) => entries,
        Ok(Raw::Null) => Vec::new(),
        Ok(Raw::Text(nothing)) if nothing.is_empty() => Vec::new(),
        Ok(other) => {
            faults.push(Fault::NotAMapping { path: path.to_owned(), got: other.to_string() });
            return Vec::new();
        }
        Err(fault) => {
            faults.push(fault);
            return Vec::new();
        }
    };
    let path = Arc::new(path.to_owned());
    entries
        .into_iter()
        .map(|(key, raw)| {
            let line = line_of(&text, &key);
            let name = key.strip_prefix("--").unwrap_or(&key).replace('-', "_");
            Written { name, raw, origin: Origin::File { path: Arc::clone(&path), line } }
        })
        .collect()
}

/// The line on which a top-level key stands.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let at = text.lines().position(|line| {
        let line = line.trim_start_matches(['"', '\'', '{', ' ']);
        line.strip_prefix(key)
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ', '\t']).starts_with([':', '=']))
    })?;
    Some(at + 1)
}
