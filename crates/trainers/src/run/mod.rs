//! A run that is ready to start, of any trainer.

pub(crate) mod batch_size;
pub(crate) mod beginning;
pub(crate) mod out_of_memory;
pub(crate) mod outputs;
pub(crate) mod products;
pub(crate) mod reporter;
pub(crate) mod restore;
pub(crate) mod saving;
pub(crate) mod stop;
pub(crate) mod task;
pub(crate) mod training;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use burn::tensor::Device;
use burnish_comm::World;
use burnish_config::TrainerOptions;
use burnish_data::{Options as Rules, RowUse};
use burnish_report::Record;

use crate::data_view::DataView;
use crate::plan::RunPlan;
use crate::plan::step_passes::StepPasses;
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::ranks::agreement::agree;
use crate::ranks::device_failure::guarded;
use crate::run::beginning::Beginning;
use crate::run::out_of_memory::explained;
use crate::run::stop::Stop;
use crate::run::task::Task;
use crate::run::training::{Outcome, Training};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;
use crate::{Ranks, TrainError};

/// A trainer of the program: a [`Task`] that the options of a command describe.
pub trait Trainer: Task + Sized {
    /// The command's options.
    type Options: TrainerOptions;

    /// The passes that a step makes and what it sums: what its plan counts.
    ///
    /// # Errors
    /// If options of the loss contradict each other.
    fn step(options: &Self::Options) -> Result<StepPasses, TrainError>;

    /// What it makes of rows; sets those rules of theirs that are its own.
    ///
    /// # Errors
    /// If options of the loss contradict each other.
    fn row_use(options: &Self::Options, rules: &mut Rules) -> Result<RowUse, TrainError>;

    /// Reads and checks everything that a run needs.
    ///
    /// # Errors
    /// Whatever is missing, damaged or contradictory, before anything is written.
    fn open(options: Self::Options, inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError>;

    /// As [`Self::open`], with rows from the files that options name; `note` hears what the user should know.
    ///
    /// # Errors
    /// As [`Self::open`].
    fn prepare(
        options: Self::Options,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Run<Self>, TrainError> {
        Self::open(options, RunInputs::new(ranks, device).notes(note))
    }

    /// What a run of these options will hold and send, without rows and without running it.
    ///
    /// # Errors
    /// If the model or the adapter does not fit.
    fn plan(options: &Self::Options) -> Result<RunPlan, TrainError> {
        RunPlan::of_step(options.run_options(), &Self::step(options)?)
    }

    /// The rows of these options as a run will see them, of which the first `shown` are kept, without running it.
    ///
    /// # Errors
    /// If a file is missing or damaged, or a row is of another type.
    fn rows(options: &Self::Options, shown: usize) -> Result<DataView, TrainError> {
        let rules = |rules: &mut Rules| Self::row_use(options, rules);
        DataView::new(options.run_options(), rules, shown)
    }
}

/// What hears of every step.
pub(crate) type OnStep = Mutex<Box<dyn FnMut(&Record) -> ControlFlow<()> + Send>>;

/// What hears of every checkpoint.
pub(crate) type OnCheckpoint = Mutex<Box<dyn FnMut(&Path) + Send>>;

/// A run of a [`Task`]: everything but the weights, read and checked.
pub struct Run<T> {
    pub(crate) setup: Setup,
    pub(crate) task: T,
    step: StepPasses,
    on_step: Option<OnStep>,
    on_checkpoint: Option<OnCheckpoint>,
}

impl<T: Task> Run<T> {
    /// A run of `task`, which trains on `rows` rows: what its sampler deals.
    ///
    /// # Errors
    /// If no parameter trains.
    pub fn new(setup: Setup, rows: usize, task: T) -> Result<Self, TrainError> {
        let step = StepPasses::new(task.counts(&[]).len(), &task.metrics());
        Self::of_step(setup, rows, step, task)
    }

    /// As [`Self::new`], with what a step of the task makes and sums.
    pub(crate) fn of_step(
        mut setup: Setup,
        rows: usize,
        step: StepPasses,
        task: T,
    ) -> Result<Self, TrainError> {
        setup.rows = rows;
        setup.check_trains()?;
        Ok(Self { setup, task, step, on_step: None, on_checkpoint: None })
    }

    /// `on_step` hears of every optimizer step: `loss`, `grad_norm`, `learning_rate`, `num_tokens` and the step's
    /// metrics. Where it breaks, the run ends as after its last step: with the model and what else a run leaves. Of
    /// several ranks the first one's is called.
    #[must_use]
    pub fn on_step(self, on_step: impl FnMut(&Record) -> ControlFlow<()> + Send + 'static) -> Self {
        Self { on_step: Some(Mutex::new(Box::new(on_step))), ..self }
    }

    /// `on_checkpoint` hears of every checkpoint when it is whole on disk, by its folder. Of several ranks the first one's is
    /// called, and training goes on when it returns.
    #[must_use]
    pub fn on_checkpoint(self, on_checkpoint: impl FnMut(&Path) + Send + 'static) -> Self {
        Self { on_checkpoint: Some(Mutex::new(Box::new(on_checkpoint))), ..self }
    }

    /// One line on what will train on what.
    ///
    /// # Errors
    /// If the model's folder does not fit its configuration.
    pub fn summary(&self) -> Result<String, TrainError> {
        self.setup.summary(self.task.tokens())
    }

    /// What the run will hold and send.
    ///
    /// # Errors
    /// If the ranks cannot share the model so.
    pub fn plan(&self) -> Result<RunPlan, TrainError> {
        RunPlan::of_model(&self.setup, &self.step)
    }

    /// Runs on all ranks of this process to the end, or until `stop` is asked; the first rank's outcome.
    ///
    /// # Errors
    /// If the loss is not a number (the last checkpoint stays), a file cannot be written, or a rank fails.
    pub fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        ranks.run(|world| {
            guarded(|| self.run_rank(world, stop))
                .unwrap_or_else(|failure| Err(explained(failure, &self.setup, &self.step)))
        })
    }

    fn run_rank(&self, world: &World, stop: &Stop) -> Result<Outcome, TrainError> {
        let start = Instant::now();
        agree(world, || self.setup.facts())?;
        let resumed = Resumed::find(&self.setup, &world.group())?;
        let beginning = Beginning::of(&self.setup, resumed.as_ref(), world.rank() == 0)?;
        let rank = Rank::new(&self.setup, world, resumed.as_ref())?;
        let mut training = Training::new(&rank, &self.task, resumed.as_ref(), beginning)?;
        training.on_step = self.on_step.as_ref();
        training.on_checkpoint = self.on_checkpoint.as_ref();
        drop(resumed);
        let interrupted = training.go(stop)?;
        let steps = training.counters.step;
        if interrupted.is_none() {
            training.put_averages()?;
            training.load_best()?;
        }
        let last = training.counters.last_checkpoint.clone();
        let records = training.end();
        let mut outcome = Outcome { steps, interrupted, records, time: start.elapsed(), sample: None };
        if outcome.interrupted.is_none() {
            rank.leave(&mut outcome).map_err(|e| e.of_weights(steps, last.as_deref()))?;
        }
        Ok(outcome)
    }
}
