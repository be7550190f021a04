//! Gradients of the head from a tile of logit gradients.

use super::call::{Call, Tokens};
use super::options::{HeadGrad, HeadWanted};
use super::vocab::{row_products, row_sums};
use crate::elementwise::scale_slice;
use crate::micro::{KC, LDP, NR, Tile, gemm_panel, gemm_tn, strip, strips};
use crate::operand::Operand;
use crate::pack::{Depth, end_rows, pack_kn, pack_rows};
use crate::rows::{TileLayout, copy_rows};
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::tasks::tasks;
use burnish_core::LinearPart::{Bias, LoraA, LoraB, LoraBBias, Magnitude, Weight};
use burnish_core::{LinearPart, LinearParts};
use std::ops::Range;

/// Vocabulary entries of one block of the sum in the hidden states' gradient.
const BLOCK: usize = 192;
/// Panels of tokens and of columns of one task of it, at most.
const TOKEN_PANELS: usize = 16;
const COLUMN_PANELS: usize = 8;

/// The gradients under way. Tiles of tokens are added in order; within a tile each element has one task.
pub(crate) struct Gradient<'a, O> {
    call: &'a Call<'a, O>,
    hidden_wanted: bool,
    wanted: LinearParts<bool>,
    grad: HeadGrad,
    hidden: Ptr,
    parts: LinearParts<Ptr>,
}

impl<'a, O: Operand> Gradient<'a, O> {
    pub(crate) fn new(call: &'a Call<'a, O>, asked: &HeadWanted) -> Self {
        let wanted = call.head.wanted(&asked.parts);
        assert!(
            !wanted.wants(Magnitude) || (call.head.bias.is_none() && call.scaling.uncapped().is_some()),
            "head: the magnitude's gradient is made without bias and soft cap"
        );
        let (v, d, r) = (call.vocab, call.dim, call.rank());
        let filled = |len: usize| {
            if call.n == 0 || call.vocab == 0 {
                return vec![0.0; len];
            }
            // SAFETY: the first tile of tokens writes every element.
            unsafe { uninit(len) }
        };
        let made = |part: LinearPart| {
            let len = part.shape(false, v, d, r).iter().product();
            match part {
                Weight | LoraA | LoraB => filled(len),
                Bias | LoraBBias | Magnitude => vec![0.0; len],
            }
        };
        let mut grad = HeadGrad {
            hidden: asked.hidden.then(|| filled(call.n * d)),
            parts: wanted.map(|part, wanted| wanted.then(|| made(part))),
        };
        let ptr = |g: Option<&mut Vec<f32>>| Ptr(g.map_or(std::ptr::null_mut(), Vec::as_mut_ptr));
        let hidden = ptr(grad.hidden.as_mut());
        let parts = wanted.map(|part, _| ptr(grad.parts.found_mut(part)));
        Self { call, hidden_wanted: asked.hidden, wanted, grad, hidden, parts }
    }

    /// Where a part's gradient is; null where none is wanted.
    fn to(&self, part: LinearPart) -> Ptr {
        self.parts.get(part).map_or(Ptr(std::ptr::null_mut()), |ptr| Ptr(ptr.0))
    }

    /// Where the hidden states' gradient is.
    pub(crate) fn hidden(&self) -> Ptr {
        self.hidden
    }

    pub(crate) fn finish(mut self) -> HeadGrad {
        let Some(gains) = &self.call.gains else { return self.grad };
        for (part, width) in [(Weight, self.call.dim), (LoraB, self.call.rank())] {
            let rows = self.grad.parts.found_mut(part).into_iter().flat_map(|w| w.chunks_exact_mut(width));
            for (row, g) in rows.zip(gains) {
                row.iter_mut().for_each(|x| *x *= g);
            }
        }
        // The product is g times what the gradient multiplies, and g = m / norm: dm = Σ dz·product / m.
        let m = self.call.head.low_rank.and_then(|l| l.magnitude);
        if let (Some(grad), Some(m)) = (self.grad.parts.found_mut(Magnitude), m) {
            let back = self.call.scaling.uncapped().unwrap_or(1.0);
            grad.iter_mut().zip(m.m).for_each(|(d, m)| *d *= back / m);
        }
        self.grad
    }

    /// Floats in which [`Self::keep`] keeps the logits of `entries` entries.
    pub(crate) fn kept(&self, tokens: &Tokens, entries: usize) -> usize {
        if self.wanted.wants(Magnitude) { tokens.panels() * entries * NR } else { 0 }
    }

    /// Keeps a run's logits, which the magnitude's gradient needs beside their gradients.
    ///
    /// # Safety
    /// `z` holds the run, panels `stride` apart; `to` what [`Self::kept`] says.
    pub(crate) unsafe fn keep(&self, tokens: &Tokens, entries: usize, z: Ptr, stride: usize, to: *mut f32) {
        if self.wanted.wants(Magnitude) {
            for p in 0..tokens.panels() {
                // SAFETY: the caller's.
                unsafe {
                    let to = to.add(p * entries * NR);
                    std::ptr::copy_nonoverlapping(z.at(p * stride), to, entries * NR);
                }
            }
        }
    }

    /// Adds the magnitude's gradient of entries `v` from what [`Self::keep`] kept.
    ///
    /// # Safety
    /// As [`Self::entries`].
    pub(crate) unsafe fn magnitude(
        &self,
        tokens: &Tokens,
        v: Range<usize>,
        dz: Ptr,
        stride: usize,
        kept: *const f32,
    ) {
        if self.wanted.wants(Magnitude) {
            let to = self.to(Magnitude).0.wrapping_add(v.start);
            // SAFETY: the caller's.
            unsafe { row_products(self.call.isa, v.len(), tokens.n, kept, v.len() * NR, dz.0, stride, to) };
        }
    }

    /// Multiplies the rows of a packed block of entries by their factors.
    ///
    /// # Safety
    /// `panel` holds a row of 32 per entry.
    unsafe fn magnify(&self, v: Range<usize>, panel: *mut f32) {
        for (i, g) in self.call.gains.iter().flat_map(|g| &g[v.clone()]).enumerate() {
            // SAFETY: the caller's.
            unsafe { scale_slice(self.call.isa, panel.add(i * NR), NR, *g) };
        }
    }

    /// Whether anything of the vocabulary's size is wanted.
    fn of_entries(&self) -> bool {
        [Weight, Bias, LoraB, LoraBBias].iter().any(|part| self.wanted.wants(*part))
    }

    /// Adds the gradients of entries `v` (a run) from their logit gradients `dz`, panels `stride` apart.
    ///
    /// # Safety
    /// `dz` holds the run; the entries are this task's.
    pub(crate) unsafe fn entries(&self, tokens: &Tokens, v: Range<usize>, dz: Ptr, stride: usize) {
        if !self.of_entries() {
            return;
        }
        let (call, m, add) = (self.call, v.len(), tokens.first > 0);
        let (isa, d, r) = (call.isa, call.dim, call.rank());
        // SAFETY: lengths as the call's; row `v` of every gradient is written here alone.
        unsafe {
            if self.wanted.wants(Bias) {
                row_sums(isa, m, tokens.n, dz.0, stride, self.to(Bias).at(v.start), 1.0);
            }
            if let (true, Some(low)) = (self.wanted.wants(LoraBBias), &call.head.low_rank) {
                row_sums(isa, m, tokens.n, dz.0, stride, self.to(LoraBBias).at(v.start), low.scale);
            }
            if !self.wanted.weight && !self.wanted.wants(LoraB) {
                return;
            }
            // Entries as rows, tokens as the depth of the sum.
            let (n, words) = (tokens.n, O::words(tokens.n));
            let depth = Depth::new(words, 0);
            let room = if self.wanted.wants(LoraB) { O::room(n, r) } else { 0 };
            scratch(depth.a_len(m) + room, |packed| {
                let place = TileLayout::rows(LDP * O::VALUES);
                for p in 0..tokens.panels() {
                    let to = packed.add(depth.column(m, p * NR / O::VALUES)).cast::<O::Value>();
                    copy_rows(isa, m, tokens.count(p), dz.at(p * stride).cast_const(), NR, to, place);
                }
                end_rows::<O>(m, n, depth, packed);
                if self.wanted.weight {
                    for j in (0..d).step_by(NR) {
                        let (n, panel) = ((d - j).min(NR), tokens.rows.ptr().at(j * words));
                        let to = self.to(Weight).at(v.start * d + j);
                        gemm_panel::<O>(isa, m, packed, depth, panel, n, to, d, 1.0, add);
                    }
                }
                if self.wanted.wants(LoraB) {
                    let low = tokens.low.ptr().0.cast_const();
                    let (low, ldb) = O::stacked(isa, n, r, low, r, packed.add(depth.a_len(m)));
                    for j in (0..r).step_by(NR) {
                        let mut k0 = 0;
                        for block in 0..depth.blocks() {
                            let t = Tile {
                                m,
                                n: (r - j).min(NR),
                                k: depth.len(block),
                                a: packed.add(block * m * LDP),
                                a_step: 1,
                                b: low.add(k0 * ldb + j),
                                ldb,
                                c: self.to(LoraB).at(v.start * r + j),
                                ldc: r,
                                alpha: 1.0,
                                add: add || block > 0,
                            };
                            strip::<O, LDP>(isa, t);
                            k0 += depth.len(block);
                        }
                    }
                }
            });
        }
    }

    /// Gradients of the tile's hidden states and of `A`, from all logit gradients of the tile.
    pub(crate) fn inputs(&self, tokens: &Tokens, dz: Ptr, stride: usize) {
        let call = self.call;
        let (hidden, a) = (self.hidden_wanted, self.wanted.wants(LoraA));
        let (d, r) = (call.dim, call.rank());
        let low = call.head.low_rank.as_ref().filter(|_| hidden || a);
        // Columns of the product: the weight's, then B's.
        let weight_panels = if hidden { d.div_ceil(NR) } else { 0 };
        let panels = weight_panels + if low.is_some() { r.div_ceil(NR) } else { 0 };
        if panels == 0 || call.vocab == 0 {
            return;
        }
        // `scale·dz B`, `[tokens, rank]`.
        let u = Pooled::take(if low.is_some() { tokens.n * r } else { 0 });
        let up = u.ptr();
        // How tokens and columns are shared out changes no sum.
        let share = 2 * rayon::current_num_threads();
        let tall = (tokens.panels() * panels / share).clamp(4, TOKEN_PANELS);
        let groups = tokens.panels().div_ceil(tall);
        let wide = (panels * groups / share).clamp(1, COLUMN_PANELS);
        tasks(groups * panels.div_ceil(wide), |task| {
            let (group, first) = (task % groups, task / groups * wide);
            let columns = first..(first + wide).min(panels);
            let rows = group * tall..((group + 1) * tall).min(tokens.panels());
            let weights = columns.len() * BLOCK * NR;
            scratch(weights + O::room(BLOCK, NR), |b| {
                for v0 in (0..call.vocab).step_by(BLOCK) {
                    let v = v0..(v0 + BLOCK).min(call.vocab);
                    for (i, q) in columns.clone().enumerate() {
                        // SAFETY: the scratch holds a block of each panel.
                        unsafe {
                            let to = b.add(i * BLOCK * NR);
                            if q < weight_panels {
                                call.pack_columns(v.clone(), q * NR, (d - q * NR).min(NR), to);
                            } else if let Some(low) = low {
                                let j = (q - weight_panels) * NR;
                                let from = low.b.as_ptr().add(v0 * r + j);
                                pack_kn::<O, f32>(call.isa, from, r, v.len(), (r - j).min(NR), to);
                            }
                            self.magnify(v.clone(), to);
                        }
                    }
                    for p in rows.clone() {
                        // SAFETY: the block of `dz` is there; the scratch has room for its words.
                        let (a, a_step) = unsafe {
                            let from = dz.at(p * stride + v0 * NR).cast_const();
                            O::stacked(call.isa, v.len(), tokens.count(p), from, NR, b.add(weights))
                        };
                        let all = columns.clone().enumerate().map(|(i, q)| {
                            let token = p * NR;
                            // SAFETY: these tokens and columns are this task's.
                            unsafe {
                                let (n, c, ldc, alpha) = if q < weight_panels {
                                    let at = (tokens.first + token) * d + q * NR;
                                    ((d - q * NR).min(NR), self.hidden.at(at), d, 1.0)
                                } else {
                                    let j = (q - weight_panels) * NR;
                                    let scale = low.map_or(1.0, |l| l.scale);
                                    ((r - j).min(NR), up.at(token * r + j), r, scale)
                                };
                                Tile {
                                    m: tokens.count(p),
                                    n,
                                    k: O::words(v.len()),
                                    a,
                                    a_step,
                                    b: b.add(i * BLOCK * NR),
                                    ldb: NR,
                                    c,
                                    ldc,
                                    alpha,
                                    add: v0 > 0,
                                }
                            }
                        });
                        // SAFETY: as above.
                        unsafe { strips::<O, 1>(call.isa, all) };
                    }
                }
            });
        });
        if low.is_some() && hidden {
            self.low_hidden(tokens, up);
        }
        if a {
            self.low_a(tokens, up);
        }
    }

    /// `dh += mask·(u A)`.
    fn low_hidden(&self, tokens: &Tokens, u: Ptr) {
        let Some(low) = &self.call.head.low_rank else { return };
        let (call, d, r) = (self.call, self.call.dim, low.rank);
        let depth = Depth::new(O::words(r), 0);
        let words = Pooled::take(O::room(r, d));
        // SAFETY: `A` is [rank, in], and its words fit.
        let (a, ldb) = unsafe { O::stacked(call.isa, r, d, low.a.as_ptr(), d, words.ptr().0) };
        let a = Ptr(a.cast_mut());
        tasks(tokens.panels(), |p| {
            let m = tokens.count(p);
            let dropped = if tokens.is_dropped() { m * d } else { 0 };
            scratch(depth.a_len(m) + dropped, |packed| {
                // SAFETY: the scratch holds both; these tokens are this task's.
                unsafe {
                    pack_rows::<O>(call.isa, m, r, depth, u.at(p * NR * r), r, packed);
                    let hidden = self.hidden.at((tokens.first + p * NR) * d);
                    let apart = packed.add(depth.a_len(m));
                    let (to, add) = if dropped > 0 { (apart, false) } else { (hidden, true) };
                    for j in (0..d).step_by(NR) {
                        let mut k0 = 0;
                        for block in 0..depth.blocks() {
                            let t = Tile {
                                m,
                                n: (d - j).min(NR),
                                k: depth.len(block),
                                a: packed.add(block * m * LDP),
                                a_step: 1,
                                b: a.at(k0 * ldb + j),
                                ldb,
                                c: to.add(j),
                                ldc: d,
                                alpha: 1.0,
                                add: add || block > 0,
                            };
                            strip::<O, LDP>(call.isa, t);
                            k0 += depth.len(block);
                        }
                    }
                    if dropped > 0 {
                        call.drop_rows(low, tokens.first + p * NR, m, apart, hidden, true);
                    }
                }
            });
        });
    }

    /// `dA += u^T drop(h)`.
    fn low_a(&self, tokens: &Tokens, u: Ptr) {
        let (call, d, r) = (self.call, self.call.dim, self.call.rank());
        let x = Ptr(tokens.low_input(call).cast_mut());
        tasks(d.div_ceil(NR), |q| {
            let (j, n) = (q * NR, (d - q * NR).min(NR));
            let (depth, isa) = (KC * O::VALUES, call.isa);
            let left = O::room(depth, r);
            scratch(left + O::room(depth, NR), |room| {
                for k0 in (0..tokens.n).step_by(depth) {
                    let (k, add) = ((tokens.n - k0).min(depth), tokens.first + k0 > 0);
                    // SAFETY: `u` is [tokens, rank], `x` [tokens, in]; these columns are this task's.
                    unsafe {
                        let (u, x) = (u.at(k0 * r).cast_const(), x.at(k0 * d + j).cast_const());
                        let (u, ldu) = O::stacked(isa, k, r, u, r, room);
                        let (x, ldx) = O::stacked(isa, k, n, x, d, room.add(left));
                        let (k, to) = (O::words(k), self.to(LoraA).at(j));
                        gemm_tn::<O>(isa, k, r, n, u, ldu, x, ldx, to, d, 1.0, add);
                    }
                }
            });
        });
    }
}
