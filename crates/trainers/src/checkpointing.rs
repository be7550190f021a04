//! Training state to disk and back: stop and resume equals never stopping.

use std::path::PathBuf;

use burnish_checkpoint::{Checkpoint, CheckpointWriter, TrainerState, resume, rotate};
use burnish_config::Resume;
use burnish_core::Dtype;
use burnish_data::{Cursor, Sampler};
use burnish_models::{Reloaded, to_device, to_host};
use burnish_optim::AdamW;
use burnish_report::Record;
use serde_json::{Map, Value, json};

use crate::training::Training;
use crate::window::Window;
use crate::{Sft, TrainError};

/// The slot of a parameter's exact value.
const VALUE: &str = "value";

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

impl Training<'_> {
    /// Saves a checkpoint, with what it takes to resume or the model only; `metric` is this step's evaluation, if there
    /// was one.
    pub(crate) fn save(&mut self, metric: Option<f64>, with_state: bool) -> Result<PathBuf, TrainError> {
        let sft = self.sft;
        let options = &sft.options.training;
        let step = self.counters.step;
        if let Some(value) = metric
            && self.counters.improves(value, options.greater_wins())
        {
            self.counters.best = Some((value, step));
        }
        let dir = sft.output_dir();
        let mut writer = CheckpointWriter::new(&dir, step)?;
        sft.write_model(writer.folder())?;
        if with_state {
            writer.slots(serde_json::to_value(self.optimizer.schema()).unwrap_or(Value::Null));
            for slot in self.optimizer.slots() {
                let tensor = to_host(&slot.tensor);
                writer.tensor(&slot.parameter, slot.slot, tensor.view())?;
            }
            // What the model's file holds rounded (vectors beside bf16 matrices) is kept whole.
            let registry = sft.model.parameters.registry();
            let written = sft.model.trained_dtype();
            for (index, parameter) in registry.iter().enumerate().filter(|_| sft.model.plan.is_none()) {
                if parameter.trainable && parameter.alias_of.is_none() && parameter.precision.store != written
                {
                    writer.tensor(&parameter.name, VALUE, sft.model.host(index).view())?;
                }
            }
        }
        writer.trainer_state(&self.trainer_state(with_state))?;
        let path = writer.commit()?;
        let best = self.counters.best.map(|(_, step)| burnish_checkpoint::path_of(&dir, step));
        let keep = if options.load_best_model_at_end { best } else { None };
        rotate(&dir, options.save_total_limit, keep.as_deref())?;
        self.counters.last_checkpoint = Some(path.clone());
        self.note(&format!("saved {}", path.display()));
        Ok(path)
    }

    fn trainer_state(&self, with_state: bool) -> TrainerState {
        let options = &self.sft.options.training;
        let history = |record: &Record| -> Map<String, Value> {
            serde_json::from_str(&record.to_json()).unwrap_or_default()
        };
        let best = self.counters.best;
        let mut state = TrainerState {
            best_global_step: best.map(|(_, step)| step),
            best_metric: best.map(|(value, _)| value),
            best_model_checkpoint: best.map(|(_, step)| {
                burnish_checkpoint::path_of(&options.output_dir, step).display().to_string()
            }),
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
            "trainer": "sft",
            "seed": options.seed,
            "rows": self.sft.train.examples.len(),
            "global_batch": self.sampler.global_batch(),
            "cursor": self.counters.cursor,
            "num_tokens": self.counters.num_tokens,
            "grad_norm": self.counters.grad_norm,
            "optimizer_steps": self.optimizer.steps(),
            "window": self.window.to_json(),
            "has_state": with_state,
        }));
        state
    }

    /// Puts the best checkpoint's weights back, with `load_best_model_at_end`.
    pub(crate) fn load_best(&mut self) -> Result<(), TrainError> {
        let options = &self.sft.options.training;
        let Some((value, step)) = self.counters.best.filter(|_| options.load_best_model_at_end) else {
            return Ok(());
        };
        let path = burnish_checkpoint::path_of(&options.output_dir, step);
        if path.is_dir() && step != self.counters.step {
            reload(self.sft, &path)?;
            self.note(&format!(
                "best {} was {value} at step {step}: loaded {}",
                options.best_metric(),
                path.display()
            ));
        }
        Ok(())
    }
}

/// Restores a run from the checkpoint that options name.
pub(crate) fn restore(
    sft: &Sft,
    sampler: &Sampler,
    optimizer: &mut AdamW,
) -> Result<Option<(Counters, Window, Vec<Record>)>, TrainError> {
    let options = &sft.options.training;
    let checkpoint = match &options.resume_from_checkpoint {
        Resume::No => return Ok(None),
        Resume::Newest => resume(&options.output_dir)?.0,
        Resume::From(path) => {
            let checkpoint = Checkpoint::open(path)?;
            checkpoint.verify()?;
            checkpoint
        }
    };
    let path = checkpoint.path().to_path_buf();
    let state = checkpoint.trainer_state()?;
    let ours = state.burnish().clone();
    if ours["has_state"].as_bool() != Some(true) {
        return Err(TrainError::NoState { path });
    }
    for (key, what, now) in [
        ("rows", "the number of training rows after preparation", json!(sft.train.examples.len())),
        (
            "global_batch",
            "the global batch (per_device_train_batch_size x gradient_accumulation_steps)",
            json!(sampler.global_batch()),
        ),
        ("seed", "seed", json!(options.seed)),
    ] {
        if ours[key] != now {
            return Err(TrainError::OtherRun {
                path,
                what,
                then: ours[key].to_string(),
                now: now.to_string(),
            });
        }
    }
    reload(sft, &path)?;
    let mut slots = Vec::new();
    for (name, slot) in checkpoint.entries() {
        let info = checkpoint.info(name, slot)?;
        let tensor = to_device(checkpoint.read_as(name, slot, Dtype::F32, &info.shape)?, &sft.device);
        match sft.model.parameters.registry().index_of(name).filter(|_| slot == VALUE) {
            Some(index) => sft.parameters.write(index, tensor),
            None => slots.push((name.to_owned(), slot.to_owned(), tensor)),
        }
    }
    optimizer.restore(ours["optimizer_steps"].as_u64().unwrap_or(state.global_step), slots)?;
    let counters = Counters {
        step: state.global_step,
        epoch: state.epoch,
        num_tokens: ours["num_tokens"].as_u64().unwrap_or(0),
        cursor: serde_json::from_value(ours["cursor"].clone()).unwrap_or_default(),
        grad_norm: ours["grad_norm"].as_f64().unwrap_or(0.0),
        best: state.best_metric.zip(state.best_global_step),
        last_checkpoint: Some(path),
    };
    let records = state
        .log_history
        .iter()
        .filter_map(|line| Record::from_json(&Value::Object(line.clone()).to_string()))
        .collect();
    Ok(Some((counters, Window::from_json(&ours["window"]), records)))
}

/// Puts the trained parameters of a checkpoint's model or adapter files in place.
fn reload(sft: &Sft, path: &std::path::Path) -> Result<(), TrainError> {
    let files = Reloaded::open(&sft.model, path)?;
    let registry = sft.model.parameters.registry();
    for (index, parameter) in registry.iter().enumerate() {
        if parameter.trainable && parameter.alias_of.is_none() {
            let rows = files.rows(parameter, 0..parameter.shape[0])?;
            sft.parameters.write(index, to_device(rows, &sft.device));
        }
    }
    Ok(())
}
