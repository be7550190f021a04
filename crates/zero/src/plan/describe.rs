//! A plan as data, for tables and files.

use burnish_core::Dtype;
use burnish_optim::SlotSpec;
use serde::Serialize;

use super::{Memory, ParamStorageMode, Plan};
use crate::{Policy, Purpose};

/// What a plan says, for a table or a file: nothing is allocated to make it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Ranks.
    pub world: usize,
    /// The policy.
    pub policy: Policy,
    /// Elements of all parameters, each logical one counted once.
    pub elements: u64,
    /// Elements of the trained ones.
    pub trained: u64,
    /// Units in forward order.
    pub units: Vec<UnitRow>,
    /// Bytes of each rank.
    pub memory: Vec<Memory>,
    /// The collectives of a step.
    pub traffic: Vec<TrafficLine>,
}

/// One unit of a [`Description`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnitRow {
    /// Its name.
    pub name: String,
    /// Elements.
    pub elements: u64,
    /// Of those, the ones that are sharded at rest.
    pub sharded: u64,
    /// Its buckets.
    pub buckets: Vec<BucketRow>,
}

/// One bucket of a [`UnitRow`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketRow {
    /// What it is for.
    pub purpose: Purpose,
    /// The type on the wire.
    pub dtype: Dtype,
    /// Elements.
    pub elements: u64,
    /// Elements per rank.
    pub counts: Vec<usize>,
}

/// One kind of collective of a [`Description`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrafficLine {
    /// The collective, `all_gather`.
    pub op: &'static str,
    /// The type on the wire.
    pub dtype: Dtype,
    /// Calls per step.
    pub calls: u64,
    /// Elements per step.
    pub elements: u64,
}

impl Plan {
    /// The plan of a step of `micro_batches` micro-batches with an optimizer that keeps `slots`, as data.
    #[must_use]
    pub fn describe(&self, micro_batches: usize, slots: &dyn Fn(usize) -> Vec<SlotSpec>) -> Description {
        let elements = |i: usize| self.placements[i].layout.all_elements() as u64;
        let unit = |(number, unit): (usize, &crate::Unit)| UnitRow {
            name: unit.name.clone(),
            elements: unit.parameters.iter().map(|&i| elements(i)).sum(),
            sharded: unit
                .parameters
                .iter()
                .filter(|&&i| self.placements[i].residency == ParamStorageMode::Sharded)
                .map(|&i| elements(i))
                .sum(),
            buckets: self.gathers[number]
                .iter()
                .chain(&self.reduces[number])
                .map(|b| BucketRow {
                    purpose: b.purpose,
                    dtype: b.dtype,
                    elements: b.elements() as u64,
                    counts: b.counts(),
                })
                .collect(),
        };
        Description {
            world: self.world,
            policy: self.policy.clone(),
            elements: self.own().map(elements).sum(),
            trained: self.own().filter(|&i| self.trains(i)).map(elements).sum(),
            units: self.units.iter().enumerate().map(unit).collect(),
            memory: (0..self.world).map(|rank| self.memory(rank, micro_batches, slots)).collect(),
            traffic: self
                .traffic(micro_batches)
                .rows()
                .map(|(key, row)| TrafficLine {
                    op: key.op.name(),
                    dtype: key.dtype,
                    calls: row.calls,
                    elements: row.elements,
                })
                .collect(),
        }
    }
}
