//! Preference optimisation without a reference, as TRL has it: CPO with SimPO and AlphaPO, and ORPO. From options to a run.

pub(crate) mod task;

use burnish_config::{CpoOptions, OrpoOptions, TrainerOptions};
use burnish_data::{Options as Rules, RowUse};
use burnish_losses::{LossError, ReferenceFree as Loss};

pub use self::task::ReferenceFree;
use crate::TrainError;
use crate::pair_batch::PairRows;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

/// CPO, SimPO and AlphaPO.
pub type Cpo = ReferenceFree<CpoOptions>;
/// ORPO.
pub type Orpo = ReferenceFree<OrpoOptions>;

/// What the options of these trainers say beyond those of every run.
pub trait ReferenceFreeOptions: TrainerOptions + Send + Sync {
    /// The loss.
    ///
    /// # Errors
    /// If an option is out of range.
    fn objective(&self) -> Result<Loss, LossError>;

    /// Whether training passes drop out.
    fn drops_out(&self) -> bool;
}

impl ReferenceFreeOptions for CpoOptions {
    fn objective(&self) -> Result<Loss, LossError> {
        Loss::cpo((&self.loss).into())
    }

    fn drops_out(&self) -> bool {
        !self.loss.disable_dropout
    }
}

impl ReferenceFreeOptions for OrpoOptions {
    fn objective(&self) -> Result<Loss, LossError> {
        Loss::orpo(self.loss.beta)
    }

    fn drops_out(&self) -> bool {
        !self.loss.disable_dropout
    }
}

impl<O: ReferenceFreeOptions> Trainer for ReferenceFree<O> {
    type Options = O;

    fn step(options: &O) -> Result<StepPasses, TrainError> {
        Ok(StepPasses { texts: 2, ..StepPasses::new(2, &options.objective()?.metrics()) })
    }

    fn row_use(options: &O, rules: &mut Rules) -> Result<RowUse, TrainError> {
        rules.between_bos_and_eos = true;
        Ok(RowUse::Preference { prompts: options.objective()?.trains_prompt() })
    }

    fn open(options: O, mut inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let (loss, step) = (options.objective()?, Self::step(&options)?);
        let mut setup = Setup::open(&options, &mut inputs)?;
        Self::row_use(&options, &mut setup.prepared.rules)?;
        let mut pairs = PairRows::read(&setup, &mut inputs)?;
        pairs.collator.prompts = loss.trains_prompt();
        let rows = pairs.train.examples.len();
        let task = ReferenceFree::new(loss, pairs, options.drops_out());
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}
