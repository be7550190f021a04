//! `Made`: the tokenizer of a folder that has no `tokenizer.json`, of its other files as Transformers makes it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use crate::error::DataError;
use crate::tokenizer::{byte_level, sentence_piece, tekken, tiktoken};

/// What the files of a tokenizer say of it beside its vocabulary.
pub(super) struct Said<'a> {
    /// `tokenizer_config.json`.
    pub(super) config: &'a Map<String, Value>,
    /// `special_tokens_map.json`.
    pub(super) legacy: &'a Map<String, Value>,
    /// `added_tokens.json`.
    pub(super) added: &'a Map<String, Value>,
    /// The model's type.
    pub(super) model_type: &'a str,
}

impl Said<'_> {
    /// The class, without the word that it is fast; empty where none is named.
    pub(super) fn class(&self) -> &str {
        let class = self.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        class.strip_suffix("Fast").unwrap_or(class)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.config.get(name).and_then(Value::as_bool)
    }

    /// The text of a named token.
    pub(super) fn named(&self, name: &str) -> Option<String> {
        super::named_token(self.config, self.legacy, name)
    }
}

/// A tokenizer in the form of `tokenizer.json`.
pub(super) struct Made {
    /// The file that its vocabulary is of.
    pub(super) path: PathBuf,
    /// Its parts.
    pub(super) parts: Parts,
    /// Named tokens where the folder's files name none.
    pub(super) named: Vec<(&'static str, String)>,
}

/// The parts of a tokenizer, as `tokenizer.json` has them, null where it has none.
pub(super) struct Parts {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
    pub(super) model: Bpe,
    /// Tokens of the vocabulary that are found before anything else is done: text, whether special.
    pub(super) added: Vec<(String, bool)>,
    /// Whether tokens that the folder's files declare are found before a text is normalised, whatever they say.
    pub(super) declared_first: bool,
}

/// A model of byte pair encoding.
#[derive(Default)]
pub(super) struct Bpe {
    pub(super) vocab: Map<String, Value>,
    pub(super) merges: Vec<(String, String)>,
    pub(super) unknown: Option<String>,
    pub(super) fuse_unknown: bool,
    pub(super) byte_fallback: bool,
    /// Whether what is a token as it stands is not made of merges.
    pub(super) ignore_merges: bool,
}

type Make = fn(&Path, &Said<'_>) -> Result<Made, Fault>;

/// What is made of which files, the first that are there.
const MAKES: [(&[&str], Make); 4] = [
    (&["vocab.json", "merges.txt"], byte_level::made),
    (&["tekken.json"], tekken::made),
    (&["tokenizer.model"], sentence_piece::made),
    (&["qwen.tiktoken"], tiktoken::made),
];

impl Made {
    /// Whether a folder has such files.
    pub(super) fn is_in(folder: &Path) -> bool {
        Self::makes(folder).is_some()
    }

    fn makes(folder: &Path) -> Option<Make> {
        let there = |names: &[&str]| names.iter().all(|name| folder.join(name).is_file());
        MAKES.into_iter().find(|(names, _)| there(names)).map(|(_, make)| make)
    }

    /// The tokenizer of a folder that has such files.
    ///
    /// # Errors
    /// If one of them cannot be read or is not used.
    pub(super) fn of(folder: &Path, said: &Said<'_>) -> Result<Option<Self>, DataError> {
        let Some(make) = Self::makes(folder) else { return Ok(None) };
        make(folder, said).map(Some).map_err(|fault| match fault {
            Fault::Read(path, source) => DataError::Io { path, source },
            Fault::Used(path, reason) => DataError::BadTokenizer { path, reason },
        })
    }

    /// Calls places of the vocabulary by the tokens that the folder has there.
    fn rename(&mut self, declared: &[(u64, AddedToken)]) {
        let vocab = &mut self.parts.model.vocab;
        let by_id: HashMap<u64, String> =
            vocab.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone()))).collect();
        for (id, token) in declared {
            let Some(text) = by_id.get(id).filter(|_| !vocab.contains_key(&token.content)) else { continue };
            vocab.remove(text);
            vocab.insert(token.content.clone(), Value::from(*id));
            self.parts
                .added
                .iter_mut()
                .filter(|(own, _)| own == text)
                .for_each(|own| own.0.clone_from(&token.content));
        }
    }

    /// The bytes of `tokenizer.json`, with the tokens that the folder's other files declare.
    pub(super) fn json(mut self, said: &Said<'_>) -> Vec<u8> {
        let declared = declared(said);
        let first = self.parts.declared_first;
        let (mut added, mut seen): (Vec<Value>, HashSet<String>) = Default::default();
        let mut next = self.parts.model.vocab.values().filter_map(Value::as_u64).max().map_or(0, |id| id + 1);
        self.rename(&declared);
        let vocab = &self.parts.model.vocab;
        let mut push = |token: AddedToken| {
            if !seen.insert(token.content.clone()) {
                return;
            }
            let id = vocab.get(&token.content).and_then(Value::as_u64).unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            added.push(json!({
                "id": id, "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip,
                "rstrip": token.rstrip, "normalized": token.normalized && !first, "special": token.special,
            }));
        };
        let plain = |text: String, special: bool| AddedToken::from(text, special).normalized(false);
        let named: Vec<String> = super::NAMED
            .iter()
            .filter_map(|name| {
                let own = self.named.iter().find(|(own, _)| own == name).map(|(_, text)| text.clone());
                said.named(name).or(own)
            })
            .collect();
        let (known, others): (Vec<_>, Vec<_>) =
            declared.into_iter().partition(|(_, t)| vocab.contains_key(&t.content));
        known.into_iter().for_each(|(_, token)| push(token));
        self.parts.added.iter().for_each(|(text, special)| push(plain(text.clone(), *special)));
        others.into_iter().for_each(|(_, token)| push(token));
        named.into_iter().for_each(|text| push(plain(text, true)));
        added.sort_by_key(|token| token["id"].as_u64());
        let Parts { normalizer, pre_tokenizer, post_processor, decoder, model, .. } = self.parts;
        let merges: Vec<Value> = model.merges.into_iter().map(|(a, b)| json!([a, b])).collect();
        json!({
            "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": decoder,
            "model": {
                "type": "BPE", "vocab": model.vocab, "merges": merges, "unk_token": model.unknown,
                "fuse_unk": model.fuse_unknown, "byte_fallback": model.byte_fallback,
                "ignore_merges": model.ignore_merges,
            },
        })
        .to_string()
        .into_bytes()
    }
}

/// Tokens that the folder's files add to the vocabulary: those of `tokenizer_config.json`, else of `added_tokens.json`, by their
/// ids.
fn declared(said: &Said<'_>) -> Vec<(u64, AddedToken)> {
    if said.config.get("added_tokens_decoder").is_some_and(Value::is_object) {
        return super::declared_tokens(said.config);
    }
    let special: Vec<String> = super::NAMED.iter().filter_map(|name| said.named(name)).collect();
    let token = |(text, id): (&String, &Value)| {
        Some((id.as_u64()?, AddedToken::from(text.clone(), special.contains(text))))
    };
    let mut all: Vec<(u64, AddedToken)> = said.added.iter().filter_map(token).collect();
    all.sort_by_key(|(id, _)| *id);
    all
}

/// Why a file makes no tokenizer.
pub(super) enum Fault {
    Read(PathBuf, std::io::Error),
    Used(PathBuf, String),
}

/// That tokens of so many bytes are merged in bounded time and memory, both of which grow with the squares.
pub(super) fn bounded(path: &Path, lengths: impl Iterator<Item = usize>) -> Result<(), Fault> {
    /// Most bytes of a token, and most of all their squares: hundreds of times those of large vocabularies.
    const MOST: (usize, usize) = (4096, 1 << 29);
    let mut squares = 0_usize;
    for (at, length) in lengths.enumerate() {
        squares = squares.saturating_add(length.saturating_mul(length));
        if length > MOST.0 {
            return Err(unused(path, format!("token {at} has {length} bytes, expected at most {}", MOST.0)));
        }
        if squares > MOST.1 {
            return Err(unused(
                path,
                format!("its tokens are longer than those of any vocabulary, from token {at} on"),
            ));
        }
    }
    Ok(())
}

/// Reads a file whole.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    burnish_core::file::read_json(path).map_err(|source| Fault::Read(path.to_path_buf(), source))
}

/// A file that is not used, and why.
pub(super) fn unused(path: &Path, reason: impl Into<String>) -> Fault {
    Fault::Used(path.to_path_buf(), reason.into())
}
