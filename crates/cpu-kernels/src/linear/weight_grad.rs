//! Gradients of trained base weights: `dW = dy^T x` over all tokens, tiled over the weights.
//!
//! The sum over tokens runs in one order whatever the tiling, so the bits do not depend on the threads.

use super::input::{Reads, input_rows};
use super::{Input, Linear};
use crate::micro::{NR, Tile, strips};
use crate::operand::Operand;
use crate::rows::TileLayout;
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::simd::Isa;
use crate::tasks::tasks;
use burnish_core::random::dropout_bits;

/// Words of tokens of one inner GEMM: a panel of them stays in the first-level cache.
const DEPTH: usize = 256;
/// Tokens of a task that brings the input into panels.
const ROWS: usize = 64;
/// Output features of a tile: eight micro-tiles of 14.
const OUT: usize = 112;
/// Most panels of input features in a tile.
const PANELS: usize = 16;
/// Floats of the input panels held at once (32 MiB).
const HELD: usize = 8 << 20;

/// `[out, in]` gradients of the layers asked for.
#[allow(clippy::too_many_arguments, reason = "the backward's own arguments")]
pub(super) fn weight_grads<O: Operand>(
    isa: Isa,
    tokens: usize,
    in_dim: usize,
    input: Reads<'_>,
    linears: &[Linear<'_>],
    rstd: Option<&[f32]>,
    dy: &[f32],
    wanted: &[bool],
) -> Vec<Option<Vec<f32>>> {
    let room = |len: usize| {
        if tokens == 0 {
            return vec![0.0; len];
        }
        // SAFETY: every element is written by the first group of tokens.
        unsafe { uninit(len) }
    };
    let mut grads: Vec<Option<Vec<f32>>> =
        linears.iter().zip(wanted).map(|(l, &w)| w.then(|| room(l.out * in_dim))).collect();
    let panels = in_dim.div_ceil(NR);
    let total: usize = linears.iter().map(|l| l.out).sum();
    // Narrower tiles where there would be too few for the threads; the bits do not depend on it.
    let out_tiles: usize =
        linears.iter().zip(wanted).filter(|(_, w)| **w).map(|(l, _)| l.out.div_ceil(OUT)).sum();
    let mut width = PANELS;
    while width > 4 && out_tiles * panels.div_ceil(width) < 8 * rayon::current_num_threads() {
        width /= 2;
    }
    let mut tiles = Vec::new();
    let mut at = 0;
    for (l, grad) in linears.iter().zip(&mut grads) {
        if let Some(grad) = grad {
            let to = Ptr(grad.as_mut_ptr());
            for o in (0..l.out).step_by(OUT) {
                for p in (0..panels).step_by(width) {
                    tiles.push(OutTile {
                        to,
                        o,
                        m: (l.out - o).min(OUT),
                        col: at + o,
                        p,
                        end: panels.min(p + width),
                    });
                }
            }
        }
        at += l.out;
    }
    if tiles.is_empty() || tokens == 0 {
        return grads;
    }
    let depth = DEPTH * O::VALUES;
    let group = ((HELD / (panels * NR) / DEPTH).max(1) * depth).min(tokens);
    let buffer = Pooled::take(O::words(group) * panels * NR);
    let x = buffer.ptr();
    let rstd = Ptr(rstd.map_or(std::ptr::null_mut(), |r| r.as_ptr().cast_mut()));
    for g0 in (0..tokens).step_by(group) {
        let g = (tokens - g0).min(group);
        tasks(g.div_ceil(ROWS), |i| {
            let (row, m) = (i * ROWS, (g - i * ROWS).min(ROWS));
            // SAFETY: rows of the panels are disjoint between tasks; rstd is only read.
            scratch(ROWS * in_dim, |rows| unsafe {
                let place = TileLayout::rows(in_dim);
                input_rows(isa, input, rstd.at(0), true, in_dim, 0..in_dim, g0 + row, m, rows, place);
                for p in 0..panels {
                    let (n, to) = ((in_dim - p * NR).min(NR), (p * O::words(g) + O::words(row)) * NR);
                    O::stack(isa, m, n, rows.add(p * NR), in_dim, x.at(to), NR);
                }
            });
        });
        tasks(tiles.len(), |i| {
            let tile = &tiles[i];
            // SAFETY: tiles are disjoint parts of the gradients; the scratch holds a block of dy.
            scratch(DEPTH * OUT, |a| unsafe {
                for t0 in (0..g).step_by(depth) {
                    let k = (g - t0).min(depth);
                    let from = dy.as_ptr().add((g0 + t0) * total + tile.col);
                    O::stack(isa, k, tile.m, from, total, a, OUT);
                    let all = (tile.p..tile.end).map(|p| Tile {
                        m: tile.m,
                        n: (in_dim - p * NR).min(NR),
                        k: O::words(k),
                        a,
                        a_step: OUT,
                        b: x.at((p * O::words(g) + O::words(t0)) * NR),
                        ldb: NR,
                        c: tile.to.at(tile.o * in_dim + p * NR),
                        ldc: in_dim,
                        alpha: 1.0,
                        add: g0 + t0 > 0,
                    });
                    strips::<O, 1>(isa, all);
                }
            });
        });
    }
    grads
}

/// Turns `dy^T x`, where there is one, into the gradient of a weight under a magnitude: its rows times their factors;
/// with dropout `dy^T (x - xd) + g dy^T xd`, as the base sees both. A frozen base needs none of this.
#[allow(clippy::too_many_arguments, reason = "the backward's own arguments")]
pub(super) fn magnified_weight_grads<O: Operand>(
    isa: Isa,
    tokens: usize,
    in_dim: usize,
    input: Reads<'_>,
    linears: &[Linear<'_>],
    rstd: Option<&[f32]>,
    dy: &[f32],
    grads: &mut [Option<Vec<f32>>],
) {
    for (j, layer) in linears.iter().enumerate() {
        let Some(gains) = layer.gains() else { continue };
        let Some(grad) = &mut grads[j] else { continue };
        if let Some(dropout) = layer.dropout() {
            let rstd = rstd.map_or(std::ptr::null_mut(), |r| r.as_ptr().cast_mut());
            // SAFETY: all rows are written at once.
            let mut dropped = unsafe {
                let mut x = uninit(tokens * in_dim);
                let place = TileLayout::rows(in_dim);
                input_rows(isa, input, rstd, true, in_dim, 0..in_dim, 0, tokens, x.as_mut_ptr(), place);
                x
            };
            let mask = dropout.mask();
            for (x, key) in dropped.chunks_exact_mut(in_dim).zip(dropout.row_keys(0, tokens)) {
                for (c, x) in x.iter_mut().enumerate() {
                    *x *= if dropout_bits(key, mask.first + c as u32) >= mask.threshold {
                        mask.keep
                    } else {
                        0.0
                    };
                }
            }
            let one: Vec<bool> = (0..linears.len()).map(|i| i == j).collect();
            let dropped = Input::Plain(&dropped);
            let seen = weight_grads::<O>(isa, tokens, in_dim, dropped.reads(), linears, None, dy, &one)
                .swap_remove(j);
            let rows = grad.chunks_exact_mut(in_dim).zip(seen.iter().flat_map(|s| s.chunks_exact(in_dim)));
            for ((grad, seen), g) in rows.zip(&gains) {
                grad.iter_mut().zip(seen).for_each(|(d, s)| *d += (g - 1.0) * s);
            }
        } else {
            for (grad, g) in grad.chunks_exact_mut(in_dim).zip(&gains) {
                grad.iter_mut().for_each(|d| *d *= g);
            }
        }
    }
}

/// `m` output features from `o`, panels `p..end` of input features.
struct OutTile {
    to: Ptr,
    o: usize,
    m: usize,
    /// The first feature's column in `dy`.
    col: usize,
    p: usize,
    end: usize,
}
