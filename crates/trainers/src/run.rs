//! A run that is ready to start, of any trainer.

use std::time::Instant;

use burn::tensor::Device;
use burnish_comm::World;
use burnish_config::TrainerOptions;

use crate::checkpointing::Resumed;
use crate::device_failure::{explained, guarded};
use crate::rank::Rank;
use crate::setup::Setup;
use crate::task::Task;
use crate::training::{Outcome, Training};
use crate::{Ranks, Stop, TrainError};

/// A trainer: what turns the options of its command into a run.
pub trait Trainer: Sized {
    /// The command's options.
    type Options: TrainerOptions;

    /// Reads and checks everything that a run needs; `note` hears what the user should know.
    ///
    /// # Errors
    /// Whatever is missing, damaged or contradictory, before anything is written.
    fn prepare(
        options: Self::Options,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError>;

    /// One line on what will train on what.
    ///
    /// # Errors
    /// If the model's folder does not fit its configuration.
    fn summary(&self) -> Result<String, TrainError>;

    /// Runs on all ranks of this process to the end, or until `stop` is asked; the first rank's outcome.
    ///
    /// # Errors
    /// If the loss is not a number (the last checkpoint stays), a file cannot be written, or a rank fails.
    fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError>;
}

/// Everything but the weights, read and checked.
pub(crate) struct Run<T> {
    pub(crate) setup: Setup,
    pub(crate) task: T,
}

impl<T: Task> Run<T> {
    pub(crate) fn summary(&self) -> Result<String, TrainError> {
        self.setup.summary(self.task.tokens())
    }

    pub(crate) fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        ranks.run(|world| {
            guarded(|| self.run_rank(world, stop))
                .unwrap_or_else(|failure| Err(explained(failure, &self.setup)))
        })
    }

    fn run_rank(&self, world: &World, stop: &Stop) -> Result<Outcome, TrainError> {
        let start = Instant::now();
        let resumed = Resumed::find(&self.setup, &world.group())?;
        let rank = Rank::new(&self.setup, world, resumed.as_ref())?;
        let mut training = Training::new(&rank, &self.task, resumed.as_ref())?;
        drop(resumed);
        let interrupted = training.go(stop)?;
        let steps = training.counters.step;
        if interrupted.is_none() {
            training.load_best()?;
        }
        let records = training.end();
        let mut outcome = Outcome { steps, interrupted, records, time: start.elapsed(), sample: None };
        if outcome.interrupted.is_none() {
            rank.leave(&mut outcome)?;
        }
        Ok(outcome)
    }
}
