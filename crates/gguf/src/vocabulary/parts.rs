//! `Parts`: a tokenizer's files, read and looked into.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::GgufError;

/// A tokenizer's files.
pub(super) struct Parts {
    pub(super) folder: PathBuf,
    /// `tokenizer.json`.
    pub(super) json: Option<Map<String, Json>>,
    /// `tokenizer_config.json`.
    pub(super) config: Map<String, Json>,
}

/// A token that is matched before texts are cut.
pub(super) struct AddedToken<'a> {
    pub(super) id: usize,
    pub(super) text: &'a str,
    pub(super) special: bool,
}

impl Parts {
    pub(super) fn read(folder: &Path) -> Result<Self, GgufError> {
        let json = read(&folder.join("tokenizer.json"))?;
        let config = read(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        Ok(Self { folder: folder.to_path_buf(), json, config })
    }

    pub(super) fn fault(&self, file: &str, what: impl Into<String>, mend: &'static str) -> GgufError {
        GgufError::Tokenizer { path: self.folder.join(file), what: what.into(), mend }
    }

    fn model(&self) -> Option<&Map<String, Json>> {
        self.json.as_ref()?.get("model")?.as_object()
    }

    /// A part of the model of `tokenizer.json`.
    pub(super) fn of_model(&self, name: &str) -> Option<&Json> {
        self.model()?.get(name)
    }

    /// Whether tokens are made of the bytes of a text, written as GPT-2's characters.
    pub(super) fn is_byte_level(&self) -> bool {
        let bpe = self.of_model("type").is_none_or(|kind| kind == "BPE");
        let spelled = |name: &str| {
            let part = self.json.as_ref().and_then(|json| json.get(name));
            steps(part).iter().any(|step| step["type"] == "ByteLevel")
        };
        self.model().is_some() && bpe && (spelled("pre_tokenizer") || spelled("decoder"))
    }

    /// The steps of a part of `tokenizer.json`.
    pub(super) fn steps(&self, part: &str) -> Vec<&Json> {
        steps(self.json.as_ref().and_then(|json| json.get(part)))
    }

    /// The vocabulary of the model of `tokenizer.json`: tokens and ids.
    pub(super) fn vocabulary(&self) -> impl Iterator<Item = (&str, usize)> {
        let all = self.of_model("vocab").and_then(Json::as_object);
        all.into_iter().flatten().filter_map(|(text, id)| Some((text.as_str(), id.as_u64()? as usize)))
    }

    /// The merges of the model of `tokenizer.json`, best first.
    pub(super) fn merges(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.of_model("merges").and_then(Json::as_array);
        all.into_iter().flatten().filter_map(|merge| match merge {
            Json::String(pair) => pair.split_once(' '),
            Json::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
            _ => None,
        })
    }

    /// The added tokens of `tokenizer.json`.
    pub(super) fn added(&self) -> Vec<AddedToken<'_>> {
        let all = self.json.as_ref().and_then(|json| json.get("added_tokens")?.as_array());
        let token = |token| token_of(token, token.get("id")?.as_u64()?);
        all.into_iter().flatten().filter_map(token).collect()
    }

    /// Those that `tokenizer_config.json` has beside their ids, or those of `tokenizer.json`.
    pub(super) fn added_by_config(&self) -> Vec<AddedToken<'_>> {
        let Some(all) = self.config.get("added_tokens_decoder").and_then(Json::as_object) else {
            return self.added();
        };
        all.iter().filter_map(|(id, token)| token_of(token, id.parse().ok()?)).collect()
    }
}

fn token_of(token: &Json, id: u64) -> Option<AddedToken<'_>> {
    let text = token.get("content")?.as_str()?;
    let special = token.get("special").and_then(Json::as_bool).unwrap_or(false);
    Some(AddedToken { id: id as usize, text, special })
}

/// A part that may be a sequence of parts.
fn steps(part: Option<&Json>) -> Vec<&Json> {
    let Some(part) = part.filter(|part| part.is_object()) else { return Vec::new() };
    let inner = ["pretokenizers", "normalizers", "decoders", "processors"];
    match inner.iter().find_map(|name| part.get(name)?.as_array()) {
        // A sequence within a sequence has nothing of its own.
        Some(parts) => parts.iter().collect(),
        None => vec![part],
    }
}

fn read(path: &Path) -> Result<Option<Map<String, Json>>, GgufError> {
    let bytes = match burnish_core::file::read_json(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(GgufError::Read { path: path.to_path_buf(), source }),
    };
    let parsed = serde_json::from_slice(&bytes);
    Ok(Some(parsed.map_err(|error| GgufError::Tokenizer {
        path: path.to_path_buf(),
        what: format!("it is not JSON of the expected form ({error})"),
        mend: "copy or download it again",
    })?))
}
