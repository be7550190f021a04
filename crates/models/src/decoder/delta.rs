//! Linear attention by the gated delta rule (Yang et al., arXiv:2412.06464): of each head a matrix that forgets, and learns
//! from each token what that differs in from what the matrix says.

use std::ops::Range;

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};
use burnish_ops::{AnyTensor, Documents, GroupNorm, LinearAttentionShape, OpsError, UnitHeads, gated_norm};

use crate::Spec;
use crate::decoder::layers::{Delta, NormTensors};
use crate::decoder::queries_keys::cast;
use crate::decoder::state_cache::{Scanned, StateCache, softplus};
use crate::spec::GatedDelta;
use crate::spec::names::DeltaNames;

/// Added to the square of a query's or key's length.
const EPS: f32 = 1e-6;

type Tensors = Delta<AnyTensor, NormTensors>;

/// What the layers give of each token, by heads of this rank.
struct Read {
    /// Queries, keys and values one after another, as the convolution reads them: `[tokens, channels]`.
    qkv: Tensor<2>,
    /// `[tokens, values]`.
    gates: Tensor<2>,
    /// How much each head learns, before its sigmoid: `[tokens, heads]`.
    learning: Tensor<2>,
    /// `[tokens, heads]`.
    forgetting: Tensor<2>,
}

impl Read {
    fn new(x: &AnyTensor, key_heads: usize, spec: &Spec, sizes: &GatedDelta) -> Result<Self, OpsError> {
        let x = x.rank::<2>()?;
        let tokens = x.dims()[0];
        let (k, v, each) = (sizes.key_dim, sizes.value_dim, sizes.each());
        let (keys, values, heads) = (key_heads * k, key_heads * each * v, key_heads * each);
        if matches!(spec.names.delta, DeltaNames::Apart(_)) {
            let part = |first: usize, width: usize| x.clone().narrow(1, first, width);
            let first = 2 * keys + values;
            return Ok(Self {
                qkv: part(0, first),
                gates: part(first, values),
                learning: part(first + values, heads),
                forgetting: part(first + values + heads, heads),
            });
        }
        let group = 2 * k + 2 * each * v;
        let of_heads = x.clone().narrow(1, 0, key_heads * group).reshape([tokens, key_heads, group]);
        let numbers = x.narrow(1, key_heads * group, 2 * heads).reshape([tokens, key_heads, 2 * each]);
        let part = |of: &Tensor<3>, first: usize, width: usize| {
            of.clone().narrow(2, first, width).reshape([tokens, key_heads * width])
        };
        let all = [(0, k), (k, k), (2 * k, each * v)].map(|(first, width)| part(&of_heads, first, width));
        Ok(Self {
            qkv: Tensor::cat(all.to_vec(), 1),
            gates: part(&of_heads, 2 * k + each * v, each * v),
            learning: part(&numbers, 0, each),
            forgetting: part(&numbers, each, each),
        })
    }
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

impl Read {
    /// How much of each token is learned, and the logarithm of what it keeps: `[tokens, heads]`, f32.
    fn weights(&self, delta: &Tensors) -> Result<[AnyTensor; 2], OpsError> {
        let rate = cast(delta.log_rate.rank::<1>()?, DType::F32).exp();
        let bias = cast(delta.bias.rank::<1>()?, DType::F32);
        let steps = cast(self.forgetting.clone(), DType::F32) + bias.unsqueeze();
        let beta = sigmoid(cast(self.learning.clone(), DType::F32));
        Ok([beta, -(softplus(steps) * rate.unsqueeze())].map(AnyTensor::new))
    }
}

/// The rule over what `scanned` makes of what the layers give.
fn run(
    x: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    scanned: impl FnOnce(Scanned<'_>) -> Result<AnyTensor, OpsError>,
) -> Result<AnyTensor, OpsError> {
    let of = spec.delta.expect("invariant: a block with a delta rule has its sizes");
    let key_heads = delta.bias.shape()[0] / of.each();
    let Sizes { shape, units } = Sizes::new(key_heads, &of);
    let read = Read::new(x, key_heads, spec, &of)?;
    let [beta, decay] = read.weights(delta)?;
    let convolved = AnyTensor::new(read.qkv);
    let out =
        scanned(Scanned { x: &convolved, units: Some(&units), decay: &decay, beta: &beta, shape: &shape })?;
    let norm = GroupNorm {
        group: shape.value_dim,
        gamma: delta.norm.gamma.clone(),
        eps: spec.norm_eps,
        before_gate: true,
    };
    gated_norm(&out, &AnyTensor::new(read.gates), Some(&norm))
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
    documents: &[Range<usize>],
) -> Result<AnyTensor, OpsError> {
    run(x, delta, spec, |scanned| cache.over(scanned, (kernel, None), documents).map(|(_, out)| out))
}
