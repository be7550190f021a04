//! One head row at a time: norm and rotary on the way into attention, their gradient on the way out.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::shape::{HeadNorm, Rotary};
use crate::simd::{Lanes, Store, dispatch};

/// Asks for `n` floats to come into the cache: rows of the projection lie pages apart, out of the hardware
/// prefetcher's reach.
pub(crate) fn prefetch(x: &[f32], at: usize, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in x[at.min(x.len())..(at + n).min(x.len())].chunks(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, and the address is inside the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, at, n);
}

/// What happens to a query or key row before its scores: `rotary(norm(x))·scale`.
#[derive(Clone, Copy)]
pub(crate) struct RowMap {
    /// Elements of the row.
    pub(crate) d: usize,
    /// Gain of the norm; null without one.
    pub(crate) gain: *const f32,
    pub(crate) eps: f32,
    /// Rotated dimensions; 0 without rotary.
    pub(crate) rotary_dim: usize,
    pub(crate) scale: f32,
}

// SAFETY: `gain` is only read.
unsafe impl Send for RowMap {}
// SAFETY: as above.
unsafe impl Sync for RowMap {}

impl RowMap {
    /// The maps of queries (which carry the score scale) and keys.
    pub(crate) fn pair(
        d: usize,
        scale: f32,
        rotary: Option<&Rotary<'_>>,
        norm: Option<&HeadNorm<'_>>,
    ) -> (Self, Self) {
        let none = Self {
            d,
            gain: std::ptr::null(),
            eps: norm.map_or(0.0, |n| n.eps),
            rotary_dim: rotary.map_or(0, |r| r.rotary_dim),
            scale: 1.0,
        };
        let gain = |g: fn(&HeadNorm<'_>) -> *const f32| norm.map_or(std::ptr::null(), g);
        (Self { gain: gain(|n| n.q.as_ptr()), scale, ..none }, Self { gain: gain(|n| n.k.as_ptr()), ..none })
    }
}

/// `1/sqrt(mean(x²) + eps)`.
#[inline(always)]
unsafe fn inverse_rms<S: Lanes>(d: usize, x: *const f32, eps: f32) -> f32 {
    let mut acc = S::splat(0.0);
    let mut j = 0;
    while j < d {
        let v = S::load_m(S::mask((d - j).min(S::N)), x.add(j));
        acc = S::fma(v, v, acc);
        j += S::N;
    }
    1.0 / (S::sum(acc) / d as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn apply_body<S: Lanes, D: Store>(map: RowMap, x: *const f32, table: *const f32, y: *mut D) {
    let d = map.d;
    let normed = !map.gain.is_null();
    let factor = if normed { map.scale * inverse_rms::<S>(d, x, map.eps) } else { map.scale };
    let f = S::splat(factor);
    let half = map.rotary_dim / 2;
    let mut j = 0;
    while j < half {
        let m = S::mask((half - j).min(S::N));
        let (mut a, mut b) = (S::load_m(m, x.add(j)), S::load_m(m, x.add(half + j)));
        if normed {
            a = S::mul(a, S::load_m(m, map.gain.add(j)));
            b = S::mul(b, S::load_m(m, map.gain.add(half + j)));
        }
        let (c, s) = (S::load_m(m, table.add(j)), S::load_m(m, table.add(half + j)));
        let (c, s) = (S::mul(c, f), S::mul(s, f));
        D::store_m::<S>(m, y.add(j), S::fnma(b, s, S::mul(a, c)));
        D::store_m::<S>(m, y.add(half + j), S::fma(a, s, S::mul(b, c)));
        j += S::N;
    }
    let mut j = 2 * half;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        let mut a = S::mul(S::load_m(m, x.add(j)), f);
        if normed {
            a = S::mul(a, S::load_m(m, map.gain.add(j)));
        }
        D::store_m::<S>(m, y.add(j), a);
        j += S::N;
    }
}

dispatch! {
    narrowing
    /// `y = rotary(norm(x))·scale` of one row; `table` is its cosines and sines.
    ///
    /// # Safety
    /// `x` and `y` hold `map.d` values and do not overlap, `table` holds `map.rotary_dim`.
    pub(crate) unsafe fn apply = apply_body [D: Store] [D] (map: RowMap, x: *const f32, table: *const f32, y: *mut D)
}

#[inline(always)]
unsafe fn gradient_body<S: Lanes>(
    map: RowMap,
    x: *const f32,
    table: *const f32,
    dy: *mut f32,
    dx: *mut f32,
    d_gain: *mut f32,
) {
    let d = map.d;
    let half = map.rotary_dim / 2;
    let f = S::splat(map.scale);
    // Back through the rotation, in place.
    let mut j = 0;
    while j < half {
        let m = S::mask((half - j).min(S::N));
        let (a, b) = (S::load_m(m, dy.add(j)), S::load_m(m, dy.add(half + j)));
        let (c, s) = (S::load_m(m, table.add(j)), S::load_m(m, table.add(half + j)));
        let (c, s) = (S::mul(c, f), S::mul(s, f));
        S::store_m(m, dy.add(j), S::fma(b, s, S::mul(a, c)));
        S::store_m(m, dy.add(half + j), S::fnma(a, s, S::mul(b, c)));
        j += S::N;
    }
    let mut j = 2 * half;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        S::store_m(m, dy.add(j), S::mul(S::load_m(m, dy.add(j)), f));
        j += S::N;
    }
    if map.gain.is_null() {
        std::ptr::copy_nonoverlapping(dy, dx, d);
        return;
    }
    let rms = inverse_rms::<S>(d, x, map.eps);
    let r = S::splat(rms);
    let mut acc = S::splat(0.0);
    let mut j = 0;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        let (v, g) = (S::load_m(m, x.add(j)), S::load_m(m, dy.add(j)));
        let vg = S::mul(v, g);
        S::store_m(m, d_gain.add(j), S::fma(vg, r, S::load_m(m, d_gain.add(j))));
        acc = S::fma(vg, S::load_m(m, map.gain.add(j)), acc);
        j += S::N;
    }
    let mean = S::splat(S::sum(acc) / d as f32 * rms * rms * rms);
    let mut j = 0;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        let g = S::mul(S::mul(S::load_m(m, dy.add(j)), S::load_m(m, map.gain.add(j))), r);
        S::store_m(m, dx.add(j), S::fnma(S::load_m(m, x.add(j)), mean, g));
        j += S::N;
    }
}

dispatch! {
    /// Gradient of [`apply`]: `dx` from `dy` (which it overwrites); adds to the gain's gradient.
    ///
    /// # Safety
    /// `x`, `dy` and `dx` hold `map.d` floats, `table` `map.rotary_dim`; `d_gain` holds `map.d` where there is a
    /// gain. `dx` overlaps neither `x` nor `dy`.
    pub(crate) unsafe fn gradient = gradient_body [] []
        (map: RowMap, x: *const f32, table: *const f32, dy: *mut f32, dx: *mut f32, d_gain: *mut f32)
}

#[inline(always)]
unsafe fn dot_body<S: Lanes>(d: usize, a: *const f32, b: *const f32) -> f32 {
    let mut acc = S::splat(0.0);
    let mut j = 0;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        acc = S::fma(S::load_m(m, a.add(j)), S::load_m(m, b.add(j)), acc);
        j += S::N;
    }
    S::sum(acc)
}

dispatch! {
    /// `a·b`.
    ///
    /// # Safety
    /// Both hold `d` floats.
    pub(crate) unsafe fn dot = dot_body [] [] (d: usize, a: *const f32, b: *const f32) -> f32
}

#[inline(always)]
unsafe fn mix_body<S: Lanes>(d: usize, x: *const f32, wx: f32, y: *mut f32, wy: f32) {
    let (a, b) = (S::splat(wx), S::splat(wy));
    let mut j = 0;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        let v = S::mul(S::load_m(m, x.add(j)), a);
        S::store_m(m, y.add(j), S::fma(S::load_m(m, y.add(j)), b, v));
        j += S::N;
    }
}

dispatch! {
    /// `y = wx·x + wy·y`.
    ///
    /// # Safety
    /// Both hold `d` floats; `y` is initialised.
    pub(crate) unsafe fn mix = mix_body [] [] (d: usize, x: *const f32, wx: f32, y: *mut f32, wy: f32)
}

#[inline(always)]
unsafe fn scale_body<S: Lanes>(d: usize, x: *const f32, w: f32, y: *mut f32) {
    let w = S::splat(w);
    let mut j = 0;
    while j < d {
        let m = S::mask((d - j).min(S::N));
        S::store_m(m, y.add(j), S::mul(S::load_m(m, x.add(j)), w));
        j += S::N;
    }
}

dispatch! {
    /// `y = w·x`.
    ///
    /// # Safety
    /// Both hold `d` floats.
    pub(crate) unsafe fn scale = scale_body [] [] (d: usize, x: *const f32, w: f32, y: *mut f32)
}
