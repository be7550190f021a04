//! A tokenizer as metadata: from `tokenizer.json`, `tokenizer.model` and `tokenizer_config.json`.

mod byte_level;
mod parts;
mod pre_tokenizer;
mod sentencepiece;
mod special;

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::{GgufError, Value};
use parts::Parts;

pub use pre_tokenizer::PRE_TOKENIZERS;

/// How a token came to be, by its number in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// A token of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    score: f32,
    kind: Kind,
}

/// What a tokenizer's metadata are made for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The folder of the tokenizer.
    pub folder: &'a Path,
    /// Rows of the embedding: tokens that the tokenizer lacks are filled up.
    pub vocab: usize,
    /// `config.json`, whose token ids count where the tokenizer names none.
    pub config: &'a Map<String, Json>,
    /// llama.cpp's name of the way in which texts are cut before merges, where it is said.
    pub pre: Option<&'a str>,
    /// Whether texts of SentencePiece never begin with a space of its own (Gemma).
    pub no_space_prefix: bool,
}

/// A tokenizer's metadata: its tokens, scores or merges, special tokens and chat templates.
///
/// # Errors
/// If there is no tokenizer, or one that llama.cpp has no form of: not byte-level BPE, nor SentencePiece's BPE.
pub fn metadata(request: &Request<'_>) -> Result<Vec<(String, Value)>, GgufError> {
    let parts = Parts::read(request.folder)?;
    let mut metadata = if parts.is_byte_level() {
        byte_level::metadata(&parts, request)?
    } else {
        sentencepiece::metadata(&parts, request)?
    };
    metadata.extend(special::metadata(&parts, request.config, request.vocab));
    Ok(metadata)
}

/// Whether a token that is not said to be special is one by its look.
fn looks_special(text: &str) -> bool {
    let between = |begin: &str, end: &str| text.starts_with(begin) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

/// Text and kind of an added token.
fn added(text: &str, special: bool) -> (String, Kind) {
    if special || looks_special(text) {
        (text.to_owned(), Kind::Control)
    } else {
        (text.replace('\u{2581}', " "), Kind::UserDefined)
    }
}

/// The keys of tokens.
fn of_tokens(model: &str, pre: &str, tokens: &[Token], scored: bool) -> Vec<(String, Value)> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let mut metadata = vec![
        (key("model"), Value::from(model)),
        (key("pre"), Value::from(pre)),
        (key("tokens"), Value::strings(tokens.iter().map(|token| token.text.as_str()))),
    ];
    if scored {
        metadata.push((key("scores"), Value::floats(tokens.iter().map(|token| token.score))));
    }
    metadata.push((key("token_type"), Value::integers(tokens.iter().map(|token| token.kind as i32))));
    metadata
}
