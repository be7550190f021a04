//! The log-probability head on CPU kernels.

use std::sync::Arc;

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use super::linear::LinearView;
use crate::head::shard::Combined;
use crate::head::{Coefficient, HeadOptions, TokenStats, VocabShard};
use crate::{AnyTensor, Linear, OpsError, apply};

const OP: &str = "head";

fn stats(s: &kernels::HeadStats) -> TokenStats {
    TokenStats {
        log_prob: s.log_prob.clone(),
        entropy: s.entropy.clone(),
        log_sum_sq_probs: s.log_sum_sq_probs.clone(),
        mean_logit: s.mean_logit.clone(),
        is_top1: s.is_top1.clone(),
    }
}

/// Runs `work` with the kernels' view of a shard.
fn with_rows<R>(
    shard: Option<&VocabShard>,
    options: &HeadOptions,
    work: impl FnOnce(Option<&kernels::VocabRows<'_>>) -> R,
) -> R {
    let Some(shard) = shard else { return work(None) };
    let combine = |targets: &[u32], parts: &[kernels::VocabPart]| {
        let parts: Vec<_> = parts
            .iter()
            .map(|p| {
                let first = if p.target_is_first { 1.0 } else { 0.0 };
                [p.top, p.sum, p.squares, p.weighted, p.total, p.target, first]
            })
            .collect();
        let Combined { stats, log_z } = shard.combine(targets, &parts, options);
        kernels::HeadStats {
            log_prob: stats.log_prob,
            entropy: stats.entropy,
            log_sum_sq_probs: stats.log_sum_sq_probs,
            mean_logit: stats.mean_logit,
            log_z,
            is_top1: stats.is_top1,
        }
    };
    work(Some(&kernels::VocabRows {
        first: shard.rows().start,
        vocab: shard.vocab(),
        widest: shard.widest(),
        combine: &combine,
    }))
}

struct View {
    tokens: usize,
    dim: usize,
    hidden: Host,
    head: LinearView,
}

impl View {
    fn new(hidden: &AnyTensor, head: &Linear) -> Result<Self, OpsError> {
        let [tokens, dim] = crate::check::matrix(hidden)?;
        Ok(Self {
            tokens,
            dim,
            hidden: Host::f32_of(OP, "hidden", hidden)?,
            head: LinearView::new(OP, head)?,
        })
    }

    /// The gradients as tensors, in the inputs' order, times `factor`.
    fn gradients(&self, grad: kernels::HeadGrad, factor: f32) -> Vec<Option<AnyTensor>> {
        let scaled = |gradient: Option<Vec<f32>>| {
            gradient.map(|mut gradient| {
                if factor != 1.0 {
                    kernels::scale(&mut gradient, factor);
                }
                gradient
            })
        };
        let mut all = vec![scaled(grad.hidden).map(|gradient| tensor(gradient, &[self.tokens, self.dim]))];
        all.extend(self.head.gradients(grad.parts.map(|_, gradient| scaled(gradient))));
        all
    }
}

/// Which gradients the tape wants, in the order of [`inputs`].
fn asked(head: &Linear, wanted: &[bool]) -> kernels::HeadWanted {
    let mut wanted = wanted.iter().copied();
    kernels::HeadWanted { hidden: wanted.next().unwrap_or(false), parts: head.parts().fill(&mut wanted) }
}

/// The head for Burn's operations, which multiply in the weight's dtype: here as kernels do, in f32. The gradient stays as
/// wide.
fn widened(head: &Linear) -> Result<Linear, OpsError> {
    if !matches!(head.weight.dtype(), Some(Dtype::Bf16 | Dtype::F16)) {
        return Ok(head.clone());
    }
    let weight = apply(OP, std::slice::from_ref(&head.weight), |inputs, _| {
        Ok((inputs[0].cast(FloatDType::F32), Box::new(|upstream| vec![Some(upstream)])))
    })?;
    Ok(Linear { weight, ..head.clone() })
}

/// Whether kernels make the gradients. A magnitude together with a bias, a soft cap, dropout or a zero is left to Burn's
/// operations: no model has one. So is any magnitude of a split head: a rank may have the zero that another has not,
/// and all are to exchange alike.
fn has_kernel(head: &Linear, shard: Option<&VocabShard>, options: HeadOptions) -> Result<bool, OpsError> {
    let Some(low) = &head.low_rank else { return Ok(true) };
    let Some(magnitude) = &low.magnitude else { return Ok(true) };
    if shard.is_some() {
        return Ok(false);
    }
    let drops = low.dropout.as_ref().is_some_and(|d| d.p > 0.0);
    let value = Host::f32_of(OP, "lora_magnitude_vector", &magnitude.value)?;
    let zero = value.f32().contains(&0.0) || options.logit_scale == 0.0;
    Ok(!(drops || zero || options.softcap.is_some() || head.bias.is_some()))
}

fn inputs(hidden: &AnyTensor, head: &Linear) -> Vec<AnyTensor> {
    let mut all = vec![hidden.clone()];
    all.extend(head.tensors());
    all
}

pub(crate) fn head_loss(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    coefficient: &Coefficient,
    value: impl FnOnce(&TokenStats) -> f32,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    if targets.is_empty() || !has_kernel(head, shard, options)? {
        return crate::gpu::head_loss(hidden, &widened(head)?, shard, targets, options, coefficient, value);
    }
    let mut out_stats = TokenStats::default();
    let loss = apply(OP, &inputs(hidden, head), |_, wanted| {
        let view = View::new(hidden, head)?;
        let ask = asked(head, wanted);
        let (x, kernel) = (view.hidden.f32(), view.head.kernel());
        let (found, grad) = with_rows(shard, &options, |rows| {
            if !wanted.contains(&true) {
                return (kernels::head_forward(x, &kernel, rows, targets, &options), None);
            }
            let coefficient = |row, lp| coefficient(row, lp);
            let (s, g) = kernels::head_fused(x, &kernel, rows, targets, &options, &coefficient, &ask);
            (s, Some(g))
        });
        out_stats = stats(&found);
        let loss = tensor(vec![value(&out_stats)], &[1]);
        let backward = Box::new(move |upstream: AnyTensor| {
            let factor = upstream.to_f32()[0];
            view.gradients(grad.expect("invariant: recorded only when wanted"), factor)
        });
        Ok((loss, backward))
    })?;
    Ok((loss, out_stats))
}

pub(crate) fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    if targets.is_empty() || !has_kernel(head, shard, options)? {
        return crate::gpu::head_log_probs(hidden, &widened(head)?, shard, targets, options);
    }
    let mut out_stats = TokenStats::default();
    let out = apply(OP, &inputs(hidden, head), |_, wanted| {
        let view = View::new(hidden, head)?;
        let ask = asked(head, wanted);
        let found = with_rows(shard, &options, |rows| {
            kernels::head_forward(view.hidden.f32(), &view.head.kernel(), rows, targets, &options)
        });
        out_stats = stats(&found);
        let mut both = found.log_prob.clone();
        both.extend_from_slice(&found.entropy);
        let y = tensor(both, &[2, view.tokens]);
        let (targets, shard) = (targets.clone(), shard.cloned());
        let backward = Box::new(move |upstream: AnyTensor| {
            let g = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (log_prob, entropy) = g.f32().split_at(view.tokens);
            let entropy = entropy.iter().any(|&e| e != 0.0).then_some(entropy);
            let (x, kernel) = (view.hidden.f32(), view.head.kernel());
            let grad = with_rows(shard.as_ref(), &options, |rows| {
                kernels::head_backward(x, &kernel, rows, &targets, &options, &found, log_prob, entropy, &ask)
            });
            view.gradients(grad, 1.0)
        });
        Ok((y, backward))
    })?;
    Ok((out, out_stats))
}

pub(crate) fn head_logits(
    hidden: &AnyTensor,
    head: &Linear,
    options: HeadOptions,
) -> Result<Vec<f32>, OpsError> {
    if !has_kernel(head, None, options)? {
        return crate::gpu::head_logits(hidden, &widened(head)?, options);
    }
    let view = View::new(hidden, head)?;
    Ok(kernels::head_logits(view.hidden.f32(), &view.head.kernel(), &options))
}
