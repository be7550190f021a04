//! `OptionValue`: types an option can have, parsed from flags and files and printed back.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::raw::{Raw, is_null_word};

/// The shape of an option on the command line and in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `--flag`, `--flag true`, `--no-flag`.
    Bool,
    /// A whole number.
    Int,
    /// Any number.
    Float,
    /// Text.
    Text,
    /// A path.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `auto`, or one of these words.
    AutoOr(&'static [&'static str]),
    /// Several values, separated by spaces or commas.
    List,
    /// A JSON object.
    Map,
}

impl ValueKind {
    /// The placeholder in `--help`: `INT`, `a|b|c`, ...
    #[must_use]
    pub fn placeholder(self) -> String {
        match self {
            Self::Bool => "BOOL".into(),
            Self::Int => "INT".into(),
            Self::Float => "FLOAT".into(),
            Self::Text => "TEXT".into(),
            Self::Path => "PATH".into(),
            Self::Choice(words) => words.join("|"),
            Self::AutoOr(words) => format!("auto|{}", words.join("|")),
            Self::List => "VALUE...".into(),
            Self::Map => "JSON".into(),
        }
    }
}

/// A type that an option may have.
pub trait OptionValue: Sized {
    /// Its shape on the command line.
    const KIND: ValueKind;

    /// What a wrong value is told was expected, as in "expected a whole number".
    fn expected() -> String;

    /// Reads a written value; `None` if it is not one of this type.
    fn read(raw: &Raw) -> Option<Self>;

    /// The value as it would be written. [`Raw::Null`] means "not set".
    fn write(&self) -> Raw;
}

impl OptionValue for bool {
    const KIND: ValueKind = ValueKind::Bool;

    fn expected() -> String {
        "true or false".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Bool(value) => Some(*value),
            Raw::Int(1) => Some(true),
            Raw::Int(0) => Some(false),
            Raw::Text(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Bool(*self)
    }
}

impl OptionValue for i64 {
    const KIND: ValueKind = ValueKind::Int;

    fn expected() -> String {
        "a whole number".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Int(value) => Some(*value),
            Raw::Float(value) => whole(*value),
            Raw::Text(text) => {
                let text = text.trim().replace('_', "");
                text.parse().ok().or_else(|| whole(text.parse().ok()?))
            }
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Int(*self)
    }
}

/// A float that is exactly a whole number within the range where floats count by one.
fn whole(value: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
    (value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0).then_some(value as i64)
}

impl OptionValue for u64 {
    const KIND: ValueKind = ValueKind::Int;

    fn expected() -> String {
        "a whole number that is not negative".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Text(text) => {
                text.trim().replace('_', "").parse().ok().or_else(|| i64::read(raw)?.try_into().ok())
            }
            _ => i64::read(raw)?.try_into().ok(),
        }
    }

    fn write(&self) -> Raw {
        i64::try_from(*self).map_or_else(|_| Raw::Text(self.to_string()), Raw::Int)
    }
}

impl OptionValue for usize {
    const KIND: ValueKind = ValueKind::Int;

    fn expected() -> String {
        u64::expected()
    }

    fn read(raw: &Raw) -> Option<Self> {
        u64::read(raw)?.try_into().ok()
    }

    fn write(&self) -> Raw {
        (*self as u64).write()
    }
}

impl OptionValue for f64 {
    const KIND: ValueKind = ValueKind::Float;

    fn expected() -> String {
        "a number".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            #[expect(
                clippy::cast_precision_loss,
                reason = "a number written for a float is meant as a float"
            )]
            Raw::Int(value) => Some(*value as f64),
            Raw::Float(value) => Some(*value),
            Raw::Text(text) => {
                let text = text.trim().replace('_', "");
                match text.as_str() {
                    ".inf" => Some(f64::INFINITY),
                    "-.inf" => Some(f64::NEG_INFINITY),
                    text => text.parse().ok(),
                }
            }
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Float(*self)
    }
}

impl OptionValue for String {
    const KIND: ValueKind = ValueKind::Text;

    fn expected() -> String {
        "text".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Text(text) => Some(text.clone()),
            // A template or token that happens to look like a number is still text.
            Raw::Int(value) => Some(value.to_string()),
            Raw::Float(value) => Some(format!("{value:?}")),
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        if self.is_empty() { Raw::Null } else { Raw::Text(self.clone()) }
    }
}

impl OptionValue for PathBuf {
    const KIND: ValueKind = ValueKind::Path;

    fn expected() -> String {
        "a path".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let text = String::read(raw)?;
        let home = text.strip_prefix("~/").and_then(|rest| Some(std::env::home_dir()?.join(rest)));
        Some(home.unwrap_or_else(|| Self::from(text)))
    }

    fn write(&self) -> Raw {
        self.to_string_lossy().into_owned().write()
    }
}

impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: ValueKind = T::KIND;

    fn expected() -> String {
        format!("{} or null", T::expected())
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Null => Some(None),
            Raw::Text(text) if is_null_word(text) => Some(None),
            _ => T::read(raw).map(Some),
        }
    }

    fn write(&self) -> Raw {
        self.as_ref().map_or(Raw::Null, T::write)
    }
}

impl OptionValue for Vec<String> {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "a list of texts".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        list(raw)
    }

    fn write(&self) -> Raw {
        Raw::List(self.iter().map(|text| Raw::Text(text.clone())).collect())
    }
}

impl OptionValue for Vec<usize> {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "a list of whole numbers".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        list(raw)
    }

    fn write(&self) -> Raw {
        Raw::List(self.iter().map(OptionValue::write).collect())
    }
}

impl OptionValue for Vec<f64> {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "a list of numbers".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        list(raw)
    }

    fn write(&self) -> Raw {
        Raw::List(self.iter().map(OptionValue::write).collect())
    }
}

/// A list, a JSON list in text, words separated by commas or spaces, or one value standing for a list of one.
pub(crate) fn list<T: OptionValue>(raw: &Raw) -> Option<Vec<T>> {
    match raw {
        Raw::List(items) => {
            let mut values = Vec::new();
            for item in items {
                match item {
                    Raw::Text(text) => values.extend(split(text).map(word::<T>).collect::<Option<Vec<T>>>()?),
                    other => values.push(T::read(other)?),
                }
            }
            Some(values)
        }
        Raw::Text(text) if text.trim_start().starts_with('[') => {
            match Raw::from_json(text) {
                Some(parsed @ Raw::List(_)) => list(&parsed),
                // A regular expression may begin with a bracket too.
                _ => Some(vec![T::read(raw)?]),
            }
        }
        Raw::Text(text) => split(text).flat_map(pieces).map(word::<T>).collect::<Option<Vec<T>>>(),
        Raw::Null | Raw::Bool(_) | Raw::Map(_) => None,
        one => Some(vec![T::read(one)?]),
    }
}

fn word<T: OptionValue>(text: &str) -> Option<T> {
    T::read(&Raw::Text(text.to_owned()))
}

fn pieces(part: &str) -> impl Iterator<Item = &str> {
    part.split_whitespace()
}

/// Splits at commas, unless the text is a regular expression, whose commas are its own.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let whole = is_pattern(text);
    text.split(move |c| c == ',' && !whole).map(str::trim).filter(|part| !part.is_empty())
}

/// Whether a module name uses the syntax of regular expressions. A plain dot is part of many names and does not count.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['(', ')', '[', ']', '{', '}', '|', '*', '+', '?', '\\', '^', '$'])
}

/// Numbers by pattern, as PEFT's `rank_pattern` and `alpha_pattern`.
impl OptionValue for BTreeMap<String, f64> {
    const KIND: ValueKind = ValueKind::Map;

    fn expected() -> String {
        "a mapping from module patterns to numbers".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        map(raw)
    }

    fn write(&self) -> Raw {
        Raw::Map(self.iter().map(|(key, value)| (key.clone(), value.write())).collect())
    }
}

impl OptionValue for BTreeMap<String, usize> {
    const KIND: ValueKind = ValueKind::Map;

    fn expected() -> String {
        "a mapping from module patterns to whole numbers".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        map(raw)
    }

    fn write(&self) -> Raw {
        Raw::Map(self.iter().map(|(key, value)| (key.clone(), value.write())).collect())
    }
}

fn map<T: OptionValue>(raw: &Raw) -> Option<BTreeMap<String, T>> {
    match raw {
        Raw::Null => Some(BTreeMap::new()),
        Raw::Map(entries) => {
            entries.iter().map(|(key, value)| Some((key.clone(), T::read(value)?))).collect()
        }
        Raw::Text(text) => map(&Raw::from_json(text).filter(|parsed| matches!(parsed, Raw::Map(_)))?),
        _ => None,
    }
}
