//! One forward, with its backward.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor};
use burnish_ops::{AnyTensor, OpsError, Parameters, Run, Weights, segment};

use super::fill::shaped;
use super::{ModuleError, Wrapped};
use crate::ShardedParams;

/// A module for one forward, and for one backward if it trains. It is the module (`Deref`), except for the
/// parameters of blocks, which are only where [`block`](Self::block) runs one.
#[must_use = "a training pass ends with `finish`"]
pub struct Pass<'a, M: Module> {
    pub(super) wrapped: &'a mut Wrapped<M>,
    pub(super) module: Option<M>,
    /// Trained parameters outside blocks, as they are on the tape.
    pub(super) leaves: Vec<(usize, AnyTensor)>,
    pub(super) training: bool,
}

impl<M: Module> Deref for Pass<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module.as_ref().expect("invariant: only `finish` and `drop` take the module")
    }
}

impl<M: Module> Pass<'_, M> {
    /// Runs a block of one input and one output. `block` is the submodule of this pass; `run` gets a copy of it with its
    /// parameters, which exist for that long. In a training pass it runs again in backward, and its gradients go to the
    /// ranks that have its rows.
    ///
    /// `run` must be a function of its arguments, and must not hold tensors that autodiff tracks.
    ///
    /// # Errors
    /// If `block` is not (part of) a block that was named; as [`block_of`](Self::block_of).
    pub fn block<B: Module + 'static, const D: usize, const E: usize>(
        &self,
        block: &B,
        input: Tensor<D>,
        run: impl Fn(&B, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
    ) -> Result<Tensor<E>, ModuleError> {
        let run = move |block: &B, inputs: &[AnyTensor]| Ok(AnyTensor::new(run(block, inputs[0].rank()?)));
        Ok(self.block_of(block, &[AnyTensor::new(input)], run)?.rank()?)
    }

    /// The same for any number of float inputs. Integer and boolean tensors may be held by `run`.
    ///
    /// # Errors
    /// Besides, those of [`burnish_ops::segment`] and of `run`. What fails while weights are gathered is returned by
    /// [`finish`](Self::finish).
    pub fn block_of<B: Module + 'static>(
        &self,
        block: &B,
        inputs: &[AnyTensor],
        run: impl Fn(&B, &[AnyTensor]) -> Result<AnyTensor, OpsError> + Send + Sync + 'static,
    ) -> Result<AnyTensor, ModuleError> {
        let (name, slots, indices) = self.wrapped.slots(block)?;
        let weights = Gathered {
            store: Arc::clone(&self.wrapped.store),
            trainable: indices.iter().map(|&i| self.wrapped.store.registry().at(i).trainable).collect(),
            indices,
        };
        let mut inputs = inputs.to_vec();
        // A block that trains is on the tape, also where nothing before it trains.
        if self.training
            && weights.trainable.contains(&true)
            && !inputs.iter().any(AnyTensor::is_tracked)
            && let Some(first) = inputs.first_mut()
        {
            *first = first.leaf();
        }
        // A module is `Send`, not always `Sync`.
        let empty = Mutex::new(block.clone());
        let replay = if self.training { self.wrapped.replay(&name) } else { None };
        let run: Run = Arc::new(move |inputs, weights| {
            let copy = empty.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let copy = copy.map(&mut Insert { slots: &slots, weights });
            match &replay {
                Some(replay) => replay.run(inputs, |inputs| run(&copy, inputs)),
                None => run(&copy, inputs),
            }
        });
        Ok(segment(&name, &inputs, Arc::new(weights), self.training, run)?)
    }

    /// The average of a number over ranks, for reports. Every rank calls it.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn mean(&self, value: f64) -> Result<f64, ModuleError> {
        self.wrapped.mean(value)
    }

    /// Ends a training pass with what `loss.backward()` gave.
    ///
    /// # Errors
    /// If this pass does not train; the first error of what was gathered and summed in it.
    pub fn finish(mut self, mut gradients: Gradients) -> Result<(), ModuleError> {
        if !self.training {
            return Err(ModuleError::Evaluation);
        }
        let leaves = std::mem::take(&mut self.leaves);
        self.module = None;
        // In the order in which the plan sums units, so that what is complete is summed and freed first.
        for (index, leaf) in leaves.into_iter().rev() {
            if let Some(gradient) = leaf.take_gradient(&mut gradients) {
                self.wrapped.store.accumulate(index, gradient);
            }
        }
        drop(gradients);
        self.wrapped.finished()
    }

    /// Backward of `loss`, and [`finish`](Self::finish).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn backward<const D: usize>(self, loss: Tensor<D>) -> Result<(), ModuleError> {
        let gradients = loss.backward();
        self.finish(gradients)
    }
}

impl<M: Module> Drop for Pass<'_, M> {
    fn drop(&mut self) {
        self.wrapped.store.release();
    }
}

impl<M: Module> std::fmt::Debug for Pass<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({}, {:?})", if self.training { "training" } else { "evaluation" }, self.wrapped)
    }
}

/// A block's weights: gathered by the store, gradients summed by it.
struct Gathered {
    store: Arc<ShardedParams>,
    indices: Vec<usize>,
    trainable: Vec<bool>,
}

impl Weights for Gathered {
    fn gather(&self) -> Vec<AnyTensor> {
        self.store.read_all(&self.indices)
    }

    fn trainable(&self) -> Vec<bool> {
        self.trainable.clone()
    }

    fn sink(&self, index: usize, gradient: AnyTensor) {
        self.store.accumulate(self.indices[index], gradient);
    }
}

/// Where the parameters of a block go: by the placeholder's id, which weight, and in which shape.
pub(super) type Slots = HashMap<ParamId, (usize, Vec<usize>)>;

struct Insert<'a> {
    slots: &'a Slots,
    weights: &'a [AnyTensor],
}

impl ModuleMapper for Insert<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.slots.get(&param.id) {
            Some((weight, shape)) => Param::initialized(param.id, shaped(&self.weights[*weight], shape)),
            None => param,
        }
    }
}

/// The ids of a module's float parameters.
#[derive(Default)]
pub(super) struct Ids(pub(super) Vec<ParamId>);

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.id);
    }
}
