//! Log-probabilities and statistics; plain logits for generation.

use super::call::{Call, Tokens};
use super::options::{HeadOptions, HeadStats};
use super::vocab::{STATS, Scaling, Token, merge_stats, run_stats, scale_elements};
use crate::linear::{Linear, gemv};
use crate::micro::NR;
use crate::scratch::{Pooled, Ptr, scratch};
use crate::tasks::{SLICE, tasks};
use std::ops::Range;

/// Statistics of each token's distribution, without a `[tokens, vocabulary]` buffer.
///
/// `hidden` is `[tokens, in]`, `targets` one entry index per token. Logits of a run of entries live in a core's
/// cache and leave only their maximum and sums (online log-sum-exp).
///
/// # Panics
/// If lengths disagree or a target lies outside the vocabulary.
pub fn head_forward(hidden: &[f32], head: &Linear<'_>, targets: &[u32], options: &HeadOptions) -> HeadStats {
    let call = Call::new(hidden, head, targets.len(), options);
    check_targets(&call, targets);
    let low = call.pack_low();
    let mut stats = HeadStats::with_capacity(call.n);
    for rows in call.tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), false);
        let found = Found::new(&call, &tokens);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            let (weights, panel) = (call.depth.a_len(v.len()), v.len() * NR);
            scratch(weights + tokens.panels() * panel, |w| {
                // SAFETY: the scratch holds the packed entries and the logits; a run's statistics are this task's.
                unsafe {
                    let z = Ptr(w.add(weights));
                    call.pack_entries(v.clone(), w);
                    call.logits(call.scaling, &tokens, v.clone(), w, z, panel);
                    found.note(&call, &tokens, &targets[rows.clone()], v, z, panel);
                }
            });
        });
        found.finish(&call, &tokens, &targets[rows], &mut stats);
    }
    stats
}

pub(crate) fn check_targets(call: &Call<'_>, targets: &[u32]) {
    if let Some(t) = targets.iter().find(|&&t| t as usize >= call.vocab) {
        panic!("head: target {t} lies outside the vocabulary of {} entries", call.vocab);
    }
}

/// Statistics per run and panel of tokens, and the targets' logits.
pub(crate) struct Found {
    parts: Pooled,
    /// Per token: the target's `z`, and whether it is its run's first maximum.
    targets: Pooled,
    merged: Pooled,
}

// SAFETY: the buffers are only pointed into, each task writing what is its own.
unsafe impl Sync for Found {}

impl Found {
    pub(crate) fn new(call: &Call<'_>, tokens: &Tokens) -> Self {
        let panels = tokens.panels();
        Self {
            parts: Pooled::take(call.runs() * panels * STATS * NR),
            targets: Pooled::take(2 * tokens.n),
            merged: Pooled::take(panels * STATS * NR),
        }
    }

    /// Notes the statistics of entries `v`, a run.
    ///
    /// # Safety
    /// `z` holds the run's logits, panels `stride` apart.
    pub(crate) unsafe fn note(
        &self,
        call: &Call<'_>,
        tokens: &Tokens,
        targets: &[u32],
        v: Range<usize>,
        z: Ptr,
        stride: usize,
    ) {
        for p in 0..tokens.panels() {
            // SAFETY: the caller's; each (run, panel) has its own statistics and each token one run.
            unsafe {
                let part = self.parts.ptr().at((v.start / call.run * tokens.panels() + p) * STATS * NR);
                let z = z.at(p * stride);
                run_stats(call.isa, v.len(), tokens.lanes(p), z, part);
                for lane in 0..tokens.count(p) {
                    let target = targets[p * NR + lane] as usize;
                    if !v.contains(&target) {
                        continue;
                    }
                    let at = target - v.start;
                    let own = *z.add(at * NR + lane);
                    let first = own >= *part.add(lane) && (0..at).all(|j| *z.add(j * NR + lane) < own);
                    let slot = self.targets.ptr().at(2 * (p * NR + lane));
                    *slot = own;
                    *slot.add(1) = if first { 1.0 } else { 0.0 };
                }
            }
        }
    }

    /// Merges the runs and appends the tokens' statistics.
    pub(crate) fn finish(&self, call: &Call<'_>, tokens: &Tokens, targets: &[u32], stats: &mut HeadStats) {
        let panels = tokens.panels();
        let size = STATS * NR;
        tasks(panels, |p| {
            // SAFETY: every run has noted its part.
            unsafe {
                let (from, to) = (self.parts.ptr().at(p * size), self.merged.ptr().at(p * size));
                merge_stats(call.isa, call.runs(), panels * size, tokens.lanes(p), from, to);
            }
        });
        for (i, &target) in targets.iter().enumerate() {
            let (p, lane) = (i / NR, i % NR);
            // SAFETY: written above and by `note`.
            let (token, own, first) = unsafe {
                let merged = std::slice::from_raw_parts(self.merged.ptr().at(p * size), size);
                let slot = self.targets.ptr().at(2 * i);
                (Token::new(merged, lane), *slot, *slot.add(1) == 1.0)
            };
            // SAFETY: statistics of earlier runs, whose first row is the maximum.
            let earlier = |r: usize| unsafe { *self.parts.ptr().at((r * panels + p) * size + lane) };
            let top1 = first && own >= token.top && (0..target as usize / call.run).all(|r| earlier(r) < own);
            stats.log_prob.push(own - token.log_z);
            stats.entropy.push(token.entropy);
            stats.log_sum_sq_probs.push(token.log_sum_sq);
            stats.mean_logit.push(token.total / call.vocab as f32);
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
    let dim = (head.weight.len() / head.out.max(1)).max(1);
    let call = Call::new(hidden, head, hidden.len() / dim, options);
    let mut out = vec![0.0; call.n * call.vocab];
    let to = Ptr(out.as_mut_ptr());
    if gemv::applies(call.n, std::slice::from_ref(head)) {
        by_dots(&call, options, &mut out);
        return out;
    }
    let low = call.pack_low();
    for rows in call.tiles() {
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
fn by_dots(call: &Call<'_>, options: &HeadOptions, out: &mut [f32]) {
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
