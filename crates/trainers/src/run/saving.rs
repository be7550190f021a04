//! Training state to disk and back: stop and resume equals never stopping.

use std::sync::PoisonError;

use burnish_checkpoint::{Checkpoint, CheckpointWriter, Saving, TrainerState, Written, path_of, rotate};
use burnish_core::Dtype;
use burnish_models::{Reloaded, to_device, to_host};
use burnish_optim::{ParamStorage, SlotScope, SlotTensor, SlotValue};
use burnish_report::Record;
use burnish_weight_files::HostTensor;
use burnish_zero::Stage;
use serde_json::{Map, Value, json};

use crate::TrainError;
use crate::rank::finite;
use crate::rank::resumed::{REFERENCE, UNFILED, VALUE};
use crate::run::outputs::write_model;
use crate::run::task::Task;
use crate::run::training::Training;

/// The save that is under way.
pub(crate) struct Save {
    writing: Saving<Written, TrainError>,
}

impl Save {
    pub(crate) fn idle() -> Self {
        Self { writing: Saving::idle() }
    }

    /// Whether this rank has written its part of a save, which then waits for its commit.
    pub(crate) fn is_written(&self) -> bool {
        self.writing.step().is_some() && self.writing.is_done()
    }
}

impl<T: Task> Training<'_, T> {
    /// Begins to save a checkpoint, with what it takes to resume or the model only, and goes on while it is written;
    /// `metric` is this step's evaluation, if there was one. A save before it is finished first.
    pub(crate) fn save(&mut self, metric: Option<f64>, with_state: bool) -> Result<(), TrainError> {
        self.finish_saving()?;
        let rank = self.rank;
        rank.check_replicas()?;
        let setup = rank.setup;
        let options = &setup.options.training;
        let step = self.counters.step;
        if let Some(value) = metric
            && self.counters.improves(value, options.greater_wins())
        {
            self.counters.best = Some((value, step));
        }
        let dir = setup.output_dir();
        let share = rank.share()?;
        let mut writer =
            rank.lead_first("checkpoint", || Ok(CheckpointWriter::shared(&dir, step, share)?))?;
        writer.run(&self.run_name);
        // From here on everything is a copy, or a tensor that an update would copy: the step goes on.
        let (exporter, folder) = (rank.exporter.clone(), setup.folder.clone());
        let averages = self.optimizer.averages();
        // What trains is kept as it is, beside the averages that are the model.
        let trained = if averages && with_state { Some(rank.snapshot()?) } else { None };
        self.put_averages()?;
        let snapshot = rank.snapshot();
        self.put_back()?;
        let (snapshot, state) = (snapshot?, self.trainer_state(with_state)?);
        let schema = serde_json::to_value(self.optimizer.schema()).unwrap_or(Value::Null);
        let mut slots = Vec::new();
        // Where every rank holds all of it, each writes its share.
        let share = |index: usize, slot, rows, piece| -> Result<Vec<_>, TrainError> {
            let shape = &exporter.registry().at(index).shape;
            let pieces = rank.rows_to_write(index, rows, piece)?.into_iter();
            Ok(pieces.map(|(rows, piece)| (index, slot, shape.clone(), rows, piece.into())).collect())
        };
        for (index, SlotTensor { slot, tensor, held, .. }) in self.slots(with_state) {
            if held == SlotScope::Whole {
                // At stage 0 every data-parallel rank's matrices have an owner among those that share its layers.
                if rank.plan.policy().stage != Stage::Zero || rank.dp.rank() == 0 {
                    let shape = tensor.shape();
                    slots.push((index, slot, shape.clone(), 0..shape[0], tensor));
                }
                continue;
            }
            let SlotValue::Tensor(tensor) = tensor else { continue };
            let (rows, piece) = rank.store.saved_slot(index, tensor);
            slots.extend(share(index, slot, rows, piece)?);
        }
        for (index, slot, average) in
            self.allocation.iter().filter(|_| with_state).flat_map(|own| own.slots())
        {
            let (rows, piece) = rank.store.saved_slot(index, average);
            slots.extend(share(index, slot, rows, piece)?);
        }
        if let Some(store) = self.task.saved_params(&self.state).filter(|_| with_state) {
            for (index, parameter) in rank.plan.registry().iter().enumerate() {
                if parameter.trainable && parameter.alias_of.is_none() {
                    let (rows, value) = store.saved_rows(index)?;
                    slots.extend(share(index, REFERENCE, rows, value)?);
                }
            }
        }
        let file = self.task.saved_file(&self.state).filter(|_| with_state);
        self.save.writing.start(step, move || {
            write_model(&exporter, &folder, writer.folder(), &snapshot)?;
            if let Some((name, bytes)) = file {
                writer.file(name, &bytes)?;
            }
            if with_state {
                writer.slots(schema);
                for (index, slot, shape, rows, piece) in slots {
                    let name = &exporter.registry().at(index).name;
                    let piece = finite(to_host_slot(piece), || format!("{name}/{slot}"))?;
                    writer.rows(name, slot, &shape, rows, piece.view())?;
                }
                // What the model's file holds rounded (vectors beside bf16 matrices) is kept whole.
                let written = exporter.trained_dtype();
                let exact = trained.as_ref().unwrap_or(&snapshot);
                for (index, parameter) in exporter
                    .registry()
                    .iter()
                    .enumerate()
                    .filter(|_| trained.is_some() || !exporter.is_adapter())
                {
                    if parameter.trainable
                        && parameter.alias_of.is_none()
                        && (trained.is_some() || parameter.precision.store != written)
                    {
                        for (rows, piece) in exact.pieces(index) {
                            let piece = finite(to_host(piece), || parameter.name.clone())?;
                            writer.rows(
                                &parameter.name,
                                VALUE,
                                &parameter.shape,
                                rows.clone(),
                                piece.view(),
                            )?;
                        }
                    }
                }
            }
            for (index, parameter) in exporter.registry().iter().enumerate() {
                for (rows, piece) in snapshot.pieces(index).iter().filter(|_| !exporter.keeps(parameter)) {
                    let (name, shape) = (&parameter.name, &parameter.shape);
                    let piece = finite(to_host(piece), || name.clone())?;
                    writer.rows(name, UNFILED, shape, rows.clone(), piece.view())?;
                }
            }
            writer.trainer_state(&state)?;
            Ok(writer.finish()?)
        })?;
        Ok(())
    }

    /// Waits for the save under way on every rank, and commits it. Every rank calls it at the same place.
    pub(crate) fn finish_saving(&mut self) -> Result<(), TrainError> {
        let Some(step) = self.save.writing.step() else { return Ok(()) };
        let rank = self.rank;
        let Some(written) = self.save.writing.join() else { return Ok(()) };
        // A rank whose writing failed ends here, and tells the others.
        let written = written.map_err(|e| e.of_weights(step, self.counters.last_checkpoint.as_deref()))?;
        rank.world.barrier("checkpoint written")?;
        let options = &rank.setup.options.training;
        let dir = rank.setup.output_dir();
        let path = path_of(&dir, step);
        if rank.leads() {
            written.commit()?;
            let best = self.counters.best.map(|(_, step)| path_of(&dir, step));
            let keep = if options.load_best_model_at_end { best } else { None };
            rotate(&dir, Some(&self.run_name), options.save_total_limit, keep.as_deref())?;
            self.note(&format!("saved {}", path.display()));
            if let Some(hears) = self.on_checkpoint {
                hears.lock().unwrap_or_else(PoisonError::into_inner)(&path);
            }
        }
        self.counters.last_checkpoint = Some(path);
        Ok(())
    }

    /// The optimizer's state, in the order of parameters and slots that every rank has.
    fn slots(&self, with_state: bool) -> Vec<(usize, SlotTensor)> {
        let index_of = |name: &str| self.rank.plan.registry().index_of(name);
        let slots = self.optimizer.slots().into_iter().filter(|_| with_state);
        let mut slots: Vec<_> = slots.filter_map(|s| Some((index_of(&s.parameter)?, s))).collect();
        slots.sort_by_key(|(index, s)| (*index, s.slot));
        slots
    }

    fn trainer_state(&self, with_state: bool) -> Result<TrainerState, TrainError> {
        let setup = self.rank.setup;
        let options = &setup.options.training;
        let history = |record: &Record| -> Map<String, Value> {
            serde_json::from_str(&record.to_json()).unwrap_or_default()
        };
        let best = self.counters.best;
        let mut state = TrainerState {
            best_global_step: best.map(|(_, step)| step),
            best_metric: best.map(|(value, _)| value),
            best_model_checkpoint: best
                .map(|(_, step)| path_of(&options.output_dir, step).display().to_string()),
            epoch: self.counters.epoch,
            global_step: self.counters.step,
            log_history: self.records.iter().map(history).collect(),
            max_steps: self.total,
            num_train_epochs: options.num_train_epochs.ceil() as u64,
            num_input_tokens_seen: self.counters.num_tokens,
            train_batch_size: Some(options.per_device_train_batch_size as u64),
            ..TrainerState::default()
        };
        state.set_burnish(json!({
            "trainer": setup.trainer,
            "seed": options.seed,
            "rows": setup.rows,
            "global_batch": self.sampler.global_batch(),
            "cursor": self.counters.cursor,
            "num_tokens": self.counters.num_tokens,
            "grad_norm": self.counters.grad_norm,
            "optimizer_steps": self.optimizer.steps(),
            "optimizer_run": self.optimizer.run_state(),
            "schedule": self.schedule.state(),
            "loss_scaler": self.scaler,
            "window": self.window.to_json(),
            "rank_pattern": self.rank.rank_pattern(),
            "facts": setup.facts_of_checkpoint()?,
            "has_state": with_state,
            "ranks": self.rank.world.size(),
            "tp_size": setup.options.ranks.tp_size,
            "ep_size": setup.options.ranks.ep_size,
            "zero_stage": setup.options.ranks.zero_stage,
        }));
        Ok(state)
    }

    /// Puts the best checkpoint's weights back, with `load_best_model_at_end`.
    pub(crate) fn load_best(&mut self) -> Result<(), TrainError> {
        let rank = self.rank;
        let options = &rank.setup.options.training;
        let Some((value, step)) = self.counters.best.filter(|_| options.load_best_model_at_end) else {
            return Ok(());
        };
        let path = path_of(&options.output_dir, step);
        // The lead may be removing old checkpoints; the best is not among them.
        if step != self.counters.step && path.is_dir() {
            let files = Reloaded::open(&rank.exporter, &path)?;
            let unfiled = rank.exporter.registry().trainable().any(|p| !rank.exporter.keeps(p));
            let checkpoint = if unfiled { Some(Checkpoint::open(&path)?) } else { None };
            for (index, parameter) in rank.exporter.registry().iter().enumerate() {
                let rows = rank.held_rows(index);
                if parameter.trainable && parameter.alias_of.is_none() && !rows.is_empty() {
                    let unfiled = checkpoint.as_ref().filter(|_| !rank.exporter.keeps(parameter));
                    let value = rank.local(index, rows, |rows| -> Result<_, TrainError> {
                        let (name, store) = (&parameter.name, parameter.precision.store);
                        Ok(match unfiled {
                            Some(from) => from.read_rows_as(name, UNFILED, store, &parameter.shape, rows)?,
                            None => files.rows(parameter, rows)?,
                        })
                    })?;
                    rank.store.put(index, to_device(value, &rank.device));
                }
            }
            rank.store.all_gather_params()?;
            rank.rank_pattern_of(&path)?;
            self.note(&format!(
                "best {} was {value} at step {step}: loaded {}",
                options.best_metric(),
                path.display()
            ));
        }
        Ok(())
    }
}

/// A slot as a file has it.
fn to_host_slot(value: SlotValue) -> HostTensor {
    match value {
        SlotValue::Tensor(tensor) => to_host(&tensor),
        SlotValue::Bytes { bytes, shape } => HostTensor { dtype: Dtype::U8, shape, bytes },
    }
}
