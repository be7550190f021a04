//! Products of matrices in rows of [`LDP`], those with a triangle of a chunk's pairs, and triangular systems.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::rows::substitute;
use crate::micro::{LDP, NR, Tile, strips};
use crate::operand::Fp32;
use crate::pack::pack_nk;
use crate::simd::Isa;

/// Rows of a triangular system that are solved without products, and whose pairs of channels are made one by one.
pub(super) const STEP: usize = 16;

/// The second operand of a product, from its first row.
#[derive(Clone, Copy)]
pub(super) struct Second {
    at: *const f32,
    /// From a row to the next.
    ld: usize,
    /// From [`NR`] columns to the next.
    step: usize,
}

impl Second {
    /// Rows at stride `ld`.
    pub(super) fn rows(at: *const f32, ld: usize) -> Self {
        Self { at, ld, step: NR }
    }

    /// Panels of `depth` rows.
    pub(super) fn panels(at: *const f32, depth: usize) -> Self {
        Self { at, ld: NR, step: depth * NR }
    }

    /// From row `row` on.
    fn from(self, row: usize) -> Self {
        Self { at: self.at.wrapping_add(row * self.ld), ..self }
    }
}

/// Where a product goes: `to = alpha * product (+ to)`.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) at: *mut f32,
    pub(super) ld: usize,
    pub(super) alpha: f32,
    pub(super) add: bool,
}

impl Target {
    /// Rows of [`LDP`], overwritten.
    pub(super) fn rows(at: *mut f32) -> Self {
        Self { at, ld: LDP, alpha: 1.0, add: false }
    }

    /// Adds `alpha` times the product.
    pub(super) fn plus(self, alpha: f32) -> Self {
        Self { alpha, add: true, ..self }
    }

    /// From row `row` on.
    fn from(self, row: usize) -> Self {
        Self { at: self.at.wrapping_add(row * self.ld), ..self }
    }
}

/// `[m, k] [k, n]`, the first operand by rows of [`LDP`].
///
/// # Safety
/// The operands have these sizes, and the target overlaps neither.
pub(super) unsafe fn product(isa: Isa, sizes: [usize; 3], a: *const f32, b: Second, to: Target) {
    all::<LDP>(isa, sizes, a, 1, b, to);
}

/// [`product`] where the first operand is stored transposed, `[k, m]` by rows of [`LDP`].
///
/// # Safety
/// As [`product`].
pub(super) unsafe fn product_tn(isa: Isa, sizes: [usize; 3], a: *const f32, b: Second, to: Target) {
    all::<1>(isa, sizes, a, LDP, b, to);
}

unsafe fn all<const RS: usize>(
    isa: Isa,
    [m, n, k]: [usize; 3],
    a: *const f32,
    a_step: usize,
    b: Second,
    to: Target,
) {
    let Target { at, ld: ldc, alpha, add } = to;
    let columns = (0..n).step_by(NR).map(|j| {
        let (n, c) = ((n - j).min(NR), at.wrapping_add(j));
        let from = b.at.wrapping_add(j / NR * b.step);
        Tile { m, n, k, a, a_step, b: from, ldb: b.ld, c, ldc, alpha, add }
    });
    strips::<Fp32, RS>(isa, columns);
}

/// Blocks of rows of a triangle: the first, and how many.
fn blocks(m: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..m).step_by(NR).map(move |first| (first, (m - first).min(NR)))
}

/// `a b^T` on and below the diagonal, and what lies above it in the blocks that the diagonal crosses: `a` is `[m, d]`, `b`
/// as panels of whole [`NR`] columns.
///
/// # Safety
/// As [`product`]; the target has room for whole blocks of columns.
pub(super) unsafe fn scores(isa: Isa, m: usize, d: usize, a: *const f32, b: Second, to: Target) {
    for (first, rows) in blocks(m) {
        product(isa, [rows, first + NR, d], a.add(first * LDP), b, to.from(first));
    }
}

/// `triangle b`, the triangle `[m, m]` with zeros above the diagonal in the blocks that it crosses, `b` `[m, n]`.
///
/// # Safety
/// As [`product`].
pub(super) unsafe fn lower(isa: Isa, m: usize, n: usize, triangle: *const f32, b: Second, to: Target) {
    for (first, rows) in blocks(m) {
        product(isa, [rows, n, first + rows], triangle.add(first * LDP), b, to.from(first));
    }
}

/// `triangle^T b`, as [`lower`].
///
/// # Safety
/// As [`product`].
pub(super) unsafe fn lower_tn(isa: Isa, m: usize, n: usize, triangle: *const f32, b: Second, to: Target) {
    for (first, rows) in blocks(m) {
        let a = triangle.add(first * LDP + first);
        product_tn(isa, [rows, n, m - first], a, b.from(first), to.from(first));
    }
}

/// Solves `(1 + triangle) x = y` in place, `y` `[m, n]` by rows of [`LDP`]; only what is below the diagonal is read.
///
/// # Safety
/// As [`product`], with `x` as the target.
pub(super) unsafe fn solve(isa: Isa, m: usize, n: usize, triangle: *const f32, x: *mut f32) {
    for first in (0..m).step_by(STEP) {
        let (rows, to) = ((m - first).min(STEP), x.add(first * LDP));
        let a = triangle.add(first * LDP);
        if first > 0 {
            product(isa, [rows, n, first], a, Second::rows(x, LDP), Target::rows(to).plus(-1.0));
        }
        substitute::<false>(isa, rows, n, a.add(first), to);
    }
}

/// [`solve`] for `(1 + triangle)^T x = y`.
///
/// # Safety
/// As [`solve`].
pub(super) unsafe fn solve_tn(isa: Isa, m: usize, n: usize, triangle: *const f32, x: *mut f32) {
    for first in (0..m).step_by(STEP).rev() {
        let (rows, to) = ((m - first).min(STEP), x.add(first * LDP));
        let (a, end) = (triangle.add(first), first + rows);
        if end < m {
            let b = Second::rows(x, LDP).from(end);
            product_tn(isa, [rows, n, m - end], a.add(end * LDP), b, Target::rows(to).plus(-1.0));
        }
        substitute::<true>(isa, rows, n, a.add(first * LDP), to);
    }
}

/// Panels of the columns that `n` rows of `d` at stride `ld` become.
///
/// # Safety
/// The rows exist; `to` has room for `d` times `n`, rounded up to whole panels.
pub(super) unsafe fn transposed(
    isa: Isa,
    n: usize,
    d: usize,
    x: *const f32,
    ld: usize,
    to: *mut f32,
) -> Second {
    for j in (0..n).step_by(NR) {
        pack_nk::<Fp32, f32>(isa, x.add(j * ld), ld, d, (n - j).min(NR), to.add(j * d));
    }
    Second::panels(to, d)
}
