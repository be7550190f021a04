//! Mamba-2's state space duality (Dao and Gu, arXiv:2405.21060): of each head a matrix that forgets by a number of each token
//! and learns the token's value along a direction that heads of a group share. Texts are walked in chunks of tokens
//! (section 6 there): within one it is attention with decaying scores, between them the matrix.

use std::ops::Range;

use burn::tensor::activation::silu;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use burnish_ops::{AnyTensor, Linear, OpsError};

use crate::Spec;
use crate::decoder::layers::{NormTensors, Ssd};
use crate::decoder::queries_keys::cast;
use crate::decoder::recurrence::{Recurrence, StateCache, convolved, softplus};
use crate::spec::SsdSpec;

type Tensors = Ssd<Linear, AnyTensor, NormTensors>;

fn sizes(spec: &Spec) -> SsdSpec {
    spec.ssd.expect("invariant: a block with a state space has its sizes")
}

/// What the layer gives of each token.
struct Read {
    /// `[tokens, heads * head_dim]`.
    gates: Tensor<2>,
    /// Values, directions in and directions out, as the convolution reads them: `[tokens, channels]`.
    convolved: Tensor<2>,
    /// Of each head, before its softplus: `[tokens, heads]`.
    steps: Tensor<2>,
}

impl Read {
    fn new(x: &AnyTensor, sizes: &SsdSpec) -> Result<Self, OpsError> {
        let x = x.rank::<2>()?;
        let (width, state, heads) = (sizes.width(), sizes.groups * sizes.state, sizes.heads);
        let x = if sizes.scales == [1.0; 5] {
            x
        } else {
            let widths = [width, width, state, state, heads];
            let all: Vec<f32> = sizes.scales.iter().zip(widths).flat_map(|(s, n)| vec![*s; n]).collect();
            let data = TensorData::new(all, [1, sizes.reads()]);
            x.clone() * Tensor::<2>::from_data(data, (&x.device(), x.dtype()))
        };
        let channels = sizes.channels();
        Ok(Self {
            gates: x.clone().narrow(1, 0, width),
            convolved: x.clone().narrow(1, width, channels),
            steps: x.narrow(1, width + channels, heads),
        })
    }
}

/// What the scan reads, in float32.
struct Heads {
    /// `[heads, tokens, head_dim]`.
    x: Tensor<3>,
    /// Directions in, and out: `[groups, tokens, state]`.
    b: Tensor<3>,
    c: Tensor<3>,
    /// Steps, and logarithms of what is kept: `[heads, tokens, 1]`.
    steps: Tensor<3>,
    decay: Tensor<3>,
}

impl Heads {
    fn new(convolved: Tensor<2>, steps: Tensor<2>, ssd: &Tensors, sizes: &SsdSpec) -> Result<Self, OpsError> {
        let x = silu(cast(convolved, DType::F32));
        let tokens = x.dims()[0];
        let (heads, groups, n) = (sizes.heads, sizes.groups, sizes.state);
        let width = sizes.width();
        let directions = |first: usize| {
            x.clone().narrow(1, first, groups * n).reshape([tokens, groups, n]).swap_dims(0, 1)
        };
        let bias = cast(ssd.bias.rank::<1>()?, DType::F32);
        let rate = cast(ssd.log_rate.rank::<1>()?, DType::F32).exp();
        let steps = softplus(cast(steps, DType::F32) + bias.unsqueeze());
        let column = |x: Tensor<2>| x.swap_dims(0, 1).reshape([heads, tokens, 1]);
        Ok(Self {
            b: directions(width),
            c: directions(width + groups * n),
            decay: column(-(steps.clone() * rate.unsqueeze())),
            steps: column(steps),
            x: x.narrow(1, 0, width).reshape([tokens, heads, sizes.head_dim]).swap_dims(0, 1),
        })
    }

    /// `[groups, tokens, heads of a group * head_dim]` of `[heads, tokens, head_dim]`.
    fn by_group(x: Tensor<3>, groups: usize) -> Tensor<3> {
        let [heads, tokens, d] = x.dims();
        let each = heads / groups;
        x.reshape([groups, each, tokens, d]).swap_dims(1, 2).reshape([groups, tokens, each * d])
    }

    /// `[heads, tokens, head_dim]` of `[groups, tokens, heads of a group * head_dim]`.
    fn by_head(x: Tensor<3>, heads: usize) -> Tensor<3> {
        let [groups, tokens, width] = x.dims();
        let each = heads / groups;
        let d = width / each;
        x.reshape([groups, tokens, each, d]).swap_dims(1, 2).reshape([heads, tokens, d])
    }
}

impl Recurrence for Heads {
    fn part(&self, rows: &Range<usize>) -> Self {
        let part = |x: &Tensor<3>| x.clone().narrow(1, rows.start, rows.len());
        Self {
            x: part(&self.x),
            b: part(&self.b),
            c: part(&self.c),
            steps: part(&self.steps),
            decay: part(&self.decay),
        }
    }

    /// The state is `[groups, state, heads of a group * head_dim]`.
    fn chunk(self, state: Tensor<3>) -> Result<(Tensor<3>, Tensor<3>), OpsError> {
        let Self { x, b, c, steps, decay } = self;
        let ([heads, tokens, d], [groups, _, _]) = (x.dims(), b.dims());
        let (each, device) = (heads / groups, x.device());
        let upto: Vec<f32> =
            (0..tokens * tokens).map(|i| f32::from(u8::from(i % tokens <= i / tokens))).collect();
        let upto = Tensor::<3>::from_data(TensorData::new(upto, [1, tokens, tokens]), (&device, DType::F32));
        // Logarithms of what is kept from the chunk's beginning to each token; and from one token to a later one.
        let sums = upto.clone().repeat_dim(0, heads).matmul(decay);
        let later: Tensor<3, Bool> = upto.equal_elem(0.0).repeat_dim(0, heads);
        let between = sums.clone() - sums.clone().swap_dims(1, 2);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let scores = c.clone().matmul(b.clone().swap_dims(1, 2));
        let scores = scores.reshape([groups, 1, tokens, tokens]).repeat_dim(1, each);
        let scores = scores.reshape([heads, tokens, tokens]) * between;
        let learned = x * steps;
        let own = scores.matmul(learned.clone());
        let before = Self::by_head(c.matmul(state.clone()), heads) * sums.clone().exp();
        let last = sums.clone().narrow(1, tokens - 1, 1);
        let new = Self::by_group(learned * (last.clone() - sums).exp(), groups);
        let kept = Self::by_group(last.exp().repeat_dim(2, d), groups);
        Ok((own + before, state * kept + b.swap_dims(1, 2).matmul(new)))
    }

    fn empty_state(&self) -> Tensor<3> {
        let ([heads, _, d], [groups, _, n]) = (self.x.dims(), self.b.dims());
        Tensor::zeros([groups, n, heads / groups * d], (&self.x.device(), DType::F32))
    }

    fn sizes(&self) -> ([usize; 3], Device) {
        (self.x.dims(), self.x.device())
    }
}

/// What heads gave `[heads, tokens, head_dim]` and what passes by them, gated and normed: `[tokens, heads * head_dim]`.
fn gated(
    out: Tensor<3>,
    x: Tensor<3>,
    gates: Tensor<2>,
    ssd: &Tensors,
    spec: &Spec,
) -> Result<AnyTensor, OpsError> {
    let [heads, tokens, d] = out.dims();
    let (dtype, sizes) = (gates.dtype(), sizes(spec));
    let skip = cast(ssd.skip.rank::<1>()?, DType::F32).reshape([heads, 1, 1]);
    let out = (out + x * skip).swap_dims(0, 1).reshape([tokens, heads * d]);
    let gates = silu(cast(gates, DType::F32));
    let Some(norm) = &ssd.norm else { return Ok(AnyTensor::new(cast(out * gates, dtype))) };
    let gamma = cast(norm.gamma.rank::<1>()?, DType::F32);
    let of_groups = |x: Tensor<2>| {
        let x = x.reshape([tokens, sizes.groups, heads * d / sizes.groups]);
        let mean = x.clone().powi_scalar(2).mean_dim(2) + spec.norm_eps;
        (x / mean.sqrt()).reshape([tokens, heads * d]) * gamma.unsqueeze()
    };
    let all = if sizes.norm_before_gate { of_groups(out) * gates } else { of_groups(out * gates) };
    Ok(AnyTensor::new(cast(all, dtype)))
}

/// The scan over texts, each from nothing or from what the one that it continues left (`parents`, as in attention).
///
/// # Shapes
/// - x: `[tokens, 2 * heads * head_dim + 2 * groups * state + heads]`, what the layer gives
/// - output: `[tokens, heads * head_dim]`
pub(crate) fn scan(
    x: &AnyTensor,
    ssd: &Tensors,
    spec: &Spec,
    documents: &[Range<usize>],
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let sizes = sizes(spec);
    let read = Read::new(x, &sizes)?;
    let kernel = (&ssd.kernel, ssd.kernel_bias.as_ref());
    let convolved = convolved(read.convolved, kernel, documents, parents)?;
    let heads = Heads::new(convolved, read.steps, ssd, &sizes)?;
    gated(heads.over(documents, parents)?, heads.x, read.gates, ssd, spec)
}

/// [`scan`] of each sequence's new rows behind what it has said; plain tensors.
pub(crate) fn scan_on(
    cache: &mut StateCache,
    x: &AnyTensor,
    ssd: &Tensors,
    spec: &Spec,
    documents: &[Range<usize>],
) -> Result<AnyTensor, OpsError> {
    let sizes = sizes(spec);
    let read = Read::new(x, &sizes)?;
    let kernel = (&ssd.kernel, ssd.kernel_bias.as_ref());
    let convolved = cache.convolved(read.convolved, kernel, documents)?;
    let heads = Heads::new(convolved, read.steps, ssd, &sizes)?;
    gated(cache.over(&heads, documents)?, heads.x, read.gates, ssd, spec)
}
