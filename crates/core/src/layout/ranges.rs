//! Lists of ranges of one dimension: ascending, without overlap, none empty.

use std::ops::Range;

/// How many elements they hold.
pub(super) fn length(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

/// Of the elements that `held` lists, those at the positions `inner`: where a part of a part lies in the whole.
pub(super) fn select(held: &[Range<usize>], inner: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut from) = (0, 0);
    for piece in held {
        let end = at + piece.len();
        from += inner[from..].partition_point(|range| range.end <= at);
        for range in inner[from..].iter().take_while(|range| range.start < end) {
            let (start, end) = (range.start.max(at), range.end.min(end));
            found.push(piece.start + start - at..piece.start + end - at);
        }
        at = end;
    }
    found
}

/// The positions among the elements that `held` lists of those that are in `wanted` too. The inverse of [`select`].
pub(super) fn locate(held: &[Range<usize>], wanted: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    for piece in held {
        for range in wanted {
            let (start, end) = (range.start.max(piece.start), range.end.min(piece.end));
            if start < end {
                let here = at + start - piece.start..at + end - piece.start;
                match found.last_mut() {
                    Some(last) if last.end == here.start => last.end = here.end,
                    _ => found.push(here),
                }
            }
        }
        at += piece.len();
    }
    found
}

/// The elements that both list.
pub(super) fn intersect(a: &[Range<usize>], b: &[Range<usize>]) -> Vec<Range<usize>> {
    let cut = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
    a.iter().flat_map(|a| b.iter().map(move |b| cut(a, b))).filter(|range| !range.is_empty()).collect()
}

/// The elements of `from` that `taken` does not list.
pub(super) fn without(from: &[Range<usize>], taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = from.to_vec();
    for taken in taken.iter().filter(|range| !range.is_empty()) {
        left = left
            .into_iter()
            .flat_map(|piece| {
                let before = piece.start..piece.end.min(taken.start).max(piece.start);
                let after = piece.start.max(taken.end).min(piece.end)..piece.end;
                [before, after]
            })
            .filter(|piece| !piece.is_empty())
            .collect();
    }
    left
}
