//! A checkpoint to go on from, as each rank reads its part of it.

use std::ops::Range;
use std::path::PathBuf;

use burnish_checkpoint::{Checkpoint, CheckpointError, TrainerState, open_newest, path_of, resume};
use burnish_comm::Group;
use burnish_config::groups::TrainingOptions;
use burnish_config::values::Resume;
use burnish_core::Parameter;
use burnish_models::Reloaded;
use burnish_weight_files::HostTensor;
use serde_json::Value;

use crate::TrainError;
use crate::setup::Setup;

/// The slot of a parameter's exact value.
pub(crate) const VALUE: &str = "value";
/// The slot of its value in the model, where that is in no file of the model's own.
pub(crate) const UNFILED: &str = "unfiled";
/// The slot of its value in a reference that has moved.
pub(crate) const REFERENCE: &str = "reference";

/// The slots of averages of its importance, and of how far that was from them (AdaLoRA).
pub(crate) const SENSITIVITY: &str = "sensitivity";
pub(crate) const UNCERTAINTY: &str = "uncertainty";
/// All slots that are no optimizer's.
pub(crate) const BESIDE: [&str; 5] = [VALUE, UNFILED, REFERENCE, SENSITIVITY, UNCERTAINTY];

/// The state that a run's options name to go on from, if they do, before ranks and folders are checked.
pub(crate) fn resumed_state(training: &TrainingOptions) -> Result<Option<TrainerState>, TrainError> {
    let checkpoint = match &training.resume_from_checkpoint {
        Resume::No => return Ok(None),
        Resume::Newest => open_newest(&training.output_dir, None)?.checkpoint,
        Resume::From(path) => Some(Checkpoint::open(path)?),
    };
    Ok(checkpoint.map(|found| found.trainer_state()).transpose()?)
}

/// A checkpoint to go on from, checked.
pub struct Resumed {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) state: TrainerState,
    /// Newer ones that cannot be used, and why.
    pub(crate) skipped: Vec<String>,
}

impl Resumed {
    /// The checkpoint that options name, if they do; every rank checks its share of it.
    pub(crate) fn find(setup: &Setup, group: &Group) -> Result<Option<Self>, TrainError> {
        let options = &setup.options.training;
        let mut skipped = Vec::new();
        let checkpoint = match &options.resume_from_checkpoint {
            Resume::No => return Ok(None),
            Resume::Newest => newest(setup, group, &mut skipped)?,
            Resume::From(path) => {
                let checkpoint = Checkpoint::open(path)?;
                checkpoint.verify_share(group.rank(), group.size())?;
                checkpoint
            }
        };
        let state = checkpoint.trainer_state()?;
        let resumed = Self { checkpoint, state, skipped };
        if resumed.ours()["has_state"].as_bool() != Some(true) {
            return Err(TrainError::NoState { path: resumed.path() });
        }
        Ok(Some(resumed))
    }

    pub(crate) fn ours(&self) -> &Value {
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

    pub(crate) fn path(&self) -> PathBuf {
        self.checkpoint.path().to_path_buf()
    }

    /// Rows of a trained parameter: exact where the checkpoint has it so, else from the model's file.
    pub(crate) fn value(
        &self,
        parameter: &Parameter,
        files: &Reloaded,
        rows: Range<usize>,
    ) -> Result<HostTensor, TrainError> {
        let exact = [VALUE, UNFILED].into_iter().find(|slot| self.checkpoint.contains(&parameter.name, slot));
        let Some(slot) = exact else { return Ok(files.rows(parameter, rows)?) };
        let (store, shape) = (parameter.precision.store, &parameter.shape);
        Ok(self.checkpoint.read_rows_as(&parameter.name, slot, store, shape, rows)?)
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
}

/// The newest checkpoint of which every rank finds its share whole; `skipped` hears of newer ones.
fn newest(setup: &Setup, group: &Group, skipped: &mut Vec<String>) -> Result<Checkpoint, TrainError> {
    let dir = setup.output_dir();
    let mut before = None;
    loop {
        // The lead looks; another rank's disk may lag behind.
        let mut step = 0.0;
        if group.rank() == 0 {
            let found = open_newest(&dir, before)?;
            skipped.extend(found.skipped.into_iter().map(|(_, why)| why.to_string()));
            step = match found.checkpoint {
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
        skipped.push(match checked {
            Err(why) => why.to_string(),
            Ok(_) => format!("`{}`: another rank finds it damaged", path_of(&dir, step).display()),
        });
        before = Some(step);
    }
}
