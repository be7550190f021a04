//! Changes of layers on the tape, by methods other than factors: `W' = f(W, theta)`, for as long as the layer runs.

mod bank;
mod bases;
mod rotation;
mod rows;

use std::ops::Range;

use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burnish_core::{LinearPart, Region};
use burnish_ops::{AnyTensor, EmbeddingLowRank, Linear, LowRank, Magnitude, OpsError};
use burnish_peft::{Change, Follows, circulant};
use burnish_tp::Split;

use bank::banked;
use bases::bases;
use rotation::{of_halves, rotated, rotated_among, rotations};
use rows::rows;

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
    /// Which part of the layer this rank has, where it is divided.
    pub(crate) piece: Option<Region>,
}

/// Which of an adapter's factors lies over ranks as a parameter does; `None` of one that every rank has whole.
pub(crate) fn lies_as(follows: Follows) -> Option<LinearPart> {
    match follows {
        Follows::Outputs => Some(LinearPart::LoraB),
        Follows::Inputs => Some(LinearPart::LoraA),
        Follows::Whole => None,
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
                let product = self.mine(kronecker(next(factored[0])?, next(factored[1])?));
                reweighted(layer, &parts[0], |weight| Ok(weight + product * *scale))
            }
            Change::Circulant { block } => {
                let blocks = circulants(parts[0].rank::<3>()?, *block);
                let mine = self.mine(blocks);
                reweighted(layer, &parts[0], |weight| Ok(weight + mine))
            }
            Change::Rotation { block, terms } => {
                let turns = rotations(self.triangles(part(0)?, *block), *block, *terms)?;
                reweighted(layer, &parts[0], |weight| Ok(rotated(weight, turns)))
            }
            Change::Butterfly { block, .. } => {
                let turns = self.turns(parts[0].rank::<4>()?, *block);
                let [factors, blocks, n, _] = turns.dims();
                let turns = of_halves(turns.reshape([factors * blocks, n, n]))?;
                let scales = beside(&parts[1], &parts[0]).rank::<2>()?;
                reweighted(layer, &parts[0], |mut weight| {
                    for factor in 0..factors {
                        let own = turns.clone().narrow(0, factor * blocks, blocks);
                        weight = rotated_among(weight, own, factor);
                    }
                    Ok(weight * scales)
                })
            }
            Change::Projected => {
                let [out, input] = self.sides(&layer);
                let vector = |at: usize| parts[at].rank::<1>();
                let frozen = |at: usize| beside(&parts[at], &parts[1]).rank::<2>();
                let (a, b) = (frozen(2)?.narrow(1, 0, input), frozen(3)?.narrow(0, 0, out));
                let (a, b) = (a * vector(1)?.unsqueeze_dim(1), b * vector(0)?.unsqueeze_dim(1));
                Ok(self.within(layer, a, b, 1.0))
            }
            Change::Bases { scale } => {
                let frozen = |at: usize| beside(&parts[at], &parts[0]).rank::<3>();
                let sides = self.sides(&layer);
                let [a, b] = bases([part(0)?, part(1)?], [frozen(2)?, frozen(3)?], sides);
                Ok(self.within(layer, a, b, *scale as f32))
            }
            Change::Banked { chosen } => {
                let (of_a, of_b) = (parts[0].rank::<3>()?, parts[1].rank::<3>()?);
                let [a, b] = banked([of_a, of_b], part(2)?, *chosen);
                Ok(self.within(layer, a, b, 1.0))
            }
            Change::Singular { scale } => {
                Ok(self.inside(beside_weight(layer, part(0)? * part(2)?, part(1)?, *scale as f32)))
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

    /// This rank's part of a matrix of the layer's sides.
    fn mine(&self, whole: Tensor<2>) -> Tensor<2> {
        let Some(piece) = &self.piece else { return whole };
        let rows = lines(whole, 0, piece.ranges(0));
        lines(rows, 1, piece.ranges(1))
    }

    /// The sides of the whole layer.
    fn sides(&self, layer: &Linear) -> [usize; 2] {
        let shape = self.piece.as_ref().map_or_else(|| layer.weight.shape(), |piece| piece.shape().to_vec());
        [shape[0], shape[1]]
    }

    /// The layer with its part of `s B A` beside its weight.
    fn within(&self, layer: Linear, a: Tensor<2>, b: Tensor<2>, scale: f32) -> Linear {
        let Some(piece) = &self.piece else { return beside_weight(layer, a, b, scale) };
        let (a, b) = (lines(a, 1, piece.ranges(1)), lines(b, 0, piece.ranges(0)));
        self.inside(beside_weight(layer, a, b, scale))
    }

    /// Where the layer is divided a magnitude of one keeps what is beside its weight inside of it, whatever ranks sum of other
    /// adapters: they have addends of the gradients of what each has whole.
    fn inside(&self, mut layer: Linear) -> Linear {
        if let Some(low_rank) = layer.low_rank.as_mut().filter(|_| self.piece.is_some()) {
            let (rows, device) = (low_rank.b.shape()[0], layer.weight.plain().device());
            let one = AnyTensor::from_elements(vec![1.0_f32; rows], &[rows], &device);
            low_rank.magnitude = Some(Magnitude { value: one.clone(), norm: one });
        }
        layer
    }

    /// Of triangles `[blocks, n (n - 1) / 2]` of all columns those of this rank's; one is that of every block.
    fn triangles(&self, whole: Tensor<2>, block: usize) -> Tensor<2> {
        match self.piece.as_ref().map(|piece| piece.ranges(1)) {
            Some([columns]) if whole.dims()[0] > 1 => {
                whole.narrow(0, columns.start / block, columns.len() / block)
            }
            _ => whole,
        }
    }

    /// Of rotations `[factors, blocks, n, n]` of all columns those of this rank's.
    fn turns(&self, whole: Tensor<4>, block: usize) -> Tensor<4> {
        match self.piece.as_ref().map(|piece| piece.ranges(1)) {
            Some([columns]) => whole.narrow(1, columns.start / block, columns.len() / block),
            _ => whole,
        }
    }

    /// Whether a rank's columns can be changed without others'.
    pub(crate) fn keeps_columns(&self, columns: &Split) -> bool {
        let group = match self.change {
            Change::Butterfly { block, factors } => block << (factors - 1),
            Change::Rotation { block, .. } => block,
            _ => return true,
        };
        let fits =
            |range: &Range<usize>| range.start.is_multiple_of(group) && range.len().is_multiple_of(group);
        (0..columns.ranks())
            .all(|rank| columns.pieces(rank).len() == 1 && columns.pieces(rank).iter().all(fits))
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

/// Those lines of a tensor.
fn lines<const D: usize>(tensor: Tensor<D>, dim: usize, ranges: &[Range<usize>]) -> Tensor<D> {
    let line = |range: &Range<usize>| tensor.clone().narrow(dim, range.start, range.len());
    match ranges {
        [all] if all.len() == tensor.dims()[dim] => tensor,
        [one] => line(one),
        several => Tensor::cat(several.iter().map(line).collect(), dim),
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

/// Blocks `[n, n]` of kernels `[down, across, n]`, over the width.
fn circulants(kernels: Tensor<3>, n: usize) -> Tensor<2> {
    let ([down, across, _], device) = (kernels.dims(), kernels.device());
    let at: Vec<i64> = circulant(n).into_iter().map(|at| at as i64).collect();
    let at = Tensor::<1, Int>::from_data(TensorData::new(at, [n * n]), &device);
    let blocks = kernels.select(2, at).reshape([down, across, n, n]).swap_dims(1, 2);
    blocks.reshape([down * n, across * n]) / (across * n) as f64
}

/// `[a, c]` and `[b, d]` to `[a b, c d]`.
fn kronecker(one: Tensor<2>, two: Tensor<2>) -> Tensor<2> {
    let ([a, c], [b, d]) = (one.dims(), two.dims());
    (one.reshape([a, 1, c, 1]) * two.reshape([1, b, 1, d])).reshape([a * b, c * d])
}
