//! Arguments of a selective scan, and how its channels are divided among tasks.

use crate::texts;
use std::ops::Range;

/// A selective scan over texts in one row of tokens.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan<'a> {
    /// What channels hear, `[tokens, channels]`.
    pub x: &'a [f32],
    /// How far each token steps, before its softplus: `[tokens, channels]`.
    pub steps: &'a [f32],
    /// The logarithm of how fast each number of a state is forgotten, `[channels, states]`.
    pub log_rates: &'a [f32],
    /// What of a token enters each number of the states, `[tokens, states]`.
    pub b: &'a [f32],
    /// What of each number of the states is read, `[tokens, states]`.
    pub c: &'a [f32],
    /// What of `x` is added to the output, `[channels]`.
    pub skip: &'a [f32],
    /// Texts as ranges of rows; they do not overlap, and no state passes from one to the next.
    pub documents: &'a [Range<usize>],
    /// Of each document, an earlier one that it continues (it starts from the state that one leaves), if any; a missing
    /// entry is none.
    pub parents: &'a [Option<usize>],
}

/// Lengths of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) tokens: usize,
    pub(super) channels: usize,
    /// Numbers of a channel's state.
    pub(super) states: usize,
}

/// Tasks at the most: each has sums over its channels for the gradients of `b` and `c`.
const TASKS: usize = 32;
/// Channels that a task's are a multiple of: a cache line, and vectors of any instruction set.
const TOGETHER: usize = 16;

impl Sizes {
    /// Channels of a task.
    pub(super) fn each(self) -> usize {
        self.channels.div_ceil(TASKS).next_multiple_of(TOGETHER)
    }

    pub(super) fn tasks(self) -> usize {
        self.channels.div_ceil(self.each())
    }
}

impl SelectiveScan<'_> {
    /// Panics unless lengths and documents fit each other.
    pub(super) fn check(&self) -> Sizes {
        let channels = self.skip.len();
        assert!(
            channels > 0 && !self.log_rates.is_empty() && self.log_rates.len().is_multiple_of(channels),
            "selective scan: log_rates of {} elements, expected some for each of {channels} channels",
            self.log_rates.len()
        );
        let states = self.log_rates.len() / channels;
        let tokens = self.x.len() / channels;
        assert!(
            self.x.len() == tokens * channels && self.steps.len() == self.x.len(),
            "selective scan: x and steps of {} and {} elements, expected rows of {channels}",
            self.x.len(),
            self.steps.len()
        );
        assert!(
            self.b.len() == tokens * states && self.c.len() == self.b.len(),
            "selective scan: b and c of {} and {} elements, expected {tokens} rows of {states}",
            self.b.len(),
            self.c.len()
        );
        texts::check("selective scan", self.documents, self.parents, tokens);
        Sizes { tokens, channels, states }
    }

    /// The document that one continues.
    pub(super) fn parent(&self, document: usize) -> Option<usize> {
        self.parents.get(document).copied().flatten()
    }

    /// Of each document that others continue, a place for the state that it leaves; and how many there are.
    pub(super) fn places(&self) -> (Vec<Option<usize>>, usize) {
        let (mut places, mut count) = (vec![None; self.documents.len()], 0);
        for &parent in self.parents.iter().flatten() {
            places[parent].get_or_insert_with(|| {
                count += 1;
                count - 1
            });
        }
        (places, count)
    }
}
