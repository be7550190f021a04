//! `config.json`, read key by key and written back as it was.

use std::path::Path;

use serde_json::{Map, Value};

use crate::ModelError;

/// The file's name.
pub(crate) const CONFIG: &str = "config.json";

/// A configuration file, lossless.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    /// All keys, in file order.
    pub json: Map<String, Value>,
}

impl ConfigFile {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// If it is missing, unreadable or not a JSON object.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join(CONFIG);
        let bytes = match burnish_core::file::read_json(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(ModelError::Missing { path }),
            Err(source) => return Err(ModelError::Read { path, source }),
        };
        let json = match serde_json::from_slice(&bytes) {
            Ok(json) => json,
            Err(source) => {
                serde_json::from_slice(&spelled_out(&bytes)).map_err(|_| ModelError::Json { path, source })?
            }
        };
        Ok(Self { json })
    }

    /// A key that is present and not null.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.json.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn usize(&self, key: &str) -> Result<Option<usize>, ModelError> {
        read(self.get(key), key, "a non-negative integer", |v| v.as_u64().map(|n| n as usize))
    }

    pub(crate) fn require_usize(&self, key: &str) -> Result<usize, ModelError> {
        self.usize(key)?.ok_or_else(|| ModelError::Key {
            file: CONFIG,
            key: key.to_owned(),
            got: "missing".to_owned(),
            expected: "a positive integer",
        })
    }

    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        read(self.get(key), key, "a number", Value::as_f64)
    }

    pub(crate) fn bool(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        Ok(read(self.get(key), key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| wrong(key, v, "a string")),
        }
    }
}

/// The text with bare `Infinity`, `-Infinity` and `NaN`, which Python writes and JSON has not, as the objects that Transformers
/// writes today.
fn spelled_out(text: &[u8]) -> Vec<u8> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let (mut all, mut rest, mut quoted) = (Vec::with_capacity(text.len()), text, false);
    while let Some((&byte, behind)) = rest.split_first() {
        if let Some(word) = WORDS.iter().find(|word| !quoted && rest.starts_with(word.as_bytes())) {
            all.extend_from_slice(format!("{{\"__float__\": \"{word}\"}}").as_bytes());
            rest = &rest[word.len()..];
            continue;
        }
        all.push(byte);
        rest = behind;
        match (byte, behind.split_first()) {
            (b'"', _) => quoted = !quoted,
            (b'\\', Some((&escaped, further))) if quoted => {
                all.push(escaped);
                rest = further;
            }
            _ => {}
        }
    }
    all
}

pub(crate) fn read<T>(
    value: Option<&Value>,
    key: &str,
    expected: &'static str,
    convert: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, ModelError> {
    match value {
        None => Ok(None),
        Some(v) => convert(v).map(Some).ok_or_else(|| wrong(key, v, expected)),
    }
}

fn wrong(key: &str, value: &Value, expected: &'static str) -> ModelError {
    ModelError::Key { file: CONFIG, key: key.to_owned(), got: value.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::spelled_out;

    #[test]
    fn bare_numbers_are_spelled_out_but_not_in_strings() {
        let text = br#"{"a": [0.0, Infinity], "b": "NaN \" Infinity", "c": -Infinity}"#;
        let want = r#"{"a": [0.0, {"__float__": "Infinity"}], "b": "NaN \" Infinity", "c": {"__float__": "-Infinity"}}"#;
        assert_eq!(String::from_utf8_lossy(&spelled_out(text)), want);
    }
}
