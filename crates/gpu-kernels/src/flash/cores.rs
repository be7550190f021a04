//! Tiles by tensor cores: rows of heads in shared memory, products of 16 by 8 by 16 in the registers of a plane.
//!
//! A plane has strips of 16 rows of its own. What it has of a product, 16 rows by 16 columns, lies in four pairs for each
//! unit: columns 2t and 2t + 1 of rows g and g + 8, then the same of the columns 8 further, where g is a fourth of the
//! unit's place in its plane and t the rest. These are also the pairs in which the left operand of a product over those
//! columns is held, so that probabilities never leave registers.

use cubecl_core as cubecl;
use cubecl_core::cmma::{MatrixIdent, MmaDefinition};
use cubecl_core::ir::{ElemType, FloatKind};
use cubecl_core::prelude::barrier::copy_async_checked;
use cubecl_core::prelude::*;

use crate::mma::add;
pub(super) use crate::mma::{Eight, PLANE, Pair, STRIP, commit, pair, wait};

/// Tiles of the other rows in shared memory: one that is multiplied, one on its way.
pub(super) const STAGES: usize = 2;

/// The tiles of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiles {
    pub(crate) planes: usize,
    /// Strips of a plane.
    pub(crate) strips: usize,
    /// Blocks of 16 of what a strip's rows are held against at a time.
    pub(crate) others: usize,
    /// Whether a plane has its own rows in registers, not only in shared memory.
    pub(crate) kept: bool,
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

    /// Pairs that a unit keeps of one operand's own rows.
    fn kept_pairs(self, head_dim: usize) -> usize {
        if self.kept { self.strips * head_dim.div_ceil(STRIP) * 4 } else { 1 }
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

/// Bytes of shared memory of a cube of the forward pass.
pub(super) fn forward_bytes(tiles: Tiles, head_dim: usize) -> usize {
    (tiles.rows() + 2 * STAGES * tiles.other_rows()) * pitch(head_dim) * 16
}

/// The same of the backward pass.
pub(super) fn backward_bytes(tiles: Tiles, head_dim: usize) -> usize {
    let words = 3 * STAGES * tiles.other_rows() * 4;
    2 * (tiles.rows() + STAGES * tiles.other_rows()) * pitch(head_dim) * 16 + words
}

/// Two to the power of `x`, to the last bits but two.
#[cube]
pub(crate) fn power_of_two(x: f32) -> f32 {
    let y: f32;
    gpu_asm!("ex2.approx.ftz.f32 {y}, {x};", y = out(_) y, x = in(_) x, options(pure, nomem));
    y
}

/// What PTX calls a dtype of operands.
#[cube]
#[allow(clippy::extra_unused_type_parameters, reason = "what the macro makes of it uses it")]
fn name<E: Float>() -> comptime_type!(&'static str) {
    intrinsic!(|scope| {
        match E::elem_type(scope) {
            ElemType::Float(FloatKind::F16) => "f16",
            _ => "bf16",
        }
    })
}

/// Both of a pair rounded at once.
#[cube]
pub(super) fn rounded<E: Float>(pair: Pair<f32>) -> Pair<E> {
    let (first, second) = (pair.extract(0usize), pair.extract(1usize));
    let to = name::<E>().comptime();
    let both: u32;
    gpu_asm!(
        "cvt.rn.{to}x2.f32 {both}, {second}, {first};",
        both = out(_) both, second = in(_) second, first = in(_) first, to = const to, options(pure, nomem)
    );
    Pair::<E>::reinterpret(both)
}

/// Begins to copy rows of heads to the row `to` of shared memory, zeros past `end` and past a head's end. `first` and
/// `stride` are in eights.
#[cube]
pub(super) fn copy<E: Float>(
    source: &[Eight<E>],
    first: usize,
    stride: usize,
    row: usize,
    end: usize,
    into: &mut [Eight<E>],
    to: usize,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
) {
    let pitch = comptime!(pitch(head_dim));
    let width = comptime!(blocks(head_dim) * 2);
    let all = comptime!(rows * width);
    let unit = UNIT_POS as usize;
    if comptime!(units.is_multiple_of(width)) {
        // A unit has one column of rows so far apart.
        let apart = comptime!(units / width);
        let (own, column) = (unit / width, unit % width);
        let mut end = end;
        if column >= comptime!(head_dim / 8) {
            end = 0usize;
        }
        let first = first + (row + own) * stride + column;
        let to = (to + own) * pitch + column;
        #[unroll]
        for turn in 0..comptime!(rows.div_ceil(apart)) {
            if comptime!((turn + 1) * apart <= rows) || own + comptime!(turn * apart) < rows {
                let there = row + own + comptime!(turn * apart) < end;
                let from = select(there, first + comptime!(turn * apart) * stride, 0usize);
                let length = select(there, 1usize, 0usize);
                let to = to + comptime!(turn * apart * pitch);
                copy_async_checked(&source[from..from + length], into[to..to + 1].downcast_mut(), 8u32);
            }
        }
    } else {
        #[unroll]
        for turn in 0..comptime!(all.div_ceil(units)) {
            let at = comptime!(turn * units) + unit;
            if at < all {
                let (own, column) = (at / width, at % width);
                let there = row + own < end && column < comptime!(head_dim / 8);
                let from = select(there, first + (row + own) * stride + column, 0usize);
                let length = select(there, 1usize, 0usize);
                let to = (to + own) * pitch + column;
                copy_async_checked(&source[from..from + length], into[to..to + 1].downcast_mut(), 8u32);
            }
        }
    }
}

/// [`copy`] of the same rows of two: keys and values, or queries and the output's gradient.
#[cube]
pub(super) fn copy_both<E: Float>(
    a: &[Eight<E>],
    b: &[Eight<E>],
    first_a: usize,
    first_b: usize,
    stride_a: usize,
    stride_b: usize,
    row: usize,
    end: usize,
    into_a: &mut [Eight<E>],
    into_b: &mut [Eight<E>],
    to: usize,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
) {
    copy::<E>(a, first_a, stride_a, row, end, into_a, to, rows, head_dim, units);
    copy::<E>(b, first_b, stride_b, row, end, into_b, to, rows, head_dim, units);
}

/// Begins to copy a word of each row to the row `to` of shared memory, zeros past `end`.
#[cube]
pub(super) fn copy_words<W: Scalar>(
    source: &[W],
    first: usize,
    row: usize,
    end: usize,
    into: &mut [W],
    to: usize,
    #[comptime] rows: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for turn in 0..comptime!(rows.div_ceil(units)) {
        let own = comptime!(turn * units) + unit;
        if own < rows {
            let there = row + own < end;
            let from = select(there, first + row + own, 0usize);
            let length = select(there, 1usize, 0usize);
            let to = to + own;
            copy_async_checked(&source[from..from + length], &mut into[to..to + 1], 1u32);
        }
    }
}

/// Where a unit finds its row of four matrices of 8 by 8 from a row on: beside each other first, or below.
#[cube]
fn place(row: usize, #[comptime] below: bool, #[comptime] pitch: usize) -> usize {
    let lane = UNIT_POS as usize % PLANE;
    let mut down = lane / 16;
    let mut across = lane / 8 % 2;
    if comptime!(below) {
        down = lane / 8 % 2;
        across = lane / 16;
    }
    (row + lane % 8 + down * 8) * pitch + across
}

/// Four matrices of 8 by 8 of shared memory.
#[cube]
fn load<E: Float>(
    from: &[Eight<E>],
    at: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] transposed: bool,
) -> Array<Pair<E>> {
    let product = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Eight<E>, Const<2>>(&from[at..at + 1], ident, 4usize, transposed)
}

/// This plane's rows as products take them, from `row` of `own`, where it keeps them.
#[cube]
pub(super) fn keep<E: Float>(
    own: &[Eight<E>],
    row: usize,
    #[comptime] head_dim: usize,
    #[comptime] tiles: Tiles,
) -> Array<Pair<E>> {
    let mut kept = Array::<Pair<E>>::new(comptime!(tiles.kept_pairs(head_dim)));
    if comptime!(tiles.kept) {
        let (pitch, blocks) = comptime!((pitch(head_dim), head_dim.div_ceil(STRIP)));
        let at = place(row, true, pitch);
        #[unroll]
        for i in 0..comptime!(tiles.strips * blocks) {
            let offset = comptime!(i / blocks * STRIP * pitch + i % blocks * 2);
            let left = load::<E>(own, at + offset, MatrixIdent::A, false);
            #[unroll]
            for j in 0..4usize {
                kept[comptime!(i * 4 + j)] = left[j];
            }
        }
    }
    kept
}

/// Adds the products of this plane's rows, those `kept` or from `row` of `own`, with the rows of `other` from `from` on,
/// over a head's elements.
#[cube]
pub(super) fn multiply<E: Float>(
    own: &[Eight<E>],
    kept: &Array<Pair<E>>,
    row: usize,
    other: &[Eight<E>],
    from: usize,
    into: &mut Array<Pair<f32>>,
    #[comptime] head_dim: usize,
    #[comptime] tiles: Tiles,
) {
    let (pitch, blocks) = comptime!((pitch(head_dim), head_dim.div_ceil(STRIP)));
    let own_at = place(row, true, pitch);
    let other_at = place(from, false, pitch);
    #[unroll]
    for block in 0..blocks {
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for strip in 0..tiles.strips {
            if comptime!(tiles.kept) {
                let mut left = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for j in 0..4usize {
                    left[j] = kept[comptime!((strip * blocks + block) * 4 + j)];
                }
                lefts.push(left);
            } else {
                let offset = comptime!(strip * STRIP * pitch + block * 2);
                lefts.push(load::<E>(own, own_at + offset, MatrixIdent::A, false));
            }
        }
        #[unroll]
        for of_other in 0..tiles.others {
            let offset = comptime!(of_other * STRIP * pitch + block * 2);
            let right = load::<E>(other, other_at + offset, MatrixIdent::B, false);
            #[unroll]
            for strip in 0..tiles.strips {
                let at = comptime!((strip * tiles.others + of_other) * 4);
                add::<E>(lefts.index(strip), &right, 0usize, into, at);
                add::<E>(lefts.index(strip), &right, 1usize, into, comptime!(at + 2));
            }
        }
    }
}

/// Adds the products of this plane's tile, rounded to the operands' dtype, with the rows of `other` from `from` on, over
/// those rows; in `blocks` of 16 columns from the block `first`.
#[cube]
pub(super) fn accumulate<E: Float>(
    tile: &Array<Pair<f32>>,
    other: &[Eight<E>],
    from: usize,
    first: usize,
    into: &mut Array<Pair<f32>>,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
    #[comptime] tiles: Tiles,
) {
    let pitch = comptime!(pitch(head_dim));
    let other_at = place(from, true, pitch) + first * 2;
    #[unroll]
    for of_other in 0..tiles.others {
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for strip in 0..tiles.strips {
            let mut left = Array::<Pair<E>>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                left[i] = rounded::<E>(tile[comptime!((strip * tiles.others + of_other) * 4 + i)]);
            }
            lefts.push(left);
        }
        #[unroll]
        for block in 0..blocks {
            let offset = comptime!(of_other * STRIP * pitch + block * 2);
            let right = load::<E>(other, other_at + offset, MatrixIdent::B, true);
            #[unroll]
            for strip in 0..tiles.strips {
                let at = comptime!((strip * blocks + block) * 4);
                add::<E>(lefts.index(strip), &right, 0usize, into, at);
                add::<E>(lefts.index(strip), &right, 1usize, into, comptime!(at + 2));
            }
        }
    }
}
