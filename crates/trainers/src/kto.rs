//! Kahneman-Tversky optimisation: from options to a run that is ready to start.

use burn::tensor::Device;
use burnish_config::KtoOptions;
use burnish_data::{CompletionCollator, preflight_prepared, preflight_weights};
use burnish_losses::{Kto as Loss, KtoOptions as LossOptions, LossError};

use crate::desirable::Desirable;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError};

/// A run of Kahneman-Tversky optimisation, everything but the weights read and checked.
///
/// The reference is as [`Dpo`](crate::Dpo)'s; the first step's rewards and KL term are 0.
pub struct Kto(Run<Desirable>);

impl Trainer for Kto {
    type Options = KtoOptions;

    fn prepare(
        options: KtoOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let loss = loss(&options)?;
        let own = &options.loss;
        let mut setup = Setup::open(&options, ranks, device)?;
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().unpaired(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().unpaired(name, records)?),
        )?;
        let weights = preflight_weights(&train.statistics, own.desirable_weight, own.undesirable_weight);
        let found = preflight_prepared(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules);
        for finding in found.into_iter().chain(weights) {
            note(&format!("data: {finding}"));
        }
        let collator =
            CompletionCollator { max_length: rows.rules.max_length, truncation: rows.rules.truncation };
        setup.rows = train.examples.len();
        setup.check_trains()?;
        let training = &options.training;
        let chunk = training.per_device_train_batch_size;
        let drops_out = !own.disable_dropout;
        let (reference, precompute) = (options.reference, options.precompute);
        let task = Desirable { loss, train, eval, chunk, collator, reference, precompute, drops_out };
        Ok(Self(Run { setup, task }))
    }

    fn summary(&self) -> Result<String, TrainError> {
        self.0.summary()
    }

    fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        self.0.run(ranks, stop)
    }
}

/// The loss that options describe.
pub(crate) fn loss(options: &KtoOptions) -> Result<Loss, LossError> {
    let own = &options.loss;
    Loss::new(LossOptions {
        loss_type: own.loss_type.word().parse()?,
        beta: own.beta,
        desirable_weight: own.desirable_weight,
        undesirable_weight: own.undesirable_weight,
    })
}
