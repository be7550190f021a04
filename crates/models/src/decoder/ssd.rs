//! State spaces over a text: Mamba-2's duality (Dao and Gu, arXiv:2405.21060), of each head a matrix that forgets by a
//! number of each token and learns the token's value along a direction that heads of a group share, or Mamba's [`selective_scan`].

use burn::tensor::{DType, Tensor, TensorData};
use burnish_ops::{
    AnyTensor, Documents, GroupNorm, HeadSteps, Linear, LinearAttentionShape, OpsError, gated_norm,
    head_weights, split_columns,
};

use crate::Spec;
use crate::decoder::block::Walked;
use crate::decoder::layers::{NormTensors, Ssd};
use crate::decoder::queries_keys::cast;
use crate::decoder::selective_scan;
use crate::decoder::state_cache::{Behind, Scanned, StateWeights};
use crate::spec::SsdSpec;

pub(crate) type Tensors = Ssd<Linear, AnyTensor, NormTensors>;

/// What the layer gives of each token: gates `[tokens, heads * head_dim]`; values, directions in and directions out, as the convolution
/// reads them; steps of each head, before their softplus.
fn read(x: &AnyTensor, sizes: &SsdSpec) -> Result<[AnyTensor; 3], OpsError> {
    let (width, state, heads) = (sizes.width(), sizes.groups * sizes.state, sizes.heads);
    let mut x = x.clone();
    if sizes.scales != [1.0; 5] {
        let widths = [width, width, state, state, heads];
        let all: Vec<f32> = sizes.scales.iter().zip(widths).flat_map(|(s, n)| vec![*s; n]).collect();
        let data = TensorData::new(all, [1, sizes.reads()]);
        let of = x.rank::<2>()?;
        x = AnyTensor::new(of.clone() * Tensor::<2>::from_data(data, (&of.device(), of.dtype())));
    }
    let all = split_columns(&x, &[width, sizes.channels(), heads])?;
    Ok(all.try_into().expect("invariant: a piece for each width"))
}

/// Directions out are queries, those in keys, and values come first.
fn shape(sizes: &SsdSpec) -> LinearAttentionShape {
    let (width, keys) = (sizes.width(), sizes.groups * sizes.state);
    LinearAttentionShape {
        key_heads: sizes.groups,
        heads: sizes.heads,
        key_dim: sizes.state,
        value_dim: sizes.head_dim,
        columns: [width + keys, width, 0],
        delta_rule: false,
    }
}

/// The scan by what `scanned` makes of what the layer gives.
fn run(
    x: &AnyTensor,
    ssd: &Tensors,
    spec: &Spec,
    scanned: impl FnOnce(Scanned<'_>) -> Result<(AnyTensor, AnyTensor), OpsError>,
) -> Result<AnyTensor, OpsError> {
    let sizes = spec.ssd.expect("invariant: a block with a state space has its sizes");
    let [gates, convolved, by_head] = read(x, &sizes)?;
    let bias = ssd.bias.clone().expect("invariant: heads of Mamba-2 have a number that is added to steps");
    let log_rate = ssd.log_rate.clone();
    let weights = head_weights(&HeadSteps { steps: by_head, learning: None, bias, log_rate })?;
    let shape = shape(&sizes);
    let (values, out) = scanned(Scanned {
        x: &convolved,
        units: None,
        weights: StateWeights::OfHeads(&weights),
        shape: &shape,
    })?;
    let values = values.rank::<2>()?.narrow(1, 0, sizes.width());
    // What passes by the states.
    let [tokens, width] = values.dims();
    let by_head = [tokens, sizes.heads, sizes.head_dim];
    let skip = cast(ssd.skip.rank::<1>()?, DType::F32).reshape([1, sizes.heads, 1]);
    let passing = (values.reshape(by_head) * skip).reshape([tokens, width]);
    let out = AnyTensor::new(out.rank::<2>()? + passing);
    let norm = ssd.norm.as_ref().map(|norm| GroupNorm {
        group: width / sizes.groups,
        gamma: norm.gamma.clone(),
        eps: spec.norm_eps,
        before_gate: sizes.norm_before_gate,
    });
    gated_norm(&out, &gates, norm.as_ref())
}

/// What a state space walks over texts, or over each sequence's new rows.
///
/// # Shapes
/// - of Mamba-2 `[tokens, 2 * heads * head_dim + 2 * groups * state + heads]`, what the layer gives; of Mamba `[tokens, 2 * channels]`
/// - output: `[tokens, heads * head_dim]`
pub(crate) fn walk(
    walked: Walked<'_, AnyTensor>,
    ssd: &Tensors,
    spec: &Spec,
    documents: &Documents,
    behind: Behind<'_>,
) -> Result<AnyTensor, OpsError> {
    let kernel = (&ssd.kernel, ssd.kernel_bias.as_ref());
    match walked {
        Walked::Ssd(x) => run(x, ssd, spec, |scanned| match behind {
            Behind::Texts { parents } => scanned.over(kernel, documents, parents),
            Behind::Said(cache) => cache.over(scanned, kernel, documents),
        }),
        Walked::Values(x) => selective_scan::convolved(x, kernel, documents, behind),
        Walked::Selective(read) => selective_scan::scanned(&read, ssd, documents, behind),
    }
}
