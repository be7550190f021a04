//! The nearest semi-orthogonal matrix by Newton–Schulz iteration, for Muon.
//!
//! For `X = U Σ Vᵀ` of short side `m` and long side `n` the iteration applies an odd polynomial to every singular
//! value, each step `X ← (aI + bA + cA²) X` with `A = X Xᵀ`, after division by the Frobenius norm: the result is
//! near `U Vᵀ` (how near: [`Coefficients`]). Which side is called rows does not matter.
//!
//! Steps are grouped in *legs*. A leg makes `R = X Xᵀ` once, iterates on `R` alone (`R ← P R P`, with `P` the
//! step's polynomial of `R`, while `Q ← P Q` gathers the product) and then applies `X ← Q X`. Legs of one step are
//! the standard form; few long legs are the Gram form ([`Form`]). Everything of size `m x m` is symmetric, so only
//! one triangle is computed, at half the cost of a GEMM.
//!
//! Products multiply fp32, or values rounded to bfloat16 ([`Iteration::compute`]): all sums, what is added to products and
//! the matrix between steps stay fp32, and the mean of a symmetric factor's diagonal is never rounded.
//!
//! There is no floor under the norm: the input is first multiplied by the power of two that brings its largest
//! magnitude into `[1, 2)`, which is exact, and the norm is `√trace(R)` of the scaled matrix. A gradient times
//! `2^k` gives the same bits, a zero matrix zero.
//!
//! ```
//! use burnish_cpu_kernels::orthogonal::{Iteration, orthogonalize};
//!
//! // 3 x 2 of rank 2: columns come out near unit length and orthogonal, at any scale of the gradient.
//! let x = [3e-20, 0.0, 0.0, 2e-20, 0.0, 0.0];
//! let mut out = [0.0; 6];
//! orthogonalize(&x, 3, 2, &Iteration::default(), &mut out)?;
//! assert!((out[0] - 1.0).abs() < 0.35 && (out[3] - 1.0).abs() < 0.35 && out[4] == 0.0);
//! # Ok::<(), burnish_cpu_kernels::orthogonal::OrthogonalError>(())
//! ```

mod distributed;
mod iteration;
mod panels;
mod polynomial;
mod product;

pub use distributed::{Side, apply, gram, largest, polynomial_of_gram};
pub use iteration::{Coefficients, Form, Iteration};

use crate::operand::{Operand, with_operand};
use crate::scratch::{Pooled, Ptr};
use crate::simd::{Isa, isa};
use crate::tasks::tasks;
use panels::{Factor, Panels};
use polynomial::polynomial;
use product::{Out, transform};

/// Why a matrix has no nearest orthogonal one.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrthogonalError {
    /// An element is infinite or not a number.
    #[error(
        "orthogonalize: matrix {matrix} holds {value} at row {row}, column {column}, expected finite values; skip \
         the step, or unscale and clip the gradient before it"
    )]
    NotFinite {
        /// Its place in the batch; 0 for a single matrix.
        matrix: usize,
        /// Row of the first such element.
        row: usize,
        /// Column of the first such element.
        column: usize,
        /// The element.
        value: f32,
    },
    /// The trace of a Gram matrix is negative, infinite or not a number.
    #[error(
        "orthogonalize: the Gram matrix of order {order} has trace {trace}, expected a finite sum of squares; pass \
         the same largest magnitude (the maximum over the ranks) to `gram` everywhere, and sum the parts once"
    )]
    BadTrace {
        /// Rows of the Gram matrix.
        order: usize,
        /// The sum of its diagonal.
        trace: f64,
    },
}

/// A matrix of a batch, replaced by its result.
#[derive(Debug)]
pub struct Matrix<'a> {
    /// `[rows, columns]`, row-major.
    pub values: &'a mut [f32],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

/// Writes the orthogonalised `x` (`[rows, columns]`, row-major) into `out` of the same shape.
///
/// Runs on rayon's current pool; the bits do not depend on the number of threads.
///
/// # Errors
/// [`OrthogonalError::NotFinite`]; `out` is untouched then.
///
/// # Panics
/// When a length is not `rows * columns`.
pub fn orthogonalize(
    x: &[f32],
    rows: usize,
    columns: usize,
    iteration: &Iteration,
    out: &mut [f32],
) -> Result<(), OrthogonalError> {
    assert_eq!(x.len(), rows * columns, "orthogonalize: `x` is [rows, columns]");
    assert_eq!(out.len(), rows * columns, "orthogonalize: `out` is [rows, columns]");
    let top = finite(x, columns, 0)?;
    let job = Job { x: x.as_ptr(), out: Ptr(out.as_mut_ptr()), rows, columns, top };
    // SAFETY: both lengths were checked.
    unsafe { run(isa(), true, job, iteration) };
    Ok(())
}

/// Orthogonalises every matrix in place; shapes may differ (experts, heads, a whole model's matrices).
///
/// Matrices that one thread finishes within its share of the batch are tasks of their own, costly ones first; larger
/// ones are cut among the threads, one after another. The bits are those of [`orthogonalize`].
///
/// # Errors
/// [`OrthogonalError::NotFinite`] naming the first such matrix; none is changed then.
///
/// # Panics
/// When a length is not `rows * columns`.
pub fn orthogonalize_all(matrices: &mut [Matrix<'_>], iteration: &Iteration) -> Result<(), OrthogonalError> {
    let mut jobs = Vec::with_capacity(matrices.len());
    for (at, m) in matrices.iter_mut().enumerate() {
        assert_eq!(m.values.len(), m.rows * m.columns, "orthogonalize: `values` is [rows, columns]");
        let top = finite(m.values, m.columns, at)?;
        let out = Ptr(m.values.as_mut_ptr());
        jobs.push(Job { x: out.0, out, rows: m.rows, columns: m.columns, top });
    }
    let cost = |job: &Job| iteration.flops(job.rows, job.columns);
    jobs.sort_by_key(|job| std::cmp::Reverse(cost(job)));
    // A matrix goes to one thread when the rest of the batch keeps the others busy meanwhile.
    let threads = rayon::current_num_threads() as u64;
    let mut left: u64 = jobs.iter().map(cost).sum();
    let isa = isa();
    let alone = jobs.iter().position(|job| {
        let share = cost(job) * threads * 2 <= left;
        left -= cost(job);
        share && job.rows * job.columns <= SHARED
    });
    let (cut, whole) = jobs.split_at(alone.unwrap_or(jobs.len()));
    for &job in cut {
        // SAFETY: the length was checked; matrices are disjoint.
        unsafe { run(isa, true, job, iteration) };
    }
    tasks(whole.len(), |i| {
        // SAFETY: as above.
        unsafe { run(isa, false, whole[i], iteration) };
    });
    Ok(())
}

/// Elements from which a matrix is always cut among the threads: beyond it the working sets of several matrices
/// at once leave the caches.
const SHARED: usize = 1 << 20;

/// The largest magnitude, or where the first element lies that is not finite.
fn finite(x: &[f32], columns: usize, matrix: usize) -> Result<f32, OrthogonalError> {
    largest(x).map_err(|error| match error {
        OrthogonalError::NotFinite { column: at, value, .. } => {
            OrthogonalError::NotFinite { matrix, row: at / columns, column: at % columns, value }
        }
        other => other,
    })
}

/// One matrix; `x` and `out` may be the same.
#[derive(Clone, Copy)]
struct Job {
    x: *const f32,
    out: Ptr,
    rows: usize,
    columns: usize,
    /// The largest magnitude.
    top: f32,
}

// SAFETY: whoever makes one upholds that tasks touch distinct matrices.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

/// # Safety
/// `x` and `out` hold `rows * columns` finite floats.
unsafe fn run(isa: Isa, parallel: bool, job: Job, iteration: &Iteration) {
    // SAFETY: the caller's.
    with_operand!(isa, iteration.compute, O => unsafe { run_with::<O>(isa, parallel, job, iteration) });
}

/// # Safety
/// As [`run`].
unsafe fn run_with<O: Operand>(isa: Isa, parallel: bool, job: Job, iteration: &Iteration) {
    let Job { rows, columns, .. } = job;
    let side = if rows <= columns { Side::Rows } else { Side::Columns };
    let (m, n) = side.of(rows, columns);
    let triples = iteration.coefficients.triples();
    if job.top == 0.0 || triples.is_empty() {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(job.x, job.out.0, rows * columns) };
        return;
    }
    let (x, r) = (Pooled::take(Panels::len(m, n)), Pooled::take(2 * Panels::len(m, m)));
    let x = Panels { ptr: x.ptr(), width: m, depth: n };
    let r = Panels { ptr: r.ptr(), width: m, depth: m };
    let of_x = Factor::room::<O>(m, n);
    let words = Pooled::take(of_x + Factor::room::<O>(m, m));
    // SAFETY: the buffers have these lengths, and each leg's panels are complete before they are read.
    unsafe {
        x.load(isa, parallel, job.x, side, distributed::power(job.top));
        let q = Panels { ptr: Ptr(r.ptr.at(Panels::len(m, m))), ..r };
        let legs = iteration.legs(rows, columns);
        for leg in &legs {
            product::gram::<O>(isa, parallel, Factor::of::<O>(isa, parallel, x, false, words.ptr()), r);
            let norm = if leg.start == 0 { iteration.coefficients.margin() * r.trace().sqrt() } else { 1.0 };
            polynomial::<O>(isa, parallel, r, &triples[leg.clone()], norm, q);
            let of_q = Factor::of::<O>(isa, parallel, q, true, Ptr(words.ptr().at(of_x)));
            let out = if leg.end == triples.len() { Out::Rows(job.out, side) } else { Out::Panels };
            transform::<O>(isa, parallel, x, of_q, out);
        }
    }
}

#[cfg(test)]
mod tests;
