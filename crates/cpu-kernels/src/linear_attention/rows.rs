//! Row operations of linear attention.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use crate::micro::{LDP, NR};
use crate::simd::{Lanes, dispatch};

#[inline(always)]
unsafe fn scaled_body<S: Lanes>(
    m: usize,
    n: usize,
    w: *const f32,
    x: *const f32,
    ldx: usize,
    y: *mut f32,
    ldy: usize,
    add: bool,
) {
    for i in 0..m {
        let (w, x, y) = (S::splat(*w.add(i)), x.add(i * ldx), y.add(i * ldy));
        let mut j = 0;
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            let v = S::load_m(mask, x.add(j));
            let v = if add { S::fma(v, w, S::load_m(mask, y.add(j))) } else { S::mul(v, w) };
            S::store_m(mask, y.add(j), v);
            j += S::N;
        }
    }
}

dispatch! {
    /// `y[i] = w[i] x[i] (+ y[i])` of `m` rows of `n`.
    ///
    /// # Safety
    /// The rows exist and do not overlap, or are the same; `w` holds `m`.
    pub(super) unsafe fn scaled = scaled_body [] [] (
        m: usize, n: usize, w: *const f32, x: *const f32, ldx: usize, y: *mut f32, ldy: usize, add: bool
    )
}

#[inline(always)]
unsafe fn scale_body<S: Lanes>(m: usize, n: usize, w: f32, x: *mut f32, ld: usize) {
    let w = S::splat(w);
    for i in 0..m {
        let x = x.add(i * ld);
        let mut j = 0;
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            S::store_m(mask, x.add(j), S::mul(S::load_m(mask, x.add(j)), w));
            j += S::N;
        }
    }
}

dispatch! {
    /// Multiplies `m` rows of `n` with `w`.
    ///
    /// # Safety
    /// The rows exist.
    pub(super) unsafe fn scale = scale_body [] [] (m: usize, n: usize, w: f32, x: *mut f32, ld: usize)
}

#[inline(always)]
unsafe fn dots_body<S: Lanes>(
    m: usize,
    n: usize,
    a: *const f32,
    lda: usize,
    b: *const f32,
    ldb: usize,
    to: *mut f32,
) {
    for i in 0..m {
        let (a, b) = (a.add(i * lda), b.add(i * ldb));
        let mut sum = [S::splat(0.0); 2];
        let (mut j, mut q) = (0, 0);
        while j < n {
            let mask = S::mask((n - j).min(S::N));
            sum[q] = S::fma(S::load_m(mask, a.add(j)), S::load_m(mask, b.add(j)), sum[q]);
            q ^= 1;
            j += S::N;
        }
        *to.add(i) = S::sum(S::add(sum[0], sum[1]));
    }
}

dispatch! {
    /// `to[i] = a[i] b[i]`, products of `m` rows of `n`.
    ///
    /// # Safety
    /// The rows exist; `to` holds `m`.
    pub(super) unsafe fn dots = dots_body [] [] (
        m: usize, n: usize, a: *const f32, lda: usize, b: *const f32, ldb: usize, to: *mut f32
    )
}

#[inline(always)]
unsafe fn decays_body<S: Lanes>(m: usize, high: *const f32, low: *const f32, to: *mut f32) {
    for i in 0..m {
        let (to, h, l) = (to.add(i * 2 * NR), S::splat(*high.add(i)), S::splat(*low.add(i)));
        let mut j = 0;
        while j < (i / NR + 1) * NR {
            let between = S::add(S::sub(h, S::load(high.add(j))), S::sub(l, S::load(low.add(j))));
            let mask = S::mask((i + 1).saturating_sub(j).min(S::N));
            S::store(to.add(j), S::keep(mask, S::exp(between)));
            j += S::N;
        }
    }
}

dispatch! {
    /// `e^(g[i] - g[j])` on and below the diagonal, zeros above it in the blocks that it crosses; `g` in two parts.
    ///
    /// # Safety
    /// `high` and `low` hold `m` rounded up to whole blocks of 32; `to` has `m` rows of 64.
    pub(super) unsafe fn decays = decays_body [] [] (m: usize, high: *const f32, low: *const f32, to: *mut f32)
}

#[inline(always)]
unsafe fn weighted_body<S: Lanes, const STRICT: bool>(
    m: usize,
    products: *const f32,
    decays: *const f32,
    w: *const f32,
    x: *mut f32,
    bare: *mut f32,
) {
    for i in 0..m {
        let short = i * 2 * NR;
        let (x, products, decays) = (x.add(i * LDP), products.add(short), decays.add(short));
        let w = S::splat(if STRICT { *w.add(i) } else { 1.0 });
        let mut j = 0;
        while j < (i / NR + 1) * NR {
            let below = if STRICT { i } else { i + 1 };
            let mask = S::mask(below.saturating_sub(j).min(S::N));
            let v = S::keep(mask, S::mul(S::load(products.add(j)), S::load(decays.add(j))));
            if STRICT && !bare.is_null() {
                S::store(bare.add(short + j), v);
            }
            S::store(x.add(j), if STRICT { S::mul(v, w) } else { v });
            j += S::N;
        }
    }
}

dispatch! {
    /// `x`, by rows of [`LDP`]: products of pairs times [`decays`], zeros above the diagonal; if `STRICT` times `w[i]` as
    /// well and zeros on the diagonal, what is before `w` also to `bare` unless it is null.
    ///
    /// # Safety
    /// As [`decays`]; the products and `bare` have rows of 64, `w` holds `m` if `STRICT`.
    pub(super) unsafe fn weighted = weighted_body [const STRICT: bool] [STRICT] (
        m: usize, products: *const f32, decays: *const f32, w: *const f32, x: *mut f32, bare: *mut f32
    )
}

/// Matrices of a chunk's pairs, by rows of [`LDP`] where nothing else is said, and their gradients.
#[derive(Clone, Copy)]
pub(super) struct PairGrads {
    /// [`decays`], by rows of 64.
    pub(super) decays: *const f32,
    /// The triangle of the system before `beta`, by rows of 64; null without the delta rule, where the system is not read.
    pub(super) bare: *const f32,
    /// The triangle of the system.
    pub(super) system: *const f32,
    /// What the output takes.
    pub(super) weights: *const f32,
    pub(super) d_system: *const f32,
    pub(super) d_weights: *const f32,
    /// Gradient of products of keys, added to unless `first`.
    pub(super) d_keys: *mut f32,
    /// Gradient of products of queries and keys, added to unless `first`.
    pub(super) d_queries: *mut f32,
    pub(super) first: bool,
    pub(super) beta: *const f32,
    /// Gradient of `beta` through the system.
    pub(super) d_beta: *mut f32,
    /// Gradients times values, summed over each row.
    pub(super) by_row: *mut f32,
    /// And over each column.
    pub(super) by_column: *mut f32,
}

/// What a sum holds before this.
#[inline(always)]
unsafe fn before<S: Lanes>(first: bool, sum: *const f32) -> S::V {
    if first { S::splat(0.0) } else { S::load(sum) }
}

#[inline(always)]
unsafe fn pair_grads_body<S: Lanes>(m: usize, g: PairGrads) {
    for i in 0..m {
        let (row, short) = (i * LDP, i * 2 * NR);
        let beta = S::splat(*g.beta.add(i));
        let (mut by_row, mut d_beta) = (S::splat(0.0), S::splat(0.0));
        let mut j = 0;
        while j < (i / NR + 1) * NR {
            let (decay, at) = (S::load(g.decays.add(short + j)), row + j);
            // Above the diagonal decays and weights are zeros, but what they multiply may not be a number.
            let mask = S::mask((i + 1).saturating_sub(j).min(S::N));
            let d = S::keep(mask, S::load(g.d_weights.add(at)));
            let mut x = S::mul(d, S::load(g.weights.add(at)));
            S::store(g.d_queries.add(at), S::fma(d, decay, before::<S>(g.first, g.d_queries.add(at))));
            if !g.bare.is_null() {
                let mask = S::mask(i.saturating_sub(j).min(S::N));
                let d = S::keep(mask, S::load(g.d_system.add(at)));
                x = S::fma(d, S::load(g.system.add(at)), x);
                d_beta = S::fma(d, S::load(g.bare.add(short + j)), d_beta);
                S::store(
                    g.d_keys.add(at),
                    S::fma(d, S::mul(beta, decay), before::<S>(g.first, g.d_keys.add(at))),
                );
            }
            by_row = S::add(by_row, x);
            S::store(g.by_column.add(j), S::add(x, S::load(g.by_column.add(j))));
            j += S::N;
        }
        *g.by_row.add(i) = S::sum(by_row);
        *g.d_beta.add(i) = S::sum(d_beta);
    }
}

dispatch! {
    /// Gradients of all pairs of a chunk.
    ///
    /// # Safety
    /// The matrices have `m` rows, the vectors hold 64; `by_column` is zeros.
    pub(super) unsafe fn pair_grads = pair_grads_body [] [] (m: usize, g: PairGrads)
}

/// Vector `v` of `V`, of which the last is masked.
#[inline(always)]
pub(super) unsafe fn load<S: Lanes, const V: usize>(p: *const f32, v: usize, mask: S::M) -> S::V {
    if v + 1 < V { S::load(p.add(v * S::N)) } else { S::load_m(mask, p.add(v * S::N)) }
}

/// As [`load`].
#[inline(always)]
pub(super) unsafe fn store<S: Lanes, const V: usize>(p: *mut f32, v: usize, mask: S::M, x: S::V) {
    if v + 1 < V {
        S::store(p.add(v * S::N), x);
    } else {
        S::store_m(mask, p.add(v * S::N), x);
    }
}

/// `V` vectors of columns of [`substitute`], the last one masked to `n` columns in all.
#[inline(always)]
unsafe fn substitute_columns<S: Lanes, const V: usize, const TRANSPOSED: bool>(
    m: usize,
    n: usize,
    a: *const f32,
    x: *mut f32,
) {
    let mask = S::mask(n - (V - 1) * S::N);
    for step in 0..m {
        let (i, others) = if TRANSPOSED { (m - 1 - step, m - step..m) } else { (step, 0..step) };
        let at = x.add(i * LDP);
        let mut sum = [S::splat(0.0); V];
        for (v, sum) in sum.iter_mut().enumerate() {
            *sum = load::<S, V>(at, v, mask);
        }
        for j in others {
            let (from, w) = (x.add(j * LDP), a.add(if TRANSPOSED { j * LDP + i } else { i * LDP + j }));
            let w = S::splat(*w);
            for (v, sum) in sum.iter_mut().enumerate() {
                *sum = S::fnma(w, load::<S, V>(from, v, mask), *sum);
            }
        }
        for (v, sum) in sum.iter().enumerate() {
            store::<S, V>(at, v, mask, *sum);
        }
    }
}

#[inline(always)]
unsafe fn substitute_body<S: Lanes, const TRANSPOSED: bool>(m: usize, n: usize, a: *const f32, x: *mut f32) {
    let mut j = 0;
    while j < n {
        let left = n - j;
        if left >= 4 * S::N {
            substitute_columns::<S, 4, TRANSPOSED>(m, 4 * S::N, a, x.add(j));
            j += 4 * S::N;
        } else {
            substitute_columns::<S, 1, TRANSPOSED>(m, left.min(S::N), a, x.add(j));
            j += S::N;
        }
    }
}

dispatch! {
    /// Solves `(1 + a) x = y` (`TRANSPOSED`: `(1 + a)^T x = y`) in place row by row, `a` `[m, m]`, of which what is below
    /// the diagonal is read, `x` `[m, n]`, both by rows of [`LDP`].
    ///
    /// # Safety
    /// The rows exist and do not overlap.
    pub(super) unsafe fn substitute = substitute_body [const TRANSPOSED: bool] [TRANSPOSED] (
        m: usize, n: usize, a: *const f32, x: *mut f32
    )
}
