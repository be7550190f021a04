//! Activations of feed-forwards by rows, gated (`f(gate) * up`) or not, with their backward.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use burnish_core::Activation;

use crate::rows::{TileLayout, along};
use crate::simd::{Isa, Lanes, Store, dispatch};

pub(crate) const SILU: u8 = Activation::Silu as u8;
const GELU: u8 = Activation::Gelu as u8;
const GELU_TANH: u8 = Activation::GeluTanh as u8;
const RELU: u8 = Activation::Relu as u8;
const RELU2: u8 = Activation::Relu2 as u8;

/// `sqrt(8 / pi)`: `tanh(u) = 2 sigmoid(2 u) - 1` makes the tanh form of GELU `x sigmoid(2 u)`.
const GELU_SCALE: f32 = 1.595_769;
const GELU_CUBIC: f32 = 0.044_715;

/// 1 above zero, 0 elsewhere.
#[inline(always)]
unsafe fn step<S: Lanes>(v: S::V) -> S::V {
    S::min(S::splat(1.0), S::max(S::splat(0.0), S::mul(v, S::splat(f32::MAX))))
}

/// `erfc(|v| / sqrt(2)) / 2` and `e^(-v^2 / 2)`; absolute error below 1e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
unsafe fn upper_tail<S: Lanes>(v: S::V) -> (S::V, S::V) {
    let size = S::max(v, S::sub(S::splat(0.0), v));
    let t = S::recip(S::fma(size, S::splat(0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2), S::splat(1.0)));
    let mut p = S::splat(1.061_405_4);
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = S::fma(p, t, S::splat(c));
    }
    let e = S::exp(S::mul(S::mul(v, v), S::splat(-0.5)));
    (S::mul(S::mul(S::mul(p, t), e), S::splat(0.5)), e)
}

/// `f(v)`.
#[inline(always)]
unsafe fn value<S: Lanes, const F: u8>(v: S::V) -> S::V {
    let zero = S::splat(0.0);
    match F {
        SILU => S::mul(v, S::sigmoid(v)),
        GELU => {
            let (tail, _) = upper_tail::<S>(v);
            S::fnma(S::max(v, S::sub(zero, v)), tail, S::max(zero, v))
        }
        GELU_TANH => {
            let cubic = S::fma(S::mul(v, v), S::splat(GELU_CUBIC), S::splat(1.0));
            S::mul(v, S::sigmoid(S::mul(S::mul(v, S::splat(GELU_SCALE)), cubic)))
        }
        RELU => S::max(zero, v),
        _ => {
            let r = S::max(zero, v);
            S::mul(r, r)
        }
    }
}

/// `f(v)` and `f'(v)`.
#[inline(always)]
pub(crate) unsafe fn value_and_slope<S: Lanes, const F: u8>(v: S::V) -> (S::V, S::V) {
    let (zero, one) = (S::splat(0.0), S::splat(1.0));
    match F {
        SILU => {
            let s = S::sigmoid(v);
            let silu = S::mul(s, v);
            (silu, S::fma(silu, S::sub(one, s), s))
        }
        GELU => {
            let (tail, e) = upper_tail::<S>(v);
            let above = step::<S>(v);
            // Phi is the tail below zero, one less the tail above.
            let phi = S::fma(S::fnma(S::splat(2.0), above, one), tail, above);
            let size = S::max(v, S::sub(zero, v));
            let density = S::mul(e, S::splat(0.398_942_3));
            (S::fnma(size, tail, S::max(zero, v)), S::fma(v, density, phi))
        }
        GELU_TANH => {
            let square = S::mul(v, v);
            let cubic = S::fma(square, S::splat(GELU_CUBIC), one);
            let s = S::sigmoid(S::mul(S::mul(v, S::splat(GELU_SCALE)), cubic));
            let inner = S::fma(square, S::splat(3.0 * GELU_CUBIC), one);
            let value = S::mul(v, s);
            let rise = S::mul(S::mul(value, S::sub(one, s)), S::mul(inner, S::splat(GELU_SCALE)));
            (value, S::add(s, rise))
        }
        RELU => (S::max(zero, v), step::<S>(v)),
        _ => {
            let r = S::max(zero, v);
            (S::mul(r, r), S::add(r, r))
        }
    }
}

#[inline(always)]
unsafe fn forward_body<S: Lanes, D: Store, const F: u8, const GATED: bool>(
    m: usize,
    n: usize,
    x: *const f32,
    rows: GateRows,
    dst: *mut D,
    place: TileLayout,
) {
    for i in 0..m {
        let gate = x.add(i * rows.stride);
        let up = gate.add(rows.up);
        along!(
            S,
            n,
            place,
            dst.add(i * place.row),
            |c, p, mask| {
                rows.prefetch_next::<S, GATED>(gate.add(c));
                let a = value::<S, F>(S::load(gate.add(c)));
                D::store::<S>(p, if GATED { S::mul(a, S::load(up.add(c))) } else { a });
            },
            {
                let a = value::<S, F>(S::load_m(mask, gate.add(c)));
                D::store_m::<S>(mask, p, if GATED { S::mul(a, S::load_m(mask, up.add(c))) } else { a });
            }
        );
    }
}

dispatch! {
    narrowing
    /// # Safety
    /// As [`activate_rows`].
    unsafe fn forward_rows = forward_body [D: Store, const F: u8, const GATED: bool] [D, F, GATED]
        (m: usize, n: usize, x: *const f32, rows: GateRows, dst: *mut D, place: TileLayout)
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn backward_body<S: Lanes, D: Store, const F: u8, const GATED: bool, const OUTPUT: bool>(
    m: usize,
    n: usize,
    x: *const f32,
    rows: GateRows,
    da: *const f32,
    ldda: usize,
    dx: *mut f32,
    a: *mut D,
    place: TileLayout,
) {
    for i in 0..m {
        let (gate, da, dg) = (x.add(i * rows.stride), da.add(i * ldda), dx.add(i * rows.stride));
        let (up, du) = (gate.add(rows.up), dg.add(rows.up));
        along!(
            S,
            n,
            place,
            a.wrapping_add(i * place.row),
            |c, p, mask| {
                rows.prefetch_next::<S, GATED>(gate.add(c));
                let (mut a, slope) = value_and_slope::<S, F>(S::load(gate.add(c)));
                let mut d = S::load(da.add(c));
                if GATED {
                    let u = S::load(up.add(c));
                    S::store(du.add(c), S::mul(d, a));
                    (a, d) = (S::mul(a, u), S::mul(d, u));
                }
                S::store(dg.add(c), S::mul(d, slope));
                if OUTPUT {
                    D::store::<S>(p, a);
                }
            },
            {
                let (mut a, slope) = value_and_slope::<S, F>(S::load_m(mask, gate.add(c)));
                let mut d = S::load_m(mask, da.add(c));
                if GATED {
                    let u = S::load_m(mask, up.add(c));
                    S::store_m(mask, du.add(c), S::mul(d, a));
                    (a, d) = (S::mul(a, u), S::mul(d, u));
                }
                S::store_m(mask, dg.add(c), S::mul(d, slope));
                if OUTPUT {
                    D::store_m::<S>(mask, p, a);
                }
            }
        );
    }
}

dispatch! {
    narrowing
    /// # Safety
    /// As [`activate_backward_rows`].
    unsafe fn backward_rows = backward_body
        [D: Store, const F: u8, const GATED: bool, const OUTPUT: bool] [D, F, GATED, OUTPUT]
        (m: usize, n: usize, x: *const f32, rows: GateRows, da: *const f32, ldda: usize, dx: *mut f32, a: *mut D,
            place: TileLayout)
}

/// `name::<D, F, GATED, more>(arguments)` of an activation that is known when it runs.
macro_rules! by_activation {
    ($d:ident, $activation:expr, $gated:expr, $name:ident [$($more:tt)*] $arguments:tt) => {
        match ($activation, $gated) {
            (Activation::Silu, true) => $name::<$d, SILU, true $($more)*> $arguments,
            (Activation::Silu, false) => $name::<$d, SILU, false $($more)*> $arguments,
            (Activation::Gelu, true) => $name::<$d, GELU, true $($more)*> $arguments,
            (Activation::Gelu, false) => $name::<$d, GELU, false $($more)*> $arguments,
            (Activation::GeluTanh, true) => $name::<$d, GELU_TANH, true $($more)*> $arguments,
            (Activation::GeluTanh, false) => $name::<$d, GELU_TANH, false $($more)*> $arguments,
            (Activation::Relu, true) => $name::<$d, RELU, true $($more)*> $arguments,
            (Activation::Relu, false) => $name::<$d, RELU, false $($more)*> $arguments,
            (Activation::Relu2, true) => $name::<$d, RELU2, true $($more)*> $arguments,
            (Activation::Relu2, false) => $name::<$d, RELU2, false $($more)*> $arguments,
        }
    };
}

/// The activation of `m` rows, `n` of its columns from the gates at `x` on: `f(gate) * up` of rows `gate | up` where it is
/// `gated`, `f(x)` otherwise.
///
/// # Safety
/// `x` has `m` of these rows; `dst` has room at its place.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn activate_rows<D: Store>(
    isa: Isa,
    (activation, gated): (Activation, bool),
    m: usize,
    n: usize,
    x: *const f32,
    rows: GateRows,
    dst: *mut D,
    place: TileLayout,
) {
    by_activation!(D, activation, gated, forward_rows [] (isa, m, n, x, rows, dst, place))
}

/// Rows of an activation's input.
#[derive(Clone, Copy)]
pub(crate) struct GateRows {
    /// From row to row.
    pub(crate) stride: usize,
    /// From a gate to its up.
    pub(crate) up: usize,
}

impl GateRows {
    /// Of rows `gate | up` of `n` columns each where they are `gated`, else of `n` columns.
    pub(crate) fn new(n: usize, gated: bool) -> Self {
        Self { stride: if gated { 2 * n } else { n }, up: if gated { n } else { 0 } }
    }

    /// Prefetches what lies a row below `gate`, and beside it its up: of some columns of a wide row the processor's prefetchers
    /// do not foresee the next.
    #[inline(always)]
    unsafe fn prefetch_next<S: Lanes, const GATED: bool>(self, gate: *const f32) {
        let next = gate.wrapping_add(self.stride);
        S::prefetch(next);
        if GATED {
            S::prefetch(next.wrapping_add(self.up));
        }
    }
}

/// Backward of [`activate_rows`] for `n` of its columns, from the gates at `x` on: `dx`, placed as `x`, from `da`, `m` rows
/// at stride `ldda`; with `OUTPUT` also the forward's output once more, into `a` (otherwise unused).
///
/// # Safety
/// `x` and `dx` have `m` of these rows, and may be the same; `da` has `m` rows; `a` has room at its place.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn activate_backward_rows<D: Store, const OUTPUT: bool>(
    isa: Isa,
    (activation, gated): (Activation, bool),
    m: usize,
    n: usize,
    x: *const f32,
    rows: GateRows,
    (da, ldda): (*const f32, usize),
    dx: *mut f32,
    a: *mut D,
    place: TileLayout,
) {
    by_activation!(D, activation, gated, backward_rows [, OUTPUT] (isa, m, n, x, rows, da, ldda, dx, a, place))
}
