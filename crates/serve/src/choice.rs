//! One completion as it grows: text, tokens, log-probabilities.

use burnish_data::{DataError, TextStream, Tokenizer};
use burnish_models::{FinishReason, Token};
use serde_json::{Map, Value, json};

use crate::stop_text::StopText;

/// How choices are told.
#[derive(Clone, Debug)]
pub(crate) struct Telling {
    pub(crate) skip_special_tokens: bool,
    pub(crate) stops: Vec<String>,
    pub(crate) log_probs: bool,
    pub(crate) token_ids: bool,
    pub(crate) tokens_as_ids: bool,
}

/// A completion in progress.
#[derive(Debug)]
pub(crate) struct Choice {
    stream: TextStream,
    stop: StopText,
    /// Characters that have been told.
    told: usize,
    /// Tokens that came.
    pub(crate) tokens: usize,
    pub(crate) finish_reason: Option<FinishReason>,
}

/// What there is to tell of a choice since the last time.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Where the text begins, in characters of the completion.
    pub(crate) offset: usize,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) tokens: Vec<Token>,
}

impl Piece {
    /// Whether there is nothing to tell of it in a stream.
    pub(crate) fn is_empty(&self, telling: &Telling) -> bool {
        self.text.is_empty() && (self.tokens.is_empty() || !telling.log_probs && !telling.token_ids)
    }

    pub(crate) fn append(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.token_ids.extend(more.token_ids);
        self.tokens.extend(more.tokens);
    }
}

impl Choice {
    pub(crate) fn new(telling: &Telling) -> Self {
        Self {
            stream: TextStream::new(telling.skip_special_tokens),
            stop: StopText::new(telling.stops.clone()),
            told: 0,
            tokens: 0,
            finish_reason: None,
        }
    }

    /// Takes a token; what can be told now. After a stop text the choice is finished.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: Token) -> Result<Piece, DataError> {
        self.tokens += 1;
        let text = self.stream.push(tokenizer, token.id)?;
        let (text, met) = self.stop.push(&text);
        if met {
            self.finish_reason = Some(FinishReason::Stop);
        }
        Ok(self.piece(text, vec![token]))
    }

    /// No more tokens come; what was held back.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer, reason: FinishReason) -> Result<Piece, DataError> {
        let text = self.stream.finish(tokenizer)?;
        let (mut text, met) = self.stop.push(&text);
        if !met {
            text.push_str(&self.stop.finish());
        }
        self.finish_reason = Some(if met { FinishReason::Stop } else { reason });
        Ok(self.piece(text, Vec::new()))
    }

    fn piece(&mut self, text: String, tokens: Vec<Token>) -> Piece {
        let offset = self.told;
        self.told += text.chars().count();
        Piece { text, offset, token_ids: tokens.iter().map(|t| t.id).collect(), tokens }
    }
}

impl Telling {
    fn named(&self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.tokens_as_ids {
            return format!("token_id:{id}");
        }
        tokenizer.decode(&[id], false).unwrap_or_default()
    }

    /// `logprobs` of a completion's choice: lists of tokens, their log-probabilities, the likeliest ones, places in the text.
    pub(crate) fn completion_log_probs(&self, tokenizer: &Tokenizer, piece: &Piece) -> Value {
        if !self.log_probs {
            return Value::Null;
        }
        let (mut names, mut values, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut offset = piece.offset;
        for token in &piece.tokens {
            let name = self.named(tokenizer, token.id);
            offsets.push(offset);
            offset += name.chars().count();
            names.push(name);
            values.push(token.log_prob);
            let own = token.log_prob.filter(|_| token.top.iter().all(|&(id, _)| id != token.id));
            let top = token.top.iter().copied().chain(own.map(|lp| (token.id, lp)));
            let top = top.map(|(id, lp)| (self.named(tokenizer, id), json!(lp)));
            tops.push(Value::Object(top.collect::<Map<String, Value>>()));
        }
        json!({"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets})
    }

    /// `logprobs` of a chat's choice.
    pub(crate) fn chat_log_probs(&self, tokenizer: &Tokenizer, piece: &Piece) -> Value {
        if !self.log_probs {
            return Value::Null;
        }
        let one = |id: u32, log_prob: Option<f32>| {
            let name = self.named(tokenizer, id);
            let bytes: Vec<u8> = name.bytes().collect();
            json!({"token": name, "logprob": log_prob, "bytes": bytes})
        };
        let content: Vec<Value> = piece
            .tokens
            .iter()
            .map(|token| {
                let mut said = one(token.id, token.log_prob);
                said["top_logprobs"] = token.top.iter().map(|&(id, lp)| one(id, Some(lp))).collect();
                said
            })
            .collect();
        json!({"content": content})
    }
}
