//! The optimizer of a run: AdamW alone, or Muon for matrices and AdamW for the rest.

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use burnish_core::{Dtype, Registry};
use burnish_ops::AnyTensor;

use crate::adam::float;
use crate::muon::Muon;
use crate::{
    AdamW, AdamWOptions, Applied, Assignment, Clipped, Declared, Gradients, LearningRates, MatrixGather,
    MuonOptions, OptimError, ParamStorage, SlotScope, SlotSpec, SlotTensor,
};

/// Updates every trained parameter, matrices by Muon if there is a Muon half.
///
/// ```
/// use burn::tensor::Device;
/// use burnish_core::{Dtype, Parameter, Registry, Role};
/// use burnish_optim::{AdamWOptions, OptimizerKind, MuonOptions, Optimizer};
///
/// let mut registry = Registry::new();
/// for (name, shape, role) in [("up", &[8, 4][..], Role::Matrix), ("norm", &[4][..], Role::Norm)] {
///     let mut parameter = Parameter::new(name, shape, role, Dtype::Bf16);
///     parameter.trainable = true;
///     registry.add(parameter).unwrap();
/// }
/// let all = |_| true;
/// let optimizer =
///     Optimizer::muon(&registry, &registry, MuonOptions::default(), AdamWOptions::default(), &all)?;
/// assert_eq!(optimizer.assignment().kind("up"), Some(OptimizerKind::Muon));
/// assert_eq!(optimizer.assignment().kind("norm"), Some(OptimizerKind::AdamW));
/// assert_eq!(optimizer.declared("up", "momentum_buffer").unwrap().dtype, Dtype::F32);
/// # Ok::<(), burnish_optim::OptimError>(())
/// ```
#[derive(Debug)]
pub struct Optimizer {
    adam: AdamW,
    muon: Option<Muon>,
    assignment: Assignment,
    /// Indices of the trained parameters.
    by_name: BTreeMap<String, usize>,
}

fn by_name(registry: &Registry) -> BTreeMap<String, usize> {
    let trained = registry.iter().enumerate().filter(|(_, p)| p.trainable && p.alias_of.is_none());
    trained.map(|(index, p)| (p.name.clone(), index)).collect()
}

impl Optimizer {
    /// AdamW for all trained parameters of `local`, whose shapes are those of what this rank updates.
    #[must_use]
    pub fn adamw(local: &Registry, options: AdamWOptions) -> Self {
        Self {
            adam: AdamW::new(local, options),
            muon: None,
            assignment: Assignment::new(local, None),
            by_name: by_name(local),
        }
    }

    /// Muon for the matrices that [`MuonOptions::takes`], AdamW for the rest.
    ///
    /// `local` has the shapes of what this rank updates, `global` the logical ones, of the same parameters in the same
    /// order; `owned` says of which matrices the [`MatrixGather`] makes this rank the owner.
    ///
    /// # Errors
    /// If there is no matrix for Muon, a parameter's blocks are not its rows, or a hyper-parameter is out of range.
    pub fn muon(
        local: &Registry,
        global: &Registry,
        muon: MuonOptions,
        adam: AdamWOptions,
        owned: &dyn Fn(usize) -> bool,
    ) -> Result<Self, OptimError> {
        let half = Muon::new(local, global, muon, owned)?;
        Ok(Self {
            adam: AdamW::of(local, adam, |index| !half.takes(index)),
            muon: Some(half),
            assignment: Assignment::new(global, Some(&muon)),
            by_name: by_name(global),
        })
    }

    /// Which half updates which parameter.
    #[must_use]
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Muon's hyper-parameters, if there is a Muon half.
    #[must_use]
    pub fn muon_options(&self) -> Option<&MuonOptions> {
        self.muon.as_ref().map(Muon::options)
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.adam.steps()
    }

    /// The slots it declares, each name once.
    #[must_use]
    pub fn schema(&self) -> Vec<SlotSpec> {
        let mut schema = self.adam.schema();
        for (spec, _) in self.muon.iter().flat_map(|muon| muon.options().slots()) {
            if !schema.contains(&spec) {
                schema.push(spec);
            }
        }
        schema
    }

    /// What it declares of a slot of a parameter, whether it holds one yet or not; `None` if there is no such slot.
    #[must_use]
    pub fn declared(&self, parameter: &str, slot: &str) -> Option<Declared> {
        let index = *self.by_name.get(parameter)?;
        match &self.muon {
            Some(muon) if muon.takes(index) => muon.declared(slot),
            _ => {
                let spec = self.adam.schema().into_iter().find(|spec| spec.name == slot)?;
                Some(Declared { dtype: spec.dtype, held: SlotScope::Rows })
            }
        }
    }

    /// One update. Every rank calls it, also with nothing to update.
    ///
    /// # Errors
    /// Those of `assembly`; the momentum has moved then, so that the run can only go on from a checkpoint.
    pub fn step<E>(
        &mut self,
        gradients: Gradients<Clipped>,
        storage: &dyn ParamStorage,
        assembly: &mut dyn MatrixGather<Error = E>,
        rates: LearningRates,
    ) -> Result<Applied, E> {
        let Some(muon) = &mut self.muon else { return Ok(self.adam.step(gradients, storage, rates.adam)) };
        let (matrices, rest) = gradients.split(|index| muon.takes(index));
        let applied = self.adam.step(rest, storage, rates.adam);
        let (gradients, grad_scale, _) = matrices.into_parts();
        let [updated, orthogonalised] =
            muon.step(gradients, grad_scale, storage, assembly, rates.muon, self.adam.steps())?;
        Ok(Applied { parameters: applied.parameters + updated, orthogonalised, ..applied })
    }

    /// Changes what this rank updates of a parameter outside of a step (QK-Clip): `change` is given its f32 value, the
    /// master of a narrower weight, and the stored value follows. Moments stay.
    pub fn change<E>(
        &mut self,
        index: usize,
        storage: &dyn ParamStorage,
        change: impl FnOnce(&AnyTensor) -> Result<AnyTensor, E>,
    ) -> Result<(), E> {
        let master = match self.muon.as_mut().and_then(|muon| muon.master(index)) {
            Some(master) => Some(master),
            None => self.adam.master(index),
        };
        let value = storage.take(index);
        let stored = value.dtype();
        if stored == Some(Dtype::F32) {
            let changed = change(&value);
            storage.put(index, changed.as_ref().map_or(value, Clone::clone));
            return changed.map(drop);
        }
        let wide = master.as_ref().and_then(|m| m.as_ref()).cloned();
        match change(&wide.clone().unwrap_or_else(|| value.cast(FloatDType::F32))) {
            Ok(changed) => {
                storage
                    .put(index, stored.map_or_else(|| changed.clone(), |dtype| changed.cast(float(dtype))));
                if let (Some(master), Some(_)) = (master, wide) {
                    *master = Some(changed);
                }
                Ok(())
            }
            Err(error) => {
                storage.put(index, value);
                Err(error)
            }
        }
    }

    /// All state, for a checkpoint.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotTensor> {
        let mut slots = self.adam.slots();
        slots.extend(self.muon.iter().flat_map(Muon::slots));
        slots
    }

    /// Restores state after `steps` steps from (parameter, slot, tensor) entries, and forgets what it held. A slot that
    /// is [`SlotScope::Whole`] is left out where another rank owns the matrix.
    ///
    /// # Errors
    /// If an entry names no trained parameter or slot, its shape or dtype is not the declared one, or some of a
    /// parameter's slots are missing; the optimizer is then as before.
    pub fn restore(
        &mut self,
        steps: u64,
        slots: impl IntoIterator<Item = (String, String, AnyTensor)>,
    ) -> Result<(), OptimError> {
        let (mut of_adam, mut of_muon) = (Vec::new(), Vec::new());
        for (parameter, slot, tensor) in slots {
            let Some(&index) = self.by_name.get(&parameter) else {
                return Err(OptimError::UnknownSlot { parameter, slot });
            };
            if self.muon.as_ref().is_some_and(|muon| muon.takes(index)) {
                of_muon.push((index, slot, tensor));
            } else {
                of_adam.push((parameter, slot, tensor));
            }
        }
        let restored = self.muon.as_ref().map(|muon| muon.read(of_muon)).transpose()?;
        self.adam.restore(steps, of_adam)?;
        if let (Some(muon), Some(restored)) = (&mut self.muon, restored) {
            muon.set(restored);
        }
        Ok(())
    }
}
