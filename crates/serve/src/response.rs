//! Bodies of answers, whole and in pieces, as OpenAI has them.

use std::time::{SystemTime, UNIX_EPOCH};

use burnish_data::Tokenizer;
use burnish_models::FinishReason;
use serde_json::{Value, json};

use crate::choice::{Piece, Telling};

/// Which of the two kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Completion,
    Chat,
}

/// What all parts of an answer have.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Tokens that were read and written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

impl Usage {
    pub(crate) fn to_json(self) -> Value {
        let Self { prompt, completion } = self;
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }
}

impl Heading {
    pub(crate) fn new(kind: Kind, number: u64, model: &str) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = format!("{prefix}-{:x}{number:08x}", now.as_nanos());
        Self { kind, id, created: now.as_secs(), model: model.to_owned() }
    }

    /// An answer with these choices; a piece of one if `streamed`.
    pub(crate) fn body(&self, choices: Vec<Value>, usage: Option<Usage>, streamed: bool) -> Value {
        let object = match (self.kind, streamed) {
            (Kind::Completion, _) => "text_completion",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
        };
        let mut body = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        if let Some(usage) = usage {
            body["usage"] = usage.to_json();
        }
        body
    }

    /// One choice of an answer.
    pub(crate) fn choice(
        &self,
        index: usize,
        (telling, tokenizer): (&Telling, &Tokenizer),
        piece: &Piece,
        finish_reason: Option<FinishReason>,
        streamed: bool,
    ) -> Value {
        let reason = finish_reason.map(|reason| reason.to_string());
        let mut choice = match self.kind {
            Kind::Completion => json!({
                "index": index,
                "text": piece.text,
                "logprobs": telling.completion_log_probs(tokenizer, piece),
                "finish_reason": reason,
            }),
            Kind::Chat => {
                let content = match (streamed, piece.text.as_str()) {
                    (true, "") => json!({}),
                    (true, text) => json!({"content": text}),
                    (false, text) => json!({"role": "assistant", "content": text}),
                };
                json!({
                    "index": index,
                    (if streamed { "delta" } else { "message" }): content,
                    "logprobs": telling.chat_log_probs(tokenizer, piece),
                    "finish_reason": reason,
                })
            }
        };
        if telling.token_ids {
            choice["token_ids"] = json!(piece.token_ids);
        }
        choice
    }

    /// How a streamed chat begins.
    pub(crate) fn role(&self, index: usize) -> Value {
        let delta = json!({"role": "assistant", "content": ""});
        json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null})
    }
}
