//! DoRA's magnitude (Liu et al. 2024, arXiv:2402.09353): the rows' factors, and the norms they are made of.
//!
//! Norms of `W + s B A` are taken block by block in a core's cache: neither `B A` nor a widened `W` is ever whole.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use super::Weight;
use crate::micro::{NR, gemm};
use crate::operand::{Fp32, Operand};
use crate::pack::{Depth, pack_kn, pack_nk, pack_rows};
use crate::rows::{TileLayout, sum_slots};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::{Isa, Lanes, Store, dispatch, isa};
use crate::tasks::{SLICE, Slots, tasks};
use rayon::prelude::*;

/// Rows and columns of a block of `W + s B A`.
const ROWS: usize = 56;
const COLUMNS: usize = 512;

/// The magnitude of a layer's rows. The norm counts as a constant in backward (section 4.3 of the paper).
#[derive(Clone, Copy, Debug)]
pub struct Magnitude<'a> {
    /// `[out]`: the magnitudes.
    pub m: &'a [f32],
    /// `[out]`: `|W + s B A|` of each row.
    pub norm: &'a [f32],
    /// Whether the forward keeps the unscaled output ([`super::LinearsSaved::z`]).
    pub keep: bool,
}

impl Magnitude<'_> {
    /// `m / norm`.
    pub(crate) fn gains(&self) -> Vec<f32> {
        self.m.iter().zip(self.norm).map(|(m, n)| m / n).collect()
    }
}

/// The squared norm of each row of `W + scale * B A`: `[rows]`.
///
/// `a` is `[rank, columns]`, `b` `[rows, rank]`. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn squared_row_norms(
    rows: usize,
    columns: usize,
    weight: Weight<'_>,
    rank: usize,
    a: &[f32],
    b: &[f32],
    scale: f32,
) -> Vec<f64> {
    assert_eq!(weight.len(), rows * columns, "row norms: `weight` is [rows, columns]");
    assert_eq!(a.len(), rank * columns, "row norms: `a` is [rank, columns]");
    assert_eq!(b.len(), rows * rank, "row norms: `b` is [rows, rank]");
    let isa = isa();
    // SAFETY: shapes were checked.
    let panels = panels(columns, rank, |p, n, to| unsafe {
        pack_kn::<Fp32, f32>(isa, a.as_ptr().add(p * NR), columns, rank, n, to);
    });
    let right = panels.ptr();
    let mut out = vec![0.0_f64; rows];
    out.par_chunks_mut(ROWS).with_max_len(1).enumerate().for_each(|(i, sums)| {
        let (row, m) = (i * ROWS, sums.len());
        let left = |to: *mut f32| {
            // SAFETY: `to` holds the packed rows.
            unsafe {
                let from = b.as_ptr().add(row * rank);
                pack_rows::<Fp32>(isa, m, rank, Depth::new(rank, 0), from, rank, to);
            };
        };
        blocks(isa, weight, row, m, columns, rank, scale, right, left, |_, n, block| {
            for (r, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the block has m rows of n at stride COLUMNS.
                *sum += f64::from(unsafe { row_squares(isa, n, block.add(r * COLUMNS)) });
            }
        });
    });
    out
}

/// The squared norm of each column of `W + scale * A^T B^T`, an embedding's table: `[columns]`.
///
/// `a` is `[rank, rows]`, `b` `[columns, rank]`. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn squared_column_norms(
    rows: usize,
    columns: usize,
    weight: Weight<'_>,
    rank: usize,
    a: &[f32],
    b: &[f32],
    scale: f32,
) -> Vec<f64> {
    assert_eq!(weight.len(), rows * columns, "column norms: `weight` is [rows, columns]");
    assert_eq!(a.len(), rank * rows, "column norms: `a` is [rank, rows]");
    assert_eq!(b.len(), columns * rank, "column norms: `b` is [columns, rank]");
    let isa = isa();
    // SAFETY: shapes were checked.
    let panels = panels(columns, rank, |p, n, to| unsafe {
        pack_nk::<Fp32, f32>(isa, b.as_ptr().add(p * NR * rank), rank, rank, n, to);
    });
    let slots = Slots::new(rows.div_ceil(ROWS), columns);
    let mut sums = vec![0.0_f64; slots.count * columns];
    let right = panels.ptr();
    sums.par_chunks_mut(columns.max(1)).with_max_len(1).enumerate().for_each(|(slot, sums)| {
        let mut partial = vec![0.0_f32; COLUMNS];
        for chunk in slots.of(slot) {
            let row = chunk * ROWS;
            let m = (rows - row).min(ROWS);
            let left = |to: *mut f32| {
                let mut by_row = vec![0.0; m * rank];
                for r in 0..rank {
                    for i in 0..m {
                        by_row[i * rank + r] = a[r * rows + row + i];
                    }
                }
                // SAFETY: `to` holds the packed rows.
                unsafe {
                    pack_rows::<Fp32>(isa, m, rank, Depth::new(rank, 0), by_row.as_ptr(), rank, to);
                };
            };
            blocks(isa, weight, row, m, columns, rank, scale, right, left, |c0, n, block| {
                // SAFETY: the block has m rows of n at stride COLUMNS.
                unsafe {
                    column_products(isa, m, n, block, COLUMNS, block, COLUMNS, partial.as_mut_ptr());
                }
                for (sum, p) in sums[c0..c0 + n].iter_mut().zip(&partial) {
                    *sum += f64::from(*p);
                }
            });
        }
    });
    let mut out = vec![0.0_f64; columns];
    for part in sums.chunks(columns.max(1)) {
        out.iter_mut().zip(part).for_each(|(o, p)| *o += p);
    }
    out
}

/// The right factor in panels of 32 columns.
fn panels(columns: usize, rank: usize, pack: impl Fn(usize, usize, *mut f32) + Send + Sync) -> Pooled {
    let count = columns.div_ceil(NR);
    let buffer = Pooled::take(count * rank * NR);
    let to = buffer.ptr();
    // SAFETY: each panel has a place of its own.
    tasks(count, |p| pack(p, (columns - p * NR).min(NR), unsafe { to.at(p * rank * NR) }));
    buffer
}

/// Runs `each(first column, columns, block)` over the blocks of `m` rows of `W + scale * left right`.
fn blocks(
    isa: Isa,
    weight: Weight<'_>,
    row: usize,
    m: usize,
    columns: usize,
    rank: usize,
    scale: f32,
    panels: Ptr,
    left: impl FnOnce(*mut f32),
    mut each: impl FnMut(usize, usize, *const f32),
) {
    let depth = Depth::new(rank.max(1), 0);
    scratch(depth.a_len(m) + ROWS * COLUMNS, |at| {
        let block = at.wrapping_add(depth.a_len(m));
        if rank > 0 {
            left(at);
        }
        for c0 in (0..columns).step_by(COLUMNS) {
            let n = (columns - c0).min(COLUMNS);
            // SAFETY: shapes were checked by the caller; the scratch holds the packed rows and the block.
            unsafe {
                for i in 0..m {
                    let (from, to) = ((row + i) * columns + c0, block.add(i * COLUMNS));
                    weight.widen(isa, from, n, to);
                }
                if rank > 0 {
                    let right = panels.at(c0 * rank);
                    gemm::<Fp32>(isa, m, at, depth, right, n, block, COLUMNS, scale, true);
                }
            }
            each(c0, n, block);
        }
    });
}

#[inline(always)]
unsafe fn row_squares_body<S: Lanes>(n: usize, x: *const f32) -> f32 {
    let mut s = [S::splat(0.0); 4];
    let mut j = 0;
    while j + 4 * S::N <= n {
        for (q, s) in s.iter_mut().enumerate() {
            let v = S::load(x.add(j + q * S::N));
            *s = S::fma(v, v, *s);
        }
        j += 4 * S::N;
    }
    while j < n {
        let v = S::load_m(S::mask((n - j).min(S::N)), x.add(j));
        s[0] = S::fma(v, v, s[0]);
        j += S::N;
    }
    S::sum(S::add(S::add(s[0], s[1]), S::add(s[2], s[3])))
}

dispatch! {
    /// The sum of squares.
    ///
    /// # Safety
    /// `x` holds `n` values.
    unsafe fn row_squares = row_squares_body [] [] (n: usize, x: *const f32) -> f32
}

/// `[columns]`: the sum over `tokens` rows of `x * y`, columns `at..at + columns` of each.
///
/// Of a layer with a magnitude, `sum(dy * z) / norm` (or, where the output is `m / norm * z` alone,
/// `sum(dy * y) / m`) is the magnitude's gradient. Results do not depend on the number of threads.
///
/// # Panics
/// When the rows do not have the columns.
#[must_use]
pub fn column_dots(
    tokens: usize,
    columns: usize,
    (x, ldx, x_at): (&[f32], usize, usize),
    (y, ldy, y_at): (&[f32], usize, usize),
) -> Vec<f32> {
    assert!(x.len() == tokens * ldx && y.len() == tokens * ldy, "column dots: [tokens, width] each");
    assert!(x_at + columns <= ldx && y_at + columns <= ldy, "column dots: the columns exist");
    /// Rows of a chunk.
    const CHUNK: usize = 64;
    let isa = isa();
    if tokens == 0 || columns == 0 {
        return vec![0.0; columns];
    }
    let slots = Slots::new(tokens.div_ceil(CHUNK), columns);
    let mut sums = vec![0.0_f32; slots.count * columns];
    sums.par_chunks_mut(columns).with_max_len(1).enumerate().for_each(|(slot, sums)| {
        let chunks = slots.of(slot);
        let (row, end) = (chunks.start * CHUNK, (chunks.end * CHUNK).min(tokens));
        // SAFETY: the rows were checked.
        unsafe {
            let (x, y) = (x.as_ptr().add(row * ldx + x_at), y.as_ptr().add(row * ldy + y_at));
            column_products(isa, end - row, columns, x, ldx, y, ldy, sums.as_mut_ptr());
        }
    });
    // SAFETY: the first slot takes the sums of all.
    unsafe { sum_slots(isa, slots.count, columns, columns, sums.as_ptr(), sums.as_mut_ptr()) };
    sums.truncate(columns);
    sums
}

#[inline(always)]
unsafe fn column_products_body<S: Lanes>(
    m: usize,
    n: usize,
    x: *const f32,
    ldx: usize,
    y: *const f32,
    ldy: usize,
    dst: *mut f32,
) {
    for i in 0..m {
        let (x, y) = (x.add(i * ldx), y.add(i * ldy));
        let mut j = 0;
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            let old = if i == 0 { S::splat(0.0) } else { S::load_m(mask, dst.add(j)) };
            S::store_m(mask, dst.add(j), S::fma(S::load_m(mask, x.add(j)), S::load_m(mask, y.add(j)), old));
            j += S::N;
        }
    }
}

dispatch! {
    /// `dst = sum over rows of x * y`.
    ///
    /// # Safety
    /// `x` and `y` have `m >= 1` rows of `n` at their strides; `dst` is `[n]`.
    unsafe fn column_products = column_products_body [] []
        (m: usize, n: usize, x: *const f32, ldx: usize, y: *const f32, ldy: usize, dst: *mut f32)
}

/// Multiplies each row of `y` `[tokens, gains.len()]` by `gains`.
pub fn scale_columns(y: &mut [f32], gains: &[f32]) {
    let n = gains.len().max(1);
    let (isa, rows) = (isa(), SLICE.div_ceil(n));
    let (tokens, to) = (y.len() / n, Ptr(y.as_mut_ptr()));
    tasks(tokens.div_ceil(rows), |i| {
        let m = (tokens - i * rows).min(rows);
        // SAFETY: the rows are this task's.
        unsafe { scale_rows(isa, m, gains.len(), gains.as_ptr(), 0.0, to.at(i * rows * n), n) };
    });
}

#[inline(always)]
unsafe fn scale_rows_body<S: Lanes, D: Store>(
    m: usize,
    n: usize,
    g: *const f32,
    plus: f32,
    x: *mut D,
    ldx: usize,
) {
    let added = S::splat(plus);
    let mut j = 0;
    while j + S::N <= n {
        let g = S::add(S::load(g.add(j)), added);
        for i in 0..m {
            let x = x.add(i * ldx + j);
            D::store::<S>(x, S::mul(g, D::load::<S>(x)));
        }
        j += S::N;
    }
    for j in j..n {
        let g = *g.add(j) + plus;
        for i in 0..m {
            let x = x.add(i * ldx + j);
            *x = D::narrow(g * (*x).widen());
        }
    }
}

dispatch! {
    /// `x *= g + plus`, column by column.
    ///
    /// # Safety
    /// `x` has `m` rows of `n` at stride `ldx`; `g` is `[n]`.
    pub(super) unsafe fn scale_rows = scale_rows_body [D: Store] [D]
        (m: usize, n: usize, g: *const f32, plus: f32, x: *mut D, ldx: usize)
}

/// Multiplies the columns of `m` packed rows of `n` values by `g + plus`.
///
/// # Safety
/// `x` holds `m` packed rows of depth `d.k`; `g` is `[n]`.
pub(super) unsafe fn scale_packed<O: Operand>(
    isa: Isa,
    m: usize,
    n: usize,
    d: Depth,
    g: *const f32,
    plus: f32,
    x: *mut f32,
) {
    let place = TileLayout::packed::<O>(m, d);
    for (block, k0) in (0..n).step_by(place.width).enumerate() {
        let to = x.cast::<O::Value>().add(block * place.block);
        scale_rows(isa, m, (n - k0).min(place.width), g.add(k0), plus, to, place.row);
    }
}

/// Multiplies the columns of a panel of `k` fp32 rows by the first `n` of `g`.
///
/// # Safety
/// `panel` holds `k * 32` floats; `g` is `[n]`, `n <= 32`.
pub(crate) unsafe fn scale_panel(isa: Isa, k: usize, n: usize, g: *const f32, panel: *mut f32) {
    scale_rows(isa, k, n, g, 0.0, panel, NR);
}

#[inline(always)]
unsafe fn magnify_body<S: Lanes>(
    m: usize,
    n: usize,
    z: *const f32,
    ldz: usize,
    g: *const f32,
    bias: *const f32,
    y: *mut f32,
    ldy: usize,
    add: bool,
) {
    for i in 0..m {
        let (z, y) = (z.add(i * ldz), y.add(i * ldy));
        let mut j = 0;
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            let mut v = S::mul(S::load_m(mask, g.add(j)), S::load_m(mask, z.add(j)));
            if !bias.is_null() {
                v = S::add(v, S::load_m(mask, bias.add(j)));
            }
            if add {
                v = S::add(v, S::load_m(mask, y.add(j)));
            }
            S::store_m(mask, y.add(j), v);
            j += S::N;
        }
    }
}

dispatch! {
    /// `y (+)= g * z + bias`, where `bias` may be null.
    ///
    /// # Safety
    /// `z` and `y` have `m` rows of `n` at their strides; `g` and `bias` are `[n]`.
    pub(super) unsafe fn magnify = magnify_body [] [] (
        m: usize, n: usize, z: *const f32, ldz: usize, g: *const f32, bias: *const f32,
        y: *mut f32, ldy: usize, add: bool
    )
}
