//! Adam and AdamW with fp32 moments, and fp32 masters over narrower weights.

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use burnish_core::{Dtype, Parameter, Registry};
use burnish_ops::{Adam, AdamState, AnyTensor, adam_step};

use crate::step::{Applied, Clipped, Gradients, Masters};
use crate::{Held, OptimError, SlotSpec, SlotTensor};

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
    master: Option<AnyTensor>,
    state: Option<AdamState>,
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
            .map(|(i, p)| (i, Entry { parameter: p.clone(), master: None, state: None }))
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

    /// One update at learning rate `lr`.
    ///
    /// A parameter that is stored narrower than fp32 is updated in an fp32 master and rounded to its stored dtype.
    pub fn step(&mut self, gradients: Gradients<Clipped>, masters: &dyn Masters, lr: f64) -> Applied {
        self.steps += 1;
        let (entries, grad_scale, grad_norm) = gradients.into_parts();
        let mut updated = 0;
        for (index, gradient) in entries {
            let Some(entry) = self.entries.get_mut(&index) else { continue };
            let hyper = Adam {
                lr,
                beta1: self.options.beta1,
                beta2: self.options.beta2,
                eps: self.options.eps,
                weight_decay: if entry.parameter.decays() { self.options.weight_decay } else { 0.0 },
                decoupled: self.options.decoupled,
                step: self.steps,
                grad_scale,
            };
            let value = masters.take(index);
            let stored = value.dtype();
            let (master, keep) = match stored {
                Some(Dtype::F32) => (value, None),
                _ => (entry.master.take().unwrap_or_else(|| value.cast(FloatDType::F32)), stored),
            };
            let (master, state) = adam_step(master, entry.state.take(), &gradient, &hyper);
            entry.state = Some(state);
            match keep {
                None => masters.put(index, master),
                Some(stored) => {
                    masters.put(index, master.cast(float(stored)));
                    entry.master = Some(master);
                }
            }
            updated += 1;
        }
        Applied { grad_norm, parameters: updated, orthogonalised: 0 }
    }

    /// The f32 master of a narrower weight, if there is one.
    pub(crate) fn master(&mut self, index: usize) -> Option<&mut Option<AnyTensor>> {
        self.entries.get_mut(&index).map(|entry| &mut entry.master)
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
                    tensor: tensor.clone(),
                    held: Held::Rows,
                });
            };
            if let Some(master) = &entry.master {
                push("master", master);
            }
            if let Some(state) = &entry.state {
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
            let state = match (exp_avg, exp_avg_sq) {
                (Some(exp_avg), Some(exp_avg_sq)) => AdamState { exp_avg, exp_avg_sq },
                (None, _) => return Err(missing("exp_avg")),
                (_, None) => return Err(missing("exp_avg_sq")),
            };
            restored.insert(index, (master, state));
        }
        for (index, entry) in &mut self.entries {
            (entry.master, entry.state) = match restored.remove(index) {
                Some((master, state)) => (master, Some(state)),
                None => (None, None),
            };
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
