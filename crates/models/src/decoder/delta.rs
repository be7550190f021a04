//! Linear attention by the gated delta rule (Yang et al., arXiv:2412.06464): of each head a matrix that forgets, and learns
//! from each token what that differs in from what the matrix says. In Kimi Delta Attention (Kimi Team, arXiv:2510.26692) each channel
//! of a key forgets by itself.

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};
use burnish_ops::{
    AnyTensor, Documents, GroupNorm, HeadSteps, LinearAttentionShape, OpsError, UnitHeads, gated_norm,
    head_weights, rms_norm, split_columns,
};

use crate::Spec;
use crate::decoder::layers::{Delta, NormTensors};
use crate::decoder::queries_keys::cast;
use crate::decoder::state_cache::{Scanned, StateCache, StateWeights};
use crate::spec::GatedDelta;
use crate::spec::names::DeltaNames;

/// Added to the square of a query's or key's length.
const EPS: f32 = 1e-6;

type Tensors = Delta<AnyTensor, NormTensors>;

/// What the layers give of each token, by heads of this rank: queries, keys and values one after another, as the convolution reads
/// them; gates; how much each head learns, before its sigmoid; how much it forgets.
fn read(
    x: &AnyTensor,
    key_heads: usize,
    spec: &Spec,
    sizes: &GatedDelta,
) -> Result<[AnyTensor; 4], OpsError> {
    const ALL: &str = "invariant: a piece for each width";
    let (k, v, each) = (sizes.key_dim, sizes.value_dim, sizes.each());
    let (keys, values, heads) = (key_heads * k, key_heads * each * v, key_heads * each);
    if !matches!(spec.names.delta, DeltaNames::PerGroup(_)) {
        let all = split_columns(x, &[2 * keys + values, values, heads, heads])?;
        return Ok(all.try_into().expect(ALL));
    }
    let widths = [2 * keys + 2 * values, 2 * heads];
    let [of_heads, numbers] = split_columns(x, &widths)?.try_into().expect(ALL);
    // Each head's of keys stand beside each other.
    let parts = |x: AnyTensor, widths: &[usize]| -> Result<Vec<Tensor<2>>, OpsError> {
        let x = x.rank::<2>()?;
        let tokens = x.dims()[0];
        let all =
            split_columns(&AnyTensor::new(x.reshape([tokens * key_heads, widths.iter().sum()])), widths)?;
        let back = |(x, width): (AnyTensor, &usize)| Ok(x.rank::<2>()?.reshape([tokens, key_heads * width]));
        all.into_iter().zip(widths).map(back).collect()
    };
    let mut all = parts(of_heads, &[k, k, each * v, each * v])?;
    let gates = all.pop().expect(ALL);
    let [learning, forgetting] = parts(numbers, &[each; 2])?.try_into().expect(ALL);
    Ok([Tensor::cat(all, 1), gates, learning, forgetting].map(AnyTensor::new))
}

/// The rule's sizes on this rank.
struct Sizes {
    shape: LinearAttentionShape,
    units: UnitHeads,
}

impl Sizes {
    fn new(key_heads: usize, sizes: &GatedDelta) -> Self {
        let (key_dim, value_dim, keys) = (sizes.key_dim, sizes.value_dim, key_heads * sizes.key_dim);
        Self {
            shape: LinearAttentionShape {
                key_heads,
                heads: key_heads * sizes.each(),
                key_dim,
                value_dim,
                columns: [0, keys, 2 * keys],
                delta_rule: true,
            },
            units: UnitHeads {
                count: 2 * key_heads,
                head_dim: key_dim,
                scales: [(key_dim as f32).powf(-0.5), 1.0],
                eps: EPS,
            },
        }
    }
}

/// The rule whose channels forget each by itself, over what `scanned` makes of what the layers give: queries, keys and values, how much
/// each head learns, gates, how much each channel forgets.
fn run_by_channel(
    x: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    of: &GatedDelta,
    scanned: impl FnOnce(Scanned<'_>) -> Result<AnyTensor, OpsError>,
) -> Result<AnyTensor, OpsError> {
    let heads = delta.bias.shape()[0] / of.key_dim;
    let Sizes { shape, units } = Sizes::new(heads, of);
    let (keys, values) = (heads * of.key_dim, heads * of.value_dim);
    let [x, learning, gates, steps]: [AnyTensor; 4] =
        split_columns(x, &[2 * keys + values, heads, values, keys])?
            .try_into()
            .expect("invariant: a piece for each width");
    let by_head = match delta.log_rate.shape().len() {
        1 => delta.log_rate.rank::<1>()?.reshape([heads, 1]),
        _ => delta.log_rate.rank::<4>()?.reshape([heads, 1]),
    };
    let log_rate = by_head.repeat_dim(1, of.key_dim).reshape([keys]);
    let tokens = x.shape()[0];
    let decays = match of.by_channel.and_then(|decay| decay.bound) {
        Some(bound) => {
            let wide =
                |x: &AnyTensor| Ok::<_, OpsError>(cast(x.rank::<1>()?, DType::F32).unsqueeze_dim::<2>(0));
            let steps = cast(steps.rank::<2>()?, DType::F32) + wide(&delta.bias)?;
            sigmoid(steps * wide(&AnyTensor::new(log_rate))?.exp()) * bound
        }
        None => {
            let (bias, log_rate) = (delta.bias.clone(), AnyTensor::new(log_rate));
            let both = head_weights(&HeadSteps { steps, learning: None, bias, log_rate })?.rank::<2>()?;
            both.narrow(0, 0, 1).reshape([tokens, keys])
        }
    };
    let decays = AnyTensor::new(decays);
    let betas = AnyTensor::new(sigmoid(cast(learning.rank::<2>()?, DType::F32)));
    let weights = StateWeights::OfChannels([&decays, &betas]);
    let out = scanned(Scanned { x: &x, units: Some(&units), weights, shape: &shape })?;
    let rows = AnyTensor::new(out.rank::<2>()?.reshape([tokens * heads, of.value_dim]));
    let normed = rms_norm(&rows, &delta.norm.gamma, of.norm_eps.unwrap_or(spec.norm_eps))?;
    let gates = gates.rank::<2>()?;
    let dtype = gates.dtype();
    let gated = normed.rank::<2>()?.reshape([tokens, values]) * sigmoid(cast(gates, DType::F32));
    Ok(AnyTensor::new(cast(gated, dtype)))
}

/// The rule over what `scanned` makes of what the layers give.
fn run(
    x: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    scanned: impl FnOnce(Scanned<'_>) -> Result<AnyTensor, OpsError>,
) -> Result<AnyTensor, OpsError> {
    let of = spec.delta.expect("invariant: a block with a delta rule has its sizes");
    if of.by_channel.is_some() {
        return run_by_channel(x, delta, spec, &of, scanned);
    }
    let key_heads = delta.bias.shape()[0] / of.each();
    let Sizes { shape, units } = Sizes::new(key_heads, &of);
    let [x, gates, learning, forgetting] = read(x, key_heads, spec, &of)?;
    let (bias, log_rate) = (delta.bias.clone(), delta.log_rate.clone());
    let mut weights =
        head_weights(&HeadSteps { steps: forgetting, learning: Some(learning), bias, log_rate })?;
    if of.doubled {
        let both = weights.rank::<2>()?;
        let of_heads = both.dims()[1];
        let [kept, learned] = [0, 1].map(|at| both.clone().slice([at..at + 1, 0..of_heads]));
        weights = AnyTensor::new(Tensor::cat(vec![kept, learned * 2.0], 0));
    }
    let out = scanned(Scanned {
        x: &x,
        units: Some(&units),
        weights: StateWeights::OfHeads(&weights),
        shape: &shape,
    })?;
    let norm = GroupNorm {
        group: shape.value_dim,
        gamma: delta.norm.gamma.clone(),
        eps: of.norm_eps.unwrap_or(spec.norm_eps),
        before_gate: true,
    };
    gated_norm(&out, &gates, Some(&norm))
}

/// The rule over texts, each from nothing or from what the one that it continues left (`parents`, as in attention).
///
/// # Shapes
/// - x: `[tokens, _]`, what the layers give; kernel: `[channels, 1, taps]`; output: `[tokens, heads * value_dim]`
pub(crate) fn attend(
    x: &AnyTensor,
    kernel: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    documents: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    run(x, delta, spec, |scanned| scanned.over((kernel, None), documents, parents).map(|(_, out)| out))
}

/// [`attend`] of each sequence's new rows behind what it has said; plain tensors.
pub(crate) fn attend_on(
    cache: &mut StateCache,
    x: &AnyTensor,
    kernel: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    documents: &Documents,
) -> Result<AnyTensor, OpsError> {
    run(x, delta, spec, |scanned| cache.over(scanned, (kernel, None), documents).map(|(_, out)| out))
}
