//! Changes of layers on the tape, by methods other than factors: `W' = f(W, theta)`, for as long as the layer runs.

use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burnish_core::LinearPart;
use burnish_ops::{AnyTensor, EmbeddingLowRank, Linear, LowRank, Magnitude, OpsError, apply};
use burnish_peft::{Change, Follows, inverse, neumann};

/// What is made of a layer: from which parameters of the registry, and how.
#[derive(Clone, Debug)]
pub(crate) struct LayerChange {
    /// The parameters' indices, in the order of [`Change`].
    pub(crate) indices: Vec<usize>,
    /// How each lies over ranks.
    pub(crate) follows: Vec<Follows>,
    pub(crate) change: Change,
    /// The module, by which dropout is named.
    pub(crate) site: String,
    /// Probability of dropping an element of what a change beside the weight reads.
    pub(crate) dropout: f32,
}

/// Which of an adapter's factors lies over ranks as a parameter does; `None` of one that no rank can share.
pub(crate) fn lies_as(follows: Follows) -> Option<LinearPart> {
    match follows {
        Follows::Outputs => Some(LinearPart::LoraB),
        Follows::Inputs => Some(LinearPart::LoraA),
        Follows::Whole | Follows::Nothing => None,
    }
}

impl LayerChange {
    /// The layer that `parts` make of this one, of whose rows the first is `first`.
    pub(crate) fn apply(&self, layer: Linear, parts: &[AnyTensor], first: usize) -> Result<Linear, OpsError> {
        let part = |at: usize| parts[at].rank::<2>();
        match &self.change {
            Change::ScaledOutputs => scaled_outputs(layer, &parts[0]),
            Change::ScaledInputs => {
                let columns = part(0)?;
                reweighted(layer, &parts[0], |weight| Ok(weight * columns))
            }
            Change::Rows(ids) => rows(layer, &parts[0], ids, first),
            Change::Hadamard { scale } => {
                let products = part(0)?.matmul(part(1)?) * part(2)?.matmul(part(3)?);
                reweighted(layer, &parts[0], |weight| Ok(weight + products * *scale))
            }
            Change::Kronecker { scale, factored } => {
                let mut at = 0;
                let mut next = |product: bool| {
                    at += if product { 2 } else { 1 };
                    if product { Ok(part(at - 2)?.matmul(part(at - 1)?)) } else { part(at - 1) }
                };
                let product = kronecker(next(factored[0])?, next(factored[1])?);
                reweighted(layer, &parts[0], |weight| Ok(weight + product * *scale))
            }
            Change::Rotation { block, terms } => {
                let turns = rotations(part(0)?, *block, *terms)?;
                reweighted(layer, &parts[0], |weight| Ok(rotated(weight, turns)))
            }
            Change::Projected => {
                let (out, input) = (layer.weight.shape()[0], layer.weight.shape()[1]);
                let vector = |at: usize| parts[at].rank::<1>();
                let frozen = |at: usize| beside(&parts[at], &parts[1]).rank::<2>();
                let (a, b) = (frozen(2)?.narrow(1, 0, input), frozen(3)?.narrow(0, 0, out));
                Ok(beside_weight(
                    layer,
                    a * vector(1)?.unsqueeze_dim(1),
                    b * vector(0)?.unsqueeze_dim(1),
                    1.0,
                ))
            }
            Change::Singular { scale } => {
                Ok(beside_weight(layer, part(0)? * part(2)?, part(1)?, *scale as f32))
            }
        }
    }

    /// The embedding that `parts` make, of whose rows the first is `first`: its weight, and what is added to it.
    pub(crate) fn embedding(
        &self,
        weight: AnyTensor,
        parts: &[AnyTensor],
        first: usize,
    ) -> Result<(AnyTensor, Option<EmbeddingLowRank>), OpsError> {
        let layer = rows(Linear::new(weight), &parts[0], self.rows(), first)?;
        let turned = |t: &AnyTensor| Ok::<_, OpsError>(AnyTensor::new(t.rank::<2>()?.transpose()));
        let low_rank = match &layer.low_rank {
            Some(low) => Some(EmbeddingLowRank {
                a: turned(&low.b)?,
                b: turned(&low.a)?,
                scale: low.scale,
                magnitude: None,
            }),
            None => None,
        };
        Ok((layer.weight, low_rank))
    }

    /// The rows that train, where rows do.
    pub(crate) fn rows(&self) -> &[usize] {
        if let Change::Rows(ids) = &self.change { ids } else { &[] }
    }

    /// Whether outputs are multiplied by what trains.
    pub(crate) fn scales_outputs(&self) -> bool {
        self.change == Change::ScaledOutputs
    }
}

/// A tensor where a tracked one can meet it: on its device of autodiff, where it is frozen itself.
pub(crate) fn beside(own: &AnyTensor, other: &AnyTensor) -> AnyTensor {
    if other.is_tracked() && !own.is_tracked() { own.untracked() } else { own.clone() }
}

/// The layer with what `make` gives of its weight in f32, which will meet `part`.
fn reweighted(
    layer: Linear,
    part: &AnyTensor,
    make: impl FnOnce(Tensor<2>) -> Result<Tensor<2>, OpsError>,
) -> Result<Linear, OpsError> {
    let weight = beside(&layer.weight, part).rank::<2>()?.cast(FloatDType::F32);
    Ok(Linear { weight: AnyTensor::new(make(weight)?), ..layer })
}

/// The layer with `s B A` beside its weight.
fn beside_weight(layer: Linear, a: Tensor<2>, b: Tensor<2>, scale: f32) -> Linear {
    let (a, b) = (AnyTensor::new(a), AnyTensor::new(b));
    Linear { low_rank: Some(LowRank { a, b, b_bias: None, scale, dropout: None, magnitude: None }), ..layer }
}

/// `l (W x + b)`: as a magnitude over a norm of one scales outputs, so that the weight may rest in fewer bits.
fn scaled_outputs(layer: Linear, vector: &AnyTensor) -> Result<Linear, OpsError> {
    let Linear { weight, bias, compute, .. } = layer;
    let (out, input, device) = (weight.shape()[0], weight.shape()[1], weight.device());
    let value = vector.rank::<2>()?.reshape([out]);
    let bias = match bias {
        Some(bias) => Some(AnyTensor::new(beside(&bias, vector).rank::<1>()? * value.clone())),
        None => None,
    };
    let zeros =
        |shape: [usize; 2]| AnyTensor::from_elements(vec![0.0_f32; shape[0] * shape[1]], &shape, &device);
    let norm = AnyTensor::from_elements(vec![1.0_f32; out], &[out], &device);
    let low_rank = Some(LowRank {
        a: zeros([1, input]),
        b: zeros([out, 1]),
        b_bias: None,
        scale: 1.0,
        dropout: None,
        magnitude: Some(Magnitude { value: AnyTensor::new(value), norm }),
    });
    Ok(Linear { weight, bias, low_rank, compute })
}

/// The layer whose rows `ids` (of a whole whose row `first` is this one's first) are `delta`'s: `W + E (delta - W[ids])`
/// with a one in row `ids[k]` and column `k` of `E`, so that neither a copy of the table nor a gradient of its size is
/// made.
fn rows(layer: Linear, delta: &AnyTensor, ids: &[usize], first: usize) -> Result<Linear, OpsError> {
    let (height, device) = (layer.weight.shape()[0], layer.weight.plain().device());
    let own = |id: &usize| id.checked_sub(first).filter(|row| *row < height);
    let mut ones = vec![0.0_f32; height * ids.len()];
    for (column, row) in ids.iter().enumerate().filter_map(|(k, id)| Some((k, own(id)?))) {
        ones[row * ids.len() + column] = 1.0;
    }
    // Of rows that other ranks have any will do.
    let at: Vec<i64> = ids.iter().map(|id| own(id).unwrap_or(0) as i64).collect();
    let frozen = beside(&layer.weight, delta).rank::<2>()?;
    let at = Tensor::<1, Int>::from_data(TensorData::new(at, [ids.len()]), &frozen.device());
    let replaced = frozen.select(0, at).cast(FloatDType::F32);
    let low_rank = Some(LowRank {
        a: AnyTensor::new(delta.rank::<2>()? - replaced),
        b: AnyTensor::from_elements(ones, &[height, ids.len()], &device),
        b_bias: None,
        scale: 1.0,
        dropout: None,
        magnitude: None,
    });
    Ok(Linear { low_rank, ..layer })
}

/// `[a, c]` and `[b, d]` to `[a b, c d]`.
fn kronecker(one: Tensor<2>, two: Tensor<2>) -> Tensor<2> {
    let ([a, c], [b, d]) = (one.dims(), two.dims());
    (one.reshape([a, 1, c, 1]) * two.reshape([1, b, 1, d])).reshape([a * b, c * d])
}

/// The orthogonal matrices `[blocks, n, n]` of triangles `[blocks, n (n - 1) / 2]`.
fn rotations(triangles: Tensor<2>, n: usize, terms: Option<usize>) -> Result<Tensor<3>, OpsError> {
    let ([blocks, _], device) = (triangles.dims(), triangles.device());
    let (mut from, mut signs) = (vec![0_i64; n * n], vec![0.0_f32; n * n]);
    let pairs = (0..n).flat_map(|row| (row + 1..n).map(move |column| (row, column)));
    for (at, (row, column)) in pairs.enumerate() {
        (from[row * n + column], signs[row * n + column]) = (at as i64, 1.0);
        (from[column * n + row], signs[column * n + row]) = (at as i64, -1.0);
    }
    let from = Tensor::<1, Int>::from_data(TensorData::new(from, [n * n]), &device);
    let signs = Tensor::<2>::from_data(TensorData::new(signs, [1, n * n]), &device);
    let skew = (triangles.select(1, from) * signs).reshape([blocks, n, n]);
    let unit: Tensor<3> = Tensor::<2>::eye(n, &device).unsqueeze_dim(0);
    let Some(coefficients) = terms.map(neumann) else {
        return Ok(inverses(skew + unit.clone())? * 2.0 - unit);
    };
    let (mut sum, mut power) = (unit.repeat_dim(0, blocks), None::<Tensor<3>>);
    for coefficient in coefficients {
        let next = match power {
            Some(power) => power.matmul(skew.clone()),
            None => skew.clone(),
        };
        sum = sum + next.clone() * coefficient;
        power = Some(next);
    }
    Ok(sum)
}

/// The inverses of matrices `[count, n, n]`, made on the host in f64.
fn inverses(matrices: Tensor<3>) -> Result<Tensor<3>, OpsError> {
    let inverses = apply("inverses", &[AnyTensor::new(matrices)], |plain, _| {
        let shape = plain[0].shape();
        let (each, n) = (shape[1] * shape[2], shape[1]);
        let values = plain[0].to_f32();
        let wide = |block: &[f32]| block.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let inverted = values.chunks_exact(each.max(1)).flat_map(|block| inverse(wide(block), n));
        let out: Vec<f32> = inverted.map(|x| x as f32).collect();
        let out = AnyTensor::from_elements(out, &shape, &plain[0].device());
        let turned = out.rank::<3>()?.swap_dims(1, 2);
        // d(X^-1) = -X^-1 dX X^-1.
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank::<3>().expect("invariant: of the rank of the output");
            vec![Some(AnyTensor::new(turned.clone().matmul(upstream).matmul(turned).neg()))]
        };
        Ok((out, Box::new(backward)))
    })?;
    inverses.rank::<3>()
}

/// `W R^T`, block by block; one `R` turns all blocks.
fn rotated(weight: Tensor<2>, turns: Tensor<3>) -> Tensor<2> {
    let ([out, input], [blocks, n, _]) = (weight.dims(), turns.dims());
    let turned = turns.swap_dims(1, 2);
    if blocks == 1 {
        return weight.reshape([out * input / n, n]).matmul(turned.reshape([n, n])).reshape([out, input]);
    }
    let parts = weight.reshape([out, blocks, n]).swap_dims(0, 1);
    parts.matmul(turned).swap_dims(0, 1).reshape([out, input])
}
