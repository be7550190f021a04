//! The loop's state out of a checkpoint: optimizer, counters, metrics.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_data::{Cursor, Sampler};
use burnish_models::to_device;
use burnish_optim::{LossScaler, Optimizer, Schedule, SlotScope, SlotValue};
use burnish_report::Record;
use serde_json::{Value, json};

use crate::TrainError;
use crate::metrics::metric_window::Window;
use crate::rank::Rank;
use crate::rank::resumed::{BESIDE, Resumed};

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

/// What a checkpoint says of the loop.
pub(crate) struct Restored {
    pub(crate) counters: Counters,
    pub(crate) window: Window,
    pub(crate) records: Vec<Record>,
    pub(crate) scaler: Option<LossScaler>,
    /// What was converted.
    pub(crate) notes: Vec<String>,
}

impl Resumed {
    /// Puts the optimizer and the counters where they were.
    pub(crate) fn restore(
        &self,
        rank: &Rank<'_>,
        sampler: &Sampler,
        optimizer: &mut Optimizer,
        schedule: &mut Schedule,
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
        for (name, slot) in self.checkpoint.entries().filter(|(_, slot)| !BESIDE.contains(slot)) {
            let info = self.checkpoint.info(name, slot)?;
            let read = |rows| self.checkpoint.read_rows_as(name, slot, info.dtype, &info.shape, rows);
            let all = 0..info.shape.first().copied().unwrap_or(1);
            let index = rank.plan.registry().index_of(name);
            let declared = optimizer.declared(name, slot);
            // Every rank counts, and refuses, alike: also what another one holds.
            let other = declared.map(|d| d.dtype).filter(|&dtype| dtype != info.dtype);
            if let Some(expected) = other {
                if options.resume_strict || info.dtype == Dtype::U8 || expected == Dtype::U8 {
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
                (Some(index), Some(SlotScope::Whole)) if !owns(index) => continue,
                (Some(index), Some(SlotScope::Rows)) if rank.held_rows(index).is_empty() => continue,
                (Some(index), Some(SlotScope::Rows)) => rank.local(index, rank.held_rows(index), read)?,
                // A parameter or slot that there is none of here is the optimizer's to refuse.
                _ => read(all)?,
            };
            if piece.bytes.is_empty() {
                continue;
            }
            if piece.dtype == Dtype::U8 {
                let value = SlotValue::Bytes { bytes: piece.bytes, shape: piece.shape };
                slots.push((name.to_owned(), slot.to_owned(), value));
                continue;
            }
            let mut tensor = to_device(piece, &rank.device);
            if let Some(expected) = other {
                tensor =
                    tensor.cast(if expected == Dtype::Bf16 { FloatDType::BF16 } else { FloatDType::F32 });
            }
            slots.push((name.to_owned(), slot.to_owned(), tensor.into()));
        }
        let note = |((slot, from, to), count): ((&str, Dtype, Dtype), usize)| {
            format!("{count} `{slot}` of the checkpoint converted from {from} to {to}")
        };
        let notes = converted.into_iter().map(note).collect();
        let ours = self.ours();
        optimizer.restore(ours["optimizer_steps"].as_u64().unwrap_or(self.state.global_step), slots)?;
        if let Ok(state) = serde_json::from_value(ours["optimizer_run"].clone()) {
            optimizer.restore_run_state(state);
        }
        if let Ok(state) = serde_json::from_value(ours["schedule"].clone()) {
            schedule.restore(state);
        }
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
