//! Row softmax of a block of scores, and its gradient.
//!
//! A block has `rows` query rows and `keys` keys, stored as `[keys/256][rows][LDP]`, so that it is at once the
//! left operand of the product with the values.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::micro::{KC, LDP};
use crate::operand::Operand;
use crate::simd::{Lanes, Store, dispatch};

/// A score that no row reaches.
const NEVER: f32 = -1e30;

/// Where key `j` of row `r` lies.
#[inline(always)]
pub(crate) fn at(rows: usize, r: usize, j: usize) -> usize {
    (j / KC) * rows * LDP + r * LDP + j % KC
}

/// `tanh(x)`: a polynomial (Cephes `tanhf`) up to 0.625, and by `tanh(a+b) = (ta+tb)/(1+ta·tb)` beyond.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes>(x: S::V) -> S::V {
    let a = S::max(S::splat(-0.625), S::min(S::splat(0.625), x));
    let z = S::mul(a, a);
    let mut p = S::splat(-5.704_988_7e-3);
    for c in [2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = S::fma(p, z, S::splat(c));
    }
    let ta = S::fma(S::mul(p, z), a, a);
    let one = S::splat(1.0);
    let b = S::sub(x, a);
    let tb = S::sub(one, S::div(S::splat(2.0), S::add(S::exp(S::add(b, b)), one)));
    S::div(S::add(ta, tb), S::fma(ta, tb, one))
}

/// The numbers of a vector's lanes.
static LANES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// A linear bias of a row's scores: `slope * (first + j)` for key `j` of the block; none where the slope is 0.
#[derive(Clone, Copy)]
pub(crate) struct Bias {
    pub(crate) slope: f32,
    /// The block's first key less the query.
    pub(crate) first: f32,
}

impl Bias {
    /// Of query `i` of a head with `slope`, in a block whose first key is `base`.
    pub(crate) fn new(slope: f32, base: usize, i: usize) -> Self {
        Self { slope, first: base as f32 - i as f32 }
    }

    /// The scores of keys `j..` with theirs.
    #[inline(always)]
    unsafe fn on<S: Lanes>(self, v: S::V, j: usize) -> S::V {
        let at = S::add(S::load(LANES.as_ptr()), S::splat(self.first + j as f32));
        S::fma(S::splat(self.slope), at, v)
    }
}

/// The lanes of keys `j..` that are in `lo..hi`, the others `other`.
#[inline(always)]
unsafe fn visible<S: Lanes>(v: S::V, j: usize, lo: usize, hi: usize, other: f32) -> S::V {
    between::<S>(v, lo.saturating_sub(j).min(S::N), hi.saturating_sub(j).min(S::N), other)
}

/// The lanes `lo..hi` of `v`, the others `other`; exact in both.
#[inline(always)]
unsafe fn between<S: Lanes>(v: S::V, lo: usize, hi: usize, other: f32) -> S::V {
    let o = S::splat(other);
    let (low, high) = (S::mask(lo), S::mask(hi));
    let v = S::add(S::keep(high, v), S::sub(o, S::keep(high, o)));
    S::add(S::sub(v, S::keep(low, v)), S::keep(low, o))
}

#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
#[inline(always)]
unsafe fn softmax_body<S: Lanes, O: Operand>(
    rows: usize,
    r: usize,
    keys: usize,
    lo: usize,
    hi: usize,
    cap: f32,
    bias: Bias,
    s: *mut f32,
) -> (f32, f32) {
    let (first, last) = (lo / S::N * S::N, hi.next_multiple_of(S::N));
    let changed = cap > 0.0 || bias.slope != 0.0;
    let mut top = S::splat(NEVER);
    for k0 in (first / KC * KC..hi).step_by(KC) {
        let p = s.add(at(rows, r, k0));
        let (mut j, end) = (first.max(k0), hi.min(k0 + KC));
        while j < end {
            let p = p.add(j - k0);
            let mut v = S::load(p);
            if changed {
                if cap > 0.0 {
                    v = S::mul(S::splat(cap), tanh::<S>(S::mul(v, S::splat(1.0 / cap))));
                }
                if bias.slope != 0.0 {
                    v = bias.on::<S>(v, j);
                }
                S::store(p, v);
            }
            if j < lo || j + S::N > hi {
                v = visible::<S>(v, j, lo, hi, NEVER);
            }
            top = S::max(top, v);
            j += S::N;
        }
    }
    let m = S::top(top);
    let mut sum = S::splat(0.0);
    for k0 in (0..keys).step_by(KC) {
        // Values that are narrower than the scores are written behind those still to be read.
        let p = s.add(at(rows, r, k0));
        let to = p.cast::<O::Value>();
        let (mut j, end) = (k0, keys.min(k0 + KC));
        while j < end {
            let mut e = S::splat(0.0);
            if j >= first && j < last {
                e = O::exp::<S>(S::load(p.add(j - k0)), m);
                if j < lo || j + S::N > hi {
                    e = visible::<S>(e, j, lo, hi, 0.0);
                }
                sum = S::add(sum, e);
            }
            O::Value::store::<S>(to.add(j - k0), e);
            j += S::N;
        }
    }
    (m, S::sum(sum))
}

dispatch! {
    narrowing
    /// Scores of row `r` to `exp(score - max)`, packed, zero outside keys `lo..hi` (which is not empty); returns the
    /// maximum and the sum. Scores are capped first where `cap > 0`, then biased.
    ///
    /// # Safety
    /// `s` holds the block; vectors that straddle `hi` and `keys` may be read and written in full, which LDP leaves
    /// room for.
    pub(crate) unsafe fn softmax = softmax_body [O: Operand] [O]
        (rows: usize, r: usize, keys: usize, lo: usize, hi: usize, cap: f32, bias: Bias, s: *mut f32) -> (f32, f32)
}

#[inline(always)]
unsafe fn largest_body<S: Lanes>(rows: usize, r: usize, lo: usize, hi: usize, s: *const f32) -> f32 {
    let mut top = S::splat(f32::NEG_INFINITY);
    let mut j = lo / S::N * S::N;
    while j < hi {
        let v = S::load(s.add(at(rows, r, j)));
        let (l, h) = (lo.saturating_sub(j).min(S::N), hi.saturating_sub(j).min(S::N));
        top = S::max(top, if l > 0 || h < S::N { between::<S>(v, l, h, NEVER) } else { v });
        j += S::N;
    }
    S::top(top)
}

dispatch! {
    /// The largest score of row `r` over keys `lo..hi`, which is not empty.
    ///
    /// # Safety
    /// As [`softmax`].
    pub(crate) unsafe fn largest = largest_body [] []
        (rows: usize, r: usize, lo: usize, hi: usize, s: *const f32) -> f32
}

/// A row of a block in the backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Keys `lo..hi` are visible; there may be none.
    pub(crate) lo: usize,
    pub(crate) hi: usize,
    pub(crate) bias: Bias,
    /// The log-sum-exp of the visible scores.
    pub(crate) lse: f32,
    /// The output times its gradient.
    pub(crate) mean: f32,
}

/// Probabilities of keys `j..` from their scores, and `p·(dp - mean)` times the cap's slope; zeros where they are hidden.
#[inline(always)]
unsafe fn row_gradient<S: Lanes, O: Operand>(
    row: &Row,
    cap: f32,
    j: usize,
    s: *const f32,
    dp: *const f32,
) -> (S::V, S::V) {
    let (zero, one) = (S::splat(0.0), S::splat(1.0));
    if j + S::N <= row.lo || j >= row.hi {
        return (zero, zero);
    }
    let mut v = S::load(s);
    let mut slope = one;
    if cap > 0.0 {
        let t = tanh::<S>(S::mul(v, S::splat(1.0 / cap)));
        slope = S::fnma(t, t, one);
        v = S::mul(S::splat(cap), t);
    }
    if row.bias.slope != 0.0 {
        v = row.bias.on::<S>(v, j);
    }
    // Hidden lanes may lie above the log-sum-exp of the visible ones; none may overflow.
    let mut p = O::exp::<S>(S::min(S::splat(row.lse), v), row.lse);
    let mut g = S::mul(p, S::sub(S::load(dp), S::splat(row.mean)));
    if cap > 0.0 {
        g = S::mul(g, slope);
    }
    if j < row.lo || j + S::N > row.hi {
        p = visible::<S>(p, j, row.lo, row.hi, 0.0);
        g = visible::<S>(g, j, row.lo, row.hi, 0.0);
    }
    (p, g)
}

#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
#[inline(always)]
unsafe fn softmax_gradient_body<S: Lanes, O: Operand>(
    rows: usize,
    r: usize,
    keys: usize,
    cap: f32,
    row: Row,
    next: Option<Row>,
    s: *mut f32,
    dp: *mut f32,
) {
    for k0 in (0..keys).step_by(KC) {
        let (s, dp) = (s.add(at(rows, r, k0)), dp.add(at(rows, r, k0)));
        for j in (k0..keys.min(k0 + KC)).step_by(S::N) {
            let c = j - k0;
            let (p, g) = row_gradient::<S, O>(&row, cap, j, s.add(c), dp.add(c));
            if O::VALUES == 1 {
                S::store(s.add(c), p);
                S::store(dp.add(c), g);
                continue;
            }
            let (mut p1, mut g1) = (S::splat(0.0), S::splat(0.0));
            if let Some(next) = &next {
                (p1, g1) = row_gradient::<S, O>(next, cap, j, s.add(LDP + c), dp.add(LDP + c));
                // Narrower than what is still to be read.
                O::Value::store::<S>(dp.add(LDP).cast::<O::Value>().add(c), g1);
            }
            O::Value::store::<S>(dp.cast::<O::Value>().add(c), g);
            S::store(s.add(c), S::pair(p, p1));
            S::store(s.add(LDP + c), S::pair(g, g1));
        }
    }
}

dispatch! {
    narrowing
    /// Scores of row `r` to probabilities `p = exp(score - lse)`, and `dp` to `g = p·(dp - mean)` times the cap's slope; both
    /// zero where keys are hidden.
    ///
    /// Of pairs: rows `r` and `r + 1` (zeros where there is no `next`, but for its place) at once; row `r` of the scores has
    /// the words of `p` in the sum over rows then, row `r + 1` those of `g`, and each row of `dp` its own `g`, packed.
    ///
    /// # Safety
    /// As [`softmax`], of both blocks.
    pub(crate) unsafe fn softmax_gradient = softmax_gradient_body [O: Operand] [O]
        (rows: usize, r: usize, keys: usize, cap: f32, row: Row, next: Option<Row>, s: *mut f32, dp: *mut f32)
}
