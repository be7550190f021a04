//! Reward modelling on pairs of texts (Bradley-Terry): from options to a run.

pub(crate) mod task;

use burnish_config::RewardOptions;
use burnish_data::{Options as Rules, RowUse};
use burnish_losses::Reward as Loss;

pub use self::task::Reward;
use crate::TrainError;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

impl Trainer for Reward {
    type Options = RewardOptions;

    fn step(options: &RewardOptions) -> Result<StepPasses, TrainError> {
        let loss = Loss::new(options.loss.center_rewards_coefficient)?;
        Ok(StepPasses { texts: 2, scores: true, ..StepPasses::new(1, &loss.metrics()) })
    }

    fn row_use(_options: &RewardOptions, _rules: &mut Rules) -> Result<RowUse, TrainError> {
        Ok(RowUse::RewardPair)
    }

    fn open(options: RewardOptions, mut inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let loss = Loss::new(options.loss.center_rewards_coefficient)?;
        let step = Self::step(&options)?;
        let mut setup = Setup::open(&options, &mut inputs)?.scoring();
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().reward_pairs(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().reward_pairs(name, records)?),
        )?;
        inputs.say(rows.findings(&train, eval.as_ref()));
        let pad_id = rows.tokenizer.pad_id();
        let rows = train.examples.len();
        let drops_out = !options.loss.disable_dropout;
        let task = Reward { loss, train, eval, pad_id, drops_out };
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}
