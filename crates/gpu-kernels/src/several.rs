//! Several tensors in one launch: how their vectors are dealt to cubes, a few turns of a unit's to each.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, vector};
use crate::row;

/// Vectors of a unit.
pub(crate) const EACH: usize = 4;

/// The vectors of each tensor, of one size, and the cubes that they take.
pub(crate) struct Several {
    /// Elements of a vector.
    pub(crate) size: usize,
    /// Cubes of each tensor: those of the longest.
    pub(crate) parts: usize,
    units: usize,
    vectors: Vec<usize>,
}

impl Several {
    /// Of tensors of so many elements, in the widest vectors in which all of `held` can be read.
    pub(crate) fn new(client: &Client, lens: impl Iterator<Item = usize>, held: &[&Buffer]) -> Self {
        let size = held.iter().map(|b| vector(b.len, 4, &[b])).min().unwrap_or(1);
        let vectors: Vec<usize> = lens.map(|len| len / size).collect();
        let units = row::most_units(client);
        let parts = vectors.iter().max().map_or(0, |most| most.div_ceil(units * EACH));
        Self { size, parts, units, vectors }
    }

    /// Vectors of the tensor number `at`; none where there is no such.
    pub(crate) fn vectors(&self, at: usize) -> usize {
        self.vectors.get(at).copied().unwrap_or(0)
    }

    /// Which tensor is handed over as number `at`: the first stands for those that there are not.
    pub(crate) fn place(&self, at: usize) -> usize {
        if at < self.vectors.len() { at } else { 0 }
    }

    pub(crate) fn cubes(&self, client: &Client) -> CubeCount {
        row::cubes(client, self.parts * self.vectors.len())
    }

    pub(crate) fn dim(&self) -> CubeDim {
        CubeDim::new_1d(self.units as u32)
    }
}

/// The vector that this unit has of a cube's part in a turn.
#[cube]
pub(crate) fn vector_of(part: usize, turn: usize) -> usize {
    (part * EACH + turn) * CUBE_DIM as usize + UNIT_POS as usize
}
