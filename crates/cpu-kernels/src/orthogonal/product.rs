//! Products of matrices in panels: symmetric ones by one triangle, and a matrix times a symmetric one.
//!
//! Every element's sum runs over the depth in blocks of at most [`KC`], in order, whatever the tasks.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::Side;
use super::panels::Panels;
use crate::micro::{KC, NR, Tile, strip};
use crate::operand::Fp32;
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

/// `c = alpha AᵀB + beta S + delta I`, known to be symmetric.
#[derive(Clone, Copy)]
pub(super) struct Symmetric {
    pub(super) a: Panels,
    pub(super) b: Panels,
    pub(super) alpha: f64,
    /// `(S, beta, delta)`.
    pub(super) plus: Option<(Panels, f64, f64)>,
    pub(super) c: Panels,
}

/// `r = XᵀX` of `x` in panels.
///
/// # Safety
/// `r` is square, of `x`'s width, and used by nothing else.
pub(super) unsafe fn gram(isa: Isa, parallel: bool, x: Panels, r: Panels) {
    symmetric(isa, parallel, &[Symmetric { a: x, b: x, alpha: 1.0, plus: None, c: r }]);
}

/// Rows of the depth in a block: split evenly.
fn block(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(KC).max(1)).next_multiple_of(8).max(1)
}

/// Computes the products, all of one width, in one parallel region.
///
/// # Safety
/// Operands are complete, results distinct from them and from each other.
pub(super) unsafe fn symmetric(isa: Isa, parallel: bool, products: &[Symmetric]) {
    let Some(first) = products.first() else { return };
    let panels = first.c.panels();
    // Panels of a task's side: its blocks of both operands stay in the second-level cache.
    let group = if panels <= 16 { 2 } else { 4 };
    let groups = panels.div_ceil(group);
    let triangle = groups * (groups + 1) / 2;
    region(parallel, triangle * products.len(), |task| {
        // Squares first, the diagonal's triangles last.
        let (product, at) = (&products[task % products.len()], task / products.len());
        let (mut i, mut j) = (1, at);
        while j >= i && i < groups {
            j -= i;
            i += 1;
        }
        if i == groups {
            i = j;
        }
        let (i, j) = (i * group, j * group);
        patch(isa, product, i..(i + group).min(panels), j..(j + group).min(panels));
    });
}

/// The tiles of some panels by others, no more than the lower triangle, and their mirror images.
unsafe fn patch(isa: Isa, p: &Symmetric, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) {
    let Symmetric { a, b, c, .. } = *p;
    let tiles = || rows.clone().flat_map(|i| columns.clone().filter(move |&j| j <= i).map(move |j| (i, j)));
    if let Some((s, beta, _)) = p.plus {
        for (i, j) in tiles() {
            scaled_tile(isa, s.at(j, i * NR), c.columns(i), c.columns(j), beta as f32, c.at(j, i * NR));
        }
    }
    let kc = block(a.depth);
    let mut k0 = 0;
    while k0 < a.depth {
        let k = (a.depth - k0).min(kc);
        for (i, j) in tiles() {
            strip::<Fp32, 1>(
                isa,
                Tile {
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
                    add: k0 > 0 || p.plus.is_some(),
                },
            );
        }
        k0 += k;
    }
    for (i, j) in tiles() {
        let tile = c.at(j, i * NR);
        if i != j {
            transpose(isa, tile, NR, c.columns(i), c.columns(j), c.at(i, j * NR), NR);
            continue;
        }
        for row in 0..c.columns(i) {
            if let Some((_, _, delta)) = p.plus {
                *tile.add(row * NR + row) += delta as f32;
            }
            for column in 0..row {
                *tile.add(column * NR + row) = *tile.add(row * NR + column);
            }
        }
    }
}

#[inline(always)]
unsafe fn scaled_tile_body<S: Lanes>(s: *const f32, rows: usize, columns: usize, beta: f32, c: *mut f32) {
    let beta = S::splat(beta);
    let mut j = 0;
    while j < columns {
        let mask = S::mask((columns - j).min(S::N));
        for i in 0..rows {
            S::store_m(mask, c.add(i * NR + j), S::mul(beta, S::load_m(mask, s.add(i * NR + j))));
        }
        j += S::N;
    }
}

dispatch! {
    /// `c = beta s` for a tile of a panel.
    ///
    /// # Safety
    /// Both tiles are in bounds and distinct.
    unsafe fn scaled_tile = scaled_tile_body [] [] (s: *const f32, rows: usize, columns: usize, beta: f32, c: *mut f32)
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

/// `x q`, for a symmetric `q`.
///
/// # Safety
/// Operands are complete and of one width; `out` holds as many floats as the matrix.
pub(super) unsafe fn transform(isa: Isa, parallel: bool, x: Panels, q: Panels, out: Out) {
    let (m, n) = (x.width, x.depth);
    region(parallel, n.div_ceil(GROUP * NR), |task| {
        let first = task * GROUP * NR;
        let groups = (n - first).min(GROUP * NR).div_ceil(NR);
        scratch(GROUP * m * NR, |packed| {
            // Rows of x as columns of panels of depth m.
            for g in 0..groups {
                let (row, to) = (first + g * NR, packed.add(g * m * NR));
                for p in 0..x.panels() {
                    let rows = (n - row).min(NR);
                    transpose(isa, x.at(p, row), NR, rows, x.columns(p), to.add(p * NR * NR), NR);
                }
            }
            let kc = block(m);
            for p in 0..q.panels() {
                for k0 in (0..m).step_by(kc) {
                    let k = (m - k0).min(kc);
                    for g in 0..groups {
                        let row = first + g * NR;
                        let (rows, columns) = ((n - row).min(NR), q.columns(p));
                        let (x_k, q_k) =
                            (packed.add((g * m + k0) * NR).cast_const(), q.at(p, k0).cast_const());
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
                            add: k0 > 0,
                        };
                        strip::<Fp32, 1>(isa, shape);
                    }
                }
            }
        });
    });
}
