//! Texts in rows of tokens, and which of them continue others, before any backend sees them.

use std::ops::Range;

use crate::OpsError;

/// An error unless texts lie inside `tokens` rows and not over each other, and continue earlier ones.
pub(crate) fn check(
    op: &'static str,
    texts: &[Range<usize>],
    parents: &[Option<usize>],
    tokens: usize,
) -> Result<(), OpsError> {
    let last = texts.iter().map(|text| text.end).max().unwrap_or(0);
    if last > tokens {
        return Err(OpsError::Index { op, got: last - 1, limit: tokens });
    }
    let mut rows: Vec<&Range<usize>> = texts.iter().filter(|text| !text.is_empty()).collect();
    rows.sort_by_key(|text| text.start);
    if let Some(pair) = rows.windows(2).find(|pair| pair[0].end > pair[1].start) {
        let (got, expected) = (vec![pair[1].start], vec![pair[0].end]);
        return Err(OpsError::Shape { op, what: "the row of a text behind another", got, expected });
    }
    let ties = parents.iter().enumerate();
    let wrong = ties.filter_map(|(text, &parent)| parent.filter(|&p| p >= text || text >= texts.len()));
    match wrong.max() {
        Some(got) => Err(OpsError::Index { op, got, limit: texts.len() }),
        None => Ok(()),
    }
}
