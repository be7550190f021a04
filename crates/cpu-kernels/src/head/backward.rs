//! The head's gradients: after the fact, or in the forward pass.

use super::call::{Call, Tokens, compute};
use super::forward::Found;
use super::gradient::Gradient;
use super::options::{HeadGrad, HeadStats, HeadWanted};
use super::shard::{VocabRows, own_targets};
use super::vocab::{ENTROPY, G_ENTROPY, G_LOG_PROB, GIVEN, LOG_Z, logits_gradient};
use crate::linear::Linear;
use crate::micro::NR;
use crate::operand::{Operand, with_operand};
use crate::scratch::{Ptr, scratch};
use crate::tasks::tasks;
use burnish_core::HeadOptions;
use std::ops::Range;

/// Gradients of `Σ g_log_prob·log_prob + Σ g_entropy·entropy`.
///
/// `stats` is what [`crate::head_forward`] returned for the same arguments. Logits are computed again, tile by tile:
/// three products with a frozen head, four with a trained one; no `[tokens, vocabulary]` buffer. With a `shard` nothing
/// is combined, and the gradients of hidden states and of `A` are this rank's addends. Results do not depend on the
/// number of threads.
///
/// # Panics
/// If lengths disagree or a target lies outside the vocabulary.
#[allow(clippy::too_many_arguments, reason = "an operation, its results and its gradients")]
pub fn head_backward(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
    stats: &HeadStats,
    g_log_prob: &[f32],
    g_entropy: Option<&[f32]>,
    wanted: &HeadWanted,
) -> HeadGrad {
    with_operand!(compute(head), O => {
        backward::<O>(hidden, head, shard, targets, options, stats, g_log_prob, g_entropy, wanted)
    })
}

#[allow(clippy::too_many_arguments, reason = "an operation, its results and its gradients")]
fn backward<O: Operand>(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
    stats: &HeadStats,
    g_log_prob: &[f32],
    g_entropy: Option<&[f32]>,
    wanted: &HeadWanted,
) -> HeadGrad {
    let call = Call::<O>::new(hidden, head, shard, targets.len(), options);
    let own = own_targets(&call, targets, shard);
    let n = call.n;
    assert!(
        stats.log_z.len() == n && stats.entropy.len() == n && g_log_prob.len() == n,
        "head backward: log_z {}, entropy {} and g_log_prob {} entries, expected {n} each",
        stats.log_z.len(),
        stats.entropy.len(),
        g_log_prob.len()
    );
    assert!(
        g_entropy.is_none_or(|g| g.len() == n),
        "head backward: g_entropy has {} entries, expected {n}",
        g_entropy.map_or(0, <[f32]>::len)
    );
    let gradient = Gradient::new(&call, wanted);
    let low = call.pack_low();
    let buffer = call.tile_buffer();
    let (tile, stride) = (buffer.ptr(), call.vocab * NR);
    for rows in call.tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), wanted.parts.weight);
        let given = Given::new(&tokens, &rows, stats, |row| g_log_prob[row], g_entropy);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            let len = call.depth.a_len(v.len());
            scratch(len + gradient.kept(&tokens, v.len()), |weights| {
                // SAFETY: the scratch holds the packed entries, the tile all logits; the entries are this task's.
                unsafe {
                    let (z, kept) = (Ptr(tile.at(v.start * NR)), weights.add(len));
                    call.pack_entries(v.clone(), weights);
                    call.logits(call.scaling, &tokens, v.clone(), weights, z, stride);
                    gradient.keep(&tokens, v.len(), z, stride, kept);
                    given.apply(&call, &tokens, &own[rows.clone()], v.clone(), z, stride);
                    gradient.magnitude(&tokens, v.clone(), z, stride, kept);
                    gradient.entries(&tokens, v, z, stride);
                }
            });
        });
        gradient.inputs(&tokens, tile, stride);
    }
    gradient.finish()
}

/// Statistics, and gradients in the same pass.
///
/// `coefficient(row, log_prob)` is the derivative of the loss with respect to the row's log-probability, known as
/// soon as that is: `-1/n` for a mean negative log-likelihood, 0 for a row that does not count. The logits are
/// computed once: two products with a frozen head, three with a trained one. With a `shard` the parts of every
/// [`crate::head_tile`] tokens are combined at once, `coefficient` gets the whole vocabulary's log-probability, and the
/// gradients of hidden states and of `A` are this rank's addends. Results do not depend on the number of threads.
///
/// ```
/// use burnish_cpu_kernels::{HeadOptions, HeadWanted, Linear, Weight, head_fused};
///
/// let head = Linear { out: 2, weight: Weight::F32(&[1.0, 0.0, 0.0, 1.0]), bias: None, low_rank: None,
///     compute: Default::default() };
/// let wanted = HeadWanted { hidden: true, ..Default::default() };
/// let (stats, grad) = head_fused(&[0.0, 0.0], &head, None, &[1], &HeadOptions::default(), &|_, _| -1.0, &wanted);
/// assert!((stats.log_prob[0] + 2f32.ln()).abs() < 1e-6);
/// assert_eq!(grad.hidden, Some(vec![0.5, -0.5]));
/// ```
///
/// # Panics
/// If lengths disagree or a target lies outside the vocabulary.
pub fn head_fused(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
    coefficient: &(dyn Fn(usize, f32) -> f32 + Sync),
    wanted: &HeadWanted,
) -> (HeadStats, HeadGrad) {
    with_operand!(compute(head), O => fused::<O>(hidden, head, shard, targets, options, coefficient, wanted))
}

fn fused<O: Operand>(
    hidden: &[f32],
    head: &Linear<'_>,
    shard: Option<&VocabRows<'_>>,
    targets: &[u32],
    options: &HeadOptions,
    coefficient: &(dyn Fn(usize, f32) -> f32 + Sync),
    wanted: &HeadWanted,
) -> (HeadStats, HeadGrad) {
    let call = Call::<O>::new(hidden, head, shard, targets.len(), options);
    let own = own_targets(&call, targets, shard);
    let gradient = Gradient::new(&call, wanted);
    let low = call.pack_low();
    let buffer = call.tile_buffer();
    let (tile, stride) = (buffer.ptr(), call.vocab * NR);
    let mut stats = HeadStats::with_capacity(call.n);
    for rows in call.tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), wanted.parts.weight);
        let found = Found::new(&call, &tokens);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            scratch(call.depth.a_len(v.len()), |weights| {
                // SAFETY: the scratch holds the packed entries, the tile all logits; the entries are this task's.
                unsafe {
                    let z = Ptr(tile.at(v.start * NR));
                    call.pack_entries(v.clone(), weights);
                    call.logits(call.scaling, &tokens, v.clone(), weights, z, stride);
                    found.note(&call, &tokens, &own[rows.clone()], v, z, stride);
                }
            });
        });
        match shard {
            None => found.finish(&call, &tokens, &own[rows.clone()], &mut stats),
            Some(s) => {
                let mut parts = Vec::with_capacity(tokens.n);
                found.parts(&call, &tokens, &own[rows.clone()], &mut parts);
                stats.append((s.combine)(&targets[rows.clone()], &parts), tokens.n);
            }
        }
        let given = Given::new(&tokens, &rows, &stats, |row| coefficient(row, stats.log_prob[row]), None);
        tasks(call.runs(), |r| {
            let v = call.entries(r);
            // SAFETY: as above.
            scratch(gradient.kept(&tokens, v.len()), |kept| unsafe {
                let z = Ptr(tile.at(v.start * NR));
                gradient.keep(&tokens, v.len(), z, stride, kept);
                given.apply(&call, &tokens, &own[rows.clone()], v.clone(), z, stride);
                gradient.magnitude(&tokens, v.clone(), z, stride, kept);
                gradient.entries(&tokens, v, z, stride);
            });
        });
        gradient.inputs(&tokens, tile, stride);
    }
    (stats, gradient.finish())
}

/// What the logits' gradient needs of each token of a tile, by panel.
struct Given {
    lanes: Vec<f32>,
    with_entropy: bool,
}

impl Given {
    fn new(
        tokens: &Tokens,
        rows: &Range<usize>,
        stats: &HeadStats,
        g_log_prob: impl Fn(usize) -> f32,
        g_entropy: Option<&[f32]>,
    ) -> Self {
        let mut lanes = vec![0.0; tokens.panels() * GIVEN * NR];
        for (i, row) in rows.clone().enumerate() {
            let to = &mut lanes[i / NR * GIVEN * NR + i % NR..];
            to[LOG_Z] = stats.log_z[row];
            to[G_LOG_PROB] = g_log_prob(row);
            to[G_ENTROPY] = g_entropy.map_or(0.0, |g| g[row]);
            to[ENTROPY] = stats.entropy[row];
        }
        Self { lanes, with_entropy: g_entropy.is_some() }
    }

    /// Logits of entries `v` (a run) to their gradients, in place.
    ///
    /// # Safety
    /// `z` holds the run's logits, panels `stride` apart.
    unsafe fn apply<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        v: Range<usize>,
        z: Ptr,
        stride: usize,
    ) {
        let smoothing = call.options.label_smoothing;
        let spread = smoothing / call.whole as f32;
        for p in 0..tokens.panels() {
            let given = &self.lanes[p * GIVEN * NR..][..GIVEN * NR];
            // SAFETY: the caller's.
            unsafe {
                let z = z.at(p * stride);
                let mut own = [0.0f32; NR];
                let hit = |lane: usize| {
                    let target = targets[p * NR + lane] as usize;
                    v.contains(&target).then(|| z.add((target - v.start) * NR + lane))
                };
                for (lane, own) in own.iter_mut().enumerate().take(tokens.count(p)) {
                    if let Some(at) = hit(lane) {
                        *own = (1.0 - smoothing) * call.scaling.slope(*at) * given[G_LOG_PROB + lane];
                    }
                }
                let lanes = tokens.lanes(p);
                let (entries, entropies, given) = (v.len(), self.with_entropy, given.as_ptr());
                logits_gradient(call.isa, call.scaling, spread, entropies, entries, lanes, given, z);
                for (lane, own) in own.iter().enumerate().take(tokens.count(p)) {
                    if let Some(at) = hit(lane) {
                        *at += own;
                    }
                }
            }
        }
    }
}
