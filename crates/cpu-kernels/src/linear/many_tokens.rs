//! Dot products of weights where they lie with more tokens than a tile has, on vectors of eight lanes.
//!
//! A tile of four rows has three tokens there, so the rows would be widened again for every three of them, and all of `x`
//! read from the second-level cache for every four rows. Here columns go in blocks: what is widened once and the block of
//! every token stay in the first-level cache while rows go by, and sums wait in memory from block to block. They run
//! along their rows in the same order: a token has the bits that it has in a tile.
//!
//! A block's tokens lie one behind the other ([`layout`]): in rows of 1024 floats, 4 KiB apart, they would lie in the same few
//! sets of the cache and push each other out.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and token")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use super::gemv::{FEW, InputRows, ROWS, tail};
use crate::operand::Product;
use crate::rows::TileLayout;
use crate::simd::{Element, Isa, Lanes};
use crate::tasks::evenly;
use std::mem::MaybeUninit;

/// Tokens of a tile of [`super::gemv`] on such vectors.
pub(super) const TOKENS: usize = 3;
/// Rows of a tile here.
const HEIGHT: usize = 2;
/// Tokens of a tile here, at most: twelve sums, two vectors of weights and one of `x` are as many as there are registers, also
/// where weights are widened; sums that wait in memory from one multiplication to the next would take twice the time.
const WIDTH: usize = 6;
/// Columns of a block: whole cache lines of every element.
const BLOCK: usize = 256;
/// Rows whose sums wait.
const GROUP: usize = 16;
/// The most lanes of a vector here.
const LANES: usize = 8;

/// Whether so many tokens go here.
pub(super) fn applies(isa: Isa, tokens: usize) -> bool {
    !matches!(isa.lanes(), Isa::Avx512 | Isa::Avx512Bf16) && (TOKENS + 1..=FEW).contains(&tokens)
}

/// Where rows of `x` lie that are read here, of words of so many `values`.
pub(super) fn layout(tokens: usize, values: usize) -> TileLayout {
    let width = BLOCK * values;
    TileLayout { width, block: tokens * width, row: width }
}

/// Words that rows of `k` words take there.
pub(super) fn room(tokens: usize, k: usize) -> usize {
    tokens * k.next_multiple_of(BLOCK)
}

/// What waits beside `x` in the first-level cache.
#[repr(C, align(64))]
struct Room {
    sums: [f32; GROUP * FEW * LANES],
    wide: [f32; HEIGHT * BLOCK],
}

/// A block of `columns` of a tile: `R` rows of weights and `T` tokens.
#[derive(Clone, Copy)]
struct Block<E> {
    columns: usize,
    w: *const E,
    /// Stride of the weights' rows.
    k: usize,
    x: *const f32,
    /// Stride of the tokens.
    ldx: usize,
    /// `R` rows of [`BLOCK`].
    wide: *mut f32,
    /// A vector for every row and token, at these strides.
    sums: *mut f32,
    by_row: usize,
}

/// With `FIRST` the weights are read, those of the next rows called for, and what is widened of them is kept.
#[inline(always)]
unsafe fn block<S: Lanes, P: Product, E: Element, const R: usize, const T: usize, const FIRST: bool>(
    b: Block<E>,
) {
    let sum = |r: usize, t: usize| b.sums.wrapping_add(r * b.by_row + t * S::N);
    let mut acc = [[S::splat(0.0); T]; R];
    for r in 0..R {
        for t in 0..T {
            acc[r][t] = S::load(sum(r, t));
        }
    }
    let mut j = 0;
    while j + S::N <= b.columns {
        if FIRST && (j * size_of::<E>()).is_multiple_of(64) {
            for r in 0..R {
                S::prefetch(b.w.wrapping_add((R + r) * b.k + j).cast());
            }
        }
        let mut w = [S::splat(0.0); R];
        for r in 0..R {
            w[r] =
                if FIRST { E::load::<S>(b.w.add(r * b.k + j)) } else { S::load(b.wide.add(r * BLOCK + j)) };
            if FIRST {
                S::store(b.wide.add(r * BLOCK + j), w[r]);
            }
        }
        for t in 0..T {
            let x = S::load(b.x.add(t * b.ldx + j));
            for r in 0..R {
                acc[r][t] = P::add::<S>(w[r], x, acc[r][t]);
            }
        }
        j += S::N;
    }
    if j < b.columns {
        let (n, mask) = (b.columns - j, S::mask(b.columns - j));
        for r in 0..R {
            let w = if FIRST {
                tail::<S, E>(b.w.add(r * b.k + j), n)
            } else {
                S::load(b.wide.add(r * BLOCK + j))
            };
            if FIRST {
                S::store(b.wide.add(r * BLOCK + j), w);
            }
            for t in 0..T {
                acc[r][t] = P::add::<S>(w, S::load_m(mask, b.x.add(t * b.ldx + j)), acc[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            S::store(sum(r, t), acc[r][t]);
        }
    }
}

/// A block of `R` rows and `tokens`, a tile at a time.
#[inline(always)]
unsafe fn rows<S: Lanes, P: Product, E: Element, const R: usize>(tokens: usize, b: Block<E>) {
    for (t, m) in evenly(tokens, WIDTH) {
        let of = Block { x: b.x.add(t * b.ldx), sums: b.sums.add(t * S::N), ..b };
        match (t, m) {
            // The first of at least four tokens has four to six, the others three or more.
            (0, 4) => block::<S, P, E, R, 4, true>(of),
            (0, 5) => block::<S, P, E, R, 5, true>(of),
            (0, _) => block::<S, P, E, R, 6, true>(of),
            (_, 3) => block::<S, P, E, R, 3, false>(of),
            (_, 4) => block::<S, P, E, R, 4, false>(of),
            (_, 5) => block::<S, P, E, R, 5, false>(of),
            _ => block::<S, P, E, R, 6, false>(of),
        }
    }
}

/// `y[t][i] = w[i] · x[t]` of `n` rows of weights and more than [`TOKENS`] tokens, at most [`FEW`].
///
/// # Safety
/// As [`super::gemv`]'s `dots`.
#[inline(always)]
pub(super) unsafe fn dots<S: Lanes, P: Product, E: Element>(
    n: usize,
    k: usize,
    tokens: usize,
    w: *const E,
    x: InputRows,
    y: *mut f32,
    ldy: usize,
) {
    debug_assert!(S::N <= LANES && tokens > TOKENS && tokens <= FEW, "what the room is for");
    let mut room = MaybeUninit::<Room>::uninit();
    let (sums, wide) = (&raw mut (*room.as_mut_ptr()).sums, &raw mut (*room.as_mut_ptr()).wide);
    let (sums, wide, by_row) = (sums.cast::<f32>(), wide.cast::<f32>(), tokens * S::N);
    for first in (0..n).step_by(GROUP) {
        let group = (n - first).min(GROUP);
        sums.write_bytes(0, group * by_row);
        for j in (0..k).step_by(BLOCK) {
            let (x, ldx) = (x.at(0, j), x.place.row);
            let mut r = 0;
            while r < group {
                let (w, sums) = (w.add((first + r) * k + j), sums.add(r * by_row));
                let b = Block { columns: (k - j).min(BLOCK), w, k, x, ldx, wide, sums, by_row };
                if r + HEIGHT <= group {
                    rows::<S, P, E, HEIGHT>(tokens, b);
                    r += HEIGHT;
                } else {
                    rows::<S, P, E, 1>(tokens, b);
                    r += 1;
                }
            }
        }
        for t in 0..tokens {
            let (y, sum) = (y.add(t * ldy + first), |r: usize| S::load(sums.add(r * by_row + t * S::N)));
            let mut r = 0;
            while r + ROWS <= group {
                let totals = P::totals::<S>([sum(r), sum(r + 1), sum(r + 2), sum(r + 3)]);
                y.add(r).cast::<[f32; ROWS]>().write_unaligned(totals);
                r += ROWS;
            }
            while r < group {
                *y.add(r) = P::total::<S>(sum(r));
                r += 1;
            }
        }
    }
}
