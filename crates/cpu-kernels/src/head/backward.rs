//! The head's gradients: after the fact, or in the forward pass.

use super::call::{Call, Tokens, compute, cut};
use super::forward::Found;
use super::gradient::Gradient;
use super::options::{HeadGrad, HeadStats, HeadWanted};
use super::shard::{ELSEWHERE, VocabRows, own_targets};
use super::sweep::{self, Sweep};
use super::vocab::{ENTROPY, G_ENTROPY, G_LOG_PROB, GIVEN, LOG_Z, logits_gradient};
use crate::linear::Linear;
use crate::micro::NR;
use crate::operand::{Operand, with_operand};
use crate::scratch::{Ptr, scratch};
use crate::simd::isa;
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
    with_operand!(isa(), compute(head), O => {
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
    if sweep::applies(&call, wanted) {
        for rows in call.wide_tiles() {
            let tokens = call.pack_tokens(rows.clone(), None, false);
            let given = Given::new(&tokens, &rows, stats, |row| g_log_prob[row], g_entropy);
            let turn = |p, v, z| {
                // SAFETY: the sweep's: `z` holds the run's logits.
                unsafe { given.apply_panel(&call, &tokens, &own[rows.clone()], p, v, z) };
                None
            };
            Sweep::new(&call, &tokens, turn).finish(&tokens, gradient.hidden(), |_, _| 1.0, |_| None);
        }
        return gradient.finish();
    }
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
    with_operand!(isa(), compute(head), O => fused::<O>(hidden, head, shard, targets, options, coefficient, wanted))
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
    let mut stats = HeadStats::with_capacity(call.n);
    if sweep::applies(&call, wanted) && options.label_smoothing == 0.0 {
        for rows in call.wide_tiles() {
            swept(&call, shard, (targets, &own), rows, coefficient, &mut stats, gradient.hidden());
        }
        return (stats, gradient.finish());
    }
    let low = call.pack_low();
    let buffer = call.tile_buffer();
    let (tile, stride) = (buffer.ptr(), call.vocab * NR);
    for rows in call.tiles() {
        let tokens = call.pack_tokens(rows.clone(), low.as_ref(), wanted.parts.weight);
        let found = Found::new(&call, &tokens, call.run);
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
        note_stats(&call, shard, (targets, &own), rows.clone(), &found, &tokens, &mut stats);
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

/// Appends the statistics of a tile's tokens, those of all ranks' entries where the head is split; `targets` are ids of the
/// whole vocabulary, and rows of the head.
fn note_stats<O: Operand>(
    call: &Call<'_, O>,
    shard: Option<&VocabRows<'_>>,
    (targets, own): (&[u32], &[u32]),
    rows: Range<usize>,
    found: &Found,
    tokens: &Tokens,
    stats: &mut HeadStats,
) {
    let Some(shard) = shard else { return found.finish(call, tokens, &own[rows], stats) };
    let mut parts = Vec::with_capacity(tokens.n);
    found.parts(call, tokens, &own[rows.clone()], &mut parts);
    for tile in cut(0..tokens.n, call.tile) {
        let targets = &targets[rows.start..][tile.clone()];
        stats.append((shard.combine)(targets, &parts[tile.clone()]), tile.len());
    }
}

/// [`fused`] of a wide tile without keeping its logits: sums of `e^(z - top)·row` over all entries but the target, scaled
/// when all are known. The target's own factor, `1 - p`, is made without cancellation.
fn swept<O: Operand>(
    call: &Call<'_, O>,
    shard: Option<&VocabRows<'_>>,
    targets: (&[u32], &[u32]),
    rows: Range<usize>,
    coefficient: &(dyn Fn(usize, f32) -> f32 + Sync),
    stats: &mut HeadStats,
    hidden: Ptr,
) {
    let own = &targets.1[rows.clone()];
    let tokens = call.pack_tokens(rows.clone(), None, false);
    let found = Found::new(call, &tokens, sweep::piece(call));
    // SAFETY: the sweep's: `z` holds the run's logits, and the runs of a piece come in order.
    let turn = |p, v, z| unsafe { found.note_online(call, &tokens, own, p, v, z) };
    let sweep = Sweep::new(call, &tokens, turn);
    note_stats(call, shard, targets, rows.clone(), &found, &tokens, stats);
    let (log_z, log_prob) = (&stats.log_z[rows.clone()], &stats.log_prob[rows.clone()]);
    let g: Vec<f32> = rows.zip(log_prob).map(|(row, log_prob)| coefficient(row, *log_prob)).collect();
    sweep.finish(
        &tokens,
        hidden,
        |piece, i| -g[i] * call.scaling.slope(0.0) * (found.top(&tokens, piece, i) - log_z[i]).exp(),
        |i| {
            let z = (own[i] != ELSEWHERE).then(|| found.target_logit(i))?;
            Some((own[i] as usize, g[i] * call.scaling.slope(z) * -(z - log_z[i]).exp_m1()))
        },
    );
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
        for p in 0..tokens.panels() {
            // SAFETY: the caller's.
            unsafe { self.apply_panel(call, tokens, targets, p, v.clone(), z.at(p * stride)) };
        }
    }

    /// [`Self::apply`] to one panel.
    ///
    /// # Safety
    /// `z` holds the run's logits.
    unsafe fn apply_panel<O: Operand>(
        &self,
        call: &Call<'_, O>,
        tokens: &Tokens,
        targets: &[u32],
        p: usize,
        v: Range<usize>,
        z: *mut f32,
    ) {
        let smoothing = call.options.label_smoothing;
        let spread = smoothing / call.whole as f32;
        let given = &self.lanes[p * GIVEN * NR..][..GIVEN * NR];
        let mut own = [0.0f32; NR];
        // SAFETY: the caller's.
        unsafe {
            for (lane, at) in tokens.hits(targets, p, &v) {
                let slope = call.scaling.slope(*z.add(at * NR + lane));
                own[lane] = (1.0 - smoothing) * slope * given[G_LOG_PROB + lane];
            }
            let (lanes, given) = (tokens.lanes(p), given.as_ptr());
            let (entries, entropies) = (v.len(), self.with_entropy);
            logits_gradient(call.isa, call.scaling, spread, entropies, entries, lanes, given, z);
            for (lane, at) in tokens.hits(targets, p, &v) {
                *z.add(at * NR + lane) += own[lane];
            }
        }
    }
}
