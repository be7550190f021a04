//! Sums, scalings and changes of storage type over whole buffers.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::embedding::{add_row, widen_row};
use crate::linear::Weight;
use crate::scratch::{Ptr, uninit};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::{SLICE, tasks};
use half::{bf16, f16};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Runs `work(start, len)` over slices of `0..len`.
pub(crate) fn slices(len: usize, work: impl Fn(usize, usize) + Send + Sync) {
    tasks(len.div_ceil(SLICE), |i| work(i * SLICE, (len - i * SLICE).min(SLICE)));
}

/// `y += x`.
///
/// # Panics
/// When the lengths differ.
pub fn add_assign(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "add_assign: lengths");
    let (isa, to) = (isa(), Ptr(y.as_mut_ptr()));
    slices(x.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { add_row(isa, x.as_ptr().add(at), n, to.at(at)) };
    });
}

/// `y *= factor`.
pub fn scale(y: &mut [f32], factor: f32) {
    let (isa, to) = (isa(), Ptr(y.as_mut_ptr()));
    slices(y.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { scale_slice(isa, to.at(at), n, factor) };
    });
}

#[inline(always)]
unsafe fn scale_body<S: Lanes>(y: *mut f32, n: usize, factor: f32) {
    let f = S::splat(factor);
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        S::store_m(mask, y.add(j), S::mul(f, S::load_m(mask, y.add(j))));
        j += S::N;
    }
}

dispatch! {
    /// `y *= factor`.
    ///
    /// # Safety
    /// `y` holds `n` values.
    pub(crate) unsafe fn scale_slice = scale_body [] [] (y: *mut f32, n: usize, factor: f32)
}

/// `factor * x + residual`, or `factor * x`.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn scaled_sum(x: &[f32], factor: f32, residual: Option<&[f32]>) -> Vec<f32> {
    assert!(residual.is_none_or(|r| r.len() == x.len()), "scaled_sum: lengths");
    let isa = isa();
    // SAFETY: the slices below cover it.
    let mut y = unsafe { uninit(x.len()) };
    let to = Ptr(y.as_mut_ptr());
    slices(x.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe {
            let residual = residual.map_or(std::ptr::null(), |r| r.as_ptr().add(at));
            sum_slice(isa, x.as_ptr().add(at), n, factor, residual, to.at(at));
        }
    });
    y
}

#[inline(always)]
unsafe fn sum_body<S: Lanes>(x: *const f32, n: usize, factor: f32, residual: *const f32, y: *mut f32) {
    let f = S::splat(factor);
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let mut v = S::mul(f, S::load_m(mask, x.add(j)));
        if !residual.is_null() {
            v = S::add(v, S::load_m(mask, residual.add(j)));
        }
        S::store_m(mask, y.add(j), v);
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// `x` and `y` hold `n` values, and so does `residual` unless it is null.
    unsafe fn sum_slice = sum_body [] [] (x: *const f32, n: usize, factor: f32, residual: *const f32, y: *mut f32)
}

/// `x` held in `-bound..=bound`.
#[must_use]
pub fn clamp(x: &[f32], bound: f32) -> Vec<f32> {
    within(x, x, |x, _| x.clamp(-bound, bound))
}

/// The gradient of [`clamp`]: `dy` where `x` lies within the bound, else zero.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn clamp_backward(x: &[f32], bound: f32, dy: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), dy.len(), "clamp: lengths");
    within(x, dy, |x, dy| if x < -bound || x > bound { 0.0 } else { dy })
}

fn within(x: &[f32], dy: &[f32], of: impl Fn(f32, f32) -> f32 + Send + Sync) -> Vec<f32> {
    // SAFETY: the slices below cover it.
    let mut y = unsafe { uninit(x.len()) };
    let to = Ptr(y.as_mut_ptr());
    slices(x.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        let y = unsafe { std::slice::from_raw_parts_mut(to.at(at), n) };
        for ((y, &x), &dy) in y.iter_mut().zip(&x[at..at + n]).zip(&dy[at..at + n]) {
            *y = of(x, dy);
        }
    });
    y
}

/// The sum of squares, in f64 from blocks of 256 summed in f32 lanes; one order whatever the number of threads.
#[must_use]
pub fn sum_of_squares(x: &[f32]) -> f64 {
    let isa = isa();
    let parts: Vec<AtomicU64> = (0..x.len().div_ceil(SLICE)).map(|_| AtomicU64::new(0)).collect();
    slices(x.len(), |at, n| {
        // SAFETY: the slice is in bounds.
        let sum = unsafe { squares_slice(isa, x.as_ptr().add(at), n) };
        parts[at / SLICE].store(sum.to_bits(), Relaxed);
    });
    parts.iter().map(|p| f64::from_bits(p.load(Relaxed))).sum()
}

#[inline(always)]
unsafe fn squares_body<S: Lanes>(x: *const f32, n: usize) -> f64 {
    let mut total = 0.0;
    let mut at = 0;
    while at < n {
        let end = n.min(at + 256);
        let mut s = [S::splat(0.0); 2];
        let mut q = 0;
        while at < end {
            let v = S::load_m(S::mask((end - at).min(S::N)), x.add(at));
            s[q] = S::fma(v, v, s[q]);
            q ^= 1;
            at += S::N;
        }
        at = end;
        total += f64::from(S::sum(S::add(s[0], s[1])));
    }
    total
}

dispatch! {
    /// # Safety
    /// `x` holds `n` values.
    unsafe fn squares_slice = squares_body [] [] (x: *const f32, n: usize) -> f64
}

/// The values as `f32`.
#[must_use]
pub fn to_f32(x: Weight<'_>) -> Vec<f32> {
    let isa = isa();
    // SAFETY: the slices below cover it.
    let mut y = unsafe { uninit(x.len()) };
    let to = Ptr(y.as_mut_ptr());
    if let Weight::Packed(w) = x {
        let row = w.row();
        tasks(x.len() / row, |i| {
            // SAFETY: rows are disjoint and in bounds.
            unsafe { x.widen(isa, i * row, row, to.at(i * row)) };
        });
        return y;
    }
    slices(x.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe {
            match x {
                Weight::Packed(_) => {}
                Weight::F32(x) => widen_row(isa, x.as_ptr().add(at), n, to.at(at)),
                Weight::Bf16(x) => widen_row(isa, x.as_ptr().add(at), n, to.at(at)),
                Weight::F16(x) => widen_row(isa, x.as_ptr().add(at), n, to.at(at)),
            }
        }
    });
    y
}

/// The values as bfloat16, to nearest even.
#[must_use]
pub fn to_bf16(x: &[f32]) -> Vec<bf16> {
    let mut y = vec![bf16::ZERO; x.len()];
    narrow(x, y.as_mut_ptr().cast(), true);
    y
}

/// The values as IEEE half, to nearest even.
#[must_use]
pub fn to_f16(x: &[f32]) -> Vec<f16> {
    let mut y = vec![f16::ZERO; x.len()];
    narrow(x, y.as_mut_ptr().cast(), false);
    y
}

/// `y` holds as many halves as `x` values.
fn narrow(x: &[f32], y: *mut u16, brain: bool) {
    let isa = isa();
    let y = Ptr(y.cast());
    slices(x.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds; `bf16` and `f16` are their 16 bits.
        unsafe { narrow_slice(isa, x.as_ptr().add(at), n, y.at(0).cast::<u16>().add(at), brain) };
    });
}

#[inline(always)]
unsafe fn narrow_body<S: Lanes>(x: *const f32, n: usize, y: *mut u16, brain: bool) {
    let mut j = 0;
    while j + S::N <= n {
        let v = S::load(x.add(j));
        if brain {
            S::store_bf16(y.add(j), v)
        } else {
            S::store_f16(y.add(j), v)
        }
        j += S::N;
    }
    for j in j..n {
        let v = *x.add(j);
        *y.add(j) = if brain { bf16::from_f32(v).to_bits() } else { f16::from_f32(v).to_bits() };
    }
}

dispatch! {
    /// # Safety
    /// `x` and `y` hold `n` values.
    unsafe fn narrow_slice = narrow_body [] [] (x: *const f32, n: usize, y: *mut u16, brain: bool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, with_isa};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_and_scalings(x in proptest::collection::vec(-10.0_f32..10.0, 0..700), factor in -3.0_f32..3.0) {
            for &isa in Isa::available() {
                with_isa(isa, || -> Result<(), TestCaseError> {
                    let mut y: Vec<f32> = x.iter().rev().copied().collect();
                    add_assign(&mut y, &x);
                    for i in 0..x.len() {
                        prop_assert_eq!(y[i], x[i] + x[x.len() - 1 - i]);
                    }
                    scale(&mut y, factor);
                    for i in 0..x.len() {
                        prop_assert_eq!(y[i], factor * (x[i] + x[x.len() - 1 - i]));
                    }
                    let want: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                    prop_assert!((sum_of_squares(&x) - want).abs() <= 1e-6 * want);
                    Ok(())
                })?;
            }
        }

        /// Any bits, NaN and infinities among them, narrow as the `half` crate narrows them.
        #[test]
        fn narrowing_and_widening(bits in proptest::collection::vec(any::<u32>(), 0..100)) {
            let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
            for &isa in Isa::available() {
                with_isa(isa, || -> Result<(), TestCaseError> {
                    let (b, h) = (to_bf16(&x), to_f16(&x));
                    let (wb, wh) = (to_f32(Weight::Bf16(&b)), to_f32(Weight::F16(&h)));
                    for i in 0..x.len() {
                        prop_assert!(b[i].to_bits() == bf16::from_f32(x[i]).to_bits());
                        prop_assert!(h[i] == f16::from_f32(x[i]) || x[i].is_nan() && h[i].is_nan());
                        prop_assert!(wb[i] == b[i].to_f32() || x[i].is_nan() && wb[i].is_nan());
                        prop_assert!(wh[i] == h[i].to_f32() || x[i].is_nan() && wh[i].is_nan());
                    }
                    Ok(())
                })?;
            }
        }
    }

    #[test]
    fn long_sums_do_not_depend_on_threads() -> Result<(), rayon::ThreadPoolBuildError> {
        let x: Vec<f32> = (0..200_000).map(|i| (i as f32 * 0.01).sin()).collect();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(|| sum_of_squares(&x));
        let two = rayon::ThreadPoolBuilder::new().num_threads(2).build()?.install(|| sum_of_squares(&x));
        assert_eq!(one.to_bits(), two.to_bits());
        let want: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        assert!((one - want).abs() < 1e-7 * want);
        Ok(())
    }
}
