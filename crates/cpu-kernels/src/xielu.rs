//! xIELU (Huang and Schlag, arXiv:2411.13010) of whole buffers, with its backward.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::elementwise::slices;
use crate::scratch::{Ptr, uninit};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::SLICE;

/// The part of the slope that is fixed.
const BETA: f32 = 0.5;
/// Inputs above it count as it in the exponential.
const EPS: f32 = -1e-6;

/// 1 above zero, 0 elsewhere.
#[inline(always)]
unsafe fn step<S: Lanes>(v: S::V) -> S::V {
    S::min(S::splat(1.0), S::max(S::splat(0.0), S::mul(v, S::splat(f32::MAX))))
}

/// `exp(x) - 1` of negative numbers, to the last bits also of small ones.
#[inline(always)]
unsafe fn exp_minus_one<S: Lanes>(x: S::V) -> S::V {
    let near = S::max(x, S::splat(-0.5));
    let mut series = S::fma(near, S::splat(0.1), S::splat(1.0));
    let mut n = 9.0_f32;
    while n > 1.5 {
        series = S::fma(S::mul(series, near), S::splat(1.0 / n), S::splat(1.0));
        n -= 1.0;
    }
    let small = step::<S>(S::add(x, S::splat(0.5)));
    let far = S::mul(S::sub(S::exp(x), S::splat(1.0)), S::sub(S::splat(1.0), small));
    S::fma(S::mul(series, near), small, far)
}

/// Below zero `exp(min(x, EPS)) - 1 - x`, above zero nothing.
#[inline(always)]
unsafe fn below<S: Lanes>(x: S::V) -> S::V {
    let curve = S::sub(exp_minus_one::<S>(S::min(x, S::splat(EPS))), S::min(x, S::splat(0.0)));
    S::mul(curve, S::sub(S::splat(1.0), step::<S>(x)))
}

/// `p x^2 + x / 2` above zero, `n (exp(min(x, -1e-6)) - 1 - x) + x / 2` below.
#[must_use]
pub fn xielu_forward(x: &[f32], p: f32, n: f32) -> Vec<f32> {
    let isa = isa();
    // SAFETY: the slices cover it.
    let mut y = unsafe { uninit(x.len()) };
    let to = Ptr(y.as_mut_ptr());
    slices(x.len(), |at, len| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { forward_slice(isa, x.as_ptr().add(at), len, p, n, to.at(at)) };
    });
    y
}

#[inline(always)]
unsafe fn forward_body<S: Lanes>(x: *const f32, len: usize, p: f32, n: f32, y: *mut f32) {
    let (p, n) = (S::splat(p), S::splat(n));
    let mut j = 0;
    while j < len {
        let mask = S::mask((len - j).min(S::N));
        let v = S::load_m(mask, x.add(j));
        let above = S::max(S::splat(0.0), v);
        let curve = S::fma(S::mul(above, above), p, S::mul(below::<S>(v), n));
        S::store_m(mask, y.add(j), S::fma(v, S::splat(BETA), curve));
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// `x` and `y` hold `len` values.
    unsafe fn forward_slice = forward_body [] [] (x: *const f32, len: usize, p: f32, n: f32, y: *mut f32)
}

/// Gradients of [`xielu_forward`] from `dy`: of `x`, and of `p` and `n`, in one order whatever the number of threads.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn xielu_backward(x: &[f32], p: f32, n: f32, dy: &[f32]) -> (Vec<f32>, f64, f64) {
    assert_eq!(x.len(), dy.len(), "xielu: lengths");
    let isa = isa();
    // SAFETY: the slices cover both.
    let (mut dx, mut sums) = unsafe { (uninit(x.len()), uninit(2 * x.len().div_ceil(SLICE))) };
    let (to, parts) = (Ptr(dx.as_mut_ptr()), Ptr(sums.as_mut_ptr()));
    slices(x.len(), |at, len| {
        // SAFETY: slices are disjoint and in bounds, and so are their sums.
        unsafe {
            let (x, dy) = (x.as_ptr().add(at), dy.as_ptr().add(at));
            backward_slice(isa, x, dy, len, p, n, to.at(at), parts.at(at / SLICE * 2));
        }
    });
    let sum = |which: usize| sums.iter().skip(which).step_by(2).map(|&part| f64::from(part)).sum();
    let (dp, dn) = (sum(0), sum(1));
    (dx, dp, dn)
}

#[inline(always)]
unsafe fn backward_body<S: Lanes>(
    x: *const f32,
    dy: *const f32,
    len: usize,
    p: f32,
    n: f32,
    dx: *mut f32,
    sums: *mut f32,
) {
    let (rise, n, one) = (S::splat(2.0 * p), S::splat(n), S::splat(1.0));
    let (mut dp, mut dn) = (0.0_f64, 0.0_f64);
    let mut j = 0;
    while j < len {
        let end = len.min(j + 512);
        let (mut of_p, mut of_n) = (S::splat(0.0), S::splat(0.0));
        while j < end {
            let mask = S::mask((end - j).min(S::N));
            let (v, d) = (S::load_m(mask, x.add(j)), S::load_m(mask, dy.add(j)));
            let (above, is_above) = (S::max(S::splat(0.0), v), step::<S>(v));
            // The exponential stands still above `EPS`.
            let moves = S::sub(one, step::<S>(S::sub(v, S::splat(EPS))));
            let curve = S::sub(S::mul(S::exp(v), moves), one);
            let curve = S::mul(S::mul(curve, n), S::sub(one, is_above));
            let slope = S::fma(above, rise, S::add(curve, S::splat(BETA)));
            S::store_m(mask, dx.add(j), S::mul(d, slope));
            of_p = S::fma(S::mul(above, above), d, of_p);
            of_n = S::fma(below::<S>(v), d, of_n);
            j += S::N;
        }
        j = end;
        dp += f64::from(S::sum(of_p));
        dn += f64::from(S::sum(of_n));
    }
    *sums = dp as f32;
    *sums.add(1) = dn as f32;
}

dispatch! {
    /// # Safety
    /// `x`, `dy` and `dx` hold `len` values, `sums` two.
    unsafe fn backward_slice = backward_body [] []
        (x: *const f32, dy: *const f32, len: usize, p: f32, n: f32, dx: *mut f32, sums: *mut f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, with_isa};

    fn curve(x: f64, p: f64, n: f64) -> f64 {
        let below = f64::exp_m1(x.min(f64::from(EPS))) - x;
        x / 2.0 + if x > 0.0 { p * x * x } else { n * below }
    }

    #[test]
    fn agrees_with_f64_on_every_isa() {
        let x: Vec<f32> =
            (0..70_001).map(|i| (i as f32 - 40_000.0) * 1.5e-4).chain([0.0, -0.5, -90.0]).collect();
        let dy: Vec<f32> = (0..x.len()).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let (p, n) = (0.8_f32, 1.3_f32);
        for &isa in Isa::available() {
            let (y, (dx, dp, dn)) =
                with_isa(isa, || (xielu_forward(&x, p, n), xielu_backward(&x, p, n, &dy)));
            let (mut sum_p, mut sum_n) = (0.0, 0.0);
            for (i, &v) in x.iter().enumerate() {
                let (v, d, p, n) = (f64::from(v), f64::from(dy[i]), f64::from(p), f64::from(n));
                let want = curve(v, p, n);
                assert!(
                    (f64::from(y[i]) - want).abs() < 1e-6 * (1.0 + want.abs()),
                    "{isa:?} {v}: {} {want}",
                    y[i]
                );
                let slope = if v > 0.0 {
                    2.0 * p * v
                } else if v > f64::from(EPS) {
                    -n
                } else {
                    n * v.exp_m1()
                };
                let want = d * (slope + 0.5);
                assert!(
                    (f64::from(dx[i]) - want).abs() < 1e-6 * (1.0 + want.abs()),
                    "{isa:?} {v}: {} {want}",
                    dx[i]
                );
                sum_p += d * v.max(0.0).powi(2);
                sum_n += if v > 0.0 { 0.0 } else { d * (f64::exp_m1(v.min(f64::from(EPS))) - v) };
            }
            assert!(
                (dp - sum_p).abs() < 1e-3 && (dn - sum_n).abs() < 1e-3,
                "{isa:?}: {dp} {sum_p}, {dn} {sum_n}"
            );
        }
        // Small negatives keep their last bits: the curve itself is of their size.
        let small: Vec<f32> = [-1e-3, -1e-5, -2e-6].to_vec();
        for (&v, y) in small.iter().zip(xielu_forward(&small, p, n)) {
            let want = curve(f64::from(v), 0.8, f64::from(n));
            assert!((f64::from(y) - want).abs() < 1e-6 * want.abs(), "{v}: {y} {want}");
        }
    }
}
