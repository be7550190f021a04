//! Byte-level BPE: `gpt2` in llama.cpp.

use super::parts::Parts;
use super::{Kind, Request, Token, added, of_tokens, pre_tokenizer};
use crate::{GgufError, Value};

pub(super) fn metadata(parts: &Parts, request: &Request<'_>) -> Result<Vec<(String, Value)>, GgufError> {
    let pre = match request.pre {
        Some(pre) => pre,
        None => pre_tokenizer::name(parts)?,
    };
    let filled = |id: usize| Token { text: format!("[PAD{id}]"), score: 0.0, kind: Kind::Unused };
    let mut tokens: Vec<Token> = (0..request.vocab).map(filled).collect();
    let outside = |id: usize| {
        parts.fault(
            "tokenizer.json",
            format!("it has the token {id}, the model's embedding has {} rows", request.vocab),
            "take the tokenizer of this model",
        )
    };
    for (text, id) in parts.vocabulary() {
        let token = tokens.get_mut(id).ok_or_else(|| outside(id))?;
        (token.text, token.kind) = (text.to_owned(), Kind::Normal);
    }
    for token in parts.added() {
        let own = tokens.get_mut(token.id).ok_or_else(|| outside(token.id))?;
        (own.text, own.kind) = added(token.text, token.special);
    }
    let mut metadata = of_tokens("gpt2", pre, &tokens, false);
    // A space in a part would be taken for the space between parts.
    let part = |text: &str| text.replace(' ', "\u{120}");
    let merges = parts.merges().map(|(a, b)| format!("{} {}", part(a), part(b)));
    metadata.push(("tokenizer.ggml.merges".to_owned(), Value::strings(merges)));
    Ok(metadata)
}
