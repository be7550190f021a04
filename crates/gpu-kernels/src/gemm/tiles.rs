//! Tiles of an output for each cube, and parts of their sums, from sizes alone.

use super::Product;
use crate::mma::{PLANE, STRIP};

/// Factors of a sum that are in shared memory together.
const DEPTH: usize = 32;
/// Slabs that are there or on their way.
const STAGES: usize = 4;
/// Shared memory of the largest tiles.
pub(super) const MOST_BYTES: usize = 2 * 128 * (DEPTH / 8 + 1) * 16 * STAGES;

/// Cubes that fill a device: fewer are given parts of sums. Of no device in particular, so that bits are those of any.
const FULL: usize = 264;
/// Factors of a part of a sum at least.
const PART: usize = 256;

/// A cube's tile of the output, and how its planes share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiles {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Planes one below the other.
    pub(crate) down: usize,
    /// Planes beside each other.
    pub(crate) across: usize,
    pub(crate) depth: usize,
    /// Slabs in shared memory, three at least: what comes by way of registers is put there a turn after it was asked for.
    pub(crate) stages: usize,
}

impl Tiles {
    const fn new([rows, columns]: [usize; 2], [down, across]: [usize; 2]) -> Self {
        Self { rows, columns, down, across, depth: DEPTH, stages: STAGES }
    }

    pub(crate) fn units(self) -> usize {
        self.down * self.across * PLANE
    }

    /// Steps of a slab, an even number: the factors of one are loaded while those of the one before are multiplied.
    pub(crate) fn steps(self) -> usize {
        self.depth / STRIP
    }

    /// Strips of a plane's rows.
    pub(crate) fn strips(self) -> usize {
        self.rows / self.down / STRIP
    }

    /// Blocks of a plane's columns.
    pub(crate) fn blocks(self) -> usize {
        self.columns / self.across / STRIP
    }
}

/// An output cut into tiles, and sums into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) tiles: Tiles,
    /// Parts of each sum.
    pub(super) parts: usize,
    /// Factors of a part, a multiple of what is in shared memory together.
    pub(super) each: usize,
}

impl Cut {
    /// Of tiles, with as many parts as fill a device.
    pub(super) fn new(of: Product, tiles: Tiles) -> Self {
        let cubes = count(of, tiles);
        let wanted = if 2 * cubes > FULL { 1 } else { FULL / cubes };
        let parts = wanted.min(of.depth / PART).max(1);
        let each = of.depth.div_ceil(parts).next_multiple_of(tiles.depth).max(tiles.depth);
        Self { tiles, parts: of.depth.div_ceil(each).max(1), each }
    }

    pub(super) fn cubes(&self, of: Product) -> usize {
        count(of, self.tiles) * self.parts
    }
}

fn count(of: Product, tiles: Tiles) -> usize {
    of.batches * of.rows.div_ceil(tiles.rows) * of.columns.div_ceil(tiles.columns)
}

/// Cuts a product for tensor cores.
pub(super) fn cut(of: Product) -> Cut {
    let thin = |n: usize| n.next_power_of_two().clamp(STRIP, 64);
    let tiles = if of.columns <= 64 {
        Tiles::new([128, thin(of.columns)], [4, 1])
    } else if of.rows <= 64 {
        Tiles::new([thin(of.rows), 128], [1, 4])
    } else {
        let large = Tiles::new([128, 128], [2, 2]);
        if 2 * count(of, large) > FULL { large } else { Tiles::new([64, 64], [2, 2]) }
    };
    Cut::new(of, tiles)
}
