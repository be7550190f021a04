//! Elements on the wire, before any is sent.

use std::collections::BTreeMap;
use std::fmt;

use burnish_core::Dtype;
use serde::{Deserialize, Serialize};

use super::{Plan, Summed};
use crate::bucket::BucketPlan;
use crate::{ReduceWhen, Stage};

/// A collective that a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Everybody gets the sum.
    AllReduce,
    /// Everybody gets a part of the sum.
    ReduceScatter,
    /// Everybody gets all parts.
    AllGather,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
        })
    }
}

/// What one kind of collective moves in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficRow {
    /// The collective.
    pub op: Collective,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How often it runs.
    pub calls: u64,
    /// Elements of all calls, the full size of each. A ring sends `(N - 1) / N` of that per rank, an all-reduce twice.
    pub elements: u64,
}

impl Plan {
    /// What a step of `micro_batches` micro-batches moves when each reads as [`Plan::reads`] with recomputation.
    #[must_use]
    pub fn traffic(&self, micro_batches: usize) -> Vec<TrafficRow> {
        self.traffic_of(micro_batches, &self.reads(true))
    }

    /// What a step moves when every micro-batch reads units in the order `reads`.
    ///
    /// Beside weights and gradients a step has two small all-reduces: a byte per trained parameter (whether any rank
    /// has a gradient for it) and, unless gradients are whole on every rank, the sum of squares.
    #[must_use]
    pub fn traffic_of(&self, micro_batches: usize, reads: &[usize]) -> Vec<TrafficRow> {
        let mut rows: BTreeMap<(Collective, Dtype), (u64, u64)> = BTreeMap::new();
        if self.world == 1 {
            return Vec::new();
        }
        let mut add = |op, dtype, elements: usize, times: usize| {
            let row = rows.entry((op, dtype)).or_default();
            row.0 += times as u64;
            row.1 += (elements * times) as u64;
        };
        for unit in self.gathered(reads) {
            self.gathers[unit]
                .iter()
                .for_each(|b| add(Collective::AllGather, b.dtype, b.elements(), micro_batches));
        }
        let often = self.policy.stage >= Stage::Two && self.policy.reduce == ReduceWhen::MicroBatch;
        for bucket in self.reduces.iter().flatten() {
            let rounds = if often { micro_batches } else { 1 };
            add(self.sum_of(bucket), bucket.dtype, bucket.elements(), rounds);
        }
        for bucket in &self.publishes {
            add(Collective::AllGather, bucket.dtype, bucket.elements(), 1);
        }
        let trained = self.own().filter(|&i| self.trains(i)).count();
        if trained > 0 {
            add(Collective::AllReduce, Dtype::U8, trained, 1);
            if self.policy.stage != Stage::Zero {
                add(Collective::AllReduce, Dtype::F64, 1, 1);
            }
        }
        rows.into_iter()
            .map(|((op, dtype), (calls, elements))| TrafficRow { op, dtype, calls, elements })
            .collect()
    }

    /// The units whose gathers begin, in order, when units are read in the order `reads`.
    #[must_use]
    pub fn gathered(&self, reads: &[usize]) -> Vec<usize> {
        let mut window = self.window();
        let mut begun = Vec::new();
        for &unit in reads {
            let moves = window.read(unit);
            begun.extend(moves.gather.then_some(unit));
            begun.extend(moves.start);
        }
        begun
    }

    pub(crate) fn sum_of(&self, bucket: &BucketPlan) -> Collective {
        match bucket.pieces.first().map(|p| self.placements[p.parameter].summed) {
            Some(Summed::ByRows) => Collective::ReduceScatter,
            _ => Collective::AllReduce,
        }
    }
}
