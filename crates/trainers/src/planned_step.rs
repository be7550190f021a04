//! What a step of each trainer runs and sends, as a plan counts it.

use burnish_config::{
    DpoOptions, KtoOptions, PlanOptions, RewardOptions, RunOptions, SftOptions, TrainerOptions,
};
use burnish_losses::{FirstPass, Metrics, Reward as RewardLoss};

use crate::TrainError;
use crate::supervised::supervised_metrics;
use crate::window::Sums;
use crate::{dpo, kto};

/// Whose run is planned.
#[derive(Clone, Copy, Debug)]
pub enum PlanOf<'a> {
    /// Of `burnish sft`.
    Sft(&'a SftOptions),
    /// Of `burnish dpo`.
    Dpo(&'a DpoOptions),
    /// Of `burnish kto`.
    Kto(&'a KtoOptions),
    /// Of `burnish reward`.
    Reward(&'a RewardOptions),
}

/// A step: passes over micro-batches of so many texts for each row.
pub(crate) struct PlannedStep {
    pub(crate) run: RunOptions,
    /// Texts of a row, one after another.
    pub(crate) texts: usize,
    /// Whether the model scores texts.
    pub(crate) scores: bool,
    /// Passes of the reference over as many tokens as a micro-batch has, before the step's first pass with gradients.
    pub(crate) referred: usize,
    /// Whether something is compared with a reference that is there during the step.
    pub(crate) compares: bool,
    /// Such passes of the policy.
    pub(crate) first: usize,
    /// What the loop and the loss sum over all ranks in a step, sum by sum.
    pub(crate) scalars: Vec<u64>,
    /// Least and greatest values among the metrics, which travel apart.
    pub(crate) extremes: u64,
}

impl PlannedStep {
    /// A step that sums `counts` counts, the tokens with them, and then `metrics`.
    fn new(run: RunOptions, counts: u64, metrics: &Metrics) -> Self {
        let scalars = vec![counts + 1, Sums::scalars(metrics) as u64];
        let extremes = (metrics.least.len() + metrics.greatest.len()) as u64;
        let (texts, scores, referred, compares, first) = (1, false, 0, false, 0);
        Self { run, texts, scores, referred, compares, first, scalars, extremes }
    }

    pub(crate) fn supervised(run: RunOptions) -> Self {
        Self::new(run, 1, &supervised_metrics())
    }

    pub(crate) fn of(plan: PlanOf<'_>) -> Result<Self, TrainError> {
        Ok(match plan {
            PlanOf::Sft(options) => Self::supervised(options.run_options()),
            PlanOf::Dpo(options) => {
                let loss = dpo::loss(options)?;
                let compares = !options.precompute.precompute_ref_log_probs;
                let first = usize::from(loss.needs() == FirstPass::Scores);
                let step = Self::new(options.run_options(), 2, &loss.metrics());
                Self { texts: 2, referred: usize::from(compares), compares, first, ..step }
            }
            PlanOf::Kto(options) => {
                let loss = kto::loss(options)?;
                let compares = !options.precompute.precompute_ref_log_probs;
                // The KL term is of other completions under the same prompts.
                let kl = usize::from(loss.needs_kl());
                let mut step = Self::new(options.run_options(), 1, &loss.metrics());
                step.scalars.extend((kl > 0).then_some(2));
                Self { referred: if compares { 1 + kl } else { 0 }, compares, first: kl, ..step }
            }
            PlanOf::Reward(options) => {
                let loss = RewardLoss::new(options.loss.center_rewards_coefficient)?;
                let step = Self::new(options.run_options(), 1, &loss.metrics());
                Self { texts: 2, scores: true, ..step }
            }
        })
    }
}

/// The options of a plan that names no trainer.
pub(crate) fn run_options(options: &PlanOptions) -> RunOptions {
    let PlanOptions { model, data, preparation, lora, training, muon, ranks, logging, .. } = options.clone();
    RunOptions { model, data, preparation, lora, training, muon, ranks, logging, reference: None }
}
