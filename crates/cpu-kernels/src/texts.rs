//! Texts in rows of packed tokens, and which of them continue others.

use std::ops::Range;

/// Panics unless texts lie inside `tokens` rows and not over each other, and continue earlier ones.
pub(crate) fn check(op: &str, documents: &[Range<usize>], parents: &[Option<usize>], tokens: usize) {
    let mut ranges: Vec<&Range<usize>> = documents.iter().filter(|d| !d.is_empty()).collect();
    ranges.sort_by_key(|d| d.start);
    for pair in ranges.windows(2) {
        assert!(
            pair[0].end <= pair[1].start,
            "{op}: documents {:?} and {:?} overlap, expected disjoint row ranges",
            pair[0],
            pair[1]
        );
    }
    if let Some(last) = ranges.last() {
        assert!(last.end <= tokens, "{op}: document {last:?} passes the end of {tokens} rows");
    }
    assert!(
        parents.len() <= documents.len(),
        "{op}: {} parents for {} documents, expected at most one each",
        parents.len(),
        documents.len()
    );
    for (document, parent) in parents.iter().enumerate() {
        assert!(
            parent.is_none_or(|p| p < document),
            "{op}: document {document} continues {parent:?}, expected an earlier one"
        );
    }
}
