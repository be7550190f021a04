//! SFT, supervised fine-tuning on tokens (`nll`, `dft`): from options to a run.

pub(crate) mod task;

use burnish_config::SftOptions;
use burnish_data::{Dataset, Example, Options as Rules, Preparer, RowUse, TokenChecks, preflight};
use burnish_losses::TokenLoss;

pub use self::task::Sft;
use crate::TrainError;
use crate::forward::token_loss::{SupervisedLoss, token_metrics};
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

impl Trainer for Sft {
    type Options = SftOptions;

    fn step(options: &SftOptions) -> Result<StepPasses, TrainError> {
        let likelihood = options.loss.loss_type == TokenLoss::Nll;
        Ok(StepPasses { likelihood, ..StepPasses::new(1, &token_metrics()) })
    }

    fn row_use(options: &SftOptions, rules: &mut Rules) -> Result<RowUse, TrainError> {
        rules.packing = options.packing.strategy(options.packing.packing);
        rules.padding_free = options.packing.padding_free;
        Ok(RowUse::Supervised)
    }

    fn open(options: SftOptions, mut inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let step = Self::step(&options)?;
        let mut setup = Setup::open(&options, &mut inputs)?;
        Self::row_use(&options, &mut setup.prepared.rules)?;
        let rows = &setup.prepared;
        let mut eval_rules = rows.rules.clone();
        eval_rules.packing = options.packing.strategy(options.packing.packs_evaluation());
        eval_rules.shuffle = false;
        let evaluator = Preparer { options: &eval_rules, ..rows.preparer() };
        let (train, eval) = setup.named_datasets(
            |of, records| of.dataset(&rows.preparer(), records),
            |of, records| of.dataset(&evaluator, records),
        )?;
        let mut found = preflight(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules);
        if let Some(eval) = eval.as_ref().filter(|_| rows.rules.packing.or(eval_rules.packing).is_none()) {
            let checks = |data: &Dataset| TokenChecks::of_examples(&rows.tokenizer, &data.examples, None);
            found.extend(checks(&train).evaluated(&checks(eval)));
        }
        inputs.say(found);
        let rows = train.examples.len();
        // A row's first token follows nothing.
        let learned = |example: &Example| example.labels.iter().skip(1).any(|&label| label >= 0);
        if rows > 0 && !train.examples.iter().any(learned) {
            return Err(TrainError::NothingToLearn { name: setup.dataset_name(), rows });
        }
        let loss = SupervisedLoss {
            kind: options.loss.loss_type,
            label_smoothing: options.loss.label_smoothing() as f32,
        };
        let task = Sft { train, eval, packing: options.packing, loss };
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}
