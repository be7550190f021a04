//! `InvocationCheck`: how many rows hold the tokens that an adapter waits for (aLoRA), before something that is learned.

use crate::preflight::{Concern, Finding};

/// What has been seen of a data set's rows.
#[derive(Clone, Debug)]
pub struct InvocationCheck<'a> {
    tokens: &'a [u32],
    rows: usize,
    /// Rows of which nothing is learned, and the first of them, counted from 1.
    without: usize,
    first: usize,
}

impl<'a> InvocationCheck<'a> {
    /// Of an adapter that waits for `tokens`, before any row.
    #[must_use]
    pub fn new(tokens: &'a [u32]) -> Self {
        Self { tokens, rows: 0, without: 0, first: 0 }
    }

    /// Sees the texts of the next row, each with a label for each of its tokens, below zero where it is not learned; without
    /// labels what follows is learned.
    pub fn see<'t>(&mut self, texts: impl IntoIterator<Item = (&'t [u32], Option<&'t [i32]>)>) {
        self.rows += 1;
        if !texts.into_iter().any(|(text, labels)| self.trains(text, labels)) {
            self.without += 1;
            if self.without == 1 {
                self.first = self.rows;
            }
        }
    }

    /// Whether something is learned from the last occurrence on.
    fn trains(&self, text: &[u32], labels: Option<&[i32]>) -> bool {
        let Some(begins) = text.windows(self.tokens.len()).rposition(|tokens| tokens == self.tokens) else {
            return false;
        };
        labels.is_none_or(|labels| labels.iter().skip(begins + 1).any(|&label| label >= 0))
    }

    /// What there is to say of it.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        let Self { tokens, rows, without, first } = self;
        let (message, mend) = match without {
            0 => return None,
            _ if without == rows => (
                format!(
                    "none of {rows} rows has alora_invocation_tokens {tokens:?} before what is learned: the adapter learns nothing"
                ),
                "take the ids that the tokenizer makes of the words as they stand in a row, or put the words into the rows",
            ),
            _ => (
                format!(
                    "{without} of {rows} rows have no alora_invocation_tokens {tokens:?} before what is learned (first: row {first}): nothing is learned of them"
                ),
                "put the words into these rows, too, or leave them out",
            ),
        };
        Some(Finding { concern: Concern::NotInvoked, message, mend: mend.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    type Text = (&'static [u32], Option<&'static [i32]>);

    fn said(rows: &[&[Text]]) -> Option<String> {
        let mut check = InvocationCheck::new(&[7, 8]);
        rows.iter().for_each(|row| check.see(row.iter().copied()));
        check.finding().map(|finding| finding.to_string())
    }

    #[test]
    fn rows_of_which_nothing_is_learned_are_counted() {
        let with: Text = (&[1, 7, 8, 2], None);
        let apart: Text = (&[7, 1, 8], None);
        assert_eq!(said(&[&[with], &[apart, with]]), None);
        let some = said(&[&[with], &[apart], &[with], &[apart]]).unwrap();
        assert!(
            some.starts_with("2 of 4 rows have no")
                && some.contains("[7, 8]")
                && some.contains("first: row 2"),
            "{some}"
        );
        let none = said(&[&[apart], &[]]).unwrap();
        assert!(none.starts_with("none of 2 rows") && none.contains("learns nothing"), "{none}");
        assert_eq!(said(&[]), None);
    }

    /// The last occurrence counts, and the first of its tokens predicts the second.
    #[test]
    fn what_is_learned_before_them_is_the_base_s() {
        let learned = |labels| said(&[&[(&[7, 8, 1, 7, 8], Some(labels))]]).is_none();
        assert!(!learned(&[-100, 8, 1, 7, -100]));
        assert!(learned(&[-100, -100, -100, -100, 8]));
        assert!(!learned(&[-100; 5]));
    }
}
