//! `generation_config.json`: how a model's makers mean it to be sampled.

use std::path::Path;

use serde_json::{Map, Value};

use crate::spec::text_config;
use crate::{ConfigFile, Generation, ModelError, Sampling};

const FILE: &str = "generation_config.json";

/// A model's generation defaults; `None` where the files say nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a completion: `eos_token_id`, an integer or a list.
    pub stop: Vec<u32>,
    /// What fills short rows of a batch (not used here: nothing is padded).
    pub pad: Option<u32>,
    /// What begins a text.
    pub bos: Option<u32>,
    /// Draw instead of taking the maximum.
    pub do_sample: Option<bool>,
    /// Divides the logits when drawing.
    pub temperature: Option<f32>,
    /// Keep the `k` largest.
    pub top_k: Option<usize>,
    /// Keep the smallest set whose probability reaches this.
    pub top_p: Option<f32>,
    /// Drop tokens below this fraction of the largest probability.
    pub min_p: Option<f32>,
    /// Makes seen tokens less likely when above 1.
    pub repetition_penalty: Option<f32>,
    /// Tokens after the prompt, at most.
    pub max_new_tokens: Option<usize>,
    /// Tokens after the prompt before it may end.
    pub min_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads a folder's `generation_config.json`; token ids it does not name come from `config.json`.
    ///
    /// Without the file, and where `config.json` does not name them either, Llama and Mistral have their classes'
    /// defaults: 1 begins and 2 ends a text.
    ///
    /// # Errors
    /// If the file cannot be read, is not a JSON object, or a key is of the wrong kind.
    pub fn read(folder: &Path, config: &ConfigFile) -> Result<Self, ModelError> {
        let path = folder.join(FILE);
        let json: Option<Map<String, Value>> = match burnish_core::file::read_json(&path) {
            Ok(bytes) => {
                Some(serde_json::from_slice(&bytes).map_err(|source| ModelError::Json { path, source })?)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(ModelError::Read { path, source }),
        };
        // Of a model of several parts, what the whole does not say its text part does.
        let text = text_config(config);
        let text = text.as_ref().unwrap_or(config);
        let said = |key: &str| config.json.get(key).or_else(|| text.json.get(key));
        let classic = matches!(text.get("model_type").and_then(Value::as_str), Some("llama" | "mistral"));
        let fallback = |key: &str, default: u32| -> Result<Vec<u32>, ModelError> {
            match said(key) {
                Some(value) => ids("config.json", key, value),
                None if json.is_none() && classic => Ok(vec![default]),
                None => Ok(Vec::new()),
            }
        };
        let file = Keys(json.as_ref());
        let tokens = |key: &str, default: u32| match file.get(key) {
            Some(value) => ids(FILE, key, value),
            None => fallback(key, default),
        };
        let pad = file.get("pad_token_id").or_else(|| said("pad_token_id").filter(|v| !v.is_null()));
        let pad = match pad {
            Some(value) => ids(FILE, "pad_token_id", value)?.first().copied(),
            None => None,
        };
        let number = |key| file.read(key, "a number", |v| v.as_f64().map(|n| n as f32));
        let count = |key| file.read(key, "a non-negative integer", |v| v.as_u64().map(|n| n as usize));
        Ok(Self {
            stop: tokens("eos_token_id", 2)?,
            pad,
            bos: tokens("bos_token_id", 1)?.first().copied(),
            do_sample: file.read("do_sample", "true or false", Value::as_bool)?,
            temperature: number("temperature")?,
            top_k: count("top_k")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
            min_new_tokens: count("min_new_tokens")?,
        })
    }

    /// The settings, with Transformers' defaults where the files say nothing (`top_k` 50; greedy unless `do_sample`).
    #[must_use]
    pub fn generation(&self, seed: u64) -> Generation {
        let base = Generation::default();
        Generation {
            max_new_tokens: self.max_new_tokens.unwrap_or(base.max_new_tokens),
            min_new_tokens: self.min_new_tokens.unwrap_or(base.min_new_tokens),
            sampling: Sampling {
                do_sample: self.do_sample.unwrap_or(false),
                temperature: self.temperature.unwrap_or(1.0),
                top_k: self.top_k.unwrap_or(50),
                top_p: self.top_p.unwrap_or(1.0),
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
                seed,
            },
            stop: self.stop.clone(),
            bos: self.bos,
            ..base
        }
    }
}

/// The file's keys that are present and not null.
struct Keys<'a>(Option<&'a Map<String, Value>>);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0?.get(key).filter(|v| !v.is_null())
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        self.get(key).map(|v| convert(v).ok_or_else(|| wrong(FILE, key, v, expected))).transpose()
    }
}

/// A token id, a list of them, or null for none.
fn ids(file: &'static str, key: &str, value: &Value) -> Result<Vec<u32>, ModelError> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let all = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(id).collect(),
        one => id(one).map(|n| vec![n]),
    };
    all.ok_or_else(|| wrong(file, key, value, "a token id or a list of token ids"))
}

fn wrong(file: &'static str, key: &str, value: &Value, expected: &'static str) -> ModelError {
    ModelError::Key { file, key: key.to_owned(), got: value.to_string(), expected }
}
