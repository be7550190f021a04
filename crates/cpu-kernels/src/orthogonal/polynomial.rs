//! A leg's steps on the Gram matrix.

use super::panels::Panels;
use super::product::{Symmetric, symmetric};
use crate::scratch::{Pooled, Ptr};
use crate::simd::Isa;

/// `q = ∏ P`, with `P = aI + bR + cR²` of each triple and `R ← P R P` in between; `r` is overwritten.
///
/// The matrix whose Gram matrix `r` is counts as divided by `norm`, and so is `q`. All powers of one matrix commute:
/// every product is symmetric.
///
/// # Safety
/// `r` is complete, `q` of its shape and distinct.
pub(super) unsafe fn polynomial(
    isa: Isa,
    parallel: bool,
    r: Panels,
    triples: &[[f64; 3]],
    norm: f64,
    q: Panels,
) {
    let len = Panels::len(r.width, r.width);
    let spare = Pooled::take(if triples.len() > 1 { 3 * len } else { 0 });
    let more = |i: usize| {
        let ptr = if triples.len() > 1 {
            // SAFETY: three of them were taken.
            Ptr(unsafe { spare.ptr().at(i * len) })
        } else {
            r.ptr
        };
        Panels { ptr, ..r }
    };
    let (p, s) = (more(0), more(1));
    // The last product must end in `q`.
    let (mut now, mut next) = if triples.len() % 2 == 1 { (q, more(2)) } else { (more(2), q) };
    for (step, &[a, b, c]) in triples.iter().enumerate() {
        let first = step == 0;
        // R of the divided matrix is r / norm², and P divided once more.
        let norm = if first { norm } else { 1.0 };
        let [a, b, c] = [a / norm, b / norm.powi(3), c / norm.powi(5)];
        let this = if first { now } else { p };
        let square = Symmetric { a: r, b: r, alpha: c, plus: Some((r, b, a)), c: this };
        let product = |a, b, c| Symmetric { a, b, alpha: 1.0, plus: None, c };
        let last = step + 1 == triples.len();
        // SAFETY: each result is a buffer that is no operand.
        unsafe {
            symmetric(isa, parallel, &[square]);
            match (first, last) {
                (true, true) => {}
                (true, false) => symmetric(isa, parallel, &[product(this, r, s)]),
                (false, true) => symmetric(isa, parallel, &[product(p, now, next)]),
                (false, false) => symmetric(isa, parallel, &[product(p, now, next), product(p, r, s)]),
            }
            if !last {
                symmetric(isa, parallel, &[product(s, this, r)]);
            }
        }
        if !first {
            std::mem::swap(&mut now, &mut next);
        }
    }
}
