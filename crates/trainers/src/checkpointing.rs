//! Training state to disk and back: stop and resume equals never stopping.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnish_checkpoint::{
    Checkpoint, CheckpointError, CheckpointWriter, Saving, TrainerState, Written, open_newest, path_of,
    resume, rotate,
};
use burnish_comm::Group;
use burnish_config::Resume;
use burnish_core::{Dtype, Parameter};
use burnish_data::{Cursor, Sampler};
use burnish_models::{Reloaded, to_device, to_host};
use burnish_optim::{Held, LossScaler, Masters, Optimizer, SlotTensor};
use burnish_report::Record;
use burnish_store::HostTensor;
use burnish_zero::Stage;
use serde_json::{Map, Value, json};

use crate::TrainError;
use crate::leave::write_model;
use crate::rank::Rank;
use crate::setup::Setup;
use crate::task::Task;
use crate::training::Training;
use crate::window::Window;

/// The slot of a parameter's exact value.
const VALUE: &str = "value";
/// The slot of its value in a reference that has moved.
const REFERENCE: &str = "reference";

/// What counts up during a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) step: u64,
    pub(crate) epoch: f64,
    pub(crate) num_tokens: u64,
    pub(crate) cursor: Cursor,
    pub(crate) grad_norm: f64,
    pub(crate) best: Option<(f64, u64)>,
    pub(crate) last_checkpoint: Option<PathBuf>,
}

impl Counters {
    /// Whether `value` is the best so far.
    pub(crate) fn improves(&self, value: f64, greater_wins: bool) -> bool {
        self.best.is_none_or(|(best, _)| if greater_wins { value > best } else { value < best })
    }
}

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
        // From here on everything is a copy, or a tensor that an update would copy: the step goes on.
        let (exporter, folder) = (rank.exporter.clone(), setup.folder.clone());
        let (snapshot, state) = (rank.snapshot()?, self.trainer_state(with_state));
        let schema = serde_json::to_value(self.optimizer.schema()).unwrap_or(Value::Null);
        let mut slots = Vec::new();
        for (index, SlotTensor { slot, tensor, held, .. }) in self.slots(with_state) {
            if held == Held::Whole {
                // At stage 0 every data-parallel rank's matrices have an owner among those that share its layers.
                if rank.plan.policy().stage != Stage::Zero || rank.dp.rank() == 0 {
                    let shape = tensor.shape();
                    slots.push((index, slot, shape.clone(), 0..shape[0], tensor));
                }
                continue;
            }
            // Where every rank holds all of it, each writes its share.
            let (held, rows) =
                (rank.held_rows(index), rank.plan.placement(index).partition.rows(rank.dp.rank()));
            let mut shape = tensor.shape();
            let row: usize = shape.iter().skip(1).product();
            shape[0] = rows.len();
            let elements = (rows.start - held.start) * row..(rows.end - held.start) * row;
            let piece = if rows == held { tensor } else { tensor.piece(elements, &shape) };
            for (rows, piece) in rank.written(index, rows, piece)? {
                slots.push((index, slot, exporter.registry().at(index).shape.clone(), rows, piece));
            }
        }
        if let Some(store) = self.task.saved(&self.beside).filter(|_| with_state) {
            for (index, parameter) in rank.plan.registry().iter().enumerate() {
                if parameter.trainable && parameter.alias_of.is_none() {
                    let (rows, value) = store.saved_rows(index)?;
                    for (rows, piece) in rank.written(index, rows, value)? {
                        let shape = exporter.registry().at(index).shape.clone();
                        slots.push((index, REFERENCE, shape, rows, piece));
                    }
                }
            }
        }
        let file = self.task.saved_file(&self.beside).filter(|_| with_state);
        self.save.writing.start(step, move || {
            write_model(&exporter, &folder, writer.folder(), &snapshot)?;
            if let Some((name, bytes)) = file {
                writer.file(name, &bytes)?;
            }
            if with_state {
                writer.slots(schema);
                for (index, slot, shape, rows, piece) in slots {
                    let name = &exporter.registry().at(index).name;
                    writer.rows(name, slot, &shape, rows, to_host(&piece).view())?;
                }
                // What the model's file holds rounded (vectors beside bf16 matrices) is kept whole.
                let written = exporter.trained_dtype();
                for (index, parameter) in
                    exporter.registry().iter().enumerate().filter(|_| !exporter.is_adapter())
                {
                    if parameter.trainable
                        && parameter.alias_of.is_none()
                        && parameter.precision.store != written
                    {
                        for (rows, piece) in snapshot.pieces(index) {
                            let piece = to_host(piece);
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
        let written = written?;
        rank.world.barrier("checkpoint written")?;
        let options = &rank.setup.options.training;
        let dir = rank.setup.output_dir();
        let path = path_of(&dir, step);
        if rank.leads() {
            written.commit()?;
            let best = self.counters.best.map(|(_, step)| path_of(&dir, step));
            let keep = if options.load_best_model_at_end { best } else { None };
            rotate(&dir, options.save_total_limit, keep.as_deref())?;
            self.note(&format!("saved {}", path.display()));
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

    fn trainer_state(&self, with_state: bool) -> TrainerState {
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
            "loss_scaler": self.scaler,
            "window": self.window.to_json(),
            "has_state": with_state,
            "ranks": self.rank.world.size(),
            "tp_size": setup.options.ranks.tp_size,
            "zero_stage": setup.options.ranks.zero_stage.0,
        }));
        state
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
            for (index, parameter) in rank.exporter.registry().iter().enumerate() {
                let rows = rank.held_rows(index);
                if parameter.trainable && parameter.alias_of.is_none() && !rows.is_empty() {
                    let value = rank.local(index, rows, |rows| files.rows(parameter, rows))?;
                    rank.store.put(index, to_device(value, &rank.device));
                }
            }
            rank.store.publish()?;
            self.note(&format!(
                "best {} was {value} at step {step}: loaded {}",
                options.best_metric(),
                path.display()
            ));
        }
        Ok(())
    }
}

impl Rank<'_> {
    /// The rows of a parameter that this rank's optimizer holds.
    fn held_rows(&self, index: usize) -> Range<usize> {
        self.plan.rows(index, self.dp.rank())
    }
}

impl Rank<'_> {
    /// This rank's rows of its part of a parameter, from rows of the whole.
    pub(crate) fn local<E>(
        &self,
        index: usize,
        rows: Range<usize>,
        read: impl Fn(Range<usize>) -> Result<HostTensor, E>,
    ) -> Result<HostTensor, E> {
        match &self.parallel {
            Some(parallel) => parallel.read(index, self.tp.rank(), rows, read),
            None => read(rows),
        }
    }
}

/// A checkpoint to go on from, checked.
pub(crate) struct Resumed {
    pub(crate) checkpoint: Checkpoint,
    state: TrainerState,
}

impl Resumed {
    /// The checkpoint that options name, if they do; every rank checks its share of it.
    pub(crate) fn find(setup: &Setup, group: &Group) -> Result<Option<Self>, TrainError> {
        let options = &setup.options.training;
        let checkpoint = match &options.resume_from_checkpoint {
            Resume::No => return Ok(None),
            Resume::Newest => newest(setup, group)?,
            Resume::From(path) => {
                let checkpoint = Checkpoint::open(path)?;
                checkpoint.verify_share(group.rank(), group.size())?;
                checkpoint
            }
        };
        let state = checkpoint.trainer_state()?;
        let resumed = Self { checkpoint, state };
        if resumed.ours()["has_state"].as_bool() != Some(true) {
            return Err(TrainError::NoState { path: resumed.path() });
        }
        Ok(Some(resumed))
    }

    fn ours(&self) -> &Value {
        self.state.burnish()
    }

    /// Steps done.
    pub(crate) fn step(&self) -> u64 {
        self.state.global_step
    }

    /// The bytes of one of its files.
    pub(crate) fn file(&self, name: &str) -> Result<Vec<u8>, TrainError> {
        Ok(self.checkpoint.file(name)?)
    }

    /// That it is of a run that differs in `what`.
    pub(crate) fn other_run(&self, what: &'static str, then: String, now: String) -> TrainError {
        TrainError::OtherRun { path: self.path(), what, then, now }
    }

    /// What is wrong with a file whose bytes are what was written.
    pub(crate) fn unreadable(&self, name: &str, source: serde_json::Error) -> TrainError {
        let to = self.path().join(name).display().to_string();
        TrainError::Unreadable { path: to, source: source.into() }
    }

    fn path(&self) -> PathBuf {
        self.checkpoint.path().to_path_buf()
    }

    /// Rows of a trained parameter: exact where the checkpoint has it so, else from the model's file.
    pub(crate) fn value(
        &self,
        parameter: &Parameter,
        files: &Reloaded,
        rows: Range<usize>,
    ) -> Result<HostTensor, TrainError> {
        if !self.checkpoint.contains(&parameter.name, VALUE) {
            return Ok(files.rows(parameter, rows)?);
        }
        let (store, shape) = (parameter.precision.store, &parameter.shape);
        Ok(self.checkpoint.read_rows_as(&parameter.name, VALUE, store, shape, rows)?)
    }

    /// Rows of a parameter of the reference, if the checkpoint has one that has moved.
    pub(crate) fn reference(
        &self,
        parameter: &Parameter,
        rows: Range<usize>,
    ) -> Result<Option<HostTensor>, TrainError> {
        if !self.checkpoint.contains(&parameter.name, REFERENCE) {
            return Ok(None);
        }
        let (store, shape) = (parameter.precision.store, &parameter.shape);
        Ok(Some(self.checkpoint.read_rows_as(&parameter.name, REFERENCE, store, shape, rows)?))
    }

    /// Puts the optimizer and the counters where they were.
    pub(crate) fn restore(
        &self,
        rank: &Rank<'_>,
        sampler: &Sampler,
        optimizer: &mut Optimizer,
        owns: &dyn Fn(usize) -> bool,
    ) -> Result<Restored, TrainError> {
        let setup = rank.setup;
        let options = &setup.options.training;
        for (key, what, now) in [
            ("trainer", "the command", json!(setup.trainer)),
            ("rows", "the number of training rows after preparation", json!(setup.rows)),
            (
                "global_batch",
                "the global batch (per_device_train_batch_size x ranks x gradient_accumulation_steps; \
                 global_batch_size fixes it for any number of ranks)",
                json!(sampler.global_batch()),
            ),
            ("seed", "seed", json!(options.seed)),
        ] {
            if self.ours()[key] != now {
                return Err(TrainError::OtherRun {
                    path: self.path(),
                    what,
                    then: self.ours()[key].to_string(),
                    now: now.to_string(),
                });
            }
        }
        let mut slots = Vec::new();
        // Slots that the checkpoint has in another dtype than this run keeps, and how many.
        let mut converted: BTreeMap<(&str, Dtype, Dtype), usize> = BTreeMap::new();
        for (name, slot) in self.checkpoint.entries().filter(|(_, slot)| ![VALUE, REFERENCE].contains(slot)) {
            let info = self.checkpoint.info(name, slot)?;
            let read = |rows| self.checkpoint.read_rows_as(name, slot, info.dtype, &info.shape, rows);
            let all = 0..info.shape.first().copied().unwrap_or(1);
            let index = rank.plan.registry().index_of(name);
            let declared = optimizer.declared(name, slot);
            // Every rank counts, and refuses, alike: also what another one holds.
            let other = declared.map(|d| d.dtype).filter(|&dtype| dtype != info.dtype);
            if let Some(expected) = other {
                if options.resume_strict {
                    return Err(TrainError::SlotDtype {
                        path: self.path(),
                        parameter: name.to_owned(),
                        slot: slot.to_owned(),
                        got: info.dtype,
                        expected,
                    });
                }
                *converted.entry((slot, info.dtype, expected)).or_default() += 1;
            }
            let piece = match (index, declared.map(|d| d.held)) {
                (Some(index), Some(Held::Whole)) if !owns(index) => continue,
                (Some(index), Some(Held::Rows)) if rank.held_rows(index).is_empty() => continue,
                (Some(index), Some(Held::Rows)) => rank.local(index, rank.held_rows(index), read)?,
                // A parameter or slot that there is none of here is the optimizer's to refuse.
                _ => read(all)?,
            };
            if piece.bytes.is_empty() {
                continue;
            }
            let mut tensor = to_device(piece, &rank.device);
            if let Some(expected) = other {
                tensor =
                    tensor.cast(if expected == Dtype::Bf16 { FloatDType::BF16 } else { FloatDType::F32 });
            }
            slots.push((name.to_owned(), slot.to_owned(), tensor));
        }
        let note = |((slot, from, to), count): ((&str, Dtype, Dtype), usize)| {
            format!("{count} `{slot}` of the checkpoint converted from {from} to {to}")
        };
        let notes = converted.into_iter().map(note).collect();
        let ours = self.ours();
        optimizer.restore(ours["optimizer_steps"].as_u64().unwrap_or(self.state.global_step), slots)?;
        let counters = Counters {
            step: self.state.global_step,
            epoch: self.state.epoch,
            num_tokens: ours["num_tokens"].as_u64().unwrap_or(0),
            cursor: serde_json::from_value(ours["cursor"].clone()).unwrap_or_default(),
            grad_norm: ours["grad_norm"].as_f64().unwrap_or(0.0),
            best: self.state.best_metric.zip(self.state.best_global_step),
            last_checkpoint: Some(self.path()),
        };
        let records = self
            .state
            .log_history
            .iter()
            .filter_map(|line| Record::from_json(&Value::Object(line.clone()).to_string()))
            .collect();
        let scaler = serde_json::from_value(ours["loss_scaler"].clone()).ok();
        let window = Window::from_json(&ours["window"]);
        Ok(Restored { counters, window, records, scaler, notes })
    }
}

/// What a checkpoint says of the loop.
pub(crate) struct Restored {
    pub(crate) counters: Counters,
    pub(crate) window: Window,
    pub(crate) records: Vec<Record>,
    pub(crate) scaler: Option<LossScaler>,
    /// What was converted.
    pub(crate) notes: Vec<String>,
}

/// The newest checkpoint of which every rank finds its share whole.
fn newest(setup: &Setup, group: &Group) -> Result<Checkpoint, TrainError> {
    let dir = setup.output_dir();
    let mut before = None;
    loop {
        // The lead looks; another rank's disk may lag behind.
        let mut step = 0.0;
        if group.rank() == 0 {
            let found = open_newest(&dir, before)?.checkpoint;
            step = match found {
                Some(checkpoint) => checkpoint.step() as f64,
                // Says what was skipped, and why; what another rank finds damaged is not what is newest.
                None => match resume(&dir)?.0.step() {
                    step if before.is_none_or(|before| step < before) => step as f64,
                    _ => {
                        let (path, skipped) = (dir, Vec::new());
                        return Err(CheckpointError::NothingToResume { path, skipped }.into());
                    }
                },
            };
        }
        let step = group.sum_f64(&[step], "newest checkpoint")?[0] as u64;
        let checkpoint = Checkpoint::open(path_of(&dir, step));
        let checked = checkpoint.and_then(|c| c.verify_share(group.rank(), group.size()).map(|()| c));
        let damaged = f64::from(u8::from(checked.is_err()));
        if group.sum_f64(&[damaged], "damaged checkpoints")?[0] == 0.0 {
            return Ok(checked?);
        }
        before = Some(step);
    }
}
