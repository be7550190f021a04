//! Direct preference optimisation: from options to a run that is ready to start.

use burn::tensor::Device;
use burnish_config::{DpoLossOptions, DpoOptions, FDivergence};
use burnish_data::{CompletionCollator, preflight_prepared};
use burnish_losses::{Divergence, Dpo as Loss, DpoOptions as LossOptions, LossError};

use crate::preferences::Preferences;
use crate::run::{Run, Trainer};
use crate::setup::Setup;
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError};

/// A run of direct preference optimisation, everything but the weights read and checked.
///
/// The reference is the model as it is at the start: the base under a fresh adapter, a copy of what trains otherwise.
/// The first step's loss is ln 2 and all its rewards are 0, on any number of ranks.
pub struct Dpo(Run<Preferences>);

impl Trainer for Dpo {
    type Options = DpoOptions;

    fn prepare(
        options: DpoOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let loss = loss(&options)?;
        let mut setup = Setup::open(&options, ranks, device)?;
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().preferences(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().preferences(name, records)?),
        )?;
        for finding in preflight_prepared(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules) {
            note(&format!("data: {finding}"));
        }
        let collator =
            CompletionCollator { max_length: rows.rules.max_length, truncation: rows.rules.truncation };
        setup.rows = train.examples.len();
        setup.check_trains()?;
        let summed_by = format!("{collator:?} {:?}", options.loss.ld_alpha);
        let drops_out = !options.loss.disable_dropout;
        let (reference, precompute) = (options.reference, options.precompute);
        let task = Preferences { loss, train, eval, collator, reference, precompute, drops_out, summed_by };
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
pub(crate) fn loss(options: &DpoOptions) -> Result<Loss, LossError> {
    Loss::new(loss_options(&options.loss)?)
}

/// The options of the loss by their names.
fn loss_options(options: &DpoLossOptions) -> Result<LossOptions, LossError> {
    let f_divergence = match options.f_divergence_type {
        FDivergence::ReverseKl => Divergence::ReverseKl,
        FDivergence::ForwardKl => Divergence::ForwardKl,
        FDivergence::JsDivergence => Divergence::Js,
        FDivergence::AlphaDivergence => Divergence::Alpha { coefficient: options.f_alpha_divergence_coef },
    };
    Ok(LossOptions {
        loss_type: options.loss_type.iter().map(|loss| loss.word().parse()).collect::<Result<_, _>>()?,
        loss_weights: options.loss_weights.clone(),
        beta: options.beta,
        label_smoothing: options.label_smoothing,
        f_divergence,
        ld_alpha: options.ld_alpha,
        use_weighting: options.use_weighting,
        discopop_tau: options.discopop_tau,
    })
}
