//! The head of a rank that has some of the vocabulary's rows.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};

use super::{HEAD_CHUNK, constant, detached, host, ints, logits, of_rows, wide, with_tensors};
use crate::head::shard::{Combined, IS_FIRST, NO_PART, Part, SQUARES, SUM, TARGET, TOP, TOTAL, WEIGHTED};
use crate::head::{HeadOptions, TokenStats, VocabShard};
use crate::segment::{NoWeights, Run, segment};
use crate::{AnyTensor, Linear, OpsError, apply};

/// Every rank's parts are gathered once, for all tokens; the gradient is written down with the whole vocabulary's
/// `log Z` and entropy as constants, which it may because their own gradients are in it.
pub(super) fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: &VocabShard,
    targets: &[u32],
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    let device = hidden.device().inner();
    let own = shard.rows();
    let rows_of = |n: usize| (0..n).step_by(HEAD_CHUNK).map(move |start| start..n.min(start + HEAD_CHUNK));
    let mut parts = Vec::with_capacity(targets.len());
    for rows in rows_of(targets.len()) {
        if own.is_empty() {
            parts.extend(std::iter::repeat_n(NO_PART, rows.len()));
            continue;
        }
        let tokens = AnyTensor::new(hidden.plain().rank::<2>()?.narrow(0, rows.start, rows.len()));
        let z = logits(&tokens, &detached(&of_rows(head, rows.clone())), options)? / options.temperature;
        let z = AnyTensor::new(z).to_f32();
        for (z, &target) in z.chunks(own.len()).zip(&targets[rows]) {
            let target = own.contains(&(target as usize)).then(|| target as usize - own.start);
            parts.push(part(z, target));
        }
    }
    let Combined { stats, log_z } = shard.combine(targets, &parts, &options);
    let dtype = wide::<2>(hidden)?.dtype();
    if own.is_empty() {
        let both = [stats.log_prob.as_slice(), &stats.entropy].concat();
        let both = host(both, [2, targets.len()], &device, dtype);
        return Ok((constant(hidden, head, AnyTensor::new(both))?, stats));
    }
    let mut out = Vec::new();
    for rows in rows_of(targets.len()) {
        let tokens = AnyTensor::new(hidden.rank::<2>()?.narrow(0, rows.start, rows.len()));
        let layout = of_rows(head, rows.clone());
        let mut inputs = vec![tokens];
        inputs.extend(layout.tensors());
        let own_target =
            |&t: &u32| if own.contains(&(t as usize)) { t as i32 - own.start as i32 } else { -1 };
        let found = Arc::new(Found {
            log_prob: stats.log_prob[rows.clone()].to_vec(),
            entropy: stats.entropy[rows.clone()].to_vec(),
            log_z: log_z[rows.clone()].to_vec(),
            targets: targets[rows].iter().map(own_target).collect(),
            smoothing: f64::from(options.label_smoothing),
            vocab: shard.vocab(),
        });
        let run: Run = Arc::new(move |inputs, _| {
            let mut next = inputs[1..].iter().cloned();
            let z = logits(&inputs[0], &with_tensors(&layout, &mut next), options)? / options.temperature;
            from_logits(&AnyTensor::new(z), &found)
        });
        out.push(segment("head", &inputs, Arc::new(NoWeights), false, run)?.rank::<2>()?);
    }
    Ok((AnyTensor::new(Tensor::cat(out, 1)), stats))
}

/// What is known of a chunk's tokens.
struct Found {
    log_prob: Vec<f32>,
    entropy: Vec<f32>,
    log_z: Vec<f32>,
    /// As rows of this rank; -1 where another has it.
    targets: Vec<i32>,
    smoothing: f64,
    vocab: usize,
}

/// Log-probabilities and entropies `[2, tokens]`, as a function of this rank's logits `[tokens, rows]`:
/// `dz_j = g_lp·((1-s)·1[j=t] + s/vocab - p_j) - g_h·p_j·(log p_j + H)`.
fn from_logits(z: &AnyTensor, found: &Arc<Found>) -> Result<AnyTensor, OpsError> {
    let found = found.clone();
    apply("head", std::slice::from_ref(z), move |inputs, _| {
        let z = inputs[0].rank::<2>()?;
        let (device, dtype, [n, rows]) = (z.device(), z.dtype(), z.dims());
        let both = host([found.log_prob.as_slice(), &found.entropy].concat(), [2, n], &device, dtype);
        let gradient = move |upstream: AnyTensor| {
            let upstream: Tensor<2> = upstream.carrier().reshape([2, n]);
            let of = |row: usize| upstream.clone().narrow(0, row, 1).reshape([n, 1]);
            let column = |values: &[f32]| host(values.to_vec(), [n, 1], &device, dtype);
            let log_p = (z - column(&found.log_z)).clamp_min(-200.0);
            let p = log_p.clone().exp();
            let all: Tensor<2, Int> = Tensor::<1, Int>::arange(0..rows as i64, &device).reshape([1, rows]);
            let targets = ints(found.targets.clone(), &device).reshape([n, 1]);
            let hit = all.expand([n, rows]).equal(targets.expand([n, rows])).float().cast(dtype);
            let hit = hit * (1.0 - found.smoothing) + found.smoothing / found.vocab as f64;
            let dz = (hit - p.clone()) * of(0) - p * (log_p + column(&found.entropy)) * of(1);
            vec![Some(AnyTensor::new(dz))]
        };
        Ok((AnyTensor::new(both), Box::new(gradient)))
    })
}

fn part(z: &[f32], target: Option<usize>) -> Part {
    let mut part = NO_PART;
    let top = z.iter().fold(part[TOP], |top, &z| top.max(z));
    part[TOP] = top;
    for &z in z {
        let below = (z - top).max(-200.0);
        let e = below.exp();
        part[SUM] += e;
        part[SQUARES] += e * e;
        part[WEIGHTED] += e * below;
        part[TOTAL] += z;
    }
    if let Some(t) = target {
        part[TARGET] = z[t];
        let first = z[t] >= top && z[..t].iter().all(|&earlier| earlier < z[t]);
        part[IS_FIRST] = if first { 1.0 } else { 0.0 };
    }
    part
}
