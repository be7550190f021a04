//! Elements on the wire, before any is sent.

use burnish_comm::{Op, Traffic};
use burnish_core::Dtype;
use burnish_ops::gpu::cost::{self, Cost};

use super::{GradReduction, Plan};
use crate::bucket::{BucketPlan, Piece};
use crate::{ReduceWhen, Stage};

impl Plan {
    /// What a step of `micro_batches` micro-batches moves when each reads as [`Plan::reads`] with recomputation.
    #[must_use]
    pub fn traffic(&self, micro_batches: usize) -> Traffic {
        self.traffic_of(micro_batches, &self.reads(true))
    }

    /// What a step moves when every micro-batch reads units in the order `reads`.
    ///
    /// Elements are a collective's full size: a ring sends `(N - 1) / N` of them per rank, for an all-reduce twice.
    /// Beside weights and gradients a step has two small all-reduces: a byte per trained parameter (whether any rank
    /// has a gradient for it) and, unless gradients are whole on every rank, the sum of squares.
    #[must_use]
    pub fn traffic_of(&self, micro_batches: usize, reads: &[usize]) -> Traffic {
        let mut traffic = Traffic::default();
        if self.world == 1 {
            return traffic;
        }
        let mut add = |op, dtype, elements: usize, times: usize| {
            traffic.add(op, dtype, times as u64, (elements * times) as u64);
        };
        self.gathering(reads, micro_batches, &mut add);
        for bucket in self.reduces.iter().flatten() {
            add(self.sum_of(bucket), bucket.dtype, bucket.elements(), self.rounds(micro_batches));
        }
        for bucket in &self.publishes {
            add(Op::AllGather, bucket.dtype, bucket.elements(), 1);
        }
        let trained = self.own().filter(|&i| self.trains(i)).count();
        if trained > 0 {
            add(Op::AllReduce, Dtype::U8, trained, 1);
            if self.policy.stage != Stage::Zero {
                add(Op::AllReduce, Dtype::F64, 1, 1);
            }
        }
        traffic
    }

    /// What passes without gradients move that read units in the order `reads`, one pass after another, before anything
    /// gathered is dropped ([`Plan::units_of`]).
    #[must_use]
    pub fn traffic_of_reads(&self, reads: &[usize]) -> Traffic {
        let mut traffic = Traffic::default();
        if self.world > 1 {
            self.gathering(reads, 1, &mut |op, dtype, elements, times| {
                traffic.add(op, dtype, times as u64, (elements * times) as u64);
            });
        }
        traffic
    }

    /// What each rank's device does around these collectives: puts its rows of a unit together, makes parameters whole of all
    /// ranks' rows, and puts gradients in the order of the ranks that sum them.
    #[must_use]
    pub fn packing_of(&self, micro_batches: usize, reads: &[usize]) -> Cost {
        let mut all = Cost::default();
        if self.world == 1 {
            return all;
        }
        for bucket in self.gathered(reads).into_iter().flat_map(|unit| &self.gathers[unit]) {
            let (elements, bytes) = (bucket.elements() as u64, bucket.dtype.bytes() as u64);
            let whole = |piece: &Piece| {
                let ranks = (0..piece.layout.ranks()).filter(|&rank| !piece.layout.elements(rank).is_empty());
                cost::joined(0, bytes, ranks.count() as u64)
            };
            let wholes: Cost = bucket.pieces.iter().map(whole).sum();
            let own = cost::joined(elements / self.world as u64, bytes, bucket.pieces.len() as u64);
            let moved = Cost::moving(bytes * elements, bytes * elements, 0);
            all += (own + wholes + moved) * micro_batches as u64;
        }
        for bucket in self.reduces.iter().flatten() {
            let (pieces, parts) = (bucket.pieces.len() as u64, bucket.parts() as u64);
            let packed = cost::joined(bucket.elements() as u64, bucket.dtype.bytes() as u64, pieces * parts);
            // Each gradient's own rows are taken out again.
            all += (packed + Cost::moving(0, 0, pieces)) * self.rounds(micro_batches) as u64;
        }
        all
    }

    /// How often gradients are summed in a step.
    fn rounds(&self, micro_batches: usize) -> usize {
        let often = self.policy.stage >= Stage::Two && self.policy.reduce == ReduceWhen::MicroBatch;
        if often { micro_batches } else { 1 }
    }

    fn gathering(&self, reads: &[usize], times: usize, add: &mut dyn FnMut(Op, Dtype, usize, usize)) {
        for unit in self.gathered(reads) {
            self.gathers[unit].iter().for_each(|b| add(Op::AllGather, b.dtype, b.elements(), times));
        }
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

    pub(crate) fn sum_of(&self, bucket: &BucketPlan) -> Op {
        match bucket.pieces.first().map(|p| self.placements[p.parameter].summed) {
            Some(GradReduction::ByRows) => Op::ReduceScatter,
            _ => Op::AllReduce,
        }
    }
}
