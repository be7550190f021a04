//! `Traffic`: counts of elements and bytes sent so far per collective, which tests compare with a plan.

use std::collections::BTreeMap;

use burnish_core::Dtype;

use crate::Op;

/// Calls of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrafficKey {
    /// The operation.
    pub op: Op,
    /// The element type.
    pub dtype: Dtype,
}

/// How many calls, and how large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrafficRow {
    /// Number of calls.
    pub calls: u64,
    /// Logical elements: the sum of the counts of each call; for all_reduce and broadcast the bucket's elements; for
    /// all_to_all what this rank sends. Independent of the number of ranks and of how a transport moves them.
    pub elements: u64,
}

/// Calls and logical elements per operation and element type, also in a world of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    rows: BTreeMap<TrafficKey, TrafficRow>,
}

impl Traffic {
    pub(crate) fn record(&mut self, op: Op, dtype: Dtype, elements: usize) {
        self.add(op, dtype, 1, elements as u64);
    }

    /// Adds `calls` with `elements` in all: how a plan writes down what it expects.
    pub fn add(&mut self, op: Op, dtype: Dtype, calls: u64, elements: u64) {
        let row = self.rows.entry(TrafficKey { op, dtype }).or_default();
        row.calls += calls;
        row.elements += elements;
    }

    /// Adds all of another count.
    pub fn merge(&mut self, more: &Self) {
        more.rows().for_each(|(key, row)| self.add(key.op, key.dtype, row.calls, row.elements));
    }

    /// All rows, ordered by operation and dtype.
    pub fn rows(&self) -> impl Iterator<Item = (TrafficKey, TrafficRow)> {
        self.rows.iter().map(|(&key, &row)| (key, row))
    }

    /// One row; zeros if there was no such call.
    #[must_use]
    pub fn of(&self, op: Op, dtype: Dtype) -> TrafficRow {
        self.rows.get(&TrafficKey { op, dtype }).copied().unwrap_or_default()
    }

    /// Elements of `op` in all types.
    #[must_use]
    pub fn elements(&self, op: Op) -> u64 {
        self.rows.iter().filter(|(key, _)| key.op == op).map(|(_, row)| row.elements).sum()
    }

    /// Calls of `op` in all types.
    #[must_use]
    pub fn calls(&self, op: Op) -> u64 {
        self.rows.iter().filter(|(key, _)| key.op == op).map(|(_, row)| row.calls).sum()
    }
}
