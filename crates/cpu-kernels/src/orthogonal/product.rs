//! Products of matrices in panels: symmetric ones by one triangle, and a matrix times a symmetric one.
//!
//! Every element's sum runs over the depth in blocks of at most [`KC`], in order, whatever the tasks.
//!
//! With operands of bfloat16 a symmetric matrix is multiplied without the mean of its diagonal ([`Factor::shift`]), whose
//! part of the product is added in fp32: matrices of the iteration are near multiples of the identity, and what is rounded
//! is then the small rest.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::Side;
use super::panels::{Factor, Panels};
use crate::micro::{KC, NR, Tile, strip, strips};
use crate::operand::Operand;
use crate::pack::transpose;
use crate::scratch::{Ptr, scratch};
use crate::simd::{Isa, Lanes, dispatch};
use crate::tasks::tasks;

/// Runs `work(0..n)`, on the pool if `parallel`.
///
/// # Safety
/// The calls of `work` are sound in any order and at the same time.
pub(super) unsafe fn region(parallel: bool, n: usize, work: impl Fn(usize) + Send + Sync) {
    if parallel { tasks(n, work) } else { (0..n).for_each(work) }
}

/// `c = alpha AᵀB + beta S + delta I`, known to be symmetric but for rounding.
#[derive(Clone, Copy)]
pub(super) struct Symmetric {
    pub(super) a: Factor,
    pub(super) b: Factor,
    pub(super) alpha: f64,
    /// `(S, beta, delta)`.
    pub(super) plus: Option<(Panels, f64, f64)>,
    pub(super) c: Panels,
    /// Whether both triangles are computed, at twice the cost: of operands that are rounded the product is not symmetric.
    pub(super) whole: bool,
}

/// What joins the product of a [`Symmetric`]'s words.
struct Terms {
    /// `(S, beta)`, no matrix twice.
    matrices: Vec<(Panels, f64)>,
    /// A multiple of the identity.
    delta: Option<f64>,
}

impl Symmetric {
    /// `alpha (A' + sI)(B' + tI) = alpha A'B' + alpha s B + alpha t A - alpha s t I`, and `plus`.
    fn terms(&self) -> Terms {
        let Self { a, b, alpha, plus, .. } = *self;
        let mut terms = Terms { matrices: Vec::new(), delta: plus.map(|(_, _, delta)| delta) };
        let shifts = [(b.full, alpha * a.shift), (a.full, alpha * b.shift)];
        let shifts = shifts.into_iter().filter(|(_, beta)| *beta != 0.0);
        for (s, beta) in shifts.chain(plus.map(|(s, beta, _)| (s, beta))) {
            match terms.matrices.iter_mut().find(|(known, _)| known.ptr.0 == s.ptr.0) {
                Some((_, sum)) => *sum += beta,
                None => terms.matrices.push((s, beta)),
            }
        }
        let both = alpha * a.shift * b.shift;
        if both != 0.0 {
            terms.delta = Some(terms.delta.unwrap_or(0.0) - both);
        }
        terms
    }
}

/// `r = XᵀX` of `x` in panels, nothing of it held apart.
///
/// # Safety
/// `r` is square, of `x`'s width, and used by nothing else.
pub(super) unsafe fn gram<O: Operand>(isa: Isa, parallel: bool, x: Factor, r: Panels) {
    symmetric::<O>(isa, parallel, &[Symmetric { a: x, b: x, alpha: 1.0, plus: None, c: r, whole: false }]);
}

/// Words of the depth in a block: split evenly.
fn block(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(KC).max(1)).next_multiple_of(8).max(1)
}

/// Computes the products, all of one width, in one parallel region.
///
/// # Safety
/// Operands are complete, results distinct from them and from each other.
pub(super) unsafe fn symmetric<O: Operand>(isa: Isa, parallel: bool, products: &[Symmetric]) {
    let Some(first) = products.first() else { return };
    let panels = first.c.panels();
    // Panels of a task's side: its blocks of both operands stay in the second-level cache.
    let group = if panels <= 16 { 2 } else { 4 };
    let groups = panels.div_ceil(group);
    // Squares first, the diagonal's triangles last.
    let below = (0..groups).flat_map(|i| (0..i).map(move |j| (i, j)));
    let places = below.chain((0..groups).map(|i| (i, i)));
    let mut patches = Vec::with_capacity(groups * groups * products.len());
    for (i, j) in places {
        for product in products {
            patches.push((product, i, j));
            if product.whole && i != j {
                patches.push((product, j, i));
            }
        }
    }
    region(parallel, patches.len(), |task| {
        let (product, i, j) = patches[task];
        let (i, j) = (i * group, j * group);
        patch::<O>(isa, product, i..(i + group).min(panels), j..(j + group).min(panels));
    });
}

/// The tiles of some panels by others; unless the product is whole, no more than the lower triangle, and their mirror images.
unsafe fn patch<O: Operand>(
    isa: Isa,
    p: &Symmetric,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) {
    let (a, b, c) = (p.a.words, p.b.words, p.c);
    let terms = p.terms();
    let whole = p.whole;
    let tiles =
        || rows.clone().flat_map(|i| columns.clone().filter(move |&j| whole || j <= i).map(move |j| (i, j)));
    for (at, &(s, beta)) in terms.matrices.iter().enumerate() {
        for (i, j) in tiles() {
            let (from, to) = (s.at(j, i * NR), c.at(j, i * NR));
            scaled_tile(isa, c.columns(i), c.columns(j), from, NR, beta as f32, at > 0, to, NR);
        }
    }
    let kc = block(a.depth);
    let mut k0 = 0;
    while k0 < a.depth {
        let k = (a.depth - k0).min(kc);
        let all = tiles().map(|(i, j)| Tile {
            m: c.columns(i),
            n: c.columns(j),
            k,
            a: a.at(i, k0),
            a_step: NR,
            b: b.at(j, k0),
            ldb: NR,
            c: c.at(j, i * NR),
            ldc: NR,
            alpha: p.alpha as f32,
            add: k0 > 0 || !terms.matrices.is_empty(),
        });
        strips::<O, 1>(isa, all);
        k0 += k;
    }
    for (i, j) in tiles() {
        let tile = c.at(j, i * NR);
        if i != j && !whole {
            transpose(isa, tile, NR, c.columns(i), c.columns(j), c.at(i, j * NR), NR);
        }
        for row in 0..if i == j { c.columns(i) } else { 0 } {
            if let Some(delta) = terms.delta {
                *tile.add(row * NR + row) += delta as f32;
            }
            for column in 0..if whole { 0 } else { row } {
                *tile.add(column * NR + row) = *tile.add(row * NR + column);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn scaled_tile_body<S: Lanes>(
    rows: usize,
    columns: usize,
    s: *const f32,
    lds: usize,
    beta: f32,
    add: bool,
    c: *mut f32,
    ldc: usize,
) {
    let beta = S::splat(beta);
    let mut j = 0;
    while j < columns {
        let mask = S::mask((columns - j).min(S::N));
        for i in 0..rows {
            let to = c.add(i * ldc + j);
            let v = S::mul(beta, S::load_m(mask, s.add(i * lds + j)));
            S::store_m(mask, to, if add { S::add(v, S::load_m(mask, to)) } else { v });
        }
        j += S::N;
    }
}

dispatch! {
    /// `c = beta s (+ c)` for a tile.
    ///
    /// # Safety
    /// Both tiles are in bounds, and distinct or the same.
    unsafe fn scaled_tile = scaled_tile_body [] []
        (rows: usize, columns: usize, s: *const f32, lds: usize, beta: f32, add: bool, c: *mut f32, ldc: usize)
}

/// Where [`transform`] writes.
#[derive(Clone, Copy)]
pub(super) enum Out {
    /// Over `x`.
    Panels,
    /// Row-major, with the width of `x` on this side.
    Rows(Ptr, Side),
}

/// Groups of 32 rows of the depth that one task transforms.
const GROUP: usize = 2;

/// `x q`, for a symmetric `q`; with operands of bfloat16 `x` is rounded, but for what `q` holds apart.
///
/// # Safety
/// Operands are complete and of one width; `out` holds as many floats as the matrix.
pub(super) unsafe fn transform<O: Operand>(isa: Isa, parallel: bool, x: Panels, q: Factor, out: Out) {
    let (m, n) = (x.width, x.depth);
    let depth = q.words.depth;
    // Room for words beside the values that they are made of.
    let apart = if O::VALUES == 1 { 0 } else { GROUP * depth * NR };
    region(parallel, n.div_ceil(GROUP * NR), |task| {
        let first = task * GROUP * NR;
        let groups = (n - first).min(GROUP * NR).div_ceil(NR);
        scratch(GROUP * m * NR + apart, |packed| {
            // Rows of x as columns of panels of depth m.
            for g in 0..groups {
                let (row, to) = (first + g * NR, packed.add(g * m * NR));
                for p in 0..x.panels() {
                    let rows = (n - row).min(NR);
                    transpose(isa, x.at(p, row), NR, rows, x.columns(p), to.add(p * NR * NR), NR);
                }
            }
            let words = packed.add(if apart == 0 { 0 } else { GROUP * m * NR });
            for g in 0..if apart == 0 { 0 } else { groups } {
                let rows = (n - first - g * NR).min(NR);
                O::stack(isa, m, rows, packed.add(g * m * NR), NR, words.add(g * depth * NR), NR);
            }
            let kc = block(depth);
            for p in 0..q.words.panels() {
                let columns = q.words.columns(p);
                for g in 0..if q.shift == 0.0 { 0 } else { groups } {
                    let (row, beta) = (first + g * NR, q.shift as f32);
                    let rows = (n - row).min(NR);
                    let own = x.at(p, row).cast_const();
                    match out {
                        Out::Panels => {
                            scaled_tile(isa, rows, columns, own, NR, beta, false, own.cast_mut(), NR);
                        }
                        Out::Rows(o, Side::Columns) => {
                            let to = o.at(row * m + p * NR);
                            scaled_tile(isa, rows, columns, own, NR, beta, false, to, m);
                        }
                        Out::Rows(o, Side::Rows) => {
                            let (from, to) = (packed.add((g * m + p * NR) * NR), o.at(p * NR * n + row));
                            scaled_tile(isa, columns, rows, from, NR, beta, false, to, n);
                        }
                    }
                }
                for k0 in (0..depth).step_by(kc) {
                    let k = (depth - k0).min(kc);
                    for g in 0..groups {
                        let row = first + g * NR;
                        let rows = (n - row).min(NR);
                        let (x_k, q_k) =
                            (words.add((g * depth + k0) * NR).cast_const(), q.words.at(p, k0).cast_const());
                        let (a, m_tile, b, n_tile, c, ldc) = match out {
                            Out::Panels => (x_k, rows, q_k, columns, x.at(p, row), NR),
                            Out::Rows(o, Side::Columns) => {
                                (x_k, rows, q_k, columns, o.at(row * m + p * NR), m)
                            }
                            Out::Rows(o, Side::Rows) => (q_k, columns, x_k, rows, o.at(p * NR * n + row), n),
                        };
                        let shape = Tile {
                            m: m_tile,
                            n: n_tile,
                            k,
                            a,
                            a_step: NR,
                            b,
                            ldb: NR,
                            c,
                            ldc,
                            alpha: 1.0,
                            add: k0 > 0 || q.shift != 0.0,
                        };
                        strip::<O, 1>(isa, shape);
                    }
                }
            }
        });
    });
}
