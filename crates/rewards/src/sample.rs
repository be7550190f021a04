//! The input of a reward function: a prompt, a completion, and the columns of its row.

use serde_json::{Map, Value, json};

/// A completion to be scored.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The prompt as in the data: a text, or a list of messages.
    pub prompt: &'a Value,
    /// The completion, decoded without special tokens.
    pub completion: &'a str,
    /// Its tokens, with the one that ended it where it came.
    pub completion_ids: &'a [u32],
    /// The row's other columns.
    pub columns: &'a Map<String, Value>,
}

impl Sample<'_> {
    /// The completion as TRL hands it over: a text, or a list of one assistant message where the prompt is a conversation.
    #[must_use]
    pub fn completion_value(&self) -> Value {
        match self.prompt {
            Value::Array(_) => json!([{"role": "assistant", "content": self.completion}]),
            _ => Value::from(self.completion),
        }
    }
}
