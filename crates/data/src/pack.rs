//! Packing: several sequences in one row of at most `max_length` tokens.
//!
//! As TRL 1.16: best-fit decreasing (Ding et al., "Fewer truncations improve language modeling", 2024, section 3.1)
//! or wrapping, in windows of [`WINDOW`] rows, so that a data set is packed as it streams by.

use std::collections::{BTreeSet, HashMap, VecDeque};

use burnish_core::choices;

use crate::error::DataError;
use crate::example::Example;

/// Rows packed together.
pub const WINDOW: usize = 1000;

choices! {
    /// How rows are packed.
    #[derive(Default)]
    pub enum Strategy: "packing_strategy", DataError {
        /// Best-fit decreasing; tokens beyond `max_length` of a row are dropped.
        #[default]
        Bfd = "bfd",
        /// Best-fit decreasing; longer rows are cut into pieces first.
        BfdSplit = "bfd_split" | "bfd-requeue",
        /// Rows are strung together and cut every `max_length` tokens; a row of the result is one document.
        Wrapped = "wrapped",
    }
}

impl Strategy {
    /// Whether packed sequences stay documents of their own (then batches are padding-free).
    #[must_use]
    pub const fn keeps_documents(self) -> bool {
        !matches!(self, Self::Wrapped)
    }
}

/// Packs rows window by window.
///
/// # Panics
/// When `max_length` is 0.
#[must_use]
pub fn pack(examples: &[Example], max_length: usize, strategy: Strategy) -> Vec<Example> {
    assert!(max_length > 0, "a packed row has room for a token");
    examples.chunks(WINDOW).flat_map(|window| pack_window(window, max_length, strategy)).collect()
}

/// Packs one window.
pub(crate) fn pack_window(examples: &[Example], max_length: usize, strategy: Strategy) -> Vec<Example> {
    match strategy {
        Strategy::Bfd => {
            let cut = |e: &Example| piece(e, 0, max_length.min(e.len()));
            best_fit(examples.iter().filter(|e| !e.is_empty()).map(cut).collect(), max_length)
        }
        Strategy::BfdSplit => {
            let cut = |e: &'_ Example| {
                let pieces = (0..e.len()).step_by(max_length);
                pieces.map(|at| piece(e, at, max_length.min(e.len() - at))).collect::<Vec<_>>()
            };
            best_fit(examples.iter().flat_map(cut).collect(), max_length)
        }
        Strategy::Wrapped => wrap(examples, max_length),
    }
}

fn piece(example: &Example, at: usize, length: usize) -> Example {
    Example::new(example.input_ids[at..at + length].to_vec(), example.labels[at..at + length].to_vec())
}

/// Longest first, each into the open row with the least sufficient space; among equals, the one that came to have
/// that space first.
fn best_fit(mut sequences: Vec<Example>, max_length: usize) -> Vec<Example> {
    sequences.sort_by_key(|e| std::cmp::Reverse(e.len()));
    let mut rows: Vec<Example> = Vec::new();
    let mut spaces: BTreeSet<usize> = BTreeSet::new();
    let mut open: HashMap<usize, VecDeque<usize>> = HashMap::new();
    for sequence in sequences {
        let length = sequence.len();
        let (row, space) = match spaces.range(length..).next().copied() {
            Some(space) => {
                let queue = open.get_mut(&space).expect("invariant: a listed space has an open row");
                let row = queue.pop_front().expect("invariant: a listed space has an open row");
                if queue.is_empty() {
                    spaces.remove(&space);
                }
                (row, space)
            }
            None => {
                rows.push(Example::default());
                (rows.len() - 1, max_length)
            }
        };
        let target = &mut rows[row];
        target.input_ids.extend(sequence.input_ids);
        target.labels.extend(sequence.labels);
        target.seq_lengths.push(length);
        let left = space - length;
        if left > 0 {
            open.entry(left).or_default().push_back(row);
            spaces.insert(left);
        }
    }
    rows
}

fn wrap(examples: &[Example], max_length: usize) -> Vec<Example> {
    let ids: Vec<u32> = examples.iter().flat_map(|e| e.input_ids.iter().copied()).collect();
    let labels: Vec<i32> = examples.iter().flat_map(|e| e.labels.iter().copied()).collect();
    ids.chunks(max_length)
        .zip(labels.chunks(max_length))
        .map(|(i, l)| Example::new(i.to_vec(), l.to_vec()))
        .collect()
}
