//! DPO, direct preference optimisation (Rafailov et al., arXiv:2305.18290), with the losses of TRL: from options to a run.

pub(crate) mod task;

use burnish_config::DpoOptions;
use burnish_data::{Options as Rules, RowUse};
use burnish_losses::{Dpo as Loss, FirstPass, LossError};

pub use self::task::Dpo;
use crate::TrainError;
use crate::pair_batch::PairRows;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

impl Trainer for Dpo {
    type Options = DpoOptions;

    fn step(options: &DpoOptions) -> Result<StepPasses, TrainError> {
        let loss = loss(options)?;
        let holds_reference = !options.precompute.precompute_ref_log_probs;
        Ok(StepPasses {
            texts: 2,
            reference: usize::from(holds_reference),
            holds_reference,
            first: usize::from(loss.needs() == FirstPass::Scores),
            ..StepPasses::new(2, &loss.metrics())
        })
    }

    fn row_use(_options: &DpoOptions, _rules: &mut Rules) -> Result<RowUse, TrainError> {
        Ok(RowUse::Preference { prompts: false })
    }

    fn open(options: DpoOptions, mut inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let (loss, step) = (loss(&options)?, Self::step(&options)?);
        let mut setup = Setup::open(&options, &mut inputs)?;
        let PairRows { train, eval, collator } = PairRows::read(&setup, &mut inputs)?;
        let rows = train.examples.len();
        let summed_by = format!("{collator:?} {:?}", options.loss.ld_alpha);
        let drops_out = !options.loss.disable_dropout;
        let (reference, precompute) = (options.reference, options.precompute);
        let task = Dpo { loss, train, eval, collator, reference, precompute, drops_out, summed_by };
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}

/// The loss that options describe.
fn loss(options: &DpoOptions) -> Result<Loss, LossError> {
    Loss::new((&options.loss).into())
}
