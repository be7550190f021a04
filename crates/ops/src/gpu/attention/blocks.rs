//! Blocks of queries and the range of keys that each attends to.

use std::ops::Range;

use crate::attention::AttentionShape;

/// Most queries of a block.
const ROWS: usize = 512;
/// Scores of a block, about: 128 MiB in f32.
const SCORES: usize = 1 << 25;

/// What each token sees, in tokens: of its own document, and of the one that this continues.
#[cfg(any(feature = "cube", test))]
#[derive(Debug)]
pub(in crate::gpu) struct Sight {
    /// The first key of its own document, up to itself; after the token where it is outside of every document.
    pub(in crate::gpu) low: Vec<usize>,
    /// The keys before those; no ranges at all where no document continues another.
    pub(in crate::gpu) before: Vec<Range<usize>>,
}

#[cfg(any(feature = "cube", test))]
impl Sight {
    pub(super) fn new(shape: &AttentionShape, documents: &[Range<usize>], tokens: usize) -> Self {
        let mut low: Vec<usize> = (1..=tokens).collect();
        let mut before = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            let parent = shape.parents.get(index).copied().flatten().map(|p| documents[p].clone());
            for token in document.clone() {
                let own = token + 1 - document.start;
                let seen = shape.window.unwrap_or(usize::MAX);
                low[token] = token + 1 - own.min(seen);
                if let Some(parent) = &parent {
                    before.resize(tokens, 0..0);
                    before[token] = parent.end - parent.len().min(seen - own.min(seen))..parent.end;
                }
            }
        }
        Self { low, before }
    }
}

/// Queries that are computed together.
///
/// Keys are counted from the first that any document of the block could see: in tokens of the row, or for a document that
/// continues another from that one's first. A key is visible from the query's `low` up to the query itself.
#[derive(Debug, PartialEq)]
pub(super) struct Block {
    /// Tokens.
    pub(super) rows: Range<usize>,
    /// Tokens, in order of their counts.
    pub(super) keys: Vec<Range<usize>>,
    /// The first query's count.
    pub(super) first_query: usize,
    /// The first key's count.
    pub(super) first_key: usize,
}

impl Block {
    /// How many keys.
    pub(super) fn visible(&self) -> usize {
        self.keys.iter().map(Range::len).sum()
    }
}

/// All blocks, in order of their rows.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) all: Vec<Block>,
    /// Per token the count of the first key that it sees.
    pub(super) low: Vec<i32>,
}

/// Neighbouring documents, or one with something before it.
struct Run {
    rows: Range<usize>,
    before: Before,
}

/// Which keys come before a run's own.
enum Before {
    Nothing,
    /// Those of the document that it continues.
    Parent(Range<usize>),
    /// As many, in a cache to which its own have been added.
    Cached(usize),
}

impl Run {
    /// A token's count.
    fn count(&self, token: usize) -> usize {
        match &self.before {
            Before::Nothing => token,
            Before::Parent(parent) => parent.len() + token - self.rows.start,
            Before::Cached(before) => before + token - self.rows.start,
        }
    }

    /// The first count that a token sees.
    fn low(&self, token: usize, first: usize, window: Option<usize>) -> usize {
        window.map_or(first, |w| first.max((self.count(token) + 1).saturating_sub(w)))
    }

    /// Where the keys of counts `low..high` lie.
    fn keys(&self, low: usize, high: usize) -> Vec<Range<usize>> {
        let (of_parent, own) = match &self.before {
            Before::Parent(parent) => {
                let before = parent.len();
                let own = |count: usize| self.rows.start + count.max(before) - before;
                (parent.start + low.min(before)..parent.start + high.min(before), own(low)..own(high))
            }
            Before::Nothing | Before::Cached(_) => (0..0, low..high),
        };
        [of_parent, own].into_iter().filter(|r| !r.is_empty()).collect()
    }
}

impl Blocks {
    pub(super) fn new(shape: &AttentionShape, documents: &[Range<usize>], tokens: usize) -> Self {
        let mut low = vec![0_i32; tokens];
        let mut order: Vec<usize> = (0..documents.len()).filter(|&i| !documents[i].is_empty()).collect();
        order.sort_by_key(|&i| documents[i].start);
        let mut runs: Vec<Run> = Vec::new();
        for index in order {
            let document = documents[index].clone();
            let parent = shape.parents.get(index).copied().flatten().map(|p| documents[p].clone());
            let parent = parent.filter(|p| !p.is_empty());
            let alone = parent.is_none();
            let first = if alone { document.start } else { 0 };
            let before = parent.map_or(Before::Nothing, Before::Parent);
            let run = Run { rows: document.clone(), before };
            for token in document.clone() {
                low[token] = run.low(token, first, shape.window) as i32;
            }
            match runs.last_mut() {
                Some(last)
                    if alone && matches!(last.before, Before::Nothing) && last.rows.end == document.start =>
                {
                    last.rows.end = document.end;
                }
                _ => runs.push(run),
            }
        }
        let all = runs.iter().flat_map(|run| cut(run, &low, shape.heads)).collect();
        Self { all, low }
    }
}

impl Blocks {
    /// The new `rows` of each sequence behind as many keys `before` them, which lie in the sequence's own cache with
    /// theirs; each sequence's blocks apart.
    pub(super) fn cached(
        shape: &AttentionShape,
        sequences: impl Iterator<Item = (Range<usize>, usize)>,
        tokens: usize,
    ) -> (Vec<Vec<Block>>, Self) {
        let mut low = vec![0_i32; tokens];
        let mut apart = Vec::new();
        for (rows, before) in sequences {
            let run = Run { rows: rows.clone(), before: Before::Cached(before) };
            for token in rows {
                low[token] = run.low(token, 0, shape.window) as i32;
            }
            apart.push(cut(&run, &low, shape.heads));
        }
        (apart, Self { all: Vec::new(), low })
    }
}

fn cut(run: &Run, low: &[i32], heads: usize) -> Vec<Block> {
    let (mut blocks, mut start) = (Vec::new(), run.rows.start);
    while start < run.rows.end {
        let mut n = ROWS.min(run.rows.end - start);
        // A later row sees nothing before what the first sees.
        let first_key = low[start] as usize;
        while n > 16 && heads * n * (run.count(start + n) - first_key) > SCORES {
            n = n.div_ceil(2);
        }
        blocks.push(Block {
            rows: start..start + n,
            keys: run.keys(first_key, run.count(start + n)),
            first_query: run.count(start),
            first_key,
        });
        start += n;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn shape(heads: usize, window: Option<usize>, parents: Vec<Option<usize>>) -> AttentionShape {
        AttentionShape {
            heads,
            kv_heads: heads,
            head_dim: 1,
            scale: 1.0,
            softcap: None,
            slopes: Arc::default(),
            window,
            parents: Arc::new(parents),
            compute: Default::default(),
        }
    }

    /// The keys that each query sees, by its mask.
    fn seen(blocks: &Blocks, all: &[Block], tokens: usize) -> Vec<Vec<usize>> {
        let mut seen = vec![Vec::new(); tokens];
        for block in all {
            for (i, query) in block.rows.clone().enumerate() {
                let counts = blocks.low[query] as usize..=block.first_query + i;
                let keys = block.keys.iter().cloned().flatten().enumerate();
                seen[query] =
                    keys.filter(|(j, _)| counts.contains(&(block.first_key + j))).map(|(_, k)| k).collect();
            }
        }
        seen
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Documents with gaps, some empty, the first continued by some of the others; blocks that the number of heads
        /// makes smaller.
        #[test]
        fn every_query_sees_its_document_up_to_itself(
            pieces in prop::collection::vec((0_usize..4, 0_usize..700, any::<bool>()), 1..6),
            window in prop::option::of(1_usize..900),
            heads in prop_oneof![Just(2_usize), Just(1 << 13), Just(1 << 20)],
        ) {
            let (mut documents, mut parents, mut at) = (Vec::new(), Vec::new(), 0);
            for (index, (gap, length, continues)) in pieces.into_iter().enumerate() {
                documents.push(at + gap..at + gap + length);
                parents.push((continues && index > 0).then_some(0));
                at += gap + length;
            }
            let blocks = Blocks::new(&shape(heads, window, parents.clone()), &documents, at + 1);
            let seen = seen(&blocks, &blocks.all, at + 1);
            let mut rows: Vec<usize> = blocks.all.iter().flat_map(|b| b.rows.clone()).collect();
            let mut want: Vec<usize> = documents.iter().cloned().flatten().collect();
            want.sort_unstable();
            prop_assert_eq!(&rows, &want, "in order, each once");
            rows.clear();
            let sight = Sight::new(&shape(heads, window, parents.clone()), &documents, at + 1);
            for (token, seen) in seen.iter().enumerate() {
                let before = sight.before.get(token).cloned().unwrap_or(0..0);
                prop_assert_eq!(seen, &before.chain(sight.low[token]..token + 1).collect::<Vec<_>>());
            }
            for (document, parent) in documents.iter().zip(&parents) {
                let before = parent.map_or(0..0, |p: usize| documents[p].clone());
                for query in document.clone() {
                    let all: Vec<usize> = before.clone().chain(document.start..query + 1).collect();
                    let from = window.map_or(0, |w| all.len().saturating_sub(w));
                    prop_assert_eq!(&seen[query], &all[from..], "query {}", query);
                }
            }
            for block in &blocks.all {
                prop_assert!(block.rows.len() <= ROWS && !block.rows.is_empty());
                prop_assert!(block.rows.len() <= 16 || heads * block.rows.len() * block.visible() <= SCORES);
            }
        }

        #[test]
        fn new_rows_see_the_cache_and_themselves(
            sequences in prop::collection::vec((0_usize..600, 0_usize..600), 1..4),
            window in prop::option::of(1_usize..700),
        ) {
            let mut at = 0;
            let sequences: Vec<_> = sequences.into_iter().map(|(new, before)| {
                at += new;
                (at - new..at, before)
            }).collect();
            let (apart, blocks) = Blocks::cached(&shape(2, window, vec![]), sequences.iter().cloned(), at);
            for ((rows, before), own) in sequences.iter().zip(&apart) {
                let seen = seen(&blocks, own, at);
                for (i, query) in rows.clone().enumerate() {
                    let position = before + i;
                    let from = window.map_or(0, |w| (position + 1).saturating_sub(w));
                    prop_assert_eq!(&seen[query], &(from..position + 1).collect::<Vec<_>>());
                }
            }
        }
    }
}
