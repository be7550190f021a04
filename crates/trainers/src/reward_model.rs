//! Reward models: from options to a run that is ready to start.

use burn::tensor::Device;
use burnish_config::RewardOptions;
use burnish_data::preflight_prepared;
use burnish_losses::Reward as Loss;

use crate::rewards::Rewards;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError};

/// A run that makes a reward model, everything but the weights read and checked.
///
/// A language model becomes one that scores texts; with an adapter the score trains whole beside it. What is left is a
/// folder as Transformers' `*ForSequenceClassification` writes it, or PEFT's adapter of task `SEQ_CLS`.
pub struct Reward(Run<Rewards>);

impl Trainer for Reward {
    type Options = RewardOptions;

    fn prepare(
        options: RewardOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let loss = Loss::new(options.loss.center_rewards_coefficient)?;
        let mut setup = Setup::open(&options, ranks, device)?.scoring();
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().reward_pairs(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().reward_pairs(name, records)?),
        )?;
        for finding in preflight_prepared(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules) {
            note(&format!("data: {finding}"));
        }
        let pad_id = rows.tokenizer.pad_id();
        setup.rows = train.examples.len();
        setup.check_trains()?;
        let drops_out = !options.loss.disable_dropout;
        Ok(Self(Run { setup, task: Rewards { loss, train, eval, pad_id, drops_out } }))
    }

    fn summary(&self) -> Result<String, TrainError> {
        self.0.summary()
    }

    fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        self.0.run(ranks, stop)
    }
}
