//! Every fused operation as a short body of plain Burn operations under Burn's autodiff: what kernels and the bodies for
//! GPUs are tested against. For tests and checks alone (feature `reference`): nothing else runs them, and they may be
//! wasteful.
//!
//! What the bodies for GPUs do as plainly is its own reference, in f64 on the CPU: Muon, norms of adapted weights.

mod experts;
mod split_head;

pub use experts::{experts, route};

pub use crate::gpu::{
    muon_adapt, muon_apply, muon_momentum, orthogonalize, row_squares, scale_rows, squared_column_norms,
    squared_row_norms,
};

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::activation::{gelu, log_softmax, relu, silu, softmax};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};
use burnish_core::random::{dropout_bits, dropout_row, dropout_threshold};
use burnish_core::{Activation, Dtype, LinearParts};

use crate::adamw::{Adam, AdamState};
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::embedding::EmbeddingLowRank;
use crate::head::{Coefficient, HeadOptions, TokenStats, VocabShard};
use crate::linear::{Dropout, Linear, LinearInput};
use crate::magnitude::Magnitude;
use crate::segment::{NoWeights, Run, segment};
use crate::{AnyTensor, Documents, OpsError, apply};

/// At least f32, for arithmetic. The gradient stays as wide: rounding it to a 16-bit weight's dtype would lose what
/// accumulation needs.
fn wide<const D: usize>(t: &AnyTensor) -> Result<Tensor<D>, OpsError> {
    if matches!(t.dtype(), Some(Dtype::F32 | Dtype::F64)) {
        return t.rank();
    }
    apply("wide", std::slice::from_ref(t), |inputs, _| {
        Ok((inputs[0].cast(FloatDType::F32), Box::new(|upstream| vec![Some(upstream)])))
    })?
    .rank()
}

/// Host values as a tensor in the dtype of the computation.
fn host<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

fn ints(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

fn norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, eps: f32) -> Tensor<D> {
    let rstd = (x.clone().powi_scalar(2).mean_dim(D - 1) + eps).sqrt().recip();
    x * rstd * gamma.unsqueeze()
}

/// See [`crate::linears`].
pub fn linears(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    let x = match input {
        LinearInput::Plain(x) => wide::<2>(x)?,
        LinearInput::RmsNorm { x, gamma, eps } => norm(wide::<2>(x)?, wide::<1>(gamma)?, *eps),
        LinearInput::LayerNorm { x, gamma, beta, eps } => {
            layer_norm(x, gamma, beta.as_ref(), *eps)?.rank()?
        }
        LinearInput::SwiGlu(_) | LinearInput::Activated { .. } => {
            let (x, f) = (wide::<2>(input.tensor())?, input.activation());
            let (f, gated) = f.expect("invariant: both have an activation");
            let half = x.dims()[1] / 2;
            if gated {
                activated(f, x.clone().narrow(1, 0, half)) * x.narrow(1, half, half)
            } else {
                activated(f, x)
            }
        }
    };
    let mut outs = Vec::with_capacity(layers.len());
    for layer in layers {
        let weight = wide::<2>(&layer.weight)?.transpose();
        let mut y = x.clone().matmul(weight.clone());
        if let Some(l) = &layer.low_rank {
            let drops = l.dropout.as_ref().filter(|d| d.p > 0.0);
            let dropped = match drops {
                Some(d) => x.clone() * mask(d, &x),
                None => x.clone(),
            };
            let gain = l.magnitude.as_ref().map(|m| gain(m, x.dtype())).transpose()?;
            if let Some(g) = &gain {
                // PEFT's form: the base's product is scaled by g, of dropout's input only in part.
                let seen = if drops.is_some() { dropped.clone().matmul(weight) } else { y.clone() };
                y = y + seen * (g.clone() - 1.0);
            }
            let mut low = dropped.matmul(wide::<2>(&l.a)?.transpose()).matmul(wide::<2>(&l.b)?.transpose());
            if let Some(bias) = &l.b_bias {
                low = low + wide::<1>(bias)?.unsqueeze();
            }
            if let Some(g) = gain {
                low = low * g;
            }
            y = y + low * l.scale;
        }
        if let Some(bias) = &layer.bias {
            y = y + wide::<1>(bias)?.unsqueeze();
        }
        outs.push(y);
    }
    let y = Tensor::cat(outs, 1);
    Ok(AnyTensor::new(match residual {
        Some(r) => y + wide::<2>(r)?,
        None => y,
    }))
}

/// `m / norm` as a row, the norm a constant.
fn gain(m: &Magnitude, dtype: DType) -> Result<Tensor<2>, OpsError> {
    let norm = wide::<1>(&m.norm.plain())?.cast(float(dtype));
    Ok((wide::<1>(&m.value)? / norm).unsqueeze())
}

fn float(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

fn mask(d: &Dropout, x: &Tensor<2>) -> Tensor<2> {
    let [tokens, dim] = x.dims();
    let threshold = dropout_threshold(d.p);
    let keep = 1.0 / (1.0 - d.p);
    let values = d.rows.iter().take(tokens).flat_map(|&row| {
        let key = dropout_row(d.key, row);
        (0..dim as u32)
            .map(move |c| if dropout_bits(key, d.first_column + c) >= threshold { keep } else { 0.0 })
    });
    host(values.collect(), [tokens, dim], &x.device().inner(), x.dtype())
}

fn activated(f: Activation, x: Tensor<2>) -> Tensor<2> {
    match f {
        Activation::Silu => silu(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => {
            let inner =
                (x.clone() + x.clone().powi_scalar(3) * 0.044_715) * std::f64::consts::FRAC_2_PI.sqrt();
            x * (inner.tanh() + 1.0) * 0.5
        }
        Activation::Relu => relu(x),
        Activation::Relu2 => relu(x).powi_scalar(2),
    }
}

/// See [`crate::layer_norm()`].
pub fn layer_norm(
    x: &AnyTensor,
    gamma: &AnyTensor,
    beta: Option<&AnyTensor>,
    eps: f32,
) -> Result<AnyTensor, OpsError> {
    let x = wide::<2>(x)?;
    let mean = x.clone().mean_dim(1);
    let y = norm(x - mean, wide::<1>(gamma)?, eps);
    Ok(AnyTensor::new(match beta {
        Some(beta) => y + wide::<1>(beta)?.unsqueeze(),
        None => y,
    }))
}

/// See [`crate::rms_norm()`].
pub fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    Ok(AnyTensor::new(norm(wide::<2>(x)?, wide::<1>(gamma)?, eps)))
}

/// See [`crate::embedding()`].
pub fn embedding(
    ids: &Arc<Vec<u32>>,
    weight: &AnyTensor,
    low_rank: Option<&EmbeddingLowRank>,
) -> Result<AnyTensor, OpsError> {
    let device = weight.device().inner();
    let index = ints(ids.iter().map(|&i| i as i32).collect(), &device);
    let mut y = wide::<2>(weight)?.select(0, index.clone());
    if let Some(l) = low_rank {
        let t = wide::<2>(&l.a)?.transpose().select(0, index);
        y = y + t.matmul(wide::<2>(&l.b)?.transpose()) * l.scale;
        if let Some(m) = &l.magnitude {
            y = y.clone() * gain(m, y.dtype())?;
        }
    }
    Ok(AnyTensor::new(y))
}

/// See [`crate::select_rows()`].
pub fn select_rows(x: &AnyTensor, rows: &Arc<Vec<usize>>) -> Result<AnyTensor, OpsError> {
    let index = ints(rows.iter().map(|&r| r as i32).collect(), &x.device().inner());
    Ok(AnyTensor::new(wide::<2>(x)?.select(0, index)))
}

/// See [`crate::attention()`].
pub fn attention(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    documents_apart(qkv, shape, documents, rotary, norms, sinks, None)
}

/// See [`crate::attention_with_peaks()`].
pub fn attention_with_peaks(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let mut found = Vec::new();
    let out = documents_apart(qkv, shape, documents, rotary, norms, sinks, Some(&mut found))?;
    let none = || Tensor::<1>::full([shape.heads], f32::NEG_INFINITY, &out.plain().device());
    let peaks = found.into_iter().reduce(Tensor::max_pair).unwrap_or_else(none);
    Ok((out, AnyTensor::new(peaks)))
}

/// Attention of each document; the largest score of each head of each, `[heads]`, where `peaks` are wanted.
fn documents_apart(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
    mut peaks: Option<&mut Vec<Tensor<1>>>,
) -> Result<AnyTensor, OpsError> {
    let qkv = wide::<2>(qkv)?;
    let device = qkv.device().inner();
    let tokens = qkv.dims()[0];
    let width = shape.heads * shape.head_dim;
    let mut parts: Vec<Tensor<2>> = Vec::new();
    let mut order: Vec<(usize, &Range<usize>)> =
        documents.iter().enumerate().filter(|(_, d)| !d.is_empty()).collect();
    order.sort_by_key(|(_, d)| d.start);
    let mut at = 0;
    for (index, document) in order {
        if document.start > at {
            parts.push(Tensor::zeros([document.start - at, width], (&device, qkv.dtype())));
        }
        let rows = qkv.clone().slice([document.clone()]);
        let (q, mut k, mut v) = project(rows, document, shape, rotary, norms, &device)?;
        let parent = shape.parents.get(index).copied().flatten().map(|parent| &documents[parent]);
        if let Some(parent) = parent.filter(|parent| !parent.is_empty()) {
            let rows = qkv.clone().slice([parent.clone()]);
            let (_, before, values) = project(rows, parent, shape, rotary, norms, &device)?;
            (k, v) = (Tensor::cat(vec![before, k], 1), Tensor::cat(vec![values, v], 1));
        }
        parts.push(attend([q, k, v], shape, sinks, &device, peaks.as_deref_mut())?);
        at = document.end;
    }
    if at < tokens {
        parts.push(Tensor::zeros([tokens - at, width], (&device, qkv.dtype())));
    }
    Ok(AnyTensor::new(Tensor::cat(parts, 0)))
}

/// Queries, keys (both normed and rotated) and values of a document, each `[heads, rows, head_dim]`.
fn project(
    qkv: Tensor<2>,
    document: &Range<usize>,
    shape: &AttentionShape,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    device: &Device,
) -> Result<(Tensor<3>, Tensor<3>, Tensor<3>), OpsError> {
    let (n, d) = (document.len(), shape.head_dim);
    let heads = |from: usize, count: usize| -> Tensor<3> {
        qkv.clone().narrow(1, from * d, count * d).reshape([n, count, d]).swap_dims(0, 1)
    };
    let mut q = heads(0, shape.heads);
    let mut k = heads(shape.heads, shape.kv_heads);
    let v = heads(shape.heads + shape.kv_heads, shape.kv_heads);
    if let Some(norms) = norms {
        q = norm(q, wide::<1>(&norms.q)?, norms.eps);
        k = norm(k, wide::<1>(&norms.k)?, norms.eps);
    }
    if let Some(r) = rotary {
        let half = r.rotary_dim / 2;
        let rows = || r.positions[document.clone()].iter().map(|&p| p as usize * r.rotary_dim);
        let cos: Vec<f32> = rows().flat_map(|o| r.table[o..o + half].to_vec()).collect();
        let sin: Vec<f32> = rows().flat_map(|o| r.table[o + half..o + 2 * half].to_vec()).collect();
        let angle = |values| host(values, [1, n, half], device, qkv.dtype());
        let (cos, sin) = (angle(cos), angle(sin));
        let rotate = |x: Tensor<3>| {
            let (a, b) = (x.clone().narrow(2, 0, half), x.clone().narrow(2, half, half));
            let mut all =
                vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos.clone() + a * sin.clone()];
            if r.rotary_dim < d {
                all.push(x.narrow(2, r.rotary_dim, d - r.rotary_dim));
            }
            Tensor::cat(all, 2)
        };
        (q, k) = (rotate(q), rotate(k));
    }
    Ok((q, k, v))
}

/// Attention of the last `n` positions, `q`, over all `m` of a document.
fn attend(
    [q, k, v]: [Tensor<3>; 3],
    shape: &AttentionShape,
    sinks: Option<&AnyTensor>,
    device: &Device,
    peaks: Option<&mut Vec<Tensor<1>>>,
) -> Result<Tensor<2>, OpsError> {
    let ([_, n, d], m) = (q.dims(), k.dims()[1]);
    let group = shape.heads / shape.kv_heads;
    let repeat = |x: Tensor<3>| -> Tensor<3> {
        x.unsqueeze_dim::<4>(1).repeat_dim(1, group).reshape([shape.heads, m, d])
    };
    let mut scores = q.matmul(repeat(k).swap_dims(1, 2)) * shape.scale;
    let hidden: Vec<bool> = (m - n..m)
        .flat_map(|i| (0..m).map(move |j| j > i || shape.window.is_some_and(|w| i - j >= w)))
        .collect();
    let hidden: Tensor<3, Bool> = Tensor::from_data(TensorData::new(hidden, [1, n, m]), device);
    let hidden = hidden.expand([shape.heads, n, m]);
    if let Some(peaks) = peaks {
        let scores = AnyTensor::new(scores.clone()).plain().rank::<3>()?;
        let visible = |other: f32| -> Tensor<2> {
            scores.clone().mask_fill(hidden.clone(), other).reshape([shape.heads, n * m])
        };
        // Backends differ in what the maximum of a NaN is; 0 times what is not finite is NaN.
        let peak = visible(f32::NEG_INFINITY).max_dim(1) + (visible(0.0) * 0.0).sum_dim(1);
        peaks.push(peak.reshape([shape.heads]));
    }
    if let Some(cap) = shape.softcap {
        scores = (scores / cap).tanh() * cap;
    }
    if !shape.slopes.is_empty() {
        let biases = shape.slopes.iter().flat_map(|slope| {
            (m - n..m).flat_map(move |i| (0..m).map(move |j| slope * (j as f32 - i as f32)))
        });
        scores = scores.clone() + host(biases.collect(), [shape.heads, n, m], device, scores.dtype());
    }
    let mut scores = scores.mask_fill(hidden, -1e30);
    if let Some(sinks) = sinks {
        let sinks = wide::<1>(sinks)?.reshape([shape.heads, 1, 1]).expand([shape.heads, n, 1]);
        scores = Tensor::cat(vec![scores, sinks], 2);
    }
    let probabilities = softmax(scores, 2).narrow(2, 0, m);
    Ok(probabilities.matmul(repeat(v)).swap_dims(0, 1).reshape([n, shape.heads * d]))
}

/// Tokens per recomputed chunk of the head.
const HEAD_CHUNK: usize = 256;

fn logits(hidden: &AnyTensor, head: &Linear, options: HeadOptions) -> Result<Tensor<2>, OpsError> {
    let z = linears(&LinearInput::Plain(hidden.clone()), std::slice::from_ref(head), None)?;
    let mut z = z.rank::<2>()? * options.logit_scale;
    if let Some(cap) = options.softcap {
        z = (z / cap).tanh() * cap;
    }
    Ok(z)
}

/// See [`crate::head_log_probs`].
pub fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    if let Some(shard) = shard.filter(|_| !targets.is_empty()) {
        return split_head::head_log_probs(hidden, head, shard, targets, options);
    }
    let device = hidden.device().inner();
    let tokens = targets.len();
    let mut stats = TokenStats::default();
    let mut parts = Vec::new();
    for start in (0..tokens).step_by(HEAD_CHUNK) {
        let n = HEAD_CHUNK.min(tokens - start);
        let rows = AnyTensor::new(hidden.rank::<2>()?.narrow(0, start, n));
        let ids = &targets[start..start + n];
        let head = of_rows(head, start..start + n);
        let z = logits(&rows.plain(), &detached(&head), options)? / options.temperature;
        collect(&mut stats, z, ids, options.label_smoothing);
        let mut inputs = vec![rows];
        inputs.extend(head.tensors());
        let (layout, index) = (head, ids.iter().map(|&t| t as i32).collect::<Vec<_>>());
        let device = device.clone();
        let run: Run = Arc::new(move |inputs, _| {
            let mut next = inputs[1..].iter().cloned();
            let head = with_tensors(&layout, &mut next);
            let lp = log_softmax(logits(&inputs[0], &head, options)? / options.temperature, 1);
            let chosen = lp.clone().gather(1, ints(index.clone(), &device).reshape([n, 1]));
            let smoothing = f64::from(options.label_smoothing);
            let chosen = chosen * (1.0 - smoothing) + lp.clone().mean_dim(1) * smoothing;
            let entropy = (lp.clone().exp() * lp).sum_dim(1).neg();
            Ok(AnyTensor::new(Tensor::cat(vec![chosen, entropy], 1).transpose()))
        });
        parts.push(segment("head", &inputs, Arc::new(NoWeights), false, run)?.rank::<2>()?);
    }
    if parts.is_empty() {
        let none = Tensor::<2>::zeros([2, 0], (&device, wide::<2>(hidden)?.dtype()));
        return Ok((constant(hidden, head, AnyTensor::new(none))?, stats));
    }
    Ok((AnyTensor::new(Tensor::cat(parts, 1)), stats))
}

/// A constant on the tape: every input that wants a gradient gets zeros.
fn constant(hidden: &AnyTensor, head: &Linear, out: AnyTensor) -> Result<AnyTensor, OpsError> {
    let mut inputs = vec![hidden.clone()];
    inputs.extend(head.tensors());
    apply("head", &inputs, |inputs, wanted| {
        let (inputs, wanted) = (inputs.to_vec(), wanted.to_vec());
        let zeros = move |_| {
            let zero = |t: &AnyTensor| AnyTensor::new(t.carrier().zeros_like());
            inputs.iter().zip(wanted).map(|(t, w)| w.then(|| zero(t))).collect()
        };
        Ok((out, Box::new(zeros)))
    })
}

/// The head as some of the rows see it: their own dropout.
fn of_rows(head: &Linear, rows: Range<usize>) -> Linear {
    let mut head = head.clone();
    if let Some(dropout) = head.low_rank.as_mut().and_then(|l| l.dropout.as_mut()) {
        dropout.rows = Arc::new(dropout.rows[rows].to_vec());
    }
    head
}

fn detached(head: &Linear) -> Linear {
    let mut tensors = head.tensors().map(|t| t.plain());
    with_tensors(head, &mut tensors)
}

/// The linear with the same options and other tensors, in the order of [`Linear::parts`].
fn with_tensors(head: &Linear, next: &mut dyn Iterator<Item = AnyTensor>) -> Linear {
    let LinearParts { weight, bias, lora } = head.parts().fill(next);
    let low_rank = head.low_rank.as_ref().zip(lora).map(|(low, lora)| crate::LowRank {
        a: lora.a,
        b: lora.b,
        b_bias: lora.b_bias,
        magnitude: low
            .magnitude
            .as_ref()
            .zip(lora.magnitude)
            .map(|(m, value)| Magnitude { value, norm: m.norm.clone() }),
        ..low.clone()
    });
    Linear { weight, bias, low_rank, compute: head.compute }
}

fn collect(stats: &mut TokenStats, z: Tensor<2>, targets: &[u32], smoothing: f32) {
    let [_, vocab] = z.dims();
    let lp = AnyTensor::new(log_softmax(z.clone(), 1)).to_f32();
    let z = AnyTensor::new(z).to_f32();
    for ((lp, z), &target) in lp.chunks(vocab).zip(z.chunks(vocab)).zip(targets) {
        let target = target as usize;
        let mean = lp.iter().sum::<f32>() / vocab as f32;
        stats.log_prob.push((1.0 - smoothing) * lp[target] + smoothing * mean);
        stats.entropy.push(-lp.iter().map(|&l| l.exp() * l).sum::<f32>());
        stats.log_sum_sq_probs.push(lp.iter().map(|&l| (2.0 * l).exp()).sum::<f32>().ln());
        stats.mean_logit.push(z.iter().sum::<f32>() / vocab as f32);
        stats.is_top1.push(
            z.iter().enumerate().all(|(j, &l)| if j < target { l < z[target] } else { l <= z[target] }),
        );
    }
}

/// See [`crate::head_loss`].
pub fn head_loss(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    coefficient: &Coefficient,
    value: impl FnOnce(&TokenStats) -> f32,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    let dtype = wide::<2>(hidden)?.dtype();
    if targets.is_empty() {
        let stats = TokenStats::default();
        let loss = host(vec![value(&stats)], [1], &hidden.device().inner(), dtype);
        return Ok((constant(hidden, head, AnyTensor::new(loss))?, stats));
    }
    let (both, stats) = head_log_probs(hidden, head, shard, targets, options)?;
    let coefficients: Vec<f32> =
        stats.log_prob.iter().enumerate().map(|(i, &lp)| coefficient(i, lp)).collect();
    let loss = value(&stats);
    let out = apply("head_loss", &[both], move |inputs, _| {
        let device = inputs[0].device();
        let n = coefficients.len();
        let mut padded = coefficients;
        padded.resize(2 * n, 0.0);
        let gradient = host(padded, [2, n], &device, dtype);
        let loss = AnyTensor::new(host(vec![loss], [1], &device, dtype));
        Ok((
            loss,
            Box::new(move |upstream| {
                let upstream = upstream.carrier().reshape([1, 1]);
                vec![Some(AnyTensor::new(gradient * upstream))]
            }),
        ))
    })?;
    Ok((out, stats))
}

/// See [`crate::head_logits`].
pub fn head_logits(hidden: &AnyTensor, head: &Linear, options: HeadOptions) -> Result<Vec<f32>, OpsError> {
    Ok(AnyTensor::new(logits(&hidden.plain(), &detached(head), options)?).to_f32())
}

/// See [`crate::adam_step`].
#[must_use]
pub fn adam_step(
    master: AnyTensor,
    state: AdamState,
    gradient: &AnyTensor,
    h: &Adam,
) -> (AnyTensor, AdamState) {
    let (mut p, m, v) = (master.carrier(), state.exp_avg.carrier(), state.exp_avg_sq.carrier());
    let mut g = gradient.carrier() * h.grad_scale;
    if h.weight_decay != 0.0 {
        if h.decoupled {
            p = p * (1.0 - h.lr * h.weight_decay);
        } else {
            g = g + p.clone() * h.weight_decay;
        }
    }
    let m = m * h.beta1 + g.clone() * (1.0 - h.beta1);
    let v = v * h.beta2 + g.clone() * g * (1.0 - h.beta2);
    let (c1, c2) = (1.0 - h.beta1.powi(h.step as i32), 1.0 - h.beta2.powi(h.step as i32));
    let denominator = v.clone().sqrt() / c2.sqrt() + h.eps;
    let p = p - m.clone() / denominator * (h.lr / c1);
    (AnyTensor::new(p), AdamState { exp_avg: AnyTensor::new(m), exp_avg_sq: AnyTensor::new(v) })
}
