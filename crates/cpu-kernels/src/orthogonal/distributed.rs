//! The pieces a caller puts together when ranks hold slices of the long side.
//!
//! Each rank holds all of one side (`m`, see [`Side`]) and a slice of the other. A leg is then: [`gram`] of the slice,
//! summed over the ranks; [`polynomial_of_gram`], the same on every rank; [`apply`] to the slice. With one rank the
//! bits are those of [`orthogonalize`](super::orthogonalize) with the same legs.
//!
//! ```
//! use burnish_cpu_kernels::orthogonal::{Coefficients, Side, apply, gram, largest, polynomial_of_gram};
//!
//! let coefficients = Coefficients::keller(5);
//! // Two ranks, each with 2 x 3 of a 2 x 6 matrix.
//! let mut slices = [[1.0, 2.0, 3.0, -1.0, 0.5, 1.0], [0.0, 4.0, 1.0, 2.0, 2.0, -3.0]];
//! let mut top = 0.0_f32;
//! for x in &slices {
//!     top = top.max(largest(x)?); // all-reduce, maximum
//! }
//! for leg in coefficients.gram_legs() {
//!     let mut r = [0.0; 4];
//!     for x in &slices {
//!         let mut part = [0.0; 4];
//!         gram(x, 2, 3, Side::Rows, top, &mut part);
//!         r.iter_mut().zip(part).for_each(|(r, p)| *r += p); // all-reduce, sum
//!     }
//!     let mut q = [0.0; 4];
//!     polynomial_of_gram(&r, 2, &coefficients, leg, &mut q)?;
//!     for x in &mut slices {
//!         let whole = *x;
//!         apply(&q, &whole, 2, 3, Side::Rows, top, x);
//!     }
//!     top = 1.0; // later legs start from a matrix that is normalised
//! }
//! # Ok::<(), burnish_cpu_kernels::orthogonal::OrthogonalError>(())
//! ```

use super::panels::{Factor, Panels};
use super::polynomial::polynomial;
use super::product::{self, Out, transform};
use super::{Coefficients, OrthogonalError};
use crate::elementwise::slices;
use crate::operand::Fp32;
use crate::scratch::{Pooled, Ptr};
use crate::simd::{Lanes, dispatch, isa};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The side of a matrix whose Gram matrix is made: the shorter one, and the one that no rank's slice cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `R = X Xᵀ`, `[rows, rows]`; the result is `Q X`.
    Rows,
    /// `R = Xᵀ X`, `[columns, columns]`; the result is `X Q`.
    Columns,
}

impl Side {
    /// `(m, n)`: this side, and the other one.
    pub(super) fn of(self, rows: usize, columns: usize) -> (usize, usize) {
        match self {
            Side::Rows => (rows, columns),
            Side::Columns => (columns, rows),
        }
    }
}

#[inline(always)]
unsafe fn largest_body<S: Lanes>(x: *const f32, n: usize) -> u32 {
    // Magnitudes order as their bits do, infinities and NaN above all others.
    // SAFETY: the caller's.
    let x = unsafe { std::slice::from_raw_parts(x, n) };
    x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff))
}

dispatch! {
    /// # Safety
    /// `x` holds `n` values.
    unsafe fn largest_slice = largest_body [] [] (x: *const f32, n: usize) -> u32
}

/// The largest magnitude; 0 of nothing. Ranks take the maximum over all slices.
///
/// # Errors
/// [`OrthogonalError::NotFinite`], with the element's place in `x` as the column.
pub fn largest(x: &[f32]) -> Result<f32, OrthogonalError> {
    let (isa, top) = (isa(), AtomicU32::new(0));
    slices(x.len(), |at, n| {
        // SAFETY: the slice is in bounds.
        let bits = unsafe { largest_slice(isa, x.as_ptr().add(at), n) };
        top.fetch_max(bits, Relaxed);
    });
    let top = f32::from_bits(top.into_inner());
    match x.iter().enumerate().find(|(_, x)| !top.is_finite() && !x.is_finite()) {
        Some((column, &value)) => Err(OrthogonalError::NotFinite { matrix: 0, row: 0, column, value }),
        None => Ok(top),
    }
}

/// The power of two that brings `top` (positive, finite) into `[1, 2)`, as far as it is a normal number.
pub(super) fn power(top: f32) -> f32 {
    let exponent = i32::try_from(top.to_bits() >> 23).expect("invariant: eight bits and no sign") - 127;
    f32::from_bits(((-exponent).clamp(-126, 127) + 127).cast_unsigned() << 23)
}

/// Writes the Gram matrix of `x` (`[rows, columns]`, row-major), scaled so that `largest` is in `[1, 2)`, into `r`
/// (`[m, m]`, both triangles).
///
/// # Panics
/// When lengths and shapes disagree.
pub fn gram(x: &[f32], rows: usize, columns: usize, side: Side, largest: f32, r: &mut [f32]) {
    let (m, n) = side.of(rows, columns);
    assert_eq!(x.len(), rows * columns, "gram: `x` is [rows, columns]");
    assert_eq!(r.len(), m * m, "gram: `r` is [m, m]");
    if n == 0 || largest == 0.0 {
        r.fill(0.0);
        return;
    }
    let isa = isa();
    let (panels, square) = (Pooled::take(Panels::len(m, n)), Pooled::take(Panels::len(m, m)));
    let panels = Panels { ptr: panels.ptr(), width: m, depth: n };
    let square = Panels { ptr: square.ptr(), width: m, depth: m };
    // SAFETY: lengths were checked; the buffers are of these shapes.
    unsafe {
        panels.load(isa, true, x.as_ptr(), side, power(largest));
        product::gram::<Fp32>(isa, true, Factor::own(panels), square);
        square.store(Ptr(r.as_mut_ptr()));
    }
}

/// Writes the product of the leg's polynomials (`[m, m]`) into `q`, from the Gram matrix `r` summed over the ranks;
/// the first leg divides by the norm, `margin · √trace(r)`.
///
/// # Errors
/// [`OrthogonalError::BadTrace`].
///
/// # Panics
/// When lengths and shapes disagree, or the leg lies outside the steps.
pub fn polynomial_of_gram(
    r: &[f32],
    m: usize,
    coefficients: &Coefficients,
    leg: Range<usize>,
    q: &mut [f32],
) -> Result<(), OrthogonalError> {
    assert_eq!(r.len(), m * m, "polynomial_of_gram: `r` is [m, m]");
    assert_eq!(q.len(), m * m, "polynomial_of_gram: `q` is [m, m]");
    let triples = &coefficients.triples()[leg.clone()];
    let trace: f64 = (0..m).map(|i| f64::from(r[i * m + i])).sum();
    if !trace.is_finite() || trace < 0.0 {
        return Err(OrthogonalError::BadTrace { order: m, trace });
    }
    q.fill(0.0);
    if triples.is_empty() {
        (0..m).for_each(|i| q[i * m + i] = 1.0);
        return Ok(());
    }
    if trace == 0.0 {
        return Ok(());
    }
    let (isa, len) = (isa(), Panels::len(m, m));
    let buffer = Pooled::take(2 * len);
    let from = Panels { ptr: buffer.ptr(), width: m, depth: m };
    // SAFETY: lengths were checked; the buffers are of these shapes and distinct.
    unsafe {
        let to = Panels { ptr: Ptr(from.ptr.at(len)), ..from };
        from.load(isa, true, r.as_ptr(), Side::Columns, 1.0);
        let norm = if leg.start == 0 { coefficients.margin() * trace.sqrt() } else { 1.0 };
        polynomial::<Fp32>(isa, true, from, triples, norm, to);
        to.store(Ptr(q.as_mut_ptr()));
    }
    Ok(())
}

/// Writes `Q X` or `X Q` into `out`, `x` (`[rows, columns]`, row-major) scaled as in [`gram`].
///
/// # Panics
/// When lengths and shapes disagree.
pub fn apply(q: &[f32], x: &[f32], rows: usize, columns: usize, side: Side, largest: f32, out: &mut [f32]) {
    let (m, n) = side.of(rows, columns);
    assert_eq!(q.len(), m * m, "apply: `q` is [m, m]");
    assert_eq!(x.len(), rows * columns, "apply: `x` is [rows, columns]");
    assert_eq!(out.len(), rows * columns, "apply: `out` is [rows, columns]");
    if n == 0 || largest == 0.0 {
        out.fill(0.0);
        return;
    }
    let isa = isa();
    let (panels, square) = (Pooled::take(Panels::len(m, n)), Pooled::take(Panels::len(m, m)));
    let panels = Panels { ptr: panels.ptr(), width: m, depth: n };
    let square = Panels { ptr: square.ptr(), width: m, depth: m };
    // SAFETY: lengths were checked; the buffers are of these shapes.
    unsafe {
        panels.load(isa, true, x.as_ptr(), side, power(largest));
        square.load(isa, true, q.as_ptr(), Side::Columns, 1.0);
        transform::<Fp32>(isa, true, panels, Factor::own(square), Out::Rows(Ptr(out.as_mut_ptr()), side));
    }
}
