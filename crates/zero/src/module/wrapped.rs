//! A module whose training state is spread over ranks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::{Module, ParamId};
use burnish_comm::Group;
use burnish_core::Registry;
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{Applied, LearningRates, Optimizer, ParamStorage, SlotScope, Unscale};

use super::fill::{Fill, Place, Places};
use super::on_use::GatherOnUse;
use super::pass::{Ids, Slots};
use super::replay::Replay;
use super::wrap::{Block, heads};
use super::{ModuleError, Pass, Reduce, Wrap};
use crate::ortho_cost::upright;
use crate::{MatrixAllToAll, Plan, ShardedParams, Stage};

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stepped {
    /// Weights and moments are updated.
    Applied(Applied),
    /// A gradient was infinite or not a number, on any rank: nothing has changed.
    Skipped {
        /// The global norm.
        norm: f64,
    },
}

/// Rows of what a checkpoint holds. Over all ranks every row of every parameter and slot comes once.
#[derive(Clone, Debug)]
pub struct SavedRows {
    /// The parameter's path.
    pub parameter: String,
    /// The optimizer's slot; `None` for the weight itself.
    pub slot: Option<&'static str>,
    /// The shape of the whole of it, in at most three dimensions.
    pub shape: Vec<usize>,
    /// Which rows (dimension 0) of that.
    pub rows: Range<usize>,
    /// Their values.
    pub tensor: AnyTensor,
}

/// A module whose weights, gradients and optimizer state are spread over ranks. Made by [`Wrap::over`].
pub struct Wrapped<M: Module> {
    settings: Wrap,
    /// The module with placeholders for all that the store has.
    skeleton: M,
    places: Places,
    blocks: Vec<Block>,
    /// Block and place by a placeholder's id: (block, registry index by path, shape).
    by_id: HashMap<ParamId, (usize, usize, Vec<usize>)>,
    pub(super) store: Arc<ShardedParams>,
    optimizer: Optimizer,
    /// How whole matrices meet at their owners.
    exchange: MatrixAllToAll,
    scalars: Group,
    /// Finished micro-batches of this step, and whether one is not finished.
    micro_batches: usize,
    open: bool,
    /// Blocks that drew so far.
    draws: AtomicU64,
}

impl<M: Module> Wrapped<M> {
    pub(super) fn assemble(
        settings: Wrap,
        skeleton: M,
        places: Places,
        blocks: Vec<Block>,
        store: Arc<ShardedParams>,
        (optimizer, exchange): (Optimizer, MatrixAllToAll),
        scalars: Group,
    ) -> Self {
        let in_block = |p: &Place| p.block.map(|(block, id)| (id, (block, p.own, p.shape.clone())));
        let by_id = places.iter().filter_map(in_block).collect();
        let (micro_batches, open) = (0, false);
        let draws = AtomicU64::new(0);
        Self {
            settings,
            skeleton,
            places,
            blocks,
            by_id,
            store,
            optimizer,
            exchange,
            scalars,
            micro_batches,
            open,
            draws,
        }
    }

    /// Begins a micro-batch; `last` if [`step`](Self::step) follows it (gradients may then be summed while backward
    /// runs). The pass is the module with its present values, on the tape. Every rank begins as many passes.
    ///
    /// # Errors
    /// If the last training pass was not finished; the first error of the store.
    pub fn micro_batch(&mut self, last: bool) -> Result<Pass<'_, M>, ModuleError> {
        if self.open {
            return Err(ModuleError::Unfinished);
        }
        self.store.check()?;
        self.store.begin_micro_batch(last);
        self.open = true;
        self.pass(true)
    }

    /// A pass outside autodiff, with training flags off. Every rank makes as many, and runs the same blocks in it.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn evaluation(&mut self) -> Result<Pass<'_, M>, ModuleError> {
        self.pass(false)
    }

    fn pass(&mut self, training: bool) -> Result<Pass<'_, M>, ModuleError> {
        let mut leaves: Vec<(usize, AnyTensor)> = Vec::new();
        let mut known: HashMap<usize, AnyTensor> = HashMap::new();
        let store = Arc::clone(&self.store);
        let plan = Arc::clone(self.store.plan());
        let on_use = self.settings.gather_on_use && plan.policy().stage == Stage::Three;
        let gathers = |place: &Place| {
            let kept = place.block.is_some() || place.derived || (training && !place.trainable);
            on_use && !kept && plan.sharded(place.index)
        };
        let mut value = |place: &Place| -> Option<AnyTensor> {
            if place.block.is_some() || gathers(place) {
                return None;
            }
            let value = known.entry(place.index).or_insert_with(|| {
                let value = store.read(place.index);
                if !(training && place.trainable) {
                    return value;
                }
                let leaf = value.leaf();
                leaves.push((place.index, leaf.clone()));
                leaf
            });
            Some(value.clone())
        };
        let module = self.skeleton.clone().map(&mut Fill {
            places: &self.places,
            path: Vec::new(),
            value: &mut value,
            quiet: !training,
        });
        drop(known);
        let module = match on_use {
            true => module.apply_reparameterization(GatherOnUse {
                places: &self.places,
                store: &store,
                gathers: &gathers,
                training,
            }),
            false => module,
        };
        self.store.check()?;
        Ok(Pass { wrapped: self, module: Some(module), leaves, training })
    }

    pub(super) fn finished(&mut self) -> Result<(), ModuleError> {
        self.store.end_micro_batch()?;
        self.open = false;
        self.micro_batches += 1;
        Ok(())
    }

    /// Gives up the step: the gradients of its micro-batches. Every rank calls it, after as many passes.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn discard(&mut self) -> Result<(), ModuleError> {
        self.store.discard()?;
        (self.open, self.micro_batches) = (false, 0);
        Ok(())
    }

    /// Sums gradients over ranks, clips if asked, updates this rank's rows at learning rate `lr` and gives them to the
    /// other ranks. One rate for all, or [`LearningRates`] of AdamW's parameters and of Muon's.
    ///
    /// # Errors
    /// If there were no micro-batches; if a rank fails.
    pub fn step(&mut self, lr: impl Into<LearningRates>) -> Result<Stepped, ModuleError> {
        self.step_scaled(lr, 1.0)
    }

    /// The same after losses that were multiplied by `loss_scale` (fp16; see [`burnish_optim::LossScaler`]).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_scaled(
        &mut self,
        lr: impl Into<LearningRates>,
        loss_scale: f32,
    ) -> Result<Stepped, ModuleError> {
        if self.open {
            return Err(ModuleError::Unfinished);
        }
        if self.micro_batches == 0 {
            return Err(ModuleError::NoGradients);
        }
        let losses = match self.settings.reduce {
            Reduce::Mean => self.micro_batches * self.scalars.size(),
            Reduce::Sum => 1,
        };
        self.micro_batches = 0;
        let gradients = self.store.gradients()?;
        let unscaled = gradients.unscale(loss_scale * losses as f32, |s| self.store.sum_squares(s))?;
        match unscaled {
            Unscale::Skipped { norm } => Ok(Stepped::Skipped { norm }),
            Unscale::Finite(gradients) => {
                let clipped = gradients.clip(self.settings.max_norm);
                let applied = self.optimizer.step(clipped, &*self.store, &mut self.exchange, lr.into())?;
                self.store.all_gather_params()?;
                self.store.check()?;
                Ok(Stepped::Applied(applied))
            }
        }
    }

    /// The average of a number over ranks, for reports. Every rank calls it.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn mean(&self, value: f64) -> Result<f64, ModuleError> {
        Ok(self.scalars.sum_f64(&[value], "mean")?[0] / self.scalars.size() as f64)
    }

    /// A parameter by its path, whole and outside autodiff, in at most three dimensions. Every rank calls it.
    ///
    /// # Errors
    /// If there is none; the first error of the store.
    pub fn read(&self, path: &str) -> Result<AnyTensor, ModuleError> {
        let Some(place) = self.places.at(path) else {
            let paths = heads(self.places.iter().map(|p| p.path.as_str()));
            return Err(ModuleError::Unknown { path: path.to_owned(), paths });
        };
        let value = self.store.read(place.index);
        self.store.release();
        self.store.check()?;
        Ok(value)
    }

    /// The whole module with its present values, on every rank: to be saved, or used without ranks. Every rank calls it.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn module(&self) -> Result<M, ModuleError> {
        let mut value = |place: &Place| {
            let value = self.store.read(place.index);
            Some(if place.trainable { value.leaf() } else { value })
        };
        let fill = &mut Fill { places: &self.places, path: Vec::new(), value: &mut value, quiet: false };
        let module = self.skeleton.clone().map(fill);
        self.store.release();
        self.store.check()?;
        Ok(module)
    }

    /// The parameters: names are paths.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.store.plan().registry()
    }

    /// Who owns what, and what travels when.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.store.plan()
    }

    /// This rank's part.
    #[must_use]
    pub fn store(&self) -> &Arc<ShardedParams> {
        &self.store
    }

    /// The optimizer of this rank's rows.
    #[must_use]
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// What a checkpoint holds of the trained parameters, this rank's share: weights, then slots. With
    /// [`Optimizer::steps`] it is all that [`restore`](Self::restore) needs, at any number of ranks and any stage.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn state(&self) -> Result<Vec<SavedRows>, ModuleError> {
        let mut saved = Vec::new();
        for (index, parameter) in self.own_trained() {
            let (rows, tensor) = self.store.saved_rows(index)?;
            if !rows.is_empty() {
                let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
                saved.push(SavedRows { parameter: name, slot: None, shape, rows, tensor });
            }
        }
        for slot in self.optimizer.slots() {
            let index = self.registry().index_of(&slot.parameter);
            let index = index.expect("invariant: the optimizer was made from this registry");
            let tensor = slot.tensor.into_tensor();
            let tensor = tensor.expect("invariant: AdamW and Muon keep floats");
            if slot.held == SlotScope::Whole {
                // The owner has all of it; at stage 0 every rank is one.
                if self.plan().policy().stage != Stage::Zero || self.store.rank() == 0 {
                    let (shape, slot_name) = (tensor.shape(), Some(slot.slot));
                    let rows = 0..shape[0];
                    let parameter = slot.parameter;
                    saved.push(SavedRows { parameter, slot: slot_name, shape, rows, tensor });
                }
                continue;
            }
            let (rows, tensor) = self.store.saved_slot(index, tensor);
            if rows.is_empty() {
                continue;
            }
            let shape = self.registry().at(index).shape.clone();
            saved.push(SavedRows { parameter: slot.parameter, slot: Some(slot.slot), shape, rows, tensor });
        }
        Ok(saved)
    }

    /// Takes up a training after `steps` steps. `load` gives rows of a parameter's weight (slot `None`, in its stored
    /// dtype) or of one of its slots (in the slot's; `None` if the checkpoint has none of it). Every rank calls it.
    ///
    /// # Errors
    /// If `load` fails, a weight is missing, or shapes and dtypes are not the module's. The module is then not to be used.
    pub fn restore<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &mut self,
        steps: u64,
        mut load: impl FnMut(&str, Option<&str>, Range<usize>) -> Result<Option<AnyTensor>, E>,
    ) -> Result<(), ModuleError> {
        let mut slots = Vec::new();
        let schema = self.optimizer.schema();
        let variant = self.optimizer.muon_options().map(|muon| muon.variant);
        // Rows of what an owner has whole.
        let owned = |parameter| variant?.second_shape(&upright(parameter))?.first().copied();
        let mut weights = Vec::new();
        for (index, parameter) in self.own_trained() {
            let (name, rows) = (&parameter.name, self.store.rows(index));
            let mut load = |slot: Option<&str>, rows: &Range<usize>| {
                load(name, slot, rows.clone()).map_err(|source| ModuleError::Restore {
                    parameter: name.clone(),
                    rows: rows.clone(),
                    source: source.into(),
                })
            };
            if !rows.is_empty() {
                let missing = || ModuleError::Missing { parameter: name.clone(), rows: rows.clone() };
                weights.push((index, load(None, &rows)?.ok_or_else(missing)?));
            }
            for spec in &schema {
                let loaded = match self.optimizer.declared(name, &spec.name).map(|declared| declared.held) {
                    Some(SlotScope::Rows) if !rows.is_empty() => load(Some(&spec.name), &rows)?,
                    Some(SlotScope::Whole) if self.exchange.owns(index) => {
                        load(Some(&spec.name), &(0..owned(parameter).unwrap_or(0)))?
                    }
                    _ => None,
                };
                if let Some(tensor) = loaded {
                    slots.push((name.clone(), spec.name.clone(), tensor));
                }
            }
        }
        self.optimizer.restore(steps, slots)?;
        for (index, weight) in weights {
            drop(self.store.take(index));
            self.store.put(index, weight);
        }
        self.store.all_gather_params()?;
        Ok(self.store.check()?)
    }

    /// What ranks agree over outside the store.
    pub(super) fn scalars(&self) -> &Group {
        &self.scalars
    }

    /// The randomness of the next run of a block, if it draws.
    pub(super) fn replay(&self, block: &str) -> Option<Replay> {
        let draws = self.blocks.iter().any(|b| b.path == block && b.draws);
        draws.then(|| {
            let run = self.draws.fetch_add(1, Ordering::Relaxed);
            Replay::new(&self.store, block, self.settings.seed, run)
        })
    }

    fn own_trained(&self) -> impl Iterator<Item = (usize, &burnish_core::Parameter)> {
        let own = self.registry().iter().enumerate();
        own.filter(|(_, p)| p.trainable && p.alias_of.is_none())
    }

    /// A block's name, where its weights go, and their registry indices.
    pub(super) fn slots<B: Module>(&self, block: &B) -> Result<(String, Slots, Vec<usize>), ModuleError> {
        let mut ids = Ids::default();
        block.visit(&mut ids);
        let fault = |index: Option<usize>, reason| {
            let unknown = || std::any::type_name::<B>().to_owned();
            let block = index.map_or_else(unknown, |i| self.registry().at(i).name.clone());
            Err(ModuleError::NotABlock { block, reason })
        };
        let (mut slots, mut indices, mut blocks) = (Slots::new(), Vec::new(), Vec::new());
        let mut outside = None;
        for id in ids.0 {
            let Some((number, index, shape)) = self.by_id.get(&id) else {
                outside = outside.or(self.places.iter().find(|p| p.block.is_none() && p.id == id));
                continue;
            };
            blocks.push(*number);
            let target = self.plan().placement(*index).target;
            let same = |&i: &usize| self.plan().placement(i).target == target;
            let weight = indices.iter().position(same).unwrap_or_else(|| {
                indices.push(*index);
                indices.len() - 1
            });
            slots.insert(id, (weight, shape.clone()));
        }
        let first = indices.first().copied();
        if let Some(place) = outside {
            return fault(Some(place.own), "this parameter is not in a block");
        }
        match blocks.first() {
            None => fault(None, "it has no parameters of a block"),
            Some(&number) if blocks.iter().any(|&b| b != number) => {
                fault(first, "it has parameters of several blocks")
            }
            Some(&number) => Ok((self.blocks[number].path.clone(), slots, indices)),
        }
    }
}

impl<M: Module> std::fmt::Debug for Wrapped<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wrapped({}, {:?})", std::any::type_name::<M>(), self.store)
    }
}
