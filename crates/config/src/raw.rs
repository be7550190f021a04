//! A value as it was written, before an option gives it a type.
//!
//! YAML, TOML, JSON and the command line all become [`Raw`]. Numbers written as text stay text here: the option that
//! receives them decides, so `1e-5` (a string by YAML 1.1's rules) and `1.0e-5` mean the same learning rate.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value as written in a file or on the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// `null`, `~`, or an empty YAML value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text, quoted or plain. Everything on the command line is text.
    Text(String),
    /// A sequence.
    List(Vec<Raw>),
    /// A mapping, in written order.
    Map(Vec<(String, Raw)>),
}

impl Raw {
    /// Reads JSON text.
    #[must_use]
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The value as people write it: text without quotes.
    #[must_use]
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Whether this says "nothing": null, an empty text, list or mapping, or the words `none` and `null`.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.is_empty() || is_null_word(text),
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => false,
        }
    }
}

/// The ways people write "no value" in a config: YAML's, JSON's and Python's.
pub(crate) fn is_null_word(text: &str) -> bool {
    matches!(text, "null" | "Null" | "NULL" | "~" | "none" | "None" | "NONE")
}

/// Writes the value the way an error message quotes it.
impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{item}")?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{key:?}: {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a null, boolean, number, text, list or mapping")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        // A seed may use all 64 bits; as text it still reaches an option of type u64 unharmed.
        Ok(i64::try_from(value).map_or_else(|_| Raw::Text(value.to_string()), Raw::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry::<String, Raw>()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

impl From<&Raw> for serde_json::Value {
    fn from(raw: &Raw) -> Self {
        match raw {
            Raw::Null => Self::Null,
            Raw::Bool(value) => Self::Bool(*value),
            Raw::Int(value) => Self::from(*value),
            Raw::Float(value) => Self::from(*value),
            Raw::Text(value) => Self::from(value.as_str()),
            Raw::List(items) => Self::Array(items.iter().map(Self::from).collect()),
            Raw::Map(entries) => {
                Self::Object(entries.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect())
            }
        }
    }
}
