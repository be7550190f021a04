//! Muon over named logical matrices, which may lie in pieces over ranks.

mod matrix;
mod options;

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use burnish_core::random::Stream;
use burnish_core::{Dtype, Registry, Role};
use burnish_ops::{
    AnyTensor, Momentum, Noise, Stacked, muon_adapt, muon_apply, muon_momentum, orthogonalize, row_squares,
    scale_rows, signs,
};

use crate::adamw::float;
use crate::{Assembly, Declared, Held, Masters, OptimError, SlotTensor};
use matrix::Matrix;
use options::{MASTER, MOMENTUM, SECOND};
pub use options::{MomentumDtype, MuonOptions, Scale, Variant};

/// Muon (Jordan et al. 2024) over the matrices that [`MuonOptions::takes`]; a half of [`Optimizer`](crate::Optimizer).
///
/// ```text
/// M <- M + (1 - momentum) (G - M)
/// U <- nesterov ? G + momentum (M - G) : M
/// O <- Newton–Schulz of U (or of its signs), made adaptive by the variant
/// W <- W (1 - rate weight_decay) - rate scale(fan_out, fan_in) O
/// ```
///
/// The first two lines and the last one are done where the elements lie, the third where the whole matrix is.
#[derive(Debug)]
pub(crate) struct Muon {
    options: MuonOptions,
    matrices: BTreeMap<usize, Entry>,
}

#[derive(Debug)]
struct Entry {
    matrix: Matrix,
    /// Of what this rank updates.
    local: Vec<usize>,
    /// Whether this rank orthogonalises it.
    owned: bool,
    state: State,
}

/// What it keeps of a matrix.
#[derive(Debug, Default)]
struct State {
    master: Option<AnyTensor>,
    momentum: Option<AnyTensor>,
    second: Option<AnyTensor>,
}

/// State that fits and is not taken yet.
pub(crate) struct Restored(BTreeMap<usize, State>);

impl Muon {
    pub(crate) fn new(
        local: &Registry,
        global: &Registry,
        options: MuonOptions,
        owned: &dyn Fn(usize) -> bool,
    ) -> Result<Self, OptimError> {
        options.check()?;
        let mut matrices = BTreeMap::new();
        for (index, parameter) in global.iter().enumerate().filter(|(_, p)| options.takes(p)) {
            let matrix = Matrix::of(parameter)?;
            let local = local.at(index).shape.clone();
            matrices.insert(index, Entry { matrix, local, owned: owned(index), state: State::default() });
        }
        if matrices.is_empty() {
            return Err(OptimError::NothingForMuon {
                trained: global.trainable().count(),
                adapters: global
                    .trainable()
                    .filter(|p| p.role == Role::Adapter && p.shape.len() == 2)
                    .count(),
            });
        }
        Ok(Self { options, matrices })
    }

    pub(crate) fn options(&self) -> &MuonOptions {
        &self.options
    }

    pub(crate) fn takes(&self, index: usize) -> bool {
        self.matrices.contains_key(&index)
    }

    /// Step `step` (from 1); returns how many parameters were updated and how many matrices orthogonalised here.
    pub(crate) fn step<E>(
        &mut self,
        mut gradients: Vec<(usize, AnyTensor)>,
        grad_scale: f32,
        masters: &dyn Masters,
        assembly: &mut dyn Assembly<Error = E>,
        rate: f64,
        step: u64,
    ) -> Result<[usize; 2], E> {
        gradients.sort_by_key(|&(index, _)| index);
        let mut pieces = Vec::with_capacity(gradients.len());
        let mut empty = 0;
        for (index, gradient) in gradients {
            if gradient.shape().contains(&0) {
                empty += 1;
                continue;
            }
            pieces.push((index, self.momentum(index, gradient, grad_scale, assembly, step)));
        }
        let (indices, whole): (Vec<_>, Vec<_>) = assembly.gather(pieces)?.into_iter().unzip();
        let (directions, orthogonalised) = self.directions(&indices, whole);
        let pieces = assembly.scatter(indices.into_iter().zip(directions).collect())?;
        let updated = empty + pieces.len();
        for (index, direction) in pieces {
            if !direction.shape().contains(&0) {
                self.apply(index, &direction, masters, rate);
            }
        }
        Ok([updated, orthogonalised])
    }

    fn entry(&mut self, index: usize) -> &mut Entry {
        self.matrices.get_mut(&index).expect("invariant: only matrices of Muon are gathered and scattered")
    }

    /// Moves the momentum of what lies here and makes the gradient the update.
    fn momentum<E>(
        &mut self,
        index: usize,
        gradient: AnyTensor,
        grad_scale: f32,
        assembly: &dyn Assembly<Error = E>,
        step: u64,
    ) -> AnyTensor {
        let MuonOptions { momentum: beta, nesterov, momentum_dtype, seed, .. } = self.options;
        let entry = self.entry(index);
        let gradient =
            if gradient.dtype() == Some(Dtype::F32) { gradient } else { gradient.cast(FloatDType::F32) };
        let before = entry
            .state
            .momentum
            .take()
            .unwrap_or_else(|| zeros(&gradient, &gradient.shape(), momentum_dtype.dtype()));
        let noise = match momentum_dtype {
            MomentumDtype::F32 => Noise { stream: Stream::new(0, ""), runs: Vec::new() },
            MomentumDtype::Bf16Stochastic => {
                let (rows, columns) = assembly.held(index);
                Noise {
                    stream: Stream::new(seed, &format!("{}/{MOMENTUM}", entry.matrix.name)).at(step),
                    runs: entry.matrix.runs(&rows, &columns),
                }
            }
        };
        let (after, update) =
            muon_momentum(before, gradient, &Momentum { beta, nesterov, grad_scale }, &noise);
        entry.state.momentum = Some(after);
        update
    }

    /// Orthogonalises whole matrices and scales them: everything of `W`'s change but rate and sign.
    fn directions(&mut self, indices: &[usize], whole: Vec<AnyTensor>) -> (Vec<AnyTensor>, usize) {
        let MuonOptions { variant, newton_schulz, .. } = self.options;
        let mut stacks = Vec::with_capacity(whole.len());
        for (&index, update) in indices.iter().zip(whole) {
            let tensor = if variant == Variant::AdaMuon { signs(&update) } else { update };
            stacks.push(Stacked { tensor, blocks: self.entry(index).matrix.blocks.clone() });
        }
        let orthogonalised = stacks.iter().map(|s| s.blocks.len()).sum();
        let orthogonal = orthogonalize(stacks, &newton_schulz).expect(
            "invariant: updates are f32 and blocks make up their rows, as was checked when Muon was made",
        );
        let directions =
            indices.iter().zip(orthogonal).map(|(&index, direction)| self.adapt(index, direction)).collect();
        (directions, orthogonalised)
    }

    /// The variant's second moments and the scale.
    fn adapt(&mut self, index: usize, direction: AnyTensor) -> AnyTensor {
        let MuonOptions { variant, scale, beta2, eps, .. } = self.options;
        let Entry { matrix, state, .. } = self.entry(index);
        let columns = matrix.columns as f64;
        let each = |factor: &dyn Fn(std::ops::Range<usize>, f64) -> Vec<f64>| -> Vec<f32> {
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
                let mut second = match state.second.take() {
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
                state.second = Some(AnyTensor::from_elements(second, &shape, &direction.device()));
                scale_rows(direction, &factors)
            }
            Variant::AdaMuon => {
                let before = row_squares(&direction);
                let second =
                    state.second.take().unwrap_or_else(|| zeros(&direction, &matrix.shape, Dtype::F32));
                let (direction, second) = muon_adapt(direction, second, beta2, eps);
                state.second = Some(second);
                let after = row_squares(&direction);
                let factors = each(&|rows, scale| {
                    let sum = |squares: &[f64]| squares[rows.clone()].iter().sum::<f64>();
                    vec![scale * ratio(sum(&before), sum(&after)); rows.len()]
                });
                scale_rows(direction, &factors)
            }
        }
    }

    fn apply(&mut self, index: usize, direction: &AnyTensor, masters: &dyn Masters, rate: f64) {
        let shrink = 1.0 - rate * self.options.weight_decay;
        let entry = self.entry(index);
        let value = masters.take(index);
        match value.dtype() {
            Some(Dtype::F32) => masters.put(index, muon_apply(value, direction, shrink, rate)),
            stored => {
                let master = entry.state.master.take().unwrap_or_else(|| value.cast(FloatDType::F32));
                drop(value);
                let master = muon_apply(master, direction, shrink, rate);
                masters
                    .put(index, stored.map_or_else(|| master.clone(), |stored| master.cast(float(stored))));
                entry.state.master = Some(master);
            }
        }
    }

    /// The f32 master of a narrower weight, if there is one.
    pub(crate) fn master(&mut self, index: usize) -> Option<&mut Option<AnyTensor>> {
        self.matrices.get_mut(&index).map(|entry| &mut entry.state.master)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotTensor> {
        self.matrices.values().flat_map(|entry| {
            let State { master, momentum, second } = &entry.state;
            [(MASTER, master, Held::Rows), (MOMENTUM, momentum, Held::Rows), (SECOND, second, Held::Whole)]
                .into_iter()
                .filter_map(|(slot, tensor, held)| {
                    let tensor = tensor.clone()?;
                    Some(SlotTensor { parameter: entry.matrix.name.clone(), slot, tensor, held })
                })
        })
    }

    /// Of a slot of any of its matrices.
    pub(crate) fn declared(&self, slot: &str) -> Option<Declared> {
        self.options
            .slots()
            .into_iter()
            .find(|(spec, _)| spec.name == slot)
            .map(|(spec, held)| Declared { dtype: spec.dtype, held })
    }

    /// Checks (parameter, slot, tensor) entries of its own parameters.
    pub(crate) fn read(
        &self,
        slots: impl IntoIterator<Item = (usize, String, AnyTensor)>,
    ) -> Result<Restored, OptimError> {
        let mut found: BTreeMap<usize, State> = BTreeMap::new();
        for (index, slot, tensor) in slots {
            let Entry { matrix, local, owned, .. } = &self.matrices[&index];
            let parameter = matrix.name.clone();
            let Some(Declared { dtype, held }) = self.declared(&slot) else {
                return Err(OptimError::UnknownSlot { parameter, slot });
            };
            let expected = match held {
                Held::Rows => local.clone(),
                Held::Whole if *owned => self.options.variant.second_shape(&matrix.shape).unwrap_or_default(),
                // Another rank's.
                Held::Whole => continue,
            };
            let got = tensor.shape();
            if got != expected {
                return Err(OptimError::SlotShape { parameter, slot, got, expected });
            }
            if tensor.dtype() != Some(dtype) {
                return Err(OptimError::SlotDtype { parameter, slot, got: tensor.dtype(), expected: dtype });
            }
            let state = found.entry(index).or_default();
            let place = match slot.as_str() {
                MASTER => &mut state.master,
                MOMENTUM => &mut state.momentum,
                _ => &mut state.second,
            };
            *place = Some(tensor);
        }
        for (index, state) in &mut found {
            let Entry { matrix, local, owned, .. } = &self.matrices[index];
            let missing = |slot| OptimError::MissingSlot { parameter: matrix.name.clone(), slot };
            if local.contains(&0) {
                (state.master, state.momentum) = (None, None);
            } else if state.momentum.is_none() {
                return Err(missing(MOMENTUM));
            }
            if *owned && self.options.variant != Variant::Muon && state.second.is_none() {
                return Err(missing(SECOND));
            }
        }
        Ok(Restored(found))
    }

    /// Takes checked state, and forgets what it held.
    pub(crate) fn set(&mut self, Restored(mut found): Restored) {
        for (index, entry) in &mut self.matrices {
            entry.state = found.remove(index).unwrap_or_default();
        }
    }
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
