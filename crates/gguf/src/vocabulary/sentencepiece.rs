//! SentencePiece's BPE: `llama` in llama.cpp.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use burnish_core::{PieceKind, SentencePiece};
use serde_json::Value as Json;

use super::parts::Parts;
use super::{Kind, Request, Token, added, of_tokens};
use crate::{GgufError, Value};

/// SentencePiece's file.
const FILE: &str = "tokenizer.model";
/// Scores of added tokens, and of rows without a token.
const SCORES: (f32, f32) = (-1000.0, -10000.0);

pub(super) fn metadata(parts: &Parts, request: &Request<'_>) -> Result<Vec<(String, Value)>, GgufError> {
    let filled = |id: usize| Token { text: format!("[PAD{id}]"), score: SCORES.1, kind: Kind::Unused };
    let mut tokens: Vec<Token> = (0..request.vocab).map(filled).collect();
    let path = parts.folder.join(FILE);
    match burnish_core::file::read(&path) {
        Ok(bytes) => pieces(&bytes, &mut tokens).map_err(|(what, mend)| parts.fault(FILE, what, mend))?,
        Err(error) if error.kind() == ErrorKind::NotFound => of_merges(parts, &mut tokens)?,
        Err(source) => return Err(GgufError::Read { path, source }),
    }
    for token in parts.added_by_config() {
        if let Some(own) = tokens.get_mut(token.id) {
            (own.text, own.kind) = added(token.text, token.special);
            own.score = SCORES.0;
        }
    }
    let mut metadata = of_tokens("llama", request.pre.unwrap_or("default"), &tokens, true);
    let said = parts.config.get("add_prefix_space").and_then(Json::as_bool);
    let begins =
        if request.no_space_prefix { Some(false) } else { said.or_else(|| begins_with_space(parts)) };
    if let Some(begins) = begins {
        metadata.push(("tokenizer.ggml.add_space_prefix".to_owned(), Value::from(begins)));
    }
    Ok(metadata)
}

/// Whether texts get a space before them; `None` where `tokenizer.json` does not say, which is llama.cpp's default.
fn begins_with_space(parts: &Parts) -> Option<bool> {
    parts.json.as_ref()?;
    let prepended = parts.steps("normalizer").iter().any(|step| step["type"] == "Prepend");
    let scheme = |step: &&Json| step["type"] == "Metaspace";
    let metaspace = parts.steps("pre_tokenizer").into_iter().find(scheme);
    let before = metaspace.is_some_and(|step| step["prepend_scheme"] != "never");
    (!prepended && !before).then_some(false)
}

/// Tokens of the model of `tokenizer.json`, with scores by which llama.cpp merges in the order of its merges.
fn of_merges(parts: &Parts, tokens: &mut [Token]) -> Result<(), GgufError> {
    let file = "tokenizer.json";
    if parts.json.is_none() {
        return Err(parts.fault(
            file,
            format!("it is missing, and so is {FILE}"),
            "a model's file holds its tokenizer: put the tokenizer's files beside config.json",
        ));
    }
    let kind = parts.of_model("type").and_then(Json::as_str).unwrap_or("missing").to_owned();
    if kind != "BPE" || parts.of_model("byte_fallback") != Some(&Json::Bool(true)) {
        return Err(parts.fault(
            file,
            format!("its model is {kind} without bytes to fall back on"),
            "llama.cpp is given byte-level BPE and SentencePiece's BPE (tokenizer.model) here",
        ));
    }
    let mut ranks: BTreeMap<String, f32> = BTreeMap::new();
    for (rank, (a, b)) in parts.merges().enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(-(rank as f32));
    }
    let unknown = parts.of_model("unk_token").and_then(Json::as_str);
    let rows = tokens.len();
    for (text, id) in parts.vocabulary() {
        let Some(token) = tokens.get_mut(id) else {
            let what = format!("it has the token {id}, the model's embedding has {rows} rows");
            return Err(parts.fault(file, what, "take the tokenizer of this model"));
        };
        token.kind = if unknown == Some(text) {
            Kind::Unknown
        } else if is_byte(text) {
            Kind::Byte
        } else {
            Kind::Normal
        };
        // What no merge makes is made of nothing.
        token.score =
            ranks.get(text).copied().unwrap_or(if token.kind == Kind::Normal { SCORES.1 } else { 0.0 });
        token.text = text.to_owned();
    }
    Ok(())
}

fn is_byte(text: &str) -> bool {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

/// What is wrong with a file, and what helps.
type PieceFault = (String, &'static str);

/// The pieces of SentencePiece's file: text, score and kind of each.
fn pieces(bytes: &[u8], tokens: &mut [Token]) -> Result<(), PieceFault> {
    let damaged = || ("it is no model of SentencePiece".to_owned(), "copy or download it again");
    let model = SentencePiece::parse(bytes).ok_or_else(damaged)?;
    if !model.is_bpe {
        let what = "its model is not BPE".to_owned();
        return Err((what, "llama.cpp is given byte-level BPE and SentencePiece's BPE here"));
    }
    for (token, piece) in tokens.iter_mut().zip(model.pieces) {
        let kind = match piece.kind {
            PieceKind::Unknown => Kind::Unknown,
            PieceKind::Control => Kind::Control,
            PieceKind::Unused => Kind::Unused,
            PieceKind::Byte => Kind::Byte,
            PieceKind::Normal | PieceKind::UserDefined => Kind::Normal,
        };
        *token = Token { text: piece.text, score: piece.score, kind };
    }
    Ok(())
}
