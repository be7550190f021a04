//! Tiles by tensor cores: rows of heads in shared memory, products of 16 by 8 by 16 in the registers of a plane.
//!
//! A plane has strips of 16 rows of its own. What it has of a product, 16 rows by 16 columns, lies in four pairs for each
//! unit: columns 2t and 2t + 1 of rows g and g + 8, then the same of the columns 8 further, where g is a fourth of the
//! unit's place in its plane and t the rest. These are also the pairs in which the left operand of a product over those
//! columns is held, so that probabilities never leave registers.

use cubecl_core as cubecl;
use cubecl_core::cmma::{MatrixIdent, MmaDefinition};
use cubecl_core::prelude::*;

use crate::mma::add;
pub(super) use crate::mma::{Eight, PLANE, Pair, STRIP};

/// The tiles of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiles {
    pub(crate) planes: usize,
    /// Strips of a plane.
    pub(crate) strips: usize,
    /// Blocks of 16 of what a strip's rows are held against at a time.
    pub(crate) others: usize,
}

impl Tiles {
    /// Rows of a cube.
    pub(crate) fn rows(self) -> usize {
        self.planes * self.strips * STRIP
    }

    /// Rows that they are held against at a time.
    pub(crate) fn other_rows(self) -> usize {
        self.others * STRIP
    }

    pub(crate) fn units(self) -> usize {
        self.planes * PLANE
    }
}

/// Eights from one row in shared memory to the next: one more than a row has, so that neighbours lie in other banks.
pub(super) fn pitch(head_dim: usize) -> usize {
    blocks(head_dim) * 2 + 1
}

/// Blocks of 16 columns that a head takes in shared memory, a whole number for each part.
pub(super) fn blocks(head_dim: usize) -> usize {
    head_dim.div_ceil(STRIP).next_multiple_of(parts(head_dim))
}

/// In how many parts the gradients of keys and values are computed: registers hold 128 columns of both.
pub(super) fn parts(head_dim: usize) -> usize {
    head_dim.div_ceil(128)
}

/// Brings rows of heads into shared memory, zeros past `end` and past a head's end. `first` and `stride` are in eights.
#[cube]
pub(super) fn stage<E: Float>(
    source: &[Eight<E>],
    first: usize,
    stride: usize,
    row: usize,
    end: usize,
    into: &mut [Eight<E>],
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
) {
    let pitch = comptime!(pitch(head_dim));
    let width = comptime!(blocks(head_dim) * 2);
    let all = comptime!(rows * width);
    #[unroll]
    for turn in 0..comptime!(all.div_ceil(units)) {
        let at = turn * units + UNIT_POS as usize;
        if at < all {
            let (of_row, column) = (at / width, at % width);
            let mut eight = Eight::<E>::new(E::from_int(0));
            if row + of_row < end && column < comptime!(head_dim / 8) {
                eight = source[first + (row + of_row) * stride + column];
            }
            into[of_row * pitch + column] = eight;
        }
    }
}

/// Four matrices of 8 by 8 of shared memory from a row and a block of 16 columns: beside each other first, or below.
#[cube]
fn load<E: Float>(
    from: &[Eight<E>],
    row: usize,
    block: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] below: bool,
    #[comptime] transposed: bool,
    #[comptime] pitch: usize,
) -> Array<Pair<E>> {
    let product = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let lane = UNIT_POS as usize % PLANE;
    let mut down = lane / 16;
    let mut across = lane / 8 % 2;
    if comptime!(below) {
        down = lane / 8 % 2;
        across = lane / 16;
    }
    let at = (row + lane % 8 + down * 8) * pitch + block * 2 + across;
    product.load_matrix::<Eight<E>, Const<2>>(&from[at..at + 1], ident, 4usize, transposed)
}

/// The products of this plane's rows, from `row` of `own`, with the rows of `other`, over a head's elements.
#[cube]
pub(super) fn multiply<E: Float>(
    own: &[Eight<E>],
    row: usize,
    other: &[Eight<E>],
    into: &mut Array<Pair<f32>>,
    #[comptime] head_dim: usize,
    #[comptime] tiles: Tiles,
) {
    let pitch = comptime!(pitch(head_dim));
    #[unroll]
    for i in 0..comptime!(tiles.strips * tiles.others * 4) {
        into[i] = Pair::<f32>::new(0.0);
    }
    for block in 0..comptime!(head_dim.div_ceil(STRIP)) {
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for strip in 0..tiles.strips {
            lefts.push(load::<E>(own, row + strip * STRIP, block, MatrixIdent::A, true, false, pitch));
        }
        #[unroll]
        for of_other in 0..tiles.others {
            let right = load::<E>(other, of_other * STRIP, block, MatrixIdent::B, false, false, pitch);
            #[unroll]
            for strip in 0..tiles.strips {
                let at = comptime!((strip * tiles.others + of_other) * 4);
                add::<E>(lefts.index(strip), &right, 0usize, into, at);
                add::<E>(lefts.index(strip), &right, 1usize, into, comptime!(at + 2));
            }
        }
    }
}

/// Adds the products of this plane's tile, rounded to the operands' dtype, with `other`, over the rows of `other`; in
/// `blocks` of 16 columns from the block `first`.
#[cube]
pub(super) fn accumulate<E: Float>(
    tile: &Array<Pair<f32>>,
    other: &[Eight<E>],
    first: usize,
    into: &mut Array<Pair<f32>>,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
    #[comptime] tiles: Tiles,
) {
    let pitch = comptime!(pitch(head_dim));
    #[unroll]
    for of_other in 0..tiles.others {
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for strip in 0..tiles.strips {
            let mut left = Array::<Pair<E>>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                left[i] = Pair::<E>::cast_from(tile[comptime!((strip * tiles.others + of_other) * 4 + i)]);
            }
            lefts.push(left);
        }
        #[unroll]
        for block in 0..blocks {
            let right = load::<E>(other, of_other * STRIP, first + block, MatrixIdent::B, true, true, pitch);
            #[unroll]
            for strip in 0..tiles.strips {
                let at = comptime!((strip * blocks + block) * 4);
                add::<E>(lefts.index(strip), &right, 0usize, into, at);
                add::<E>(lefts.index(strip), &right, 1usize, into, comptime!(at + 2));
            }
        }
    }
}
