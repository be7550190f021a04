//! Tiles of operands in shared memory, in the dtype of factors.
//!
//! A tile lies there as it does in the device's memory: lines along the depth of the product, or across it.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::copy_async_checked;
use cubecl_core::prelude::*;

use crate::mma::Eight;

/// How an operand is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    /// Whether the factors of a sum lie one behind the other.
    pub(crate) along: bool,
    /// Whether it is copied without registers between: where it is of the factors' dtype and in vectors of sixteen bytes.
    pub(crate) asynchronous: bool,
}

/// A tile in shared memory: `across` of the output's rows or columns by `depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    pub(super) along: bool,
    pub(super) lines: usize,
    /// Eights of a line.
    pub(super) width: usize,
    units: usize,
}

impl Tile {
    pub(super) fn new(along: bool, across: usize, depth: usize, units: usize) -> Self {
        let [lines, elements] = if along { [across, depth] } else { [depth, across] };
        Self { along, lines, width: elements / 8, units }
    }

    /// Eights from line to line: an odd number, so that lines begin in other banks.
    pub(super) fn pitch(self) -> usize {
        self.width + 1
    }

    /// Eights of all.
    pub(super) fn eights(self) -> usize {
        self.lines * self.pitch()
    }

    /// Whether there is something to bring for every unit.
    fn all_bring(self) -> bool {
        self.lines * self.width >= self.units
    }

    /// Eights that a unit brings: one of each so many lines.
    pub(super) fn turns(self) -> usize {
        debug_assert!(self.units.is_multiple_of(self.width), "invariant: units bring whole lines");
        debug_assert!(
            !self.all_bring() || (self.lines * self.width).is_multiple_of(self.units),
            "invariant: of the tile"
        );
        (self.lines * self.width).div_ceil(self.units)
    }
}

/// What a unit brings of an operand, slab by slab: in each turn eight elements of a line, as far as there is something.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Window {
    /// Its first vector of the first slab, from turn to turn, and from slab to slab.
    from: usize,
    turn: usize,
    slab: usize,
    line: usize,
    lines: usize,
    element: usize,
    elements: usize,
}

/// The window on rows or columns from `across` and factors from `depth`; `first` and `pitch` in vectors of `size`.
#[cube]
pub(super) fn window(
    first: usize,
    pitch: usize,
    across: usize,
    all_across: usize,
    depth: usize,
    all_depth: usize,
    size: usize,
    #[comptime] tile: Tile,
) -> Window {
    let of_line = UNIT_POS as usize / tile.width;
    let of_element = UNIT_POS as usize % tile.width * 8;
    let turn = comptime!(tile.units / tile.width) * pitch;
    if comptime!(tile.along) {
        let (line, element) = (across + of_line, depth + of_element);
        let from = first + line * pitch + element / size;
        let slab = comptime!(tile.width * 8) / size;
        Window { from, turn, slab, line, lines: all_across, element, elements: all_depth }
    } else {
        let (line, element) = (depth + of_line, across + of_element);
        let from = first + line * pitch + element / size;
        let slab = comptime!(tile.lines) * pitch;
        Window { from, turn, slab, line, lines: all_depth, element, elements: all_across }
    }
}

/// The line and the element from which a unit brings of a slab.
#[cube]
fn place(window: &Window, slab: usize, #[comptime] tile: Tile) -> (usize, usize) {
    let mut line = window.line;
    let mut element = window.element;
    if comptime!(tile.along) {
        element += slab * comptime!(tile.width * 8);
    } else {
        line += slab * comptime!(tile.lines);
    }
    (line, element)
}

/// Begins to copy a slab to `at` of shared memory, zeros where there is nothing.
#[cube]
pub(super) fn copy<S: Float, L: Size, E: Float>(
    source: &[Vector<S, L>],
    window: &Window,
    slab: usize,
    into: &mut [Eight<E>],
    at: usize,
    #[comptime] tile: Tile,
) {
    let (line, element) = place(window, slab, tile);
    let first = window.from + slab * window.slab;
    let unit = UNIT_POS as usize;
    let to = at + unit / tile.width * comptime!(tile.pitch()) + unit % tile.width;
    if comptime!(tile.all_bring()) || unit < comptime!(tile.lines * tile.width) {
        let within = element < window.elements;
        #[unroll]
        for turn in 0..comptime!(tile.turns()) {
            let there = within && line + comptime!(turn * (tile.units / tile.width)) < window.lines;
            let from = select(there, first + turn * window.turn, 0usize);
            let length = select(there, 1usize, 0usize);
            let to = to + comptime!(turn * (tile.units / tile.width) * tile.pitch());
            copy_async_checked(&source[from..from + length], into[to..to + 1].downcast_mut(), 8u32);
        }
    }
}

/// This unit's vectors of a slab, zeros where there is nothing.
#[cube]
pub(super) fn fetch<S: Float, L: Size>(
    source: &[Vector<S, L>],
    window: &Window,
    slab: usize,
    raw: &mut Array<Vector<S, L>>,
    #[comptime] tile: Tile,
) {
    let size = L::value();
    let (line, element) = place(window, slab, tile);
    let first = window.from + slab * window.slab;
    #[unroll]
    for turn in 0..comptime!(tile.turns()) {
        let within = line + comptime!(turn * (tile.units / tile.width)) < window.lines;
        #[unroll]
        for k in 0..comptime!(8 / size) {
            let mut vector = Vector::<S, L>::new(S::from_int(0));
            if within && element + comptime!(k * size) < window.elements {
                vector = source[first + turn * window.turn + k];
            }
            raw[comptime!(turn * (8 / size) + k)] = vector;
        }
    }
}

/// Puts them to `at` of shared memory, in the dtype of factors.
#[cube]
pub(super) fn put<S: Float, L: Size, E: Float>(
    raw: &Array<Vector<S, L>>,
    into: &mut [Eight<E>],
    at: usize,
    #[comptime] tile: Tile,
) {
    let size = L::value();
    let unit = UNIT_POS as usize;
    let to = at + unit / tile.width * comptime!(tile.pitch()) + unit % tile.width;
    if comptime!(tile.all_bring()) || unit < comptime!(tile.lines * tile.width) {
        #[unroll]
        for turn in 0..comptime!(tile.turns()) {
            let mut eight = Eight::<E>::new(E::from_int(0));
            #[unroll]
            for k in 0..8usize {
                let one = raw[comptime!(turn * (8 / size) + k / size)].extract(comptime!(k % size));
                eight.insert(k, E::cast_from(one));
            }
            into[to + comptime!(turn * (tile.units / tile.width) * tile.pitch())] = eight;
        }
    }
}
