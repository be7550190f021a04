//! Chunked attention (Llama 4): tokens see those of their own chunk of positions alone, as if each chunk were a document.

use std::ops::Range;
use std::sync::Arc;

use burnish_ops::{AnyTensor, Documents, KvCache, OpsError};

use crate::Tokens;

/// Documents that attention stays in, and of each the one that it continues.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) documents: Documents,
    pub(crate) parents: Arc<Vec<Option<usize>>>,
}

impl Seen {
    /// Those of `tokens`; cut into chunks of `size` positions, where there is a size.
    pub(crate) fn of(tokens: &Tokens, size: Option<usize>) -> Self {
        let Some(size) = size else {
            return Self { documents: tokens.documents.clone(), parents: tokens.parents.clone() };
        };
        let (documents, parents) = chunked(&tokens.documents, &tokens.parents, &tokens.positions, size);
        Self { documents: documents.into(), parents: Arc::new(parents) }
    }
}

/// Documents, and of each the one that it continues, cut into chunks of `size` positions.
///
/// What continues a document continues its last chunk, where it begins in that.
fn chunked(
    documents: &[Range<usize>],
    parents: &[Option<usize>],
    positions: &[u32],
    size: usize,
) -> (Vec<Range<usize>>, Vec<Option<usize>>) {
    let (mut cut, mut of) = (Vec::new(), Vec::new());
    // Of each document its last piece.
    let mut last: Vec<Option<usize>> = Vec::new();
    let chunk = |at: usize| positions.get(at).map(|&p| p as usize / size.max(1));
    for (at, document) in documents.iter().enumerate() {
        let parent =
            parents.get(at).copied().flatten().and_then(|parent| last.get(parent).copied().flatten());
        let mut from = document.start;
        for row in document.clone() {
            if row + 1 < document.end && chunk(row) == chunk(row + 1) {
                continue;
            }
            let continued = parent.filter(|&piece: &usize| {
                from == document.start
                    && cut.get(piece).is_some_and(|piece: &Range<usize>| {
                        piece.end.checked_sub(1).is_some_and(|end| chunk(end) == chunk(from))
                    })
            });
            cut.push(from..row + 1);
            of.push(continued);
            from = row + 1;
        }
        last.push((!document.is_empty()).then(|| cut.len() - 1));
    }
    if of.iter().all(Option::is_none) {
        of.clear();
    }
    (cut, of)
}

/// Attention of new rows over a cache that holds each sequence's current chunk alone; `attend` is the cache's own.
///
/// # Shapes
/// - documents: per sequence its new rows; positions: `[rows]`; output: `[rows, heads * head_dim]`
pub(crate) fn attend_chunked(
    cache: &mut KvCache,
    documents: &[Range<usize>],
    positions: &[u32],
    size: usize,
    attend: impl Fn(&mut KvCache, &[Range<usize>]) -> Result<AnyTensor, OpsError>,
) -> Result<AnyTensor, OpsError> {
    let mut left = documents.to_vec();
    let mut sum: Option<AnyTensor> = None;
    loop {
        // Of each sequence what is left of the chunk that it is in, which begins anew at a chunk's first position.
        let part = |rows: &Range<usize>| {
            let chunk = positions.get(rows.start).map(|&p| p as usize / size);
            let end = rows.clone().find(|&row| positions.get(row).map(|&p| p as usize / size) != chunk);
            rows.start..end.unwrap_or(rows.end)
        };
        let now: Vec<Range<usize>> = left.iter().map(part).collect();
        let begins =
            |rows: &Range<usize>| !rows.is_empty() && (positions[rows.start] as usize).is_multiple_of(size);
        cache.restart(&now.iter().map(begins).collect::<Vec<_>>())?;
        let out = attend(cache, &now)?;
        for (left, now) in left.iter_mut().zip(&now) {
            left.start = now.end;
        }
        sum = Some(match sum {
            Some(sum) => AnyTensor::new(sum.rank::<2>()? + out.rank::<2>()?),
            None => out,
        });
        if left.iter().all(Range::is_empty) {
            return sum.ok_or(OpsError::Index { op: "chunked attention", got: 0, limit: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_cut_at_multiples() {
        // A text of ten, one of three; a prompt of five, which two continue.
        let documents = [0..10, 10..13, 13..18, 18..22, 22..24];
        let positions: Vec<u32> = [0..10, 0..3, 0..5, 5..9, 5..7].into_iter().flatten().collect();
        let parents = [None, None, None, Some(2), Some(2)];
        let (cut, of) = chunked(&documents, &parents, &positions, 4);
        let want = [0..4, 4..8, 8..10, 10..13, 13..17, 17..18, 18..21, 21..22, 22..24];
        assert_eq!(cut, want);
        assert_eq!(of, [None, None, None, None, None, None, Some(5), None, Some(5)]);
        // A continuation that begins a chunk sees nothing of its prompt.
        let (cut, of) = chunked(&[0..4, 4..6], &[None, Some(0)], &[0, 1, 2, 3, 4, 5], 4);
        assert_eq!((cut, of), (vec![0..4, 4..6], vec![]));
    }
}
