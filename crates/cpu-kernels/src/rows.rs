//! Row-wise operations around the GEMMs: copies, norms, dropout, each with its backward. Activations: `activation`.
//!
//! Outputs go to a [`TileLayout`]: rows, packed A or panels of B, so that an operation costs no pass of its own.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use crate::micro::{AHEAD, LDP, NR};
use crate::operand::Operand;
use crate::pack::Depth;
use crate::simd::{Element, Lanes, Store, dispatch};
use std::ops::Range;

/// Where column `c` of row `i` lies, in values: `(c / width) * block + i * row + c % width`.
#[derive(Clone, Copy)]
pub(crate) struct TileLayout {
    pub(crate) width: usize,
    pub(crate) block: usize,
    pub(crate) row: usize,
}

impl TileLayout {
    /// Row-major with stride `row`.
    pub(crate) fn rows(row: usize) -> Self {
        Self { width: usize::MAX, block: 0, row }
    }

    /// Packed A of `m` rows.
    pub(crate) fn packed<O: Operand>(m: usize, d: Depth) -> Self {
        let row = LDP * O::VALUES;
        Self { width: d.kc() * O::VALUES, block: m * row, row }
    }
}

/// `body(column, source of the column, mask or none)` along a row laid out by a place.
macro_rules! along {
    ($s:ident, $n:expr, $place:expr, $to:expr, |$col:ident, $p:ident, $mask:ident| $full:expr, $tail:expr) => {{
        let (n, mut k0, mut to) = ($n, 0, $to);
        while k0 < n {
            let len = (n - k0).min($place.width);
            let mut j = 0;
            while j + $s::N <= len {
                let ($col, $p) = (k0 + j, to.wrapping_add(j));
                $full;
                j += $s::N;
            }
            if j < len {
                let ($col, $p, $mask) = (k0 + j, to.wrapping_add(j), $s::mask(len - j));
                $tail;
            }
            k0 += len;
            to = to.wrapping_add($place.block);
        }
    }};
}
pub(crate) use along;

/// Prefetches what lies [`AHEAD`] rows below `n` values at `x` where rows are as short as a panel's: each is then on a page
/// of its own, which the processor's prefetchers do not foresee.
#[inline(always)]
pub(crate) unsafe fn prefetch_row<S: Lanes, E>(x: *const E, n: usize, ldx: usize) {
    if n <= NR {
        let ahead = x.wrapping_add(AHEAD * ldx);
        S::prefetch(ahead.cast());
        S::prefetch(ahead.wrapping_add(n.max(1) - 1).cast());
    }
}

#[inline(always)]
unsafe fn copy_body<S: Lanes, E: Element, D: Store>(
    m: usize,
    n: usize,
    x: *const E,
    ldx: usize,
    dst: *mut D,
    place: TileLayout,
) {
    for i in 0..m {
        let x = x.add(i * ldx);
        prefetch_row::<S, E>(x, n, ldx);
        // Of wide rows the next: they may be some columns of wider ones.
        let next = x.wrapping_add(if n > NR { ldx } else { 0 });
        let (mut k0, mut to) = (0, dst.add(i * place.row));
        while k0 < n {
            let len = (n - k0).min(place.width);
            let mut j = 0;
            while j + S::N <= len {
                S::prefetch(next.wrapping_add(k0 + j).cast());
                D::store::<S>(to.add(j), E::load::<S>(x.add(k0 + j)));
                j += S::N;
            }
            for j in j..len {
                *to.add(j) = D::narrow((*x.add(k0 + j)).widen());
            }
            k0 += len;
            to = to.wrapping_add(place.block);
        }
    }
}

dispatch! {
    narrowing
    /// Copies `m` rows of `n`.
    ///
    /// # Safety
    /// `x` has `m` rows of `n` at stride `ldx`; `dst` has room at its place.
    pub(crate) unsafe fn copy_rows = copy_body [E: Element, D: Store] [E, D]
        (m: usize, n: usize, x: *const E, ldx: usize, dst: *mut D, place: TileLayout)
}

/// The sum of a row.
#[inline(always)]
unsafe fn row_sum<S: Lanes>(n: usize, x: *const f32) -> f32 {
    let mut s = [S::splat(0.0); 2];
    let (mut j, mut q) = (0, 0);
    while j < n {
        s[q] = S::add(s[q], S::load_m(S::mask((n - j).min(S::N)), x.add(j)));
        q ^= 1;
        j += S::N;
    }
    S::sum(S::add(s[0], s[1]))
}

/// What a norm takes away from each element: the row's mean where it is `CENTERED`, else nothing.
#[inline(always)]
unsafe fn row_mean<S: Lanes, const CENTERED: bool>(n: usize, x: *const f32) -> f32 {
    if CENTERED { row_sum::<S>(n, x) / n as f32 } else { 0.0 }
}

/// `x - mean` of a vector of a row.
#[inline(always)]
unsafe fn from_mean<S: Lanes, const CENTERED: bool>(x: S::V, mean: S::V) -> S::V {
    if CENTERED { S::sub(x, mean) } else { x }
}

/// `1 / sqrt(mean((x - mean)^2) + eps)`.
#[inline(always)]
unsafe fn row_rstd<S: Lanes, const CENTERED: bool>(n: usize, x: *const f32, mean: f32, eps: f32) -> f32 {
    let mut s = [S::splat(0.0); 4];
    let mean = S::splat(mean);
    let mut j = 0;
    while j + 4 * S::N <= n {
        for (q, s) in s.iter_mut().enumerate() {
            let v = from_mean::<S, CENTERED>(S::load(x.add(j + q * S::N)), mean);
            *s = S::fma(v, v, *s);
        }
        j += 4 * S::N;
    }
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let v = S::keep(mask, from_mean::<S, CENTERED>(S::load_m(mask, x.add(j)), mean));
        s[0] = S::fma(v, v, s[0]);
        j += S::N;
    }
    let sum = S::sum(S::add(S::add(s[0], s[1]), S::add(s[2], s[3])));
    1.0 / (sum / n as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn norm_body<S: Lanes, D: Store, const CENTERED: bool>(
    m: usize,
    n: usize,
    x: *const f32,
    gamma: *const f32,
    beta: *const f32,
    eps: f32,
    rstd: *mut f32,
    known: bool,
    columns: &Range<usize>,
    dst: *mut D,
    place: TileLayout,
) {
    let (shifts, beta) = (!beta.is_null(), beta.wrapping_add(columns.start));
    let gamma = gamma.add(columns.start);
    for i in 0..m {
        let x = x.add(i * n);
        let mean = row_mean::<S, CENTERED>(n, x);
        if !known {
            *rstd.add(i) = row_rstd::<S, CENTERED>(n, x, mean, eps);
        }
        let x = x.add(columns.start);
        let (r, mean) = (S::splat(*rstd.add(i)), S::splat(mean));
        if !shifts {
            along!(
                S,
                columns.len(),
                place,
                dst.add(i * place.row),
                |c, p, mask| {
                    let v = from_mean::<S, CENTERED>(S::load(x.add(c)), mean);
                    D::store::<S>(p, S::mul(S::mul(v, r), S::load(gamma.add(c))));
                },
                {
                    let v = from_mean::<S, CENTERED>(S::load_m(mask, x.add(c)), mean);
                    D::store_m::<S>(mask, p, S::mul(S::mul(v, r), S::load_m(mask, gamma.add(c))));
                }
            );
        } else {
            along!(
                S,
                columns.len(),
                place,
                dst.add(i * place.row),
                |c, p, mask| {
                    let v = from_mean::<S, CENTERED>(S::load(x.add(c)), mean);
                    D::store::<S>(p, S::fma(S::mul(v, r), S::load(gamma.add(c)), S::load(beta.add(c))));
                },
                {
                    let v = from_mean::<S, CENTERED>(S::load_m(mask, x.add(c)), mean);
                    let (g, b) = (S::load_m(mask, gamma.add(c)), S::load_m(mask, beta.add(c)));
                    D::store_m::<S>(mask, p, S::fma(S::mul(v, r), g, b));
                }
            );
        }
    }
}

dispatch! {
    narrowing
    /// `(x - mean) * rstd * gamma + beta` of `m` rows, the mean 0 unless `CENTERED` (LayerNorm; without it RMSNorm);
    /// writes `rstd` unless it is `known`, and of the result these `columns`. `beta` may be null.
    ///
    /// # Safety
    /// `x` is `[m, n]`, `gamma` and `beta` `[n]`, `rstd` `[m]`; `dst` has room for the columns at its place.
    pub(crate) unsafe fn norm_rows = norm_body [D: Store, const CENTERED: bool] [D, CENTERED] (
        m: usize, n: usize, x: *const f32, gamma: *const f32, beta: *const f32, eps: f32, rstd: *mut f32,
        known: bool, columns: &Range<usize>, dst: *mut D, place: TileLayout
    )
}

#[inline(always)]
unsafe fn norm_backward_body<S: Lanes, const CENTERED: bool>(
    m: usize,
    n: usize,
    x: *const f32,
    gamma: *const f32,
    rstd: *const f32,
    dh: *const f32,
    dx: *mut f32,
    dgamma: *mut f32,
    dbeta: *mut f32,
    first: bool,
) {
    for i in 0..m {
        let (x, dh) = (x.add(i * n), dh.add(i * n));
        let r = *rstd.add(i);
        let rv = S::splat(r);
        let mean = S::splat(row_mean::<S, CENTERED>(n, x));
        if !dx.is_null() {
            let dx = dx.add(i * n);
            let (mut s, mut t) = ([S::splat(0.0); 2], S::splat(0.0));
            let (mut j, mut q) = (0, 0);
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let v = from_mean::<S, CENTERED>(S::load_m(mask, x.add(j)), mean);
                let (h, g) = (S::load_m(mask, dh.add(j)), S::load_m(mask, gamma.add(j)));
                s[q] = S::fma(S::mul(h, v), g, s[q]);
                if CENTERED {
                    t = S::fma(h, g, t);
                }
                q ^= 1;
                j += S::N;
            }
            let c = S::splat(S::sum(S::add(s[0], s[1])) * r * r * r / n as f32);
            // The mean's share of each element.
            let shared = S::splat(if CENTERED { S::sum(t) * r / n as f32 } else { 0.0 });
            j = 0;
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let v = from_mean::<S, CENTERED>(S::load_m(mask, x.add(j)), mean);
                let hg = S::mul(S::load_m(mask, dh.add(j)), S::load_m(mask, gamma.add(j)));
                let hg = from_mean::<S, CENTERED>(S::mul(hg, rv), shared);
                S::store_m(mask, dx.add(j), S::fnma(v, c, hg));
                j += S::N;
            }
        }
        let old = |first: bool, mask: S::M, p: *const f32| {
            // SAFETY: the caller's.
            unsafe { if first { S::splat(0.0) } else { S::load_m(mask, p) } }
        };
        if !dgamma.is_null() {
            let mut j = 0;
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let v = from_mean::<S, CENTERED>(S::load_m(mask, x.add(j)), mean);
                let g = S::mul(S::mul(S::load_m(mask, dh.add(j)), v), rv);
                S::store_m(mask, dgamma.add(j), S::add(old(first && i == 0, mask, dgamma.add(j)), g));
                j += S::N;
            }
        }
        if !dbeta.is_null() {
            let mut j = 0;
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let g = S::load_m(mask, dh.add(j));
                S::store_m(mask, dbeta.add(j), S::add(old(first && i == 0, mask, dbeta.add(j)), g));
                j += S::N;
            }
        }
    }
}

dispatch! {
    /// Backward of [`norm_rows`]. Of RMSNorm `dx = rstd (dh g) - x rstd^3 mean(dh g x)`; of LayerNorm the same with
    /// `x - mean` for `x`, less its mean. `dgamma (+)= sum dh (x - mean) rstd`, `dbeta (+)= sum dh`; each may be null.
    /// `first` writes sums instead of adding.
    ///
    /// # Safety
    /// `x`, `dh` and `dx` are `[m, n]`, `gamma`, `dgamma` and `dbeta` `[n]`, `rstd` `[m]`.
    pub(crate) unsafe fn norm_backward_rows = norm_backward_body [const CENTERED: bool] [CENTERED] (
        m: usize, n: usize, x: *const f32, gamma: *const f32, rstd: *const f32, dh: *const f32,
        dx: *mut f32, dgamma: *mut f32, dbeta: *mut f32, first: bool
    )
}

#[inline(always)]
unsafe fn drop_packed_body<S: Lanes, O: Operand>(
    m: usize,
    n: usize,
    d: Depth,
    keys: *const u32,
    first: u32,
    threshold: u32,
    keep: f32,
    x: *const f32,
    dst: *mut f32,
) {
    let place = TileLayout::packed::<O>(m, d);
    let (x, dst) = (x.cast::<O::Value>(), dst.cast::<O::Value>());
    for i in 0..m {
        let key = *keys.add(i);
        let shift = (x as isize).wrapping_sub(dst as isize);
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |c, p, mask| {
                let from = p.wrapping_byte_offset(shift).cast_const();
                let kept = S::dropout(key, first + c as u32, threshold, keep);
                O::Value::store::<S>(p, S::mul(O::Value::load::<S>(from), kept));
            },
            {
                // A block ends before its row does: whole vectors can be read.
                let from = p.wrapping_byte_offset(shift).cast_const();
                let kept = S::dropout(key, first + c as u32, threshold, keep);
                O::Value::store_m::<S>(mask, p, S::mul(O::Value::load::<S>(from), kept));
            }
        );
    }
    crate::pack::end_rows::<O>(m, n, d, dst.cast());
}

dispatch! {
    /// Drops elements of packed A, rows of `n` values, into a second packed A.
    ///
    /// # Safety
    /// `keys` is `[m]`; `x` and `dst` hold `d.a_len(m)` floats each.
    pub(crate) unsafe fn drop_packed = drop_packed_body [O: Operand] [O] (
        m: usize, n: usize, d: Depth, keys: *const u32, first: u32, threshold: u32, keep: f32, x: *const f32,
        dst: *mut f32
    )
}

#[inline(always)]
unsafe fn lost_packed_body<S: Lanes, O: Operand>(
    m: usize,
    n: usize,
    d: Depth,
    x: *const f32,
    dropped: *const f32,
    dst: *mut f32,
) {
    let place = TileLayout::packed::<O>(m, d);
    let dst = dst.cast::<O::Value>();
    for i in 0..m {
        let (from, kept) =
            ((x as isize).wrapping_sub(dst as isize), (dropped as isize).wrapping_sub(dst as isize));
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |_c, p, mask| {
                let at = |shift: isize| O::Value::load::<S>(p.wrapping_byte_offset(shift).cast_const());
                O::Value::store::<S>(p, S::sub(at(from), at(kept)));
            },
            {
                let at = |shift: isize| O::Value::load::<S>(p.wrapping_byte_offset(shift).cast_const());
                O::Value::store_m::<S>(mask, p, S::sub(at(from), at(kept)));
            }
        );
    }
    crate::pack::end_rows::<O>(m, n, d, dst.cast());
}

dispatch! {
    /// What dropout took: `x - dropped`, all three packed rows of `n` values.
    ///
    /// # Safety
    /// Each holds `d.a_len(m)` floats.
    pub(crate) unsafe fn lost_packed = lost_packed_body [O: Operand] [O]
        (m: usize, n: usize, d: Depth, x: *const f32, dropped: *const f32, dst: *mut f32)
}

#[inline(always)]
unsafe fn add_dropped_body<S: Lanes>(
    m: usize,
    n: usize,
    first_col: usize,
    keys: *const u32,
    threshold: u32,
    keep: f32,
    x: *const f32,
    ldx: usize,
    dst: *mut f32,
    ldd: usize,
    add: bool,
) {
    for i in 0..m {
        let (key, x, dst) = (*keys.add(i), x.add(i * ldx), dst.add(i * ldd));
        let mut j = 0;
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            let kept = S::dropout(key, (first_col + j) as u32, threshold, keep);
            let old = if add { S::load_m(mask, dst.add(j)) } else { S::splat(0.0) };
            S::store_m(mask, dst.add(j), S::fma(S::load_m(mask, x.add(j)), kept, old));
            j += S::N;
        }
    }
}

dispatch! {
    /// `dst (+)= mask * x` over `n` columns that begin at `first_col` of the mask.
    ///
    /// # Safety
    /// `keys` is `[m]`; `x` and `dst` have `m` rows of `n` at their strides.
    pub(crate) unsafe fn add_dropped = add_dropped_body [] [] (
        m: usize, n: usize, first_col: usize, keys: *const u32, threshold: u32, keep: f32,
        x: *const f32, ldx: usize, dst: *mut f32, ldd: usize, add: bool
    )
}

#[inline(always)]
unsafe fn column_sums_body<S: Lanes>(
    m: usize,
    n: usize,
    x: *const f32,
    ldx: usize,
    dst: *mut f32,
    add: bool,
) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let mut s = if add { S::load_m(mask, dst.add(j)) } else { S::splat(0.0) };
        for i in 0..m {
            s = S::add(s, S::load_m(mask, x.add(i * ldx + j)));
        }
        S::store_m(mask, dst.add(j), s);
        j += S::N;
    }
}

dispatch! {
    /// `dst (+)= sum over rows of x`.
    ///
    /// # Safety
    /// `x` has `m` rows of `n` at stride `ldx`; `dst` is `[n]`.
    pub(crate) unsafe fn column_sums = column_sums_body [] []
        (m: usize, n: usize, x: *const f32, ldx: usize, dst: *mut f32, add: bool)
}

#[inline(always)]
unsafe fn sum_slots_body<S: Lanes>(slots: usize, stride: usize, n: usize, x: *const f32, dst: *mut f32) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let mut s = S::load_m(mask, x.add(j));
        for i in 1..slots {
            s = S::add(s, S::load_m(mask, x.add(i * stride + j)));
        }
        S::store_m(mask, dst.add(j), s);
        j += S::N;
    }
}

dispatch! {
    /// `dst = sum over slots of x[slot * stride ..]`, in order.
    ///
    /// # Safety
    /// `x` has `slots` runs of `n` at `stride`; `dst` is `[n]` (it may be the first run).
    pub(crate) unsafe fn sum_slots = sum_slots_body [] []
        (slots: usize, stride: usize, n: usize, x: *const f32, dst: *mut f32)
}
