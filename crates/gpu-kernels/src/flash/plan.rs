//! `FlashPlan`: which keys each token sees, and by tiles who sees whom.

use std::cmp::Reverse;
use std::ops::Range;

/// What the tokens of a row see of each other: each its own document's keys up to itself, and a range before them. With
/// it, for tiles of rows, the ranges of what they see or are seen by, so that a tile is not held against what is hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashPlan {
    words: Vec<u32>,
    pub(super) rows: TileRows,
    pub(super) tokens: usize,
    pub(super) before: bool,
    /// Ranges of keys by tiles of queries, of the forward pass.
    pub(super) forward: Ranges,
    /// The same of the backward pass.
    pub(super) queries: Ranges,
    /// Ranges of queries by tiles of keys.
    pub(super) keys: Ranges,
}

/// Words before a plan's ranges of each tile: its number, where its ranges begin and end, and the first one's rows.
pub(super) const TILE_WORDS: usize = 5;

/// Where the words of a plan have the ranges of each tile, and for how many tiles: where each tile's begin and the last
/// one's end, then beginnings and ends. Before them stand [`TILE_WORDS`] of each tile, those first whose ranges hold most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    pub(super) at: usize,
    pub(super) tiles: usize,
}

/// Rows of the tiles of each kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileRows {
    pub(super) forward: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
}

impl FlashPlan {
    /// Of each token the first key that it sees, which is after the token where it sees none, and the keys that it sees
    /// before those; the latter are no ranges at all where no token has any.
    ///
    /// # Panics
    /// If there are ranges, but not one for each token.
    pub(super) fn new(low: &[usize], before: &[Range<usize>], rows: TileRows) -> Self {
        let tokens = low.len();
        assert!(before.is_empty() || before.len() == tokens, "invariant: a range before each token");
        let mut words: Vec<u32> = low.iter().map(|&n| word(n)).collect();
        words.extend(before.iter().map(|r| word(r.start)));
        words.extend(before.iter().map(|r| word(r.end)));
        let sees = |rows: usize| -> Vec<Vec<Range<usize>>> {
            let tiles = (0..tokens).step_by(rows).map(|first| first..tokens.min(first + rows));
            tiles
                .map(|tile| {
                    let own = tile.clone().map(|t| low[t]..t + 1);
                    let more = before.get(tile).unwrap_or_default().iter().cloned();
                    union(own.chain(more).filter(|r| !r.is_empty()).collect())
                })
                .collect()
        };
        let by_queries = sees(rows.forward);
        let forward = put(&mut words, &by_queries);
        let queries = match rows.queries == rows.forward {
            true => forward,
            false => put(&mut words, &sees(rows.queries)),
        };
        let mut seen: Vec<Vec<Range<usize>>> = vec![Vec::new(); tokens.div_ceil(rows.keys)];
        for (tile, ranges) in by_queries.iter().enumerate() {
            let tile = tile * rows.forward..tokens.min((tile + 1) * rows.forward);
            for key in ranges.iter().flat_map(|r| r.start / rows.keys..r.end.div_ceil(rows.keys)) {
                match seen[key].last_mut() {
                    Some(last) if last.end >= tile.start => last.end = tile.end,
                    _ => seen[key].push(tile.clone()),
                }
            }
        }
        let keys = put(&mut words, &seen);
        Self { words, rows, tokens, before: !before.is_empty(), forward, queries, keys }
    }

    /// How many tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The plan as a device has it.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

fn word(n: usize) -> u32 {
    u32::try_from(n).expect("invariant: a row has fewer than 2^32 tokens")
}

fn put(words: &mut Vec<u32>, all: &[Vec<Range<usize>>]) -> Ranges {
    let most = |tile: &usize| Reverse(all[*tile].iter().map(Range::len).sum::<usize>());
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(most);
    let mut ends = vec![0];
    for ranges in all {
        ends.push(ends[ends.len() - 1] + ranges.len());
    }
    for tile in order {
        let first = all[tile].first().cloned().unwrap_or(0..0);
        words.extend([tile, ends[tile], ends[tile + 1], first.start, first.end].map(word));
    }
    let at = words.len();
    words.extend(ends.into_iter().map(word));
    words.extend(all.iter().flatten().flat_map(|r| [word(r.start), word(r.end)]));
    Ranges { at, tiles: all.len() }
}

/// In order and apart.
fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|r| r.start);
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}
