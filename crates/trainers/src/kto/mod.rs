//! KTO, Kahneman-Tversky optimisation (Ethayarajh et al., arXiv:2402.01306): from options to a run.

pub(crate) mod task;

use burnish_config::KtoOptions;
use burnish_config::groups::KtoLossOptions;
use burnish_data::{CompletionCollator, Options as Rules, RowUse, preflight_weights};
use burnish_losses::{Kto as Loss, LossError};

pub use self::task::Kto;
use crate::TrainError;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

impl Trainer for Kto {
    type Options = KtoOptions;

    fn step(options: &KtoOptions) -> Result<StepPasses, TrainError> {
        let loss = loss(options)?;
        let holds_reference = !options.precompute.precompute_ref_log_probs;
        // The KL term is of other completions under the same prompts.
        let kl = usize::from(loss.needs_kl());
        let mut step = StepPasses::new(1, &loss.metrics());
        step.sums.extend((kl > 0).then_some(2));
        Ok(StepPasses {
            reference: if holds_reference { 1 + kl } else { 0 },
            holds_reference,
            first: kl,
            ..step
        })
    }

    fn row_use(options: &KtoOptions, _rules: &mut Rules) -> Result<RowUse, TrainError> {
        let KtoLossOptions { desirable_weight, undesirable_weight, .. } = options.loss;
        Ok(RowUse::Unpaired { desirable_weight, undesirable_weight })
    }

    fn open(options: KtoOptions, mut inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let (loss, step) = (loss(&options)?, Self::step(&options)?);
        let own = &options.loss;
        let mut setup = Setup::open(&options, &mut inputs)?;
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().unpaired(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().unpaired(name, records)?),
        )?;
        let weights = preflight_weights(&train.statistics, own.desirable_weight, own.undesirable_weight);
        inputs.say(rows.findings(&train, eval.as_ref()).into_iter().chain(weights));
        let collator = CompletionCollator {
            max_length: rows.rules.max_length,
            truncation: rows.rules.truncation,
            ..CompletionCollator::default()
        };
        let rows = train.examples.len();
        let training = &options.training;
        let chunk = training.per_device_train_batch_size;
        let drops_out = !own.disable_dropout;
        let (reference, precompute) = (options.reference, options.precompute);
        let task = Kto { loss, train, eval, chunk, collator, reference, precompute, drops_out };
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}

/// The loss that options describe.
fn loss(options: &KtoOptions) -> Result<Loss, LossError> {
    Loss::new((&options.loss).into())
}
