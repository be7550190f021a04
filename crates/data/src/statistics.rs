//! `Statistics`: counts of rows and tokens kept, truncated and dropped by preparation.

use std::collections::BTreeMap;

use crate::row::{Row, Text};
use crate::row_origin::RowOrigin;

/// Counts of a prepared data set; learned tokens are counted before shifting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Rows read.
    pub rows: usize,
    /// Examples that came out: rows kept, or packed rows.
    pub examples: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Learned tokens among them.
    pub trained: usize,
    /// Rows dropped because nothing in them is learned.
    pub dropped: usize,
    /// Rows cut to `max_length`.
    pub truncated: usize,
    /// Tokens cut off.
    pub tokens_lost: usize,
    /// Tokens of the longest row before cutting.
    pub longest: usize,
    /// Rows whose prompt alone is not the start of prompt and completion together.
    pub diverging: usize,
    /// The end of the first such prompt.
    pub diverging_text: Option<String>,
    /// Pairs whose two answers are the same tokens.
    pub identical: usize,
    /// Where the first such pair is.
    pub identical_at: Option<RowOrigin>,
    /// Rows whose completions begin with the whole prompt once more.
    pub repeated: usize,
    /// Where the first such row is.
    pub repeated_at: Option<RowOrigin>,
    /// Rows with an answer of no text: what is learned is how it ends.
    pub blank: usize,
    /// Where the first such row is.
    pub blank_at: Option<RowOrigin>,
    /// Unpaired examples that are desirable.
    pub desirable: usize,
    /// Rows with Alpaca's columns.
    pub alpaca: usize,
    /// How often each role speaks.
    pub roles: BTreeMap<String, usize>,
}

impl Statistics {
    pub(crate) fn see_row(&mut self, row: &Row, diverges: Option<&str>) {
        self.rows += 1;
        self.alpaca += usize::from(row.is_alpaca);
        for message in row.chats().flatten() {
            if let Some(role) = message.get("role").and_then(|r| r.as_str()) {
                *self.roles.entry(role.to_owned()).or_default() += 1;
            }
        }
        if let Some(text) = diverges {
            self.diverging += 1;
            self.diverging_text.get_or_insert_with(|| text.to_owned());
        }
    }

    pub(crate) fn see_pair(&mut self, row: &Row, repeated: bool, identical: bool) {
        for (seen, count, at) in [
            (row.content.answers().any(Text::says_nothing), &mut self.blank, &mut self.blank_at),
            (identical, &mut self.identical, &mut self.identical_at),
            (repeated, &mut self.repeated, &mut self.repeated_at),
        ] {
            if seen {
                *count += 1;
                at.get_or_insert_with(|| row.place.clone());
            }
        }
    }

    /// The share of tokens that are not learned, 0 to 1.
    #[must_use]
    pub fn masked_share(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { 1.0 - self.trained as f64 / self.tokens as f64 }
    }

    /// The share of tokens cut off, 0 to 1.
    #[must_use]
    pub fn lost_share(&self) -> f64 {
        let all = self.tokens + self.tokens_lost;
        if all == 0 { 0.0 } else { self.tokens_lost as f64 / all as f64 }
    }
}
