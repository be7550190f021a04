//! Reading flags and files into names and raw values, before any option gives them a type.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_saphyr::options::DuplicateKeyPolicy;

use crate::fault::{Fault, Origin};
use crate::foreign;
use crate::nearest::elsewhere;
use crate::raw::Raw;
use crate::table::Entry;
use crate::translate::is_translated;
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
    /// Help is asked for, of everything or of a topic.
    pub(crate) help: Option<Option<String>>,
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
            let topic = words.get(at).filter(|word| !word.starts_with('-'));
            at += usize::from(topic.is_some());
            flags.help = Some(topic.cloned());
            continue;
        }
        let Some(body) = word.strip_prefix("--").filter(|body| !body.is_empty()) else {
            // alignment-handbook's scripts take the file as their first word.
            if at == 1 && format_of(Path::new(word)).is_some() {
                flags.config = Some(word.into());
            } else {
                faults.push(Fault::Stray { word: word.clone() });
            }
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
            && !known_elsewhere(&name)
            && (kind_of(positive, entries) == Some(ValueKind::Bool) || known_elsewhere(positive))
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
            // that one mistake is reported once. What is only noted has one value, unless it is a list.
            (None, None) => {
                let most = if foreign::is_one_value(&name) { 1 } else { usize::MAX };
                let mut items = Vec::new();
                while items.len() < most
                    && let Some(item) = take_word(words, &mut at)
                {
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

/// Whether a name is known that is not an option of the command.
fn known_elsewhere(name: &str) -> bool {
    is_translated(name) || foreign::find(name).is_some() || elsewhere(name).is_some()
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

/// A file's entries, with its text.
pub(crate) struct Mapping {
    pub(crate) entries: Vec<(String, Raw)>,
    text: String,
}

/// The formats of a configuration file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// YAML, and JSON as a part of it.
    Yaml,
    Toml,
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "yaml" | "yml" | "json" => Some(Format::Yaml),
        "toml" => Some(Format::Toml),
        _ => None,
    }
}

/// Reads a file of keys and values.
pub(crate) fn mapping(path: &Path) -> Result<Mapping, Fault> {
    let format = format_of(path).ok_or_else(|| Fault::Format { path: path.to_owned() })?;
    let text = burnish_core::file::read_to_string(path)
        .map_err(|cause| Fault::Unreadable { path: path.to_owned(), cause })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    let parsed = match format {
        Format::Toml => toml::from_str::<Raw>(&text)
            .map_err(|cause| Fault::Toml { path: path.to_owned(), cause: Box::new(cause) })?,
        Format::Yaml => {
            // `yes` and `off` are read by the options that are switches; for others `y` is a text, as PyYAML has it.
            let read = |policy| {
                let options = serde_saphyr::options! { strict_booleans: true, duplicate_keys: policy };
                serde_saphyr::from_str_with_options::<Raw>(&text, options)
            };
            match read(DuplicateKeyPolicy::Error) {
                Ok(parsed) => parsed,
                // A key that says the same thing twice says it.
                Err(cause) => {
                    let first = read(DuplicateKeyPolicy::FirstWins).ok();
                    let last = read(DuplicateKeyPolicy::LastWins).ok();
                    let agree = first.clone().map(by_key) == last.map(by_key);
                    first.filter(|_| agree).ok_or_else(|| yaml_fault(path, &text, cause))?
                }
            }
        }
    };
    let entries = match parsed {
        Raw::Map(entries) => entries,
        Raw::Null => Vec::new(),
        Raw::Text(nothing) if nothing.is_empty() => Vec::new(),
        other => return Err(Fault::NotAMapping { path: path.to_owned(), got: other.to_string() }),
    };
    Ok(Mapping { entries, text })
}

/// A value whose mappings are in the order of their keys, each entry once.
fn by_key(raw: Raw) -> Raw {
    match raw {
        Raw::Map(entries) => {
            let mut entries: Vec<_> = entries.into_iter().map(|(key, value)| (key, by_key(value))).collect();
            entries.sort_by(|one, other| one.0.cmp(&other.0));
            entries.dedup();
            Raw::Map(entries)
        }
        Raw::List(values) => Raw::List(values.into_iter().map(by_key).collect()),
        other => other,
    }
}

/// What YAML's reader says; a key that is written twice, with both lines.
fn yaml_fault(path: &Path, text: &str, cause: serde_saphyr::Error) -> Fault {
    if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } = cause.without_snippet() {
        let second = usize::try_from(location.line()).unwrap_or(0);
        let indent = |line: &str| line.len() - line.trim_start().len();
        let lines: Vec<&str> = text.lines().collect();
        let depth = lines.get(second.wrapping_sub(1)).map_or(0, |line| indent(line));
        let mut before = lines.iter().take(second.saturating_sub(1));
        let first = before.rposition(|line| indent(line) == depth && begins_with_key(line, key));
        return Fault::Duplicate {
            path: path.to_owned(),
            name: key.clone(),
            first: first.map_or(second, |at| at + 1),
            second,
        };
    }
    Fault::Yaml { path: path.to_owned(), cause: Box::new(cause) }
}

/// Reads a configuration file.
pub(crate) fn file(path: &Path, faults: &mut Vec<Fault>) -> Vec<Written> {
    let Mapping { entries, text } = match mapping(path) {
        Ok(read) => read,
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
    Some(text.lines().position(|line| begins_with_key(line, key))? + 1)
}

fn begins_with_key(line: &str, key: &str) -> bool {
    let line = line.trim_start_matches(['"', '\'', '{', ' ']);
    line.strip_prefix(key)
        .is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ', '\t']).starts_with([':', '=']))
}
