//! A leg's steps on the Gram matrix.

use super::panels::{Factor, Panels};
use super::product::{Symmetric, symmetric};
use crate::operand::Operand;
use crate::scratch::{Pooled, Ptr};
use crate::simd::Isa;

/// `q = ∏ P`, with `P = aI + bR + cR²` of each triple and `R ← P R P` in between; `r` is overwritten.
///
/// The matrix whose Gram matrix `r` is counts as divided by `norm`, and so is `q`. All powers of one matrix commute:
/// every product is symmetric.
///
/// # Safety
/// `r` is complete, `q` of its shape and distinct.
pub(super) unsafe fn polynomial<O: Operand>(
    isa: Isa,
    parallel: bool,
    r: Panels,
    triples: &[[f64; 3]],
    norm: f64,
    q: Panels,
) {
    let (len, words) = (Panels::len(r.width, r.width), Factor::room::<O>(r.width, r.width));
    let long = triples.len() > 1;
    let spare = Pooled::take(if long { 3 * len } else { 0 } + 4 * words);
    let more = |i: usize| {
        // SAFETY: three of them were taken.
        Panels { ptr: if long { Ptr(unsafe { spare.ptr().at(4 * words + i * len) }) } else { r.ptr }, ..r }
    };
    // SAFETY: the matrix is complete where it becomes a factor, and each has a room of its own.
    let factor = |x: Panels, room: usize| unsafe {
        Factor::of::<O>(isa, parallel, x, true, Ptr(spare.ptr().at(room * words)))
    };
    let (p, s) = (more(0), more(1));
    // The last product must end in `q`.
    let (mut now, mut next) = if triples.len() % 2 == 1 { (q, more(2)) } else { (more(2), q) };
    for (step, &[a, b, c]) in triples.iter().enumerate() {
        let (first, last) = (step == 0, step + 1 == triples.len());
        // R of the divided matrix is r / norm², and P divided once more.
        let norm = if first { norm } else { 1.0 };
        let [a, b, c] = [a / norm, b / norm.powi(3), c / norm.powi(5)];
        let this = if first { now } else { p };
        let product = |a, b, c| Symmetric { a, b, alpha: 1.0, plus: None, c, whole: false };
        let of_r = factor(r, 0);
        let square = Symmetric { a: of_r, b: of_r, alpha: c, plus: Some((r, b, a)), c: this, whole: false };
        // SAFETY: each result is a buffer that is no operand.
        unsafe {
            symmetric::<O>(isa, parallel, &[square]);
            if !(first && last) {
                let of_this = factor(this, 1);
                let gathered = (!first).then(|| product(of_this, factor(now, 2), next));
                // Rounded factors do not commute: `P R P` keeps eigenvalues near zero from falling below it only as the
                // congruence that it is, with `R P` whole.
                let whole = O::VALUES > 1;
                let moved = if whole { product(of_r, of_this, s) } else { product(of_this, of_r, s) };
                let moved = (!last).then_some(Symmetric { whole, ..moved });
                let both: Vec<Symmetric> = gathered.into_iter().chain(moved).collect();
                symmetric::<O>(isa, parallel, &both);
                if !last {
                    let of_moved = factor(s, 3);
                    let next =
                        if whole { product(of_this, of_moved, r) } else { product(of_moved, of_this, r) };
                    symmetric::<O>(isa, parallel, &[next]);
                }
            }
        }
        if !first {
            std::mem::swap(&mut now, &mut next);
        }
    }
}
