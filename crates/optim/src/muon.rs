//! Muon over named logical matrices, which may lie in pieces over ranks.

mod matrix;
mod options;
mod state;

use std::collections::BTreeMap;

use burnish_core::Registry;
use burnish_ops::AnyTensor;

use crate::{Declared, MatrixGather, OptimError, ParamStorage, SlotScope, SlotTensor};
pub(crate) use matrix::Matrix;
pub(crate) use options::{MASTER, MOMENTUM, SECOND};
pub use options::{MomentumDtype, MuonOptions, Scale, Variant};
pub(crate) use state::{State, directions};

/// Muon (Jordan et al. 2024) over the matrices that [`MuonOptions::takes`]; a half of [`Optimizer`](crate::Optimizer).
///
/// ```text
/// M <- M + (1 - momentum) (G - M)
/// U <- nesterov ? G + momentum (M - G) : M
/// O <- Newton–Schulz of U (or of its signs), made adaptive by the variant
/// W <- W (1 - rate weight_decay) - rate scale(fan_out, fan_in) O
/// ```
///
/// The first two lines and the last one are done where the elements lie, the third where the whole matrix is: `[out, in]`
/// whatever [`Orientation`](burnish_core::Orientation) the weight has.
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

/// State that fits and is not taken yet.
pub(crate) struct Restored(BTreeMap<usize, State>);

impl Muon {
    pub(crate) fn new(
        local: &Registry,
        global: &Registry,
        options: MuonOptions,
        owned: &dyn Fn(usize) -> bool,
    ) -> Result<Self, OptimError> {
        options.check_on(global)?;
        let mut matrices = BTreeMap::new();
        for (index, parameter) in global.iter().enumerate().filter(|(_, p)| options.takes(p)) {
            let matrix = Matrix::of(parameter)?;
            let local = local.at(index).shape.clone();
            matrices.insert(index, Entry { matrix, local, owned: owned(index), state: State::default() });
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
        storage: &dyn ParamStorage,
        gather: &mut dyn MatrixGather<Error = E>,
        rate: f64,
        step: u64,
    ) -> Result<[usize; 2], E> {
        let options = self.options;
        gradients.sort_by_key(|&(index, _)| index);
        let mut pieces = Vec::with_capacity(gradients.len());
        let mut empty = 0;
        for (index, gradient) in gradients {
            if gradient.shape().contains(&0) {
                empty += 1;
                continue;
            }
            let Entry { matrix, state, .. } = self.entry(index);
            let held = || gather.held(index);
            let update = state.momentum(&options, matrix, gradient, grad_scale, held, step);
            pieces.push((index, update));
        }
        let mut whole: BTreeMap<usize, AnyTensor> = gather.gather(pieces)?.into_iter().collect();
        let (mut indices, mut owned, mut orthogonalised) = (Vec::new(), Vec::new(), 0);
        for (&index, Entry { matrix, state, .. }) in &mut self.matrices {
            if let Some(update) = whole.remove(&index) {
                orthogonalised += matrix.blocks.len();
                indices.push(index);
                owned.push((&*matrix, state, update));
            }
        }
        let directions = directions(&options, owned);
        let pieces = gather.scatter(indices.into_iter().zip(directions).collect())?;
        let updated = empty + pieces.len();
        for (index, direction) in pieces {
            if !direction.shape().contains(&0) {
                let value = storage.take(index);
                let state = &mut self.entry(index).state;
                storage.put(index, state.apply(&options, value, &direction, rate));
            }
        }
        Ok([updated, orthogonalised])
    }

    fn entry(&mut self, index: usize) -> &mut Entry {
        self.matrices.get_mut(&index).expect("invariant: only matrices of Muon are gathered and scattered")
    }

    /// The f32 master of a narrower weight, if there is one.
    pub(crate) fn master(&mut self, index: usize) -> Option<&mut Option<AnyTensor>> {
        self.matrices.get_mut(&index).map(|entry| &mut entry.state.master)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotTensor> {
        self.matrices.values().flat_map(|entry| {
            let State { master, momentum, second } = &entry.state;
            [
                (MASTER, master, SlotScope::Rows),
                (MOMENTUM, momentum, SlotScope::Rows),
                (SECOND, second, SlotScope::Whole),
            ]
            .into_iter()
            .filter_map(|(slot, tensor, held)| {
                let tensor = tensor.clone()?.into();
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
                SlotScope::Rows => local.clone(),
                SlotScope::Whole if *owned => {
                    self.options.variant.second_shape(&matrix.shape).unwrap_or_default()
                }
                // Another rank's.
                SlotScope::Whole => continue,
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
