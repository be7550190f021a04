//! Streams beside each other (AltUp, Baykal et al., arXiv:2301.13310, as Gemma 3n has it): what stands around the blocks, and
//! what a block does on tensors with all streams of a token side by side, `[tokens, streams * hidden]`.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burnish_ops::{AnyTensor, LinearInput, OpsError};

use crate::decoder::layers::Layer;
use crate::decoder::tp_plan::Shard;
use crate::decoder::{Decoder, Linears};
use crate::spec::AltUp;
use crate::{ForwardContext, ModelError, Spec};

/// Layers between the first stream and the others.
#[derive(Clone, Debug)]
pub(crate) struct StreamLayers {
    /// What makes each of the others.
    pub(crate) into: Vec<Layer>,
    /// What each of the others gives in the end.
    pub(crate) out: Vec<Layer>,
}

/// Less is no size: as Transformers bounds it.
const LEAST_SQUARE: f32 = 1e-5;
/// Keeps the root of zero from a slope without end.
const NEARLY_ZERO: f32 = 1e-30;

fn of(spec: &Spec) -> AltUp {
    spec.altup.expect("invariant: streams beside each other have their number")
}

/// Of each token the root of the mean square, no less than that of `least`.
fn size(x: &Tensor<2>, least: f32) -> Tensor<2> {
    x.clone().powi_scalar(2).mean_dim(1).clamp_min(least).sqrt()
}

impl Decoder {
    /// All streams from the first, which the others are as large as.
    pub(crate) fn streams_of(
        &self,
        x: AnyTensor,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<AnyTensor, ModelError> {
        let Some(layers) = &self.streams else { return Ok(x) };
        let first = x.rank::<2>()?;
        let wanted = size(&first, NEARLY_ZERO);
        let mut all = vec![first];
        for layer in &layers.into {
            all.push(self.through(layer, &x, &wanted, pass, rows, linears)?);
        }
        Ok(AnyTensor::new(Tensor::cat(all, 1)))
    }

    /// The mean of all streams, each as large as the first: `[tokens, hidden]`.
    pub(crate) fn of_streams(
        &self,
        x: AnyTensor,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<AnyTensor, ModelError> {
        let Some(layers) = &self.streams else { return Ok(x) };
        let (x, hidden) = (x.rank::<2>()?, self.spec.hidden);
        let first = x.clone().narrow(1, 0, hidden);
        let wanted = size(&first, NEARLY_ZERO);
        let mut sum = first;
        for (at, layer) in layers.out.iter().enumerate() {
            let own = AnyTensor::new(x.clone().narrow(1, (at + 1) * hidden, hidden));
            sum = sum + self.through(layer, &own, &wanted, pass, rows, linears)?;
        }
        Ok(AnyTensor::new(sum / (layers.out.len() + 1) as f32))
    }

    /// A stream through a layer, made as large as is `wanted` of each token.
    fn through(
        &self,
        layer: &Layer,
        x: &AnyTensor,
        wanted: &Tensor<2>,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<Tensor<2>, ModelError> {
        let mut read = pass.read_all(&layer.indices(pass.adapters()))?.into_iter();
        let linear = layer.linear(&mut read, &pass.assembly(rows, self.compute), 0)?;
        let y = linears(&LinearInput::Plain(x.clone()), &[linear], None)?.rank::<2>()?;
        let factor = wanted.clone() / size(&y, LEAST_SQUARE);
        Ok(y * factor)
    }
}

/// The stream that the block runs on.
pub(crate) fn active(x: &AnyTensor, spec: &Spec) -> Result<AnyTensor, OpsError> {
    let AltUp { active, .. } = of(spec);
    Ok(AnyTensor::new(x.rank::<2>()?.narrow(1, active * spec.hidden, spec.hidden)))
}

/// Each stream plus a sum of all, by a token's own numbers.
///
/// # Shapes
/// - coefficients: `[tokens, streams * streams]`, by the stream that is made
pub(crate) fn predicted(x: &AnyTensor, coefficients: &AnyTensor, spec: &Spec) -> Result<AnyTensor, OpsError> {
    let AltUp { streams, .. } = of(spec);
    let x = x.rank::<2>()?;
    let [tokens, width] = x.dims();
    let apart = x.clone().reshape([tokens, streams, spec.hidden]);
    let by = coefficients.rank::<2>()?.reshape([tokens, streams, streams]);
    Ok(AnyTensor::new(x + by.matmul(apart).reshape([tokens, width])))
}

/// Each stream plus its part of what the block changed its own by.
///
/// # Shapes
/// - made: `[tokens, hidden]`, coefficients: `[tokens, streams]`, to which one is added
pub(crate) fn corrected(
    predicted: &AnyTensor,
    made: &AnyTensor,
    coefficients: &AnyTensor,
    spec: &Spec,
) -> Result<AnyTensor, OpsError> {
    let AltUp { streams, .. } = of(spec);
    let changed = made.rank::<2>()? - active(predicted, spec)?.rank::<2>()?;
    let x = predicted.rank::<2>()?;
    let [tokens, width] = x.dims();
    let by = (coefficients.rank::<2>()? + 1.0).reshape([tokens, streams, 1]);
    let parts = by * changed.reshape([tokens, 1, spec.hidden]);
    Ok(AnyTensor::new(x + parts.reshape([tokens, width])))
}

/// `y` added to every stream but the first.
pub(crate) fn added_to_others(x: &AnyTensor, y: &AnyTensor, spec: &Spec) -> Result<AnyTensor, OpsError> {
    let (x, hidden) = (x.rank::<2>()?, spec.hidden);
    let others = of(spec).streams - 1;
    let first = x.clone().narrow(1, 0, hidden);
    let rest = x.narrow(1, hidden, others * hidden) + y.rank::<2>()?.repeat_dim(1, others);
    Ok(AnyTensor::new(Tensor::cat(vec![first, rest], 1)))
}

/// Gates and ups `[tokens, 2 * width]`, of gates what is above their mean by so many standard deviations of their own. Ranks
/// that share them sum what both are made of.
pub(crate) fn cut_off(
    x: &AnyTensor,
    deviations: f32,
    spec: &Spec,
    shard: &Shard,
    what: &str,
) -> Result<AnyTensor, OpsError> {
    let x = x.rank::<2>()?;
    let own = x.dims()[1] / 2;
    let (gates, ups) = (x.clone().narrow(1, 0, own), x.narrow(1, own, own));
    let mean = |x: Tensor<2>, what: &str| -> Result<Tensor<2>, OpsError> {
        let sum = AnyTensor::new(x.sum_dim(1));
        let sum = if shard.divided() {
            shard.tp.copy_to_tp(&shard.tp.reduce_from_tp(&sum, what)?, what)?
        } else {
            sum
        };
        Ok(sum.rank::<2>()? / spec.intermediate as f32)
    };
    let apart = gates.clone() - mean(gates, &format!("{what}: mean of gates"))?;
    let square = mean(apart.clone().powi_scalar(2), &format!("{what}: deviation of gates"))?;
    let above = relu(apart - square.clamp_min(NEARLY_ZERO).sqrt() * deviations);
    Ok(AnyTensor::new(Tensor::cat(vec![above, ups], 1)))
}
