//! Muon's state of one matrix, and the matrix' step in three parts: momentum, direction, update.

use std::ops::Range;

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_ops::{
    AnyTensor, Momentum, Noise, Stacked, muon_adapt, muon_apply, muon_momentum, orthogonalize, row_squares,
    scale_rows, signs,
};

use super::matrix::Matrix;
use super::options::MOMENTUM;
use crate::adam::float;
use crate::{MomentumDtype, MuonOptions, Variant};

/// What Muon keeps of a matrix.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The f32 copy of a narrower weight, as the weight lies.
    pub(crate) master: Option<AnyTensor>,
    /// As the weight lies.
    pub(crate) momentum: Option<AnyTensor>,
    /// The variant's second moment, of `[out, in]`.
    pub(crate) second: Option<AnyTensor>,
}

/// Which rows and columns of a stored matrix a piece is.
pub(crate) type RowsAndColumns = (Vec<Range<usize>>, Vec<Range<usize>>);

impl State {
    /// Moves the momentum of a piece and makes the gradient the update. `held` says which piece it is, `step` counts
    /// from 1.
    pub(crate) fn momentum(
        &mut self,
        options: &MuonOptions,
        matrix: &Matrix,
        gradient: AnyTensor,
        grad_scale: f32,
        held: impl FnOnce() -> RowsAndColumns,
        step: u64,
    ) -> AnyTensor {
        let MuonOptions { momentum: beta, nesterov, momentum_dtype, seed, .. } = *options;
        let gradient =
            if gradient.dtype() == Some(Dtype::F32) { gradient } else { gradient.cast(FloatDType::F32) };
        let before = self
            .momentum
            .take()
            .unwrap_or_else(|| zeros(&gradient, &gradient.shape(), momentum_dtype.dtype()));
        let noise = match momentum_dtype {
            MomentumDtype::F32 => Noise { stream: Stream::new(0, ""), runs: Vec::new() },
            MomentumDtype::Bf16Stochastic => {
                let (rows, columns) = held();
                Noise {
                    stream: Stream::new(seed, &format!("{}/{MOMENTUM}", matrix.name)).at(step),
                    runs: matrix.runs(&rows, &columns),
                }
            }
        };
        let (after, update) =
            muon_momentum(before, gradient, &Momentum { beta, nesterov, grad_scale }, &noise);
        self.momentum = Some(after);
        update
    }

    /// The variant's second moments and the scale, of an orthogonalised `[out, in]`.
    fn adapt(&mut self, options: &MuonOptions, matrix: &Matrix, direction: AnyTensor) -> AnyTensor {
        let MuonOptions { variant, scale, beta2, eps, .. } = *options;
        let columns = matrix.columns as f64;
        let each = |factor: &dyn Fn(Range<usize>, f64) -> Vec<f64>| -> Vec<f32> {
            let scaled = matrix.ranges().flat_map(|rows| {
                let scale = scale.factor(rows.len(), matrix.columns);
                factor(rows, scale)
            });
            scaled.map(|f| f as f32).collect()
        };
        match variant {
            Variant::Muon => {
                let factors = each(&|rows, scale| vec![scale; rows.len()]);
                scale_rows(direction, &factors)
            }
            Variant::NorMuon => {
                let shape =
                    variant.second_shape(&matrix.shape).expect("invariant: NorMuon keeps a second moment");
                let squares = row_squares(&direction);
                let mut second = match self.second.take() {
                    Some(second) => second.to_f32(),
                    None => vec![0.0; squares.len()],
                };
                for (v, square) in second.iter_mut().zip(&squares) {
                    *v = (f64::from(*v) + (1.0 - beta2) * (square / columns - f64::from(*v))) as f32;
                }
                let factors = each(&|rows, scale| {
                    let divided: Vec<f64> =
                        rows.clone().map(|i| 1.0 / (f64::from(second[i]).sqrt() + eps)).collect();
                    let (mut before, mut after) = (0.0, 0.0);
                    for (row, d) in rows.zip(&divided) {
                        before += squares[row];
                        after += squares[row] * d * d;
                    }
                    let back = scale * ratio(before, after);
                    divided.into_iter().map(|d| d * back).collect()
                });
                self.second = Some(AnyTensor::from_elements(second, &shape, &direction.device()));
                scale_rows(direction, &factors)
            }
            Variant::AdaMuon => {
                let before = row_squares(&direction);
                let second =
                    self.second.take().unwrap_or_else(|| zeros(&direction, &matrix.shape, Dtype::F32));
                let (direction, second) = muon_adapt(direction, second, beta2, eps);
                self.second = Some(second);
                let after = row_squares(&direction);
                let factors = each(&|rows, scale| {
                    let sum = |squares: &[f64]| squares[rows.clone()].iter().sum::<f64>();
                    vec![scale * ratio(sum(&before), sum(&after)); rows.len()]
                });
                scale_rows(direction, &factors)
            }
        }
    }

    /// The stored value after the update: a narrower one is the f32 master rounded.
    pub(crate) fn apply(
        &mut self,
        options: &MuonOptions,
        value: AnyTensor,
        direction: &AnyTensor,
        rate: f64,
    ) -> AnyTensor {
        let shrink = 1.0 - rate * options.weight_decay;
        match value.dtype() {
            Some(Dtype::F32) => muon_apply(value, direction, shrink, rate),
            stored => {
                let master = self.master.take().unwrap_or_else(|| value.cast(FloatDType::F32));
                drop(value);
                let master = muon_apply(master, direction, shrink, rate);
                let value = stored.map_or_else(|| master.clone(), |stored| master.cast(float(stored)));
                self.master = Some(master);
                value
            }
        }
    }
}

/// Orthogonalises whole matrices, updates as they are stored, and scales them: everything of `W`'s change but rate and
/// sign, as it is stored again.
pub(crate) fn directions(
    options: &MuonOptions,
    whole: Vec<(&Matrix, &mut State, AnyTensor)>,
) -> Vec<AnyTensor> {
    let mut stacks = Vec::with_capacity(whole.len());
    let mut of = Vec::with_capacity(whole.len());
    for (matrix, state, update) in whole {
        let update = matrix.upright(update);
        let tensor = if options.variant == Variant::AdaMuon { signs(&update) } else { update };
        stacks.push(Stacked { tensor, blocks: matrix.blocks.clone() });
        of.push((matrix, state));
    }
    let orthogonal = orthogonalize(stacks, &options.newton_schulz).expect(
        "invariant: updates are f32 and blocks make up their rows, as was checked when Muon was made",
    );
    let scaled = of.into_iter().zip(orthogonal);
    scaled
        .map(|((matrix, state), direction)| matrix.stored(state.adapt(options, matrix, direction)))
        .collect()
}

/// The factor that brings a sum of squares back; 1 for none.
fn ratio(before: f64, after: f64) -> f64 {
    if after > 0.0 { (before / after).sqrt() } else { 1.0 }
}

fn zeros(like: &AnyTensor, shape: &[usize], dtype: Dtype) -> AnyTensor {
    let elements = shape.iter().product();
    match dtype {
        Dtype::Bf16 => AnyTensor::from_elements(vec![half::bf16::ZERO; elements], shape, &like.device()),
        _ => AnyTensor::from_elements(vec![0.0_f32; elements], shape, &like.device()),
    }
}
