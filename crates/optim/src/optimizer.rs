//! The optimizer of a run: AdamW or another rule alone, or Muon for matrices and AdamW for the rest.

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use burnish_core::{Dtype, Parameter, Registry};
use burnish_ops::AnyTensor;

use crate::adam::float;
use crate::muon::Muon;
use crate::rule::Ruled;
use crate::{
    AdamW, AdamWOptions, Applied, Assignment, Clipped, Declared, Gradients, LearningRates, MatrixGather,
    MuonOptions, OptimError, ParamStorage, SlotScope, SlotSpec, SlotTensor, SlotValue, UpdateRule,
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
    /// What Muon does not take.
    rest: Rest,
    muon: Option<Muon>,
    assignment: Assignment,
    /// Indices of the trained parameters.
    by_name: BTreeMap<String, usize>,
}

#[derive(Debug)]
enum Rest {
    AdamW(AdamW),
    Ruled(Ruled),
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
            rest: Rest::AdamW(AdamW::new(local, options)),
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
            rest: Rest::AdamW(AdamW::of(local, adam, |index| !half.takes(index))),
            muon: Some(half),
            assignment: Assignment::new(global, Some(&muon)),
            by_name: by_name(global),
        })
    }

    /// A rule for all trained parameters, with this weight decay.
    ///
    /// `local` has the shapes of what this rank updates, `global` the logical ones; `owned` says of which parameters that
    /// the rule [`needs whole`](UpdateRule::needs_whole) the [`MatrixGather`] makes this rank the owner.
    #[must_use]
    pub fn ruled(
        local: &Registry,
        global: &Registry,
        rule: UpdateRule,
        weight_decay: f64,
        owned: &dyn Fn(usize) -> bool,
    ) -> Self {
        Self {
            rest: Rest::Ruled(Ruled::new(local, global, rule, weight_decay, owned)),
            muon: None,
            assignment: Assignment::new(global, None),
            by_name: by_name(global),
        }
    }

    /// With learning rates of some parameters multiplied, Muon's matrices aside.
    #[must_use]
    pub fn with_rates(mut self, factor: &dyn Fn(&Parameter) -> f64) -> Self {
        match &mut self.rest {
            Rest::AdamW(adam) => adam.scale_rates(factor),
            Rest::Ruled(rule) => rule.scale_rates(factor),
        }
        self
    }

    /// Whether what is evaluated and saved is an average of what trains.
    #[must_use]
    pub fn averages(&self) -> bool {
        matches!(&self.rest, Rest::Ruled(rule) if rule.averages())
    }

    /// Puts averages in the place of what trains, which is put aside until [`Self::put_back`].
    pub fn put_averages(&mut self, storage: &dyn ParamStorage) {
        if let Rest::Ruled(rule) = &mut self.rest {
            rule.put_averages(storage);
        }
    }

    /// Puts back what trains, bit for bit.
    pub fn put_back(&mut self, storage: &dyn ParamStorage) {
        if let Rest::Ruled(rule) = &mut self.rest {
            rule.put_back(storage);
        }
    }

    /// Numbers that a checkpoint holds beside steps and slots.
    #[must_use]
    pub fn run_state(&self) -> [f64; 2] {
        match &self.rest {
            Rest::AdamW(_) => [0.0; 2],
            Rest::Ruled(rule) => rule.run(),
        }
    }

    /// Takes up [`Self::run_state`] of a checkpoint.
    pub fn restore_run_state(&mut self, state: [f64; 2]) {
        if let Rest::Ruled(rule) = &mut self.rest {
            rule.set_run(state);
        }
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
        match &self.rest {
            Rest::AdamW(adam) => adam.steps(),
            Rest::Ruled(rule) => rule.steps(),
        }
    }

    /// The slots it declares, each name once.
    #[must_use]
    pub fn schema(&self) -> Vec<SlotSpec> {
        let mut schema = match &self.rest {
            Rest::AdamW(adam) => adam.schema(),
            Rest::Ruled(rule) => rule.schema(),
        };
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
        match (&self.muon, &self.rest) {
            (Some(muon), _) if muon.takes(index) => muon.declared(slot),
            (_, Rest::Ruled(rule)) => rule.declared(index, slot),
            (_, Rest::AdamW(adam)) => {
                let spec = adam.schema().into_iter().find(|spec| spec.name == slot)?;
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
        let adam = match &mut self.rest {
            Rest::Ruled(rule) => return rule.step(gradients, storage, assembly, rates.adam),
            Rest::AdamW(adam) => adam,
        };
        let Some(muon) = &mut self.muon else { return Ok(adam.step(gradients, storage, rates.adam)) };
        let (matrices, rest) = gradients.split(|index| muon.takes(index));
        let applied = adam.step(rest, storage, rates.adam);
        let (gradients, grad_scale, _) = matrices.into_parts();
        let [updated, orthogonalised] =
            muon.step(gradients, grad_scale, storage, assembly, rates.muon, adam.steps())?;
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
            None => match &mut self.rest {
                Rest::AdamW(adam) => adam.master(index),
                Rest::Ruled(rule) => rule.master(index),
            },
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
        let mut slots = match &self.rest {
            Rest::AdamW(adam) => adam.slots(),
            Rest::Ruled(rule) => rule.slots(),
        };
        slots.extend(self.muon.iter().flat_map(Muon::slots));
        slots
    }

    /// Restores state after `steps` steps from (parameter, slot, tensor) entries, and forgets what it held. A slot that
    /// is [`SlotScope::Whole`] is left out where another rank owns the matrix.
    ///
    /// # Errors
    /// If an entry names no trained parameter or slot, its shape or dtype is not the declared one, or some of a
    /// parameter's slots are missing; the optimizer is then as before.
    pub fn restore<V: Into<SlotValue>>(
        &mut self,
        steps: u64,
        slots: impl IntoIterator<Item = (String, String, V)>,
    ) -> Result<(), OptimError> {
        let (mut of_rest, mut of_muon) = (Vec::new(), Vec::new());
        for (parameter, slot, value) in slots {
            let Some(&index) = self.by_name.get(&parameter) else {
                return Err(OptimError::UnknownSlot { parameter, slot });
            };
            let value = value.into();
            if self.muon.as_ref().is_some_and(|muon| muon.takes(index)) {
                let value = float_slot(parameter, &slot, value)?;
                of_muon.push((index, slot, value));
            } else {
                of_rest.push((index, parameter, slot, value));
            }
        }
        let restored = self.muon.as_ref().map(|muon| muon.read(of_muon)).transpose()?;
        match &mut self.rest {
            Rest::AdamW(adam) => {
                let slots = of_rest.into_iter();
                let floats = slots.map(|(_, parameter, slot, value)| {
                    let value = float_slot(parameter.clone(), &slot, value)?;
                    Ok((parameter, slot, value))
                });
                adam.restore(steps, floats.collect::<Result<Vec<_>, OptimError>>()?)?;
            }
            Rest::Ruled(rule) => {
                let slots = of_rest.into_iter().map(|(index, _, slot, value)| (index, slot, value));
                rule.restore(steps, slots.collect())?;
            }
        }
        if let (Some(muon), Some(restored)) = (&mut self.muon, restored) {
            muon.set(restored);
        }
        Ok(())
    }
}

/// A slot of an optimizer that keeps floats only.
fn float_slot(parameter: String, slot: &str, value: SlotValue) -> Result<AnyTensor, OptimError> {
    let got = value.dtype();
    value.into_tensor().ok_or_else(|| OptimError::SlotDtype {
        parameter,
        slot: slot.to_owned(),
        got,
        expected: Dtype::F32,
    })
}
