//! Log-probabilities and statistics; plain logits for generation.

use super::call::{Call, Tokens, compute};
use super::options::HeadStats;
use super::shard::{ELSEWHERE, VocabPart, VocabRows, own_targets};
use super::vocab::{
    STATS, Scaling, Token, begin_stats, merge_stats, online_stats, part, run_stats, scale_elements,
};
use crate::linear::{Linear, gemv};
use crate::micro::NR;
use crate::operand::{Operand, with_operand};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::isa;
use crate::tasks::{SLICE, tasks};
use burnish_core::HeadOptions;
use std::ops::Range;

/// Statistics of each token's distribution, without a `[tokens, vocabulary]` buffer.
///
/// `hidden` is `[tokens, in]`, `targets` one entry index per token. Logits of a run of entries live in a core's
/// cache and leave only their maximum and sums (online log-sum-exp). With a `shard` the parts of all tokens are
/// combined at once.
///
/// # Panics
/// If lengths disagree or a target lies outside the vocabulary.
pub fn head_forward(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
) -> HeadStats {
    with_operand!(isa(), compute(head), O => forward::<O>(hidden, head, shard, targets, options))
}

fn forward<O: Operand>(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
) -> HeadStats {
    let call = Call::<O>::new(hidden, head, shard, targets.len(), options);
    let own = own_targets(&call, targets, shard);
    let low = call.pack_low();
    let mut stats = HeadStats::with_capacity(call.n);
    let mut parts = Vec::with_capacity(if shard.is_some() { call.n } else { 0 });
    for rows in call.wide_tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), false);
        let found = Found::new(&call, &tokens, call.run);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            let (weights, panel) = (call.depth.a_len(v.len()), v.len() * NR);
            scratch(weights + tokens.panels() * panel, |w| {
                // SAFETY: the scratch holds the packed entries and the logits; a run's statistics are this task's.
                unsafe {
                    let z = Ptr(w.add(weights));
                    call.pack_entries(v.clone(), w);
                    call.logits(call.scaling, &tokens, v.clone(), w, z, panel);
                    found.note(&call, &tokens, &own[rows.clone()], v, z, panel);
                }
            });
        });
        match shard {
            None => found.finish(&call, &tokens, &own[rows], &mut stats),
            Some(_) => found.parts(&call, &tokens, &own[rows], &mut parts),
        }
    }
    match shard {
        Some(s) if call.n > 0 => stats.append((s.combine)(targets, &parts), call.n),
        _ => {}
    }
    stats
}

/// Floats of a panel's statistics.
const SIZE: usize = STATS * NR;

/// Statistics per piece of the vocabulary (a run, or several) and panel of tokens, and the targets' logits.
pub(crate) struct Found {
    parts: Pooled,
    /// Per token: the target's `z`, and whether it is the first maximum of its piece, up to its own run.
    targets: Pooled,
    merged: Pooled,
    /// Entries of a piece, and pieces.
    entries: usize,
    pieces: usize,
}

// SAFETY: the buffers are only pointed into, each task writing what is its own.
unsafe impl Sync for Found {}

impl Found {
    /// For pieces of `entries` entries.
    pub(crate) fn new<O: Operand>(call: &Call<'_, O>, tokens: &Tokens, entries: usize) -> Self {
        let (panels, pieces) = (tokens.panels(), call.vocab.div_ceil(entries));
        Self {
            parts: Pooled::take(pieces * panels * SIZE),
            targets: Pooled::take(2 * tokens.n),
            merged: Pooled::take(panels * SIZE),
            entries,
            pieces,
        }
    }

    /// Where the statistics of panel `p` and the piece that entry `v` is in are.
    pub(crate) fn part(&self, tokens: &Tokens, v: usize, p: usize) -> *mut f32 {
        // SAFETY: `new` has made room for every piece and panel.
        unsafe { self.parts.ptr().at((v / self.entries * tokens.panels() + p) * SIZE) }
    }

    /// Notes the target of token `i`: its `z`, and whether it is the first maximum of its piece so far.
    ///
    /// # Safety
    /// `i` is a token of the tile, noted by one task.
    unsafe fn note_target(&self, i: usize, z: f32, first: bool) {
        // SAFETY: the caller's.
        unsafe {
            let slot = self.targets.ptr().at(2 * i);
            *slot = z;
            *slot.add(1) = if first { 1.0 } else { 0.0 };
        }
    }

    /// Notes the statistics of entries `v`, a run.
    ///
    /// # Safety
    /// `z` holds the run's logits, panels `stride` apart.
    pub(crate) unsafe fn note<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        v: Range<usize>,
        z: Ptr,
        stride: usize,
    ) {
        for p in 0..tokens.panels() {
            // SAFETY: the caller's; each (run, panel) has its own statistics and each token one run.
            unsafe {
                let part = self.part(tokens, v.start, p);
                let z = z.at(p * stride);
                run_stats(call.isa, call.scaling, v.len(), tokens.lanes(p), z, part);
                for (lane, at) in tokens.hits(targets, p, &v) {
                    let own = *z.add(at * NR + lane);
                    let first = own >= *part.add(lane) && (0..at).all(|j| *z.add(j * NR + lane) < own);
                    self.note_target(p * NR + lane, own, first);
                }
            }
        }
    }

    /// Adds the statistics of entries `v`, a run, to those of its piece's runs before, and turns its logits into
    /// `e^(z - top)` times the slope of a soft cap, of the target into 0. By what the sums of each token of before are to be
    /// multiplied, where it isn't 1 for all.
    ///
    /// # Safety
    /// `z` holds the run's logits of panel `p`; the runs of a piece come in order.
    pub(crate) unsafe fn note_online<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        p: usize,
        v: Range<usize>,
        z: *mut f32,
    ) -> Option<[f32; NR]> {
        // SAFETY: the caller's; each (piece, panel) has its own statistics and each token one run.
        unsafe {
            let part = self.part(tokens, v.start, p);
            if v.start.is_multiple_of(self.entries) {
                begin_stats(part);
            }
            for (lane, at) in tokens.hits(targets, p, &v) {
                let own = *z.add(at * NR + lane);
                let first = own > *part.add(lane) && (0..at).all(|j| *z.add(j * NR + lane) < own);
                self.note_target(p * NR + lane, own, first);
            }
            let shrink = online_stats(call.isa, call.scaling, v.len(), tokens.lanes(p), part, z);
            for (lane, at) in tokens.hits(targets, p, &v) {
                *z.add(at * NR + lane) = 0.0;
            }
            shrink
        }
    }

    /// The largest `z` of token `i` in a piece.
    pub(crate) fn top(&self, tokens: &Tokens, piece: usize, i: usize) -> f32 {
        // SAFETY: written by `note` or `note_online`.
        unsafe { *self.part(tokens, piece * self.entries, i / NR).add(i % NR) }
    }

    /// The `z` of the target of token `i`, a row of the head.
    pub(crate) fn target_logit(&self, i: usize) -> f32 {
        // SAFETY: written by `note` or `note_online`.
        unsafe { *self.targets.ptr().at(2 * i) }
    }

    /// Merges the runs.
    fn merge<O: Operand>(&self, call: &Call<'_, O>, tokens: &Tokens) {
        let panels = tokens.panels();
        tasks(panels, |p| {
            // SAFETY: every run has noted its part.
            unsafe {
                let (from, to) = (self.parts.ptr().at(p * SIZE), self.merged.ptr().at(p * SIZE));
                merge_stats(call.isa, self.pieces, panels * SIZE, tokens.lanes(p), from, to);
            }
        });
    }

    /// The merged statistics of a panel.
    fn merged(&self, p: usize) -> &[f32] {
        // SAFETY: `merge` has written them.
        unsafe { std::slice::from_raw_parts(self.merged.ptr().at(p * SIZE), SIZE) }
    }

    /// The `z` of token `i`'s target, a row of the head, and whether no row has a larger one and no earlier row the
    /// same; `top` is the largest.
    fn target(&self, tokens: &Tokens, i: usize, target: u32, top: f32) -> (f32, bool) {
        // SAFETY: written by `note` or `note_online`, the target being one of its entries.
        let first = unsafe { *self.targets.ptr().at(2 * i + 1) == 1.0 };
        let own = self.target_logit(i);
        let earlier = |piece: usize| self.top(tokens, piece, i) < own;
        (own, first && own >= top && (0..target as usize / self.entries).all(earlier))
    }

    /// Merges the runs and appends what they say of the tokens.
    pub(crate) fn parts<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        parts: &mut Vec<VocabPart>,
    ) {
        self.merge(call, tokens);
        parts.extend(targets.iter().enumerate().map(|(i, &target)| {
            let part = part(self.merged(i / NR), i % NR);
            if target == ELSEWHERE {
                return part;
            }
            let (own, first) = self.target(tokens, i, target, part.top);
            VocabPart { target: own, target_is_first: first, ..part }
        }));
    }

    /// Merges the runs and appends the tokens' statistics.
    pub(crate) fn finish<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        stats: &mut HeadStats,
    ) {
        self.merge(call, tokens);
        for (i, &target) in targets.iter().enumerate() {
            let token = Token::new(self.merged(i / NR), i % NR);
            let (own, top1) = self.target(tokens, i, target, token.top);
            let mean = token.total / call.vocab as f32;
            stats.log_prob.push(call.options.log_prob(own, mean, token.log_z));
            stats.entropy.push(token.entropy);
            stats.log_sum_sq_probs.push(token.log_sum_sq);
            stats.mean_logit.push(mean);
            stats.log_z.push(token.log_z);
            stats.is_top1.push(top1);
        }
    }
}

/// Logits `[tokens, vocabulary]`, scaled and capped, without temperature: for the few tokens that generation
/// samples from. The head's weight is read once per 512 tokens.
///
/// # Panics
/// If lengths disagree.
pub fn head_logits(hidden: &[f32], head: &Linear<'_>, options: &HeadOptions) -> Vec<f32> {
    with_operand!(isa(), compute(head), O => logits::<O>(hidden, head, options))
}

fn logits<O: Operand>(hidden: &[f32], head: &Linear<'_>, options: &HeadOptions) -> Vec<f32> {
    let dim = (head.weight.len() / head.out.max(1)).max(1);
    let call = Call::<O>::new(hidden, head, None, hidden.len() / dim, options);
    let mut out = vec![0.0; call.n * call.vocab];
    let to = Ptr(out.as_mut_ptr());
    if gemv::applies(call.n, std::slice::from_ref(head)) {
        by_dots(&call, options, &mut out);
        return out;
    }
    let low = call.pack_low();
    for rows in call.wide_tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), false);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            let (weights, panel) = (call.depth.a_len(v.len()), v.len() * NR);
            scratch(weights + tokens.panels() * panel, |w| {
                // SAFETY: the scratch holds the packed entries and the logits; these columns are this task's.
                unsafe {
                    let z = w.add(weights);
                    call.pack_entries(v.clone(), w);
                    call.logits(Scaling::plain(options), &tokens, v.clone(), w, Ptr(z), panel);
                    for i in 0..tokens.n {
                        let row = to.at((rows.start + i) * call.vocab + v.start);
                        for j in 0..v.len() {
                            *row.add(j) = *z.add(i / NR * panel + j * NR + i % NR);
                        }
                    }
                }
            });
        });
    }
    out
}

/// The logits of a handful of tokens, from the weight where it lies.
fn by_dots<O: Operand>(call: &Call<'_, O>, options: &HeadOptions, out: &mut [f32]) {
    let (hidden, to) = (Ptr(call.hidden.as_ptr().cast_mut()), Ptr(out.as_mut_ptr()));
    let layers = std::slice::from_ref(call.head);
    let t = Pooled::take(call.n * call.rank());
    // SAFETY: `Call::new` checked the shapes; t holds `[tokens, rank]`.
    unsafe { gemv::forward(call.isa, call.n, call.dim, hidden, layers, None, to, t.ptr()) };
    let scaling = Scaling::plain(options);
    tasks(out.len().div_ceil(SLICE), |i| {
        let n = (out.len() - i * SLICE).min(SLICE);
        // SAFETY: a slice of the logits of this task's own.
        unsafe { scale_elements(call.isa, scaling, n, to.at(i * SLICE)) };
    });
}
