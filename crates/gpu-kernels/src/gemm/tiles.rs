//! Tiles of an output for each cube, and parts of their sums, from sizes alone.

use super::Product;
use crate::mma::{PLANE, STRIP};

/// Factors of a sum that are in shared memory together.
const DEPTH: usize = 32;
/// Slabs that are there or on their way.
const STAGES: usize = 4;
/// The same of large tiles whose operands are copied past registers.
const DEEP: usize = 64;
const DEEP_STAGES: usize = 3;
/// Shared memory without which there are no products.
pub(super) const LEAST_BYTES: usize = LARGE.bytes();

/// The tiles by which large outputs are counted, so that parts of sums are the same on all devices.
const LARGE: Tiles = Tiles::new([128, 128], [2, 2]);
/// Twice as wide, of which a device holds half as many at once.
const WIDE: Tiles = Tiles::new([128, 256], [2, 4]);

/// Large tiles that fill a device: fewer are given parts of sums. Of no device in particular, so that bits are those of any.
const FULL: usize = 264;
/// Factors of a part of a sum at least.
const PART: usize = 256;
/// Factors of a sum from which on few large tiles with parts are better than many small ones.
const LONG: usize = 4096;
/// What the beginning and end of a turn of a full device take, and a second launch, in factors of its sums.
const TURN: usize = 128;
/// What it takes to write and add up a tile's part, in the same.
const ADDED: usize = 2;

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

    const fn deep(self) -> Self {
        Self { depth: DEEP, stages: DEEP_STAGES, ..self }
    }

    /// Bytes of shared memory at most, an odd number of eights from line to line.
    const fn bytes(self) -> usize {
        (self.rows + self.columns) * (self.depth / 8 + 1) * 16 * self.stages
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
        Self::of_parts(of, tiles, wanted.min(of.depth / PART), tiles.depth)
    }

    /// Of large tiles, with as many parts as take the least time: turns of a full device, and what adds parts up.
    fn large(of: Product) -> Self {
        let tiles = count(of, LARGE);
        let time = |parts: &usize| {
            let turns = (tiles * parts).div_ceil(FULL) * (of.depth.div_ceil(*parts) + TURN);
            turns + if *parts > 1 { TURN + ADDED * tiles * parts } else { 0 }
        };
        let parts = (1..=(of.depth / PART).clamp(1, FULL)).min_by_key(time).unwrap_or(1);
        Self::of_parts(of, LARGE, parts, DEEP)
    }

    /// Of so many parts at most, each of a multiple of so many factors.
    fn of_parts(of: Product, tiles: Tiles, parts: usize, multiple: usize) -> Self {
        let each = of.depth.div_ceil(parts.max(1)).next_multiple_of(multiple).max(multiple);
        Self { tiles, parts: of.depth.div_ceil(each).max(1), each }
    }

    /// The same tiles of whole sums.
    pub(super) fn whole(self, of: Product) -> Self {
        Self::of_parts(of, self.tiles, 1, self.tiles.depth)
    }

    pub(super) fn cubes(&self, of: Product) -> usize {
        count(of, self.tiles) * self.parts
    }
}

fn count(of: Product, tiles: Tiles) -> usize {
    of.batches * of.rows.div_ceil(tiles.rows) * of.columns.div_ceil(tiles.columns)
}

/// Cuts a product for tensor cores of a device with so many bytes of shared memory; whether both operands are copied `past`
/// registers.
///
/// Bits are those of any large tiles: each sum is of the same parts, and each part added up in the same steps.
pub(super) fn cut(of: Product, past: bool, shared: usize) -> Cut {
    let thin = |n: usize| n.next_power_of_two().clamp(STRIP, 64);
    if of.columns <= 64 {
        Cut::new(of, Tiles::new([128, thin(of.columns)], [4, 1]))
    } else if of.rows <= 64 {
        Cut::new(of, Tiles::new([thin(of.rows), 128], [1, 4]))
    } else if 2 * count(of, LARGE) <= FULL && of.depth < LONG {
        Cut::new(of, Tiles::new([64, 64], [2, 2]))
    } else {
        let cut = Cut::large(of);
        let turns = |tiles, at_once| (count(of, tiles) * cut.parts).div_ceil(at_once);
        // Wide tiles read less, as long as they take no more turns.
        let wide = of.columns > LARGE.columns && turns(WIDE, FULL / 2) <= turns(LARGE, FULL);
        let choice = [(wide && past, WIDE.deep()), (wide, WIDE), (past, LARGE.deep()), (true, LARGE)];
        let fits = choice.into_iter().find(|&(suits, tiles)| suits && tiles.bytes() <= shared);
        Cut { tiles: fits.map_or(LARGE, |(_, tiles)| tiles), ..cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: usize, columns: usize, depth: usize) -> Product {
        Product { batches: 1, rows, columns, depth }
    }

    #[test]
    fn parts_are_the_same_whatever_a_device_holds() {
        let sizes = [[8192, 3072, 1024], [768, 1024, 151_936], [3072, 1024, 8192], [65, 65, 1 << 20]];
        for [rows, columns, depth] in sizes {
            let of = of(rows, columns, depth);
            let all = [LEAST_BYTES, 99 << 10, 163 << 10, 227 << 10].map(|shared| cut(of, true, shared));
            for cut in &all {
                assert_eq!([cut.parts, cut.each], [all[0].parts, all[0].each], "{of:?}");
                assert!(cut.each * cut.parts >= depth && cut.each * (cut.parts - 1) < depth, "{of:?}");
                assert!(cut.each.is_multiple_of(cut.tiles.depth), "{of:?}");
            }
            assert_eq!(all[0].tiles, LARGE);
        }
    }

    #[test]
    fn tiles_are_wide_where_they_fill_a_device() {
        let tiles = |sizes: [usize; 3], past| cut(of(sizes[0], sizes[1], sizes[2]), past, 227 << 10).tiles;
        assert_eq!(tiles([8192, 1024, 3072], true), WIDE.deep());
        assert_eq!(tiles([8192, 1024, 3072], false), WIDE);
        assert_eq!(cut(of(8192, 1024, 3072), true, 163 << 10).tiles, WIDE.deep());
        assert_eq!(tiles([33_800, 128, 3072], true), LARGE.deep());
    }
}
