//! Logits and what is made of them, run by run of the vocabulary: a frozen head's gradient of hidden states, without a tile
//! of logits.
//!
//! A run's logits are turned into factors of the head's rows while they are in a core's cache, and multiplied back into the
//! run's rows, packed once for both products. The factors are the logits' gradients where the whole vocabulary's sum is
//! known, else `e^(z - top)` of the largest so far, what was summed before being scaled down whenever that grows (online
//! softmax; Milakov and Gimelshein 2018), as attention does over keys (FlashAttention).

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::call::{Call, Tokens};
use super::options::HeadWanted;
use crate::elementwise::scale_slice;
use crate::micro::{LDP, NR, Tile, strips};
use crate::operand::Operand;
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::{Lanes, dispatch};
use crate::tasks::tasks;
use std::ops::Range;

/// Pieces of the vocabulary that are swept side by side; their sums are added in order.
const PIECES: usize = 4;

/// Sums of rows of the head for the tokens of a tile, one for each piece of the vocabulary.
pub(crate) struct Sweep<'a, O> {
    call: &'a Call<'a, O>,
    /// `[pieces][panels][in/32][32 tokens][32]`.
    sums: Pooled,
    panels: usize,
}

// SAFETY: the buffer is only pointed into, each task writing what is its own.
unsafe impl<O> Sync for Sweep<'_, O> {}

/// Whether these gradients are a sweep's: of the hidden states alone, of a head that is its weight and a bias.
pub(crate) fn applies<O: Operand>(call: &Call<'_, O>, wanted: &HeadWanted) -> bool {
    let parts = call.head.wanted(&wanted.parts);
    wanted.hidden
        && call.head.low_rank.is_none()
        && !burnish_core::LinearPart::ALL.iter().any(|part| parts.wants(*part))
        && call.vocab > 0
        && call.n > 0
}

/// Entries of a piece of the vocabulary: whole runs.
pub(crate) fn piece<O: Operand>(call: &Call<'_, O>) -> usize {
    call.runs().div_ceil(PIECES) * call.run
}

impl<'a, O: Operand> Sweep<'a, O> {
    /// Sweeps the vocabulary for the tokens of a tile. `turn(p, v, z)` turns the logits of panel `p` and entries `v`, a row of
    /// 32 in `z` per entry, into the rows' factors, in place, and says by what each token's sums so far are to be multiplied
    /// first, where it isn't 1 for all; a piece's runs come in order, on one thread.
    pub(crate) fn new(
        call: &'a Call<'a, O>,
        tokens: &Tokens,
        turn: impl Fn(usize, Range<usize>, *mut f32) -> Option<[f32; NR]> + Sync,
    ) -> Self {
        let (panels, columns) = (tokens.panels(), call.dim.div_ceil(NR));
        let (entries, room) = (piece(call), columns * NR * NR);
        let pieces = call.vocab.div_ceil(entries);
        let sums = Pooled::passing(pieces * panels * room);
        let this = Self { call, sums, panels };
        // How tokens are shared out changes no sum.
        let groups = (4 * rayon::current_num_threads()).div_ceil(pieces).clamp(1, panels);
        tasks(pieces * groups, |task| {
            let (piece, group) = (task % pieces, task / pieces);
            let panels = group * panels / groups..(group + 1) * panels / groups;
            let runs = (piece * entries..((piece + 1) * entries).min(call.vocab)).step_by(call.run);
            let (weights, back) = (call.depth.a_len(call.run), columns * Self::back_len(call.run));
            let z_len = call.run * NR;
            scratch(weights + back + z_len + O::room(call.run, NR), |w| {
                for (i, first) in runs.enumerate() {
                    let v = first..(first + call.run).min(call.vocab);
                    // SAFETY: the scratch holds what is packed and one panel's logits; the sums are this task's.
                    unsafe {
                        let (back_at, z) = (w.add(weights), w.add(weights + back));
                        call.pack_entries(v.clone(), w);
                        this.pack_back(v.clone(), back_at);
                        for p in panels.clone() {
                            call.panel_logits(call.scaling, tokens, p, v.clone(), w, z);
                            let shrink = turn(p, v.clone(), z);
                            let to = this.at(piece, p);
                            if let Some(by) = shrink.filter(|_| i > 0) {
                                this.shrink(tokens.count(p), &by, to);
                            }
                            let from = if O::VALUES == 1 { w } else { back_at };
                            this.add_rows(tokens.count(p), v.len(), z, from, z.add(z_len), to, i > 0);
                        }
                    }
                }
            });
        });
        this
    }

    /// Floats of a panel of columns of a run's rows; none where the packed rows themselves serve.
    fn back_len(entries: usize) -> usize {
        if O::VALUES == 1 { 0 } else { O::words(entries) * NR }
    }

    /// Packs a run's rows for sums over entries.
    ///
    /// # Safety
    /// `to` holds a panel for every 32 columns.
    unsafe fn pack_back(&self, v: Range<usize>, to: *mut f32) {
        if O::VALUES > 1 {
            for (q, j) in (0..self.call.dim).step_by(NR).enumerate() {
                let n = (self.call.dim - j).min(NR);
                self.call.pack_columns(v.clone(), j, n, to.add(q * Self::back_len(v.len())));
            }
        }
    }

    /// The sums of a piece and panel.
    unsafe fn at(&self, piece: usize, p: usize) -> *mut f32 {
        let room = self.call.dim.div_ceil(NR) * NR * NR;
        self.sums.ptr().at((piece * self.panels + p) * room)
    }

    /// Multiplies the sums of each token whose factor isn't 1.
    unsafe fn shrink(&self, count: usize, by: &[f32; NR], sums: *mut f32) {
        for (i, by) in by.iter().enumerate().take(count).filter(|(_, by)| **by != 1.0) {
            for q in 0..self.call.dim.div_ceil(NR) {
                scale_slice(self.call.isa, sums.add((q * NR + i) * NR), NR, *by);
            }
        }
    }

    /// Adds the run's rows times their factors (`[entries][32 tokens]`).
    #[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
    unsafe fn add_rows(
        &self,
        count: usize,
        entries: usize,
        factors: *const f32,
        rows: *const f32,
        room: *mut f32,
        sums: *mut f32,
        add: bool,
    ) {
        let (call, k) = (self.call, O::words(entries));
        let (a, a_step) = O::stacked(call.isa, entries, count, factors, NR, room);
        let all = (0..call.dim).step_by(NR).enumerate().map(|(q, j)| {
            let (b, ldb) = if O::VALUES == 1 {
                (rows.add(call.depth.column(entries, j)), LDP)
            } else {
                (rows.add(q * Self::back_len(entries)), NR)
            };
            let (n, c) = ((call.dim - j).min(NR), sums.add(q * NR * NR));
            Tile { m: count, n, k, a, a_step, b, ldb, c, ldc: NR, alpha: 1.0, add }
        });
        strips::<O, 1>(call.isa, all);
    }

    /// Writes `Σ factor(piece, token)·sum + own(token).1·row own(token).0` of the tokens of the tile into their rows of
    /// `hidden`.
    pub(crate) fn finish(
        &self,
        tokens: &Tokens,
        hidden: Ptr,
        factor: impl Fn(usize, usize) -> f32 + Sync,
        own: impl Fn(usize) -> Option<(usize, f32)> + Sync,
    ) {
        let (call, dim) = (self.call, self.call.dim);
        let pieces = call.vocab.div_ceil(piece(call));
        tasks(tokens.panels(), |p| {
            for lane in 0..tokens.count(p) {
                let i = p * NR + lane;
                // SAFETY: a token's row is its panel's task's.
                unsafe {
                    let to = hidden.at((tokens.first + i) * dim);
                    let own = own(i);
                    if let Some((row, by)) = own {
                        call.head.weight.widen(call.isa, row * dim, dim, to);
                        scale_slice(call.isa, to, dim, by);
                    }
                    for piece in 0..pieces {
                        let add = own.is_some() || piece > 0;
                        add_scaled(
                            call.isa,
                            dim,
                            factor(piece, i),
                            self.at(piece, p).add(lane * NR),
                            to,
                            add,
                        );
                    }
                }
            }
        });
    }
}

#[inline(always)]
unsafe fn add_scaled_body<S: Lanes>(n: usize, by: f32, x: *const f32, to: *mut f32, add: bool) {
    let by = S::splat(by);
    for j in (0..n).step_by(S::N) {
        let (mask, to) = (S::mask((n - j).min(S::N)), to.add(j));
        let x = S::load_m(mask, x.add(j / NR * NR * NR + j % NR));
        let before = if add { S::load_m(mask, to) } else { S::splat(0.0) };
        S::store_m(mask, to, S::fma(by, x, before));
    }
}

dispatch! {
    /// `to[j] = by·x[j / 32][0][j % 32] (+ to[j])`, `x` being one row of squares of 32.
    ///
    /// # Safety
    /// `to` holds `n` floats, `x` a square for every 32 of them.
    unsafe fn add_scaled = add_scaled_body [] [] (n: usize, by: f32, x: *const f32, to: *mut f32, add: bool)
}
