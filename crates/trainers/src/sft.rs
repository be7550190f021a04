//! Supervised fine-tuning: from options to a run that is ready to start.

use burn::tensor::Device;
use burnish_config::{LossType, SftOptions};
use burnish_data::{Preparer, preflight};
use burnish_losses::TokenLoss;

use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::supervised::Supervised;
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError, packing};

/// A supervised run, everything but the weights read and checked.
pub struct Sft(pub(crate) Run<Supervised>);

impl Sft {
    /// Reads and checks everything that a run needs; `note` hears what the user should know.
    ///
    /// # Errors
    /// Whatever is missing, damaged or contradictory, before anything is written.
    pub fn prepare(
        options: SftOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let mut setup = Setup::open(&options, ranks, device)?;
        setup.prepared.rules.packing = packing(&options.packing, options.packing.packing);
        setup.prepared.rules.padding_free = options.packing.padding_free;
        let rows = &setup.prepared;
        let mut eval_rules = rows.rules.clone();
        eval_rules.packing = packing(&options.packing, options.packing.packs_evaluation());
        eval_rules.shuffle = false;
        let evaluator = Preparer { options: &eval_rules, ..rows.preparer() };
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().prepare(name, records)?),
            |name, records| Ok(evaluator.prepare(name, records)?),
        )?;
        for finding in preflight(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules) {
            note(&format!("data: {finding}"));
        }
        setup.rows = train.examples.len();
        setup.check_trains()?;
        let loss = match options.loss.loss_type {
            LossType::Nll | LossType::ChunkedNll => TokenLoss::Nll,
            LossType::Dft => TokenLoss::Dft,
        };
        Ok(Self(Run { setup, task: Supervised { train, eval, packing: options.packing, loss } }))
    }

    /// One line on what will train on what.
    ///
    /// # Errors
    /// If the model's folder does not fit its configuration.
    pub fn summary(&self) -> Result<String, TrainError> {
        self.0.summary()
    }

    /// Runs on all ranks of this process to the end, or until `stop` is asked; the first rank's outcome.
    ///
    /// # Errors
    /// If the loss is not a number (the last checkpoint stays), a file cannot be written, or a rank fails.
    pub fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        self.0.run(ranks, stop)
    }
}

impl Trainer for Sft {
    type Options = SftOptions;

    fn prepare(
        options: SftOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        Self::prepare(options, ranks, device, note)
    }

    fn summary(&self) -> Result<String, TrainError> {
        self.summary()
    }

    fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        self.run(ranks, stop)
    }
}
