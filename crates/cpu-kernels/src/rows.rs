//! Row-wise operations around the GEMMs: copies, RMSNorm, SwiGLU, dropout, each with its backward.
//!
//! Outputs go to a [`TileLayout`]: rows, packed A or panels of B, so that an operation costs no pass of its own.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use crate::micro::{LDP, NR};
use crate::pack::Depth;
use crate::simd::{Lanes, dispatch};

/// Where column `c` of row `i` lies: `(c / width) * block + i * row + c % width`.
#[derive(Clone, Copy)]
pub(crate) struct TileLayout {
    width: usize,
    block: usize,
    row: usize,
}

impl TileLayout {
    /// Row-major with stride `row`.
    pub(crate) fn rows(row: usize) -> Self {
        Self { width: usize::MAX, block: 0, row }
    }

    /// Packed A of `m` rows.
    pub(crate) fn packed(m: usize, d: Depth) -> Self {
        Self { width: d.kc(), block: m * LDP, row: LDP }
    }

    /// Panels of B with `k` rows: a row of the data is a row of the panels.
    pub(crate) fn panels(k: usize) -> Self {
        Self { width: NR, block: k * NR, row: NR }
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

#[inline(always)]
unsafe fn copy_body<S: Lanes>(
    m: usize,
    n: usize,
    x: *const f32,
    ldx: usize,
    dst: *mut f32,
    place: TileLayout,
) {
    for i in 0..m {
        let x = x.add(i * ldx);
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |c, p, mask| S::store(p, S::load(x.add(c))),
            S::store_m(mask, p, S::load_m(mask, x.add(c)))
        );
    }
}

dispatch! {
    /// Copies `m` rows of `n`.
    ///
    /// # Safety
    /// `x` has `m` rows of `n` at stride `ldx`; `dst` has room at its place.
    pub(crate) unsafe fn copy_rows = copy_body [] []
        (m: usize, n: usize, x: *const f32, ldx: usize, dst: *mut f32, place: TileLayout)
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
unsafe fn row_rstd<S: Lanes>(n: usize, x: *const f32, eps: f32) -> f32 {
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
        let mask = S::mask((n - j).min(S::N));
        let v = S::load_m(mask, x.add(j));
        s[0] = S::fma(v, v, s[0]);
        j += S::N;
    }
    let sum = S::sum(S::add(S::add(s[0], s[1]), S::add(s[2], s[3])));
    1.0 / (sum / n as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn rms_body<S: Lanes>(
    m: usize,
    n: usize,
    x: *const f32,
    gamma: *const f32,
    eps: f32,
    rstd: *mut f32,
    known: bool,
    dst: *mut f32,
    place: TileLayout,
) {
    for i in 0..m {
        let x = x.add(i * n);
        if !known {
            *rstd.add(i) = row_rstd::<S>(n, x, eps);
        }
        let r = S::splat(*rstd.add(i));
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |c, p, mask| S::store(p, S::mul(S::mul(S::load(x.add(c)), r), S::load(gamma.add(c)))),
            S::store_m(mask, p, S::mul(S::mul(S::load_m(mask, x.add(c)), r), S::load_m(mask, gamma.add(c))))
        );
    }
}

dispatch! {
    /// RMSNorm of `m` rows; writes `rstd` unless it is `known`.
    ///
    /// # Safety
    /// `x` is `[m, n]`, `gamma` `[n]`, `rstd` `[m]`; `dst` has room at its place.
    pub(crate) unsafe fn rms_rows = rms_body [] [] (
        m: usize, n: usize, x: *const f32, gamma: *const f32, eps: f32, rstd: *mut f32, known: bool,
        dst: *mut f32, place: TileLayout
    )
}

#[inline(always)]
unsafe fn rms_backward_body<S: Lanes>(
    m: usize,
    n: usize,
    x: *const f32,
    gamma: *const f32,
    rstd: *const f32,
    dh: *const f32,
    dx: *mut f32,
    dgamma: *mut f32,
    first: bool,
) {
    for i in 0..m {
        let (x, dh) = (x.add(i * n), dh.add(i * n));
        let r = *rstd.add(i);
        let rv = S::splat(r);
        if !dx.is_null() {
            let dx = dx.add(i * n);
            let mut s = [S::splat(0.0); 2];
            let (mut j, mut q) = (0, 0);
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let hx = S::mul(S::load_m(mask, dh.add(j)), S::load_m(mask, x.add(j)));
                s[q] = S::fma(hx, S::load_m(mask, gamma.add(j)), s[q]);
                q ^= 1;
                j += S::N;
            }
            let c = S::splat(S::sum(S::add(s[0], s[1])) * r * r * r / n as f32);
            j = 0;
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let hg = S::mul(S::load_m(mask, dh.add(j)), S::load_m(mask, gamma.add(j)));
                S::store_m(mask, dx.add(j), S::fnma(S::load_m(mask, x.add(j)), c, S::mul(hg, rv)));
                j += S::N;
            }
        }
        if !dgamma.is_null() {
            let mut j = 0;
            while j < n {
                let mask = S::mask((n - j).min(S::N));
                let g = S::mul(S::mul(S::load_m(mask, dh.add(j)), S::load_m(mask, x.add(j))), rv);
                let old = if first && i == 0 { S::splat(0.0) } else { S::load_m(mask, dgamma.add(j)) };
                S::store_m(mask, dgamma.add(j), S::add(old, g));
                j += S::N;
            }
        }
    }
}

dispatch! {
    /// Backward of [`rms_rows`]: `dx = rstd (dh g) - x rstd^3 mean(dh g x)`, `dgamma (+)= sum dh x rstd`; either
    /// may be null. `first` writes `dgamma` instead of adding.
    ///
    /// # Safety
    /// `x`, `dh` and `dx` are `[m, n]`, `gamma` and `dgamma` `[n]`, `rstd` `[m]`.
    pub(crate) unsafe fn rms_backward_rows = rms_backward_body [] [] (
        m: usize, n: usize, x: *const f32, gamma: *const f32, rstd: *const f32, dh: *const f32,
        dx: *mut f32, dgamma: *mut f32, first: bool
    )
}

#[inline(always)]
unsafe fn swiglu_body<S: Lanes>(m: usize, n: usize, x: *const f32, dst: *mut f32, place: TileLayout) {
    for i in 0..m {
        let (gate, up) = (x.add(2 * i * n), x.add((2 * i + 1) * n));
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |c, p, mask| {
                let g = S::load(gate.add(c));
                S::store(p, S::mul(S::mul(g, S::sigmoid(g)), S::load(up.add(c))));
            },
            {
                let g = S::load_m(mask, gate.add(c));
                S::store_m(mask, p, S::mul(S::mul(g, S::sigmoid(g)), S::load_m(mask, up.add(c))));
            }
        );
    }
}

dispatch! {
    /// `silu(gate) * up` of `m` rows `gate | up`.
    ///
    /// # Safety
    /// `x` is `[m, 2 n]`; `dst` has room at its place.
    pub(crate) unsafe fn swiglu_rows = swiglu_body [] []
        (m: usize, n: usize, x: *const f32, dst: *mut f32, place: TileLayout)
}

/// One vector of SwiGLU's backward: `(silu(g) u, dg, du)`.
#[inline(always)]
unsafe fn swiglu_gradient<S: Lanes>(g: S::V, u: S::V, d: S::V) -> (S::V, S::V, S::V) {
    let s = S::sigmoid(g);
    let silu = S::mul(s, g);
    let slope = S::fma(silu, S::sub(S::splat(1.0), s), s);
    (S::mul(silu, u), S::mul(S::mul(d, u), slope), S::mul(d, silu))
}

#[inline(always)]
unsafe fn swiglu_backward_body<S: Lanes, const OUTPUT: bool>(
    m: usize,
    n: usize,
    x: *const f32,
    da: *const f32,
    dx: *mut f32,
    a: *mut f32,
    place: TileLayout,
) {
    for i in 0..m {
        let (gate, up, da) = (x.add(2 * i * n), x.add((2 * i + 1) * n), da.add(i * n));
        let (dg, du) = (dx.add(2 * i * n), dx.add((2 * i + 1) * n));
        along!(
            S,
            n,
            place,
            a.wrapping_add(i * place.row),
            |c, p, mask| {
                let (g, u) = (S::load(gate.add(c)), S::load(up.add(c)));
                let (a, g, u) = swiglu_gradient::<S>(g, u, S::load(da.add(c)));
                S::store(dg.add(c), g);
                S::store(du.add(c), u);
                if OUTPUT {
                    S::store(p, a);
                }
            },
            {
                let (g, u) = (S::load_m(mask, gate.add(c)), S::load_m(mask, up.add(c)));
                let (a, g, u) = swiglu_gradient::<S>(g, u, S::load_m(mask, da.add(c)));
                S::store_m(mask, dg.add(c), g);
                S::store_m(mask, du.add(c), u);
                if OUTPUT {
                    S::store_m(mask, p, a);
                }
            }
        );
    }
}

dispatch! {
    /// Backward of [`swiglu_rows`]: `dx` `[m, 2 n]` from `da` `[m, n]`; with `OUTPUT` also the forward's output
    /// once more, into `a` (otherwise unused).
    ///
    /// # Safety
    /// `x` and `dx` are `[m, 2 n]`, `da` `[m, n]`; `a` has room at its place.
    pub(crate) unsafe fn swiglu_backward_rows = swiglu_backward_body [const OUTPUT: bool] [OUTPUT] (
        m: usize, n: usize, x: *const f32, da: *const f32, dx: *mut f32, a: *mut f32, place: TileLayout
    )
}

#[inline(always)]
unsafe fn drop_packed_body<S: Lanes>(
    m: usize,
    d: Depth,
    keys: *const u32,
    first: u32,
    threshold: u32,
    keep: f32,
    x: *const f32,
    dst: *mut f32,
) {
    let place = TileLayout::packed(m, d);
    for i in 0..m {
        let key = *keys.add(i);
        let shift = (x as isize).wrapping_sub(dst as isize);
        along!(
            S,
            d.k,
            place,
            dst.add(i * LDP),
            |c, p, mask| {
                let from = p.wrapping_byte_offset(shift).cast_const();
                S::store(p, S::mul(S::load(from), S::dropout(key, first + c as u32, threshold, keep)));
            },
            {
                let from = p.wrapping_byte_offset(shift).cast_const();
                let kept = S::dropout(key, first + c as u32, threshold, keep);
                S::store_m(mask, p, S::mul(S::load_m(mask, from), kept));
            }
        );
    }
}

dispatch! {
    /// Drops elements of packed A into a second packed A.
    ///
    /// # Safety
    /// `keys` is `[m]`; `x` and `dst` hold `d.a_len(m)` floats each.
    pub(crate) unsafe fn drop_packed = drop_packed_body [] []
        (m: usize, d: Depth, keys: *const u32, first: u32, threshold: u32, keep: f32, x: *const f32, dst: *mut f32)
}

#[inline(always)]
unsafe fn lost_packed_body<S: Lanes>(m: usize, d: Depth, x: *const f32, dropped: *const f32, dst: *mut f32) {
    let place = TileLayout::packed(m, d);
    for i in 0..m {
        let (from, kept) =
            ((x as isize).wrapping_sub(dst as isize), (dropped as isize).wrapping_sub(dst as isize));
        along!(
            S,
            d.k,
            place,
            dst.add(i * LDP),
            |_c, p, mask| {
                let at = |shift: isize| p.wrapping_byte_offset(shift).cast_const();
                S::store(p, S::sub(S::load(at(from)), S::load(at(kept))));
            },
            {
                let at = |shift: isize| p.wrapping_byte_offset(shift).cast_const();
                S::store_m(mask, p, S::sub(S::load_m(mask, at(from)), S::load_m(mask, at(kept))));
            }
        );
    }
}

dispatch! {
    /// What dropout took: `x - dropped`, all three packed.
    ///
    /// # Safety
    /// Each holds `d.a_len(m)` floats.
    pub(crate) unsafe fn lost_packed = lost_packed_body [] []
        (m: usize, d: Depth, x: *const f32, dropped: *const f32, dst: *mut f32)
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
