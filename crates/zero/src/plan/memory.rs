//! Bytes of one rank, before they are allocated.

use burnish_core::{Dtype, Parameter, Role};
use burnish_optim::SlotSpec;
use serde::{Deserialize, Serialize};

use super::{GradReduction, ParamStorageMode, Plan};
use crate::rows::rows_of;
use crate::{ReduceWhen, Stage};

/// How many buckets are on their way at most, one being filled and one being summed.
pub(crate) const IN_FLIGHT: usize = 2;

/// Bytes of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights that it keeps.
    pub weights: u64,
    /// Gradients that it gives to the optimizer.
    pub gradients: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// The most that gathered weights add while a model runs.
    pub gathered: u64,
    /// The most that gradients need beyond that before they are summed: those of the whole model (stages 0 and 1, and
    /// accumulation before one reduction) or of units that are not complete, and buckets on their way.
    pub summing: u64,
    /// The most that an optimizer of whole matrices needs in the step, when what gathering and summing needed is free again:
    /// the matrices that it puts together, and rounds of pieces on their way. Updates take their gradients' place; what
    /// one orthogonalisation needs by itself is not in it.
    pub updating: u64,
}

impl Memory {
    /// Between backward and the optimizer.
    #[must_use]
    pub fn rest(&self) -> u64 {
        self.weights + self.gradients + self.optimizer
    }

    /// At most, activations aside.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.rest() + (self.gathered + self.summing).max(self.updating)
    }
}

impl Plan {
    /// The bytes of `rank` in a step of `micro_batches` micro-batches, with an optimizer that keeps `slots` of the parameter
    /// at an index: of every element that the rank updates.
    ///
    /// A slot called `master` exists only for parameters that are stored in another dtype than the slot's. Where the
    /// optimizer needs whole matrices ([`Plan::with_owners`]) the step's own need is in [`Memory::updating`].
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn memory(
        &self,
        rank: usize,
        micro_batches: usize,
        slots: &dyn Fn(usize) -> Vec<SlotSpec>,
    ) -> Memory {
        assert!(rank < self.world, "invariant: rank {rank} is one of {}", self.world);
        let mut memory = Memory::default();
        let mut whole_gradients = 0;
        for index in self.own() {
            let parameter = self.registry.at(index);
            let placement = &self.placements[index];
            let (all, own) = (placement.layout.all_elements(), placement.layout.elements(rank).len());
            let kept = match placement.residency {
                ParamStorageMode::Whole => all,
                ParamStorageMode::Sharded => own,
            };
            memory.weights += at_rest(parameter, kept);
            let updated = match placement.summed {
                GradReduction::Never => continue,
                GradReduction::Everywhere => all,
                GradReduction::ByRows => own,
            };
            whole_gradients += bytes(all, Dtype::F32);
            memory.gradients += bytes(updated, Dtype::F32);
            for slot in slots(index) {
                if slot.name != "master" || slot.dtype != parameter.precision.store {
                    memory.optimizer += bytes(updated, slot.dtype);
                }
            }
        }
        if self.world == 1 {
            memory.gathered = self.widened();
            return memory;
        }
        if let Some(routes) = &self.routes {
            memory.updating = bytes(routes.assembled(rank) + routes.staged(rank, IN_FLIGHT), Dtype::F32);
        }
        // Stages 0 and 1 keep whole gradients to the step, and so does accumulation before one reduction.
        let early = self.policy.stage >= Stage::Two;
        let accumulates = micro_batches > 1 && self.policy.reduce == ReduceWhen::Step;
        let gathered =
            |u: usize| -> u64 { self.gathers[u].iter().map(|b| bytes(b.elements(), b.dtype)).sum() };
        let summed = |u: usize| -> u64 {
            self.units[u].parameters.iter().filter(|&&i| self.trains(i)).map(|&i| self.f32_bytes(i)).sum()
        };
        let blocks = || (0..self.units.len()).filter(|&u| !self.units[u].root);
        let roots = || (0..self.units.len()).filter(|&u| self.units[u].root);
        let held: u64 = if early && !accumulates {
            roots().map(summed).sum::<u64>() + blocks().map(summed).max().unwrap_or(0)
        } else {
            whole_gradients - memory.gradients
        };
        let mut buckets: Vec<u64> =
            self.reduces.iter().flatten().map(|b| bytes(b.elements(), b.dtype)).collect();
        buckets.sort_unstable_by(|a, b| b.cmp(a));
        // A rank that is behind may still read one that this rank has taken in.
        let arrived = buckets.first().map_or(0, |largest| largest.div_ceil(self.world as u64));
        let flying = arrived + buckets.iter().take(IN_FLIGHT + 1).sum::<u64>();
        memory.summing = held + flying;
        memory.gathered = {
            let kept = |u: &usize| self.policy.keep_root && self.units[*u].root && *u < self.listed;
            let roots: u64 = (0..self.units.len()).filter(kept).map(gathered).sum();
            let mut others: Vec<u64> = (0..self.units.len()).filter(|u| !kept(u)).map(gathered).collect();
            others.sort_unstable_by(|a, b| b.cmp(a));
            roots + others.iter().take(if self.policy.prefetch { 2 } else { 1 }).sum::<u64>() + self.widened()
        };
        memory
    }

    /// The largest quantised matrix that is whole here, or gathered as it rests, in the dtype that it is read in: products on
    /// the CPU read it piece by piece, what else needs one makes it anew. Experts are read by products alone.
    fn widened(&self) -> u64 {
        let read = |i: &usize| {
            let parameter = self.registry.at(*i);
            let rests = !self.sharded(*i) || self.packed_row(*i).is_some();
            parameter.quantization.is_some() && parameter.role != Role::Expert && rests
        };
        (0..self.registry.len()).filter(read).map(|i| self.stored_bytes(i)).max().unwrap_or(0)
    }

    fn stored_bytes(&self, index: usize) -> u64 {
        bytes(self.placements[index].layout.all_elements(), self.registry.at(index).precision.store)
    }

    fn f32_bytes(&self, index: usize) -> u64 {
        bytes(self.placements[index].layout.all_elements(), Dtype::F32)
    }
}

/// Bytes of so many elements of a parameter, whole rows, at rest.
fn at_rest(parameter: &Parameter, elements: usize) -> u64 {
    let row = rows_of(&parameter.shape).1;
    parameter.stored_bytes(elements.checked_div(row).unwrap_or(0), row) as u64
}

fn bytes(elements: usize, dtype: Dtype) -> u64 {
    elements as u64 * dtype.bytes() as u64
}
