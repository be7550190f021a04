//! The elementwise and rowwise parts of Muon (Jordan et al. 2024) and its variants; the matrix part is elsewhere.
//!
//! Every value depends on its own element or row alone, so the rows of a matrix may lie on any number of ranks.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use std::ops::Range;

use burnish_core::random::Stream;
use half::bf16;

use crate::elementwise::slices;
use crate::scratch::Ptr;
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::{SLICE, tasks};

/// Constants of one step of [`muon_momentum`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonMomentum {
    /// Decay of the momentum.
    pub beta: f64,
    /// Whether the update looks one step ahead.
    pub nesterov: bool,
    /// Multiplies the gradient first (clipping, accumulation, loss scaling).
    pub grad_scale: f32,
}

/// `m += (1 - b) (g - m)`, and `g` becomes the update: `m - (1 - b) (m - g)` with Nesterov, else `m`.
///
/// # Panics
/// When the lengths differ.
pub fn muon_momentum(momentum: &mut [f32], grad: &mut [f32], step: &MuonMomentum) {
    assert_eq!(momentum.len(), grad.len(), "muon: momentum and gradient lengths");
    let (isa, len) = (isa(), grad.len());
    let (m, g) = (Ptr(momentum.as_mut_ptr()), Ptr(grad.as_mut_ptr()));
    slices(len, |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { momentum_slice(isa, m.at(at), g.at(at), n, step) };
    });
}

#[inline(always)]
unsafe fn momentum_body<S: Lanes>(m: *mut f32, g: *mut f32, n: usize, step: &MuonMomentum) {
    let rest = S::splat((1.0 - step.beta) as f32);
    let gs = S::splat(step.grad_scale);
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let grad = S::mul(gs, S::load_m(mask, g.add(j)));
        let m0 = S::load_m(mask, m.add(j));
        let m1 = S::add(m0, S::mul(rest, S::sub(grad, m0)));
        let update = if step.nesterov { S::sub(m1, S::mul(rest, S::sub(m1, grad))) } else { m1 };
        S::store_m(mask, m.add(j), m1);
        S::store_m(mask, g.add(j), update);
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// Both slices hold `n` values.
    unsafe fn momentum_slice = momentum_body [] [] (m: *mut f32, g: *mut f32, n: usize, step: &MuonMomentum)
}

/// As [`muon_momentum`] with the momentum kept in bfloat16, rounded up or down by chance such that its mean is exact.
///
/// `runs` says which elements of the logical tensor these are, in order: element `i` takes 16 bits of `noise` at `i`, so
/// the same bits wherever it lies. The update is made of the momentum before rounding.
///
/// # Panics
/// When the lengths differ.
pub fn muon_momentum_bf16(
    momentum: &mut [bf16],
    grad: &mut [f32],
    step: &MuonMomentum,
    noise: Stream,
    runs: &[Range<u64>],
) {
    assert_eq!(momentum.len(), grad.len(), "muon: momentum and gradient lengths");
    let mut wide = crate::to_f32(crate::Weight::Bf16(momentum));
    muon_momentum(&mut wide, grad, step);
    round_stochastically(&wide, momentum, noise, runs);
}

/// Rounds to bfloat16, up with the probability of the part that is cut off.
fn round_stochastically(values: &[f32], into: &mut [bf16], noise: Stream, runs: &[Range<u64>]) {
    // (where the run starts here, its first element in the logical tensor)
    let mut starts = Vec::with_capacity(runs.len());
    let mut len = 0;
    for run in runs.iter().filter(|r| !r.is_empty()) {
        starts.push((len, run.start));
        len += (run.end - run.start) as usize;
    }
    assert!(len == values.len() && len == into.len(), "muon: runs of {len} elements, not {}", values.len());
    let into = Ptr(into.as_mut_ptr().cast::<f32>());
    slices(len, |at, n| {
        let mut run = starts.partition_point(|&(start, _)| start <= at) - 1;
        let (mut block, mut words) = (u64::MAX, [0; 4]);
        for (here, &value) in values.iter().enumerate().skip(at).take(n) {
            if starts.get(run + 1).is_some_and(|&(start, _)| start <= here) {
                run += 1;
            }
            let (start, first) = starts[run];
            let element = first + (here - start) as u64;
            if element / 8 != block {
                block = element / 8;
                words = noise.words(block);
            }
            let bits = words[(element % 8 / 2) as usize] >> (16 * (element % 2)) & 0xffff;
            let rounded = if value.is_finite() {
                bf16::from_bits((value.to_bits().wrapping_add(bits) >> 16) as u16)
            } else {
                bf16::from_f32(value)
            };
            // SAFETY: slices are disjoint and in bounds; `bf16` is its 16 bits.
            unsafe { into.at(0).cast::<bf16>().add(here).write(rounded) };
        }
    });
}

/// `p = shrink p - rate o`.
///
/// # Panics
/// When the lengths differ.
pub fn muon_apply(master: &mut [f32], direction: &[f32], shrink: f64, rate: f64) {
    assert_eq!(master.len(), direction.len(), "muon: parameter and direction lengths");
    let (isa, p) = (isa(), Ptr(master.as_mut_ptr()));
    slices(direction.len(), |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { apply_slice(isa, p.at(at), direction.as_ptr().add(at), n, shrink as f32, rate as f32) };
    });
}

#[inline(always)]
unsafe fn apply_body<S: Lanes>(p: *mut f32, o: *const f32, n: usize, shrink: f32, rate: f32) {
    let (shrink, rate) = (S::splat(shrink), S::splat(rate));
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let kept = S::mul(shrink, S::load_m(mask, p.add(j)));
        S::store_m(mask, p.add(j), S::sub(kept, S::mul(rate, S::load_m(mask, o.add(j)))));
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// Both slices hold `n` values.
    unsafe fn apply_slice = apply_body [] [] (p: *mut f32, o: *const f32, n: usize, shrink: f32, rate: f32)
}

/// `v += (1 - b2) (o^2 - v)`, `o /= sqrt(v) + eps`, element by element.
///
/// # Panics
/// When the lengths differ.
pub fn muon_adapt(direction: &mut [f32], second: &mut [f32], beta2: f64, eps: f64) {
    assert_eq!(direction.len(), second.len(), "muon: direction and second moment lengths");
    let (isa, len) = (isa(), direction.len());
    let (o, v) = (Ptr(direction.as_mut_ptr()), Ptr(second.as_mut_ptr()));
    slices(len, |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { adapt_slice(isa, o.at(at), v.at(at), n, (1.0 - beta2) as f32, eps as f32) };
    });
}

#[inline(always)]
unsafe fn adapt_body<S: Lanes>(o: *mut f32, v: *mut f32, n: usize, rest: f32, eps: f32) {
    let (rest, eps) = (S::splat(rest), S::splat(eps));
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let old = S::load_m(mask, o.add(j));
        let v0 = S::load_m(mask, v.add(j));
        let v1 = S::add(v0, S::mul(rest, S::sub(S::mul(old, old), v0)));
        S::store_m(mask, v.add(j), v1);
        S::store_m(mask, o.add(j), S::div(old, S::add(S::sqrt(v1), eps)));
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// Both slices hold `n` values.
    unsafe fn adapt_slice = adapt_body [] [] (o: *mut f32, v: *mut f32, n: usize, rest: f32, eps: f32)
}

/// The sum of squares of each row.
///
/// # Panics
/// When `values` are not whole rows.
#[must_use]
pub fn row_squares(values: &[f32], columns: usize) -> Vec<f64> {
    if columns == 0 {
        assert!(values.is_empty(), "row_squares: {} values in rows of none", values.len());
        return Vec::new();
    }
    assert!(values.len().is_multiple_of(columns), "row_squares: {} values, rows of {columns}", values.len());
    let isa = isa();
    let mut sums = vec![0.0_f64; values.len() / columns];
    let to = Ptr(sums.as_mut_ptr().cast::<f32>());
    by_rows(values.len() / columns, columns, |rows| {
        for row in rows {
            // SAFETY: the row is in bounds; each task writes its own rows' sums.
            unsafe {
                let sum = row_slice(isa, values.as_ptr().add(row * columns), columns);
                to.at(0).cast::<f64>().add(row).write(sum);
            }
        }
    });
    sums
}

/// The values fit f32 many times over: orthogonalised matrices have elements of at most about one.
#[inline(always)]
unsafe fn row_body<S: Lanes>(x: *const f32, n: usize) -> f64 {
    let mut total = 0.0;
    let mut at = 0;
    while at < n {
        let end = n.min(at + 256);
        let mut sum = S::splat(0.0);
        while at < end {
            let v = S::load_m(S::mask((end - at).min(S::N)), x.add(at));
            sum = S::fma(v, v, sum);
            at += S::N;
        }
        at = end;
        total += f64::from(S::sum(sum));
    }
    total
}

dispatch! {
    /// # Safety
    /// `x` holds `n` values.
    unsafe fn row_slice = row_body [] [] (x: *const f32, n: usize) -> f64
}

/// Multiplies row `i` by `factors[i]`.
///
/// # Panics
/// When `values` are not as many rows as there are factors.
pub fn scale_rows(values: &mut [f32], columns: usize, factors: &[f32]) {
    assert_eq!(values.len(), columns * factors.len(), "scale_rows: rows of {columns} and factors");
    let (isa, to) = (isa(), Ptr(values.as_mut_ptr()));
    by_rows(factors.len(), columns, |rows| {
        for row in rows {
            // SAFETY: rows are disjoint and in bounds.
            unsafe { crate::elementwise::scale_slice(isa, to.at(row * columns), columns, factors[row]) };
        }
    });
}

/// Runs `work` over ranges of rows of about [`SLICE`] elements.
fn by_rows(rows: usize, columns: usize, work: impl Fn(Range<usize>) + Send + Sync) {
    let each = (SLICE / columns.max(1)).max(1);
    tasks(rows.div_ceil(each), |i| work(i * each..((i + 1) * each).min(rows)));
}

#[cfg(test)]
mod tests;
