//! Adam and AdamW with fp32 moments, and fp32 masters over narrower weights.

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use burnish_core::{Dtype, OptionFaults, Parameter, Registry};
use burnish_ops::{Adam, AdamState, AnyTensor, adam_steps};

use crate::step::{Applied, Clipped, Gradients, ParamStorage};
use crate::{OptimError, SlotScope, SlotSpec, SlotTensor};

/// Hyper-parameters, with Transformers' defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// `adam_beta1`.
    pub beta1: f64,
    /// `adam_beta2`.
    pub beta2: f64,
    /// `adam_epsilon`.
    pub eps: f64,
    /// `weight_decay`; not applied to norms and biases.
    pub weight_decay: f64,
    /// AdamW's decoupled decay; off is Adam with L2.
    pub decoupled: bool,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: true }
    }
}

impl AdamWOptions {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        const SHARE: &str = "a number from 0 to below 1";
        let mut faults = OptionFaults::default();
        let Self { beta1, beta2, eps, weight_decay, .. } = *self;
        let decay = weight_decay >= 0.0 && weight_decay.is_finite();
        faults.range("weight_decay", decay, weight_decay, "a number that is at least 0");
        faults.range("adam_beta1", (0.0..1.0).contains(&beta1), beta1, SHARE);
        faults.range("adam_beta2", (0.0..1.0).contains(&beta2), beta2, SHARE);
        faults.range("adam_epsilon", eps > 0.0 && eps.is_finite(), eps, "a number above 0");
        faults
    }
}

/// AdamW over a model's trained parameters.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    steps: u64,
    entries: BTreeMap<usize, Entry>,
}

#[derive(Debug)]
struct Entry {
    parameter: Parameter,
    kept: Kept,
    /// Multiplies the learning rate.
    rate: f64,
}

/// What AdamW keeps of one parameter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// The f32 copy of a narrower weight.
    pub(crate) master: Option<AnyTensor>,
    pub(crate) moments: Option<AdamState>,
}

/// Parameters that are updated together, as a GPU's launch takes them.
const TOGETHER: usize = 4;

/// The numbers of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// From 1.
    pub(crate) number: u64,
    pub(crate) lr: f64,
    /// Multiplies the gradient first.
    pub(crate) grad_scale: f32,
    /// Whether weight decay applies.
    pub(crate) decays: bool,
}

/// What is kept of a parameter, its value and its gradient.
pub(crate) type Stepped = (Kept, AnyTensor, AnyTensor);

impl Step {
    /// What is kept and the value of each after this step: one that is stored narrower than f32 is the f32 master rounded.
    pub(crate) fn update(&self, options: &AdamWOptions, all: Vec<Stepped>) -> Vec<(Kept, AnyTensor)> {
        let hyper = Adam {
            lr: self.lr,
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            weight_decay: if self.decays { options.weight_decay } else { 0.0 },
            decoupled: options.decoupled,
            step: self.number,
            grad_scale: self.grad_scale,
        };
        let (stored, items): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|(Kept { master, moments }, value, gradient)| match value.dtype() {
                Some(Dtype::F32) => (None, (value, moments, gradient)),
                stored => {
                    let master = master.unwrap_or_else(|| value.cast(FloatDType::F32));
                    (stored, (master, moments, gradient))
                }
            })
            .unzip();
        let stepped = adam_steps(items, &hyper).into_iter().zip(stored);
        let kept = stepped.map(|((master, moments), stored)| {
            let moments = Some(moments);
            match stored {
                None => (Kept { master: None, moments }, master),
                Some(stored) => {
                    let value = master.cast(float(stored));
                    (Kept { master: Some(master), moments }, value)
                }
            }
        });
        kept.collect()
    }
}

/// What a checkpoint holds of one parameter.
#[derive(Default)]
struct Slots {
    master: Option<AnyTensor>,
    exp_avg: Option<AnyTensor>,
    exp_avg_sq: Option<AnyTensor>,
}

impl AdamW {
    /// An optimizer for the trainable parameters of `registry`.
    #[must_use]
    pub fn new(registry: &Registry, options: AdamWOptions) -> Self {
        Self::of(registry, options, |_| true)
    }

    /// For some of the trainable parameters, by index.
    pub(crate) fn of(registry: &Registry, options: AdamWOptions, takes: impl Fn(usize) -> bool) -> Self {
        let entries = registry
            .iter()
            .enumerate()
            .filter(|&(i, p)| p.trainable && p.alias_of.is_none() && takes(i))
            .map(|(i, p)| (i, Entry { parameter: p.clone(), kept: Kept::default(), rate: 1.0 }))
            .collect();
        Self { options, steps: 0, entries }
    }

    /// The slots it declares.
    #[must_use]
    pub fn schema(&self) -> Vec<SlotSpec> {
        ["master", "exp_avg", "exp_avg_sq"]
            .map(|name| SlotSpec { name: name.to_owned(), dtype: Dtype::F32 })
            .to_vec()
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Multiplies the learning rates of parameters.
    pub(crate) fn scale_rates(&mut self, factor: &dyn Fn(&Parameter) -> f64) {
        for entry in self.entries.values_mut() {
            entry.rate = factor(&entry.parameter);
        }
    }

    /// One update at learning rate `lr`.
    ///
    /// A parameter that is stored narrower than fp32 is updated in an fp32 master and rounded to its stored dtype.
    pub fn step(&mut self, gradients: Gradients<Clipped>, storage: &dyn ParamStorage, lr: f64) -> Applied {
        self.steps += 1;
        let (entries, grad_scale, grad_norm) = gradients.into_parts();
        let mut updated = 0;
        let mut group: Vec<(usize, Step, AnyTensor)> = Vec::new();
        for (index, gradient) in entries {
            let Some(entry) = self.entries.get(&index) else { continue };
            let (lr, decays) = (lr * entry.rate, entry.parameter.decays());
            let step = Step { number: self.steps, lr, grad_scale, decays };
            if group.len() == TOGETHER || group.first().is_some_and(|(_, other, _)| *other != step) {
                self.step_group(std::mem::take(&mut group), storage);
            }
            group.push((index, step, gradient));
            updated += 1;
        }
        self.step_group(group, storage);
        Applied { grad_norm, parameters: updated, orthogonalised: 0 }
    }

    /// One update of parameters whose step has the same numbers.
    fn step_group(&mut self, group: Vec<(usize, Step, AnyTensor)>, storage: &dyn ParamStorage) {
        let Some(step) = group.first().map(|(_, step, _)| *step) else { return };
        let mut indices = Vec::with_capacity(group.len());
        let mut all = Vec::with_capacity(group.len());
        for (index, _, gradient) in group {
            let entry = self.entries.get_mut(&index).expect("invariant: only its own are stepped");
            indices.push(index);
            all.push((std::mem::take(&mut entry.kept), storage.take(index), gradient));
        }
        for (index, (kept, value)) in indices.into_iter().zip(step.update(&self.options, all)) {
            self.entries.get_mut(&index).expect("invariant: as above").kept = kept;
            storage.put(index, value);
        }
    }

    /// The f32 master of a narrower weight, if there is one.
    pub(crate) fn master(&mut self, index: usize) -> Option<&mut Option<AnyTensor>> {
        self.entries.get_mut(&index).map(|entry| &mut entry.kept.master)
    }

    /// All state, for a checkpoint.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotTensor> {
        let mut all = Vec::new();
        for entry in self.entries.values() {
            let parameter = &entry.parameter.name;
            let mut push = |slot, tensor: &AnyTensor| {
                all.push(SlotTensor {
                    parameter: parameter.clone(),
                    slot,
                    tensor: tensor.clone().into(),
                    held: SlotScope::Rows,
                });
            };
            if let Some(master) = &entry.kept.master {
                push("master", master);
            }
            if let Some(state) = &entry.kept.moments {
                push("exp_avg", &state.exp_avg);
                push("exp_avg_sq", &state.exp_avg_sq);
            }
        }
        all
    }

    /// Restores state after `steps` steps from (parameter, slot, tensor) entries, and forgets what it held.
    ///
    /// # Errors
    /// If an entry names no trained parameter or slot, its shape or dtype is not the declared one, or one of a
    /// parameter's two moments is missing; the optimizer is then as before.
    pub fn restore(
        &mut self,
        steps: u64,
        slots: impl IntoIterator<Item = (String, String, AnyTensor)>,
    ) -> Result<(), OptimError> {
        let by_name: BTreeMap<&str, usize> =
            self.entries.iter().map(|(&i, e)| (e.parameter.name.as_str(), i)).collect();
        let mut found: BTreeMap<usize, Slots> = BTreeMap::new();
        for (parameter, slot, tensor) in slots {
            let Some(&index) = by_name.get(parameter.as_str()) else {
                return Err(OptimError::UnknownSlot { parameter, slot });
            };
            let (got, expected) = (tensor.shape(), &self.entries[&index].parameter.shape);
            if got != *expected {
                return Err(OptimError::SlotShape { parameter, slot, got, expected: expected.clone() });
            }
            if tensor.dtype() != Some(Dtype::F32) {
                return Err(OptimError::SlotDtype {
                    parameter,
                    slot,
                    got: tensor.dtype(),
                    expected: Dtype::F32,
                });
            }
            let slots = found.entry(index).or_default();
            match slot.as_str() {
                "master" => slots.master = Some(tensor),
                "exp_avg" => slots.exp_avg = Some(tensor),
                "exp_avg_sq" => slots.exp_avg_sq = Some(tensor),
                _ => return Err(OptimError::UnknownSlot { parameter, slot }),
            }
        }
        let mut restored = BTreeMap::new();
        for (index, Slots { master, exp_avg, exp_avg_sq }) in found {
            let missing = |slot| OptimError::MissingSlot {
                parameter: self.entries[&index].parameter.name.clone(),
                slot,
            };
            let moments = match (exp_avg, exp_avg_sq) {
                (Some(exp_avg), Some(exp_avg_sq)) => AdamState { exp_avg, exp_avg_sq },
                (None, _) => return Err(missing("exp_avg")),
                (_, None) => return Err(missing("exp_avg_sq")),
            };
            restored.insert(index, Kept { master, moments: Some(moments) });
        }
        for (index, entry) in &mut self.entries {
            entry.kept = restored.remove(index).unwrap_or_default();
        }
        self.steps = steps;
        Ok(())
    }
}

pub(crate) fn float(dtype: Dtype) -> FloatDType {
    match dtype {
        Dtype::Bf16 => FloatDType::BF16,
        Dtype::F16 => FloatDType::F16,
        Dtype::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
