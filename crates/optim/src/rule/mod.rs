//! `Rule`: what an optimizer keeps of a parameter and what a step makes of a gradient; one file each.

mod adafactor;
mod adagrad;
mod adam;
mod ademamix;
mod grok;
mod lion;
mod rmsprop;
mod ruled;
mod schedule_free;
mod sgd;
mod stable_adamw;
mod state;

use std::fmt::Debug;
use std::sync::Arc;

use burnish_core::{Dtype, Parameter};

pub(crate) use adafactor::Adafactor;
pub(crate) use adagrad::Adagrad;
pub(crate) use adam::Adam;
pub(crate) use ademamix::AdEmaMix;
pub(crate) use burnish_quant::blockwise::{BLOCK, Blockwise};
pub(crate) use grok::GrokAdamW;
pub(crate) use lion::Lion;
pub(crate) use rmsprop::RmsProp;
pub(crate) use ruled::Ruled;
pub(crate) use schedule_free::{Base, ScheduleFree};
pub(crate) use sgd::Sgd;
pub(crate) use stable_adamw::StableAdamW;

use crate::{SlotScope, SlotSpec};

/// One step of one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// From 1.
    pub(crate) number: u64,
    /// The learning rate.
    pub(crate) lr: f64,
    /// 0 where none applies.
    pub(crate) weight_decay: f64,
    /// Its place among the trained parameters of its group: those that decay, or those that do not.
    pub(crate) place: usize,
    /// Whether the parameter has not been updated before.
    pub(crate) first: bool,
    /// What the rule made of the run so far, beside its parameters' slots: see [`Rule::count`].
    pub(crate) run: Run,
}

/// Numbers of a run that are no parameter's; they are part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Run {
    /// The highest rate so far.
    pub(crate) highest: f64,
    /// The sum of the averaging weights so far.
    pub(crate) weights: f64,
    /// The last averaging weight's share of that sum.
    pub(crate) share: f64,
}

/// A piece of state that a rule keeps of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) name: &'static str,
    pub(crate) kept: Kept,
}

/// How much of it, and in which form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    /// One f32 for each element.
    Elements,
    /// One byte for each element and an f32 for each [`BLOCK`] of the flattened parameter.
    Blocks {
        /// Whether values may be negative.
        signed: bool,
    },
    /// f32 of this shape, of the whole parameter.
    Statistic(Vec<usize>),
}

/// An update rule. What it does to an element depends on nothing but the element's value, gradient and state, unless
/// [`Rule::of_tensor`] says otherwise; then all of a parameter meets at one rank, as Muon's matrices do.
pub(crate) trait Rule: Debug + Send + Sync {
    /// What it keeps of a parameter of this logical shape.
    fn slots(&self, parameter: &Parameter) -> Vec<Slot>;

    /// Whether a direction needs sums over the whole parameter.
    fn of_tensor(&self) -> bool {
        false
    }

    /// Whether weight decay is added to the gradient instead of taken from the value.
    fn adds_decay(&self) -> bool {
        false
    }

    /// Makes the gradient the direction of the step, and moves the state.
    fn direction(&self, step: &Step, shape: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]);

    /// Moves the value by a direction: with decoupled weight decay, and by the learning rate.
    fn apply(&self, step: &Step, value: &mut [f32], direction: &[f32]) {
        let shrink = (1.0 - step.lr * self.decoupled(step)) as f32;
        let rate = step.lr as f32;
        for (p, d) in value.iter_mut().zip(direction) {
            *p = *p * shrink - rate * d;
        }
    }

    /// The weight decay that [`Self::apply`] takes from the value.
    fn decoupled(&self, step: &Step) -> f64 {
        if self.adds_decay() { 0.0 } else { step.weight_decay }
    }

    /// One step where direction and value are not to be taken apart.
    fn update(
        &self,
        step: &Step,
        shape: &[usize],
        value: &mut [f32],
        gradient: &mut [f32],
        state: &mut [&mut [f32]],
    ) {
        self.direction(step, shape, gradient, state);
        self.apply(step, value, gradient);
    }

    /// Whether a slot begins as the value; others begin at 0.
    fn begins_as_value(&self, _slot: &str) -> bool {
        false
    }

    /// Counts a step at learning rate `lr` (its number from 1).
    fn count(&self, _run: &mut Run, _number: u64, _lr: f64) {}

    /// Whether what is evaluated and saved is not what trains.
    fn averages(&self) -> bool {
        false
    }

    /// Makes the value what is evaluated and saved.
    fn averaged(&self, _value: &mut [f32], _state: &[&[f32]]) {}

    /// Whether the direction of a tensor is made with its value, which then follows the slots in `state`.
    fn takes_value(&self) -> bool {
        false
    }
}

/// A rule with its numbers, as `optim`, `optim_args` and `adam_*` describe it.
#[derive(Clone, Debug)]
pub struct UpdateRule(Arc<dyn Rule>);

impl UpdateRule {
    pub(crate) fn new(rule: impl Rule + 'static) -> Self {
        Self(Arc::new(rule))
    }

    /// Whether a step of this (logical) parameter needs all of it at one rank: sums over the tensor, or state in blocks
    /// of the flattened tensor.
    #[must_use]
    pub fn needs_whole(&self, parameter: &Parameter) -> bool {
        let blocks = |slot: &Slot| matches!(slot.kept, Kept::Blocks { .. });
        let trained = parameter.trainable && parameter.alias_of.is_none();
        trained && (self.0.of_tensor() || self.0.slots(parameter).iter().any(blocks))
    }

    /// The slots of a (logical) parameter that have one value for each element; `master` only of those stored narrower
    /// than f32. Statistics, which are few, are left out.
    #[must_use]
    pub fn element_slots(&self, parameter: &Parameter) -> Vec<SlotSpec> {
        let spec = |name: &str, dtype| SlotSpec { name: name.to_owned(), dtype };
        let mut specs = vec![spec(MASTER, Dtype::F32)];
        specs.extend(self.0.slots(parameter).iter().filter_map(|slot| match slot.kept {
            Kept::Elements => Some(spec(slot.name, Dtype::F32)),
            Kept::Blocks { .. } => Some(spec(slot.name, Dtype::U8)),
            Kept::Statistic(_) => None,
        }));
        specs
    }

    /// Whether what is evaluated and saved is an average of what trains.
    #[must_use]
    pub fn averages(&self) -> bool {
        self.0.averages()
    }

    pub(crate) fn get(&self) -> &dyn Rule {
        &*self.0
    }

    pub(crate) fn scope(&self, parameter: &Parameter) -> SlotScope {
        if self.needs_whole(parameter) { SlotScope::Whole } else { SlotScope::Rows }
    }
}

/// The slot of an f32 copy of a narrower weight.
pub(crate) const MASTER: &str = "master";

/// A slot with one value for each element.
pub(crate) fn elements(name: &'static str) -> Slot {
    Slot { name, kept: Kept::Elements }
}

/// As [`elements`], in eight bits where bitsandbytes keeps eight: not of few elements, not of embeddings (which
/// Transformers leaves out).
pub(crate) fn eight_bits(name: &'static str, signed: bool, parameter: &Parameter) -> Slot {
    let few = parameter.elements() < 4096 || parameter.role == burnish_core::Role::Embedding;
    Slot { name, kept: if few { Kept::Elements } else { Kept::Blocks { signed } } }
}
