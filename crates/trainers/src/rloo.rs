//! REINFORCE leave-one-out: from options to a run that is ready to start.

use std::ops::Range;

use burnish_config::groups::RlooLossOptions;
use burnish_config::{RlooOptions, TrainerOptions};
use burnish_data::{Options as Rules, RowUse};
use burnish_losses::{
    Advantages, LossError, LossTerms, Metrics, PolicyStep, Rewards, Rloo as Loss, RlooAdvantages,
    Sampled as Action,
};
use burnish_ops::TokenStats;

use crate::TrainError;
use crate::online::{self, Objective, Online, Parts, Sampled};
use crate::plan::RunPlan;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::scoring::reward_functions::{WeightedReward, reward_functions};
use crate::setup::run_inputs::RunInputs;

/// A run of REINFORCE leave-one-out (Ahmadian et al., arXiv:2402.14740), everything but the weights read and checked.
pub type Rloo = Online<RlooObjective>;

impl Rloo {
    /// As [`Trainer::open`], with reward functions of your own, each with its weight.
    ///
    /// # Errors
    /// Those of [`Trainer::open`].
    pub fn with_rewards(
        options: RlooOptions,
        rewards: Vec<WeightedReward>,
        inputs: RunInputs<'_>,
    ) -> Result<Run<Self>, TrainError> {
        let (objective, step) = (RlooObjective::new(&options.loss)?, Self::step(&options)?);
        let (rollouts, reference) = (options.rollouts.clone(), options.reference.clone());
        let parts = Parts { objective, options: rollouts, reference, rewards };
        parts.open(&options, step, inputs)
    }
}

impl Trainer for Rloo {
    type Options = RlooOptions;

    fn step(options: &RlooOptions) -> Result<StepPasses, TrainError> {
        Ok(Self::step_passes(&RlooObjective::new(&options.loss)?, &options.rollouts))
    }

    fn plan(options: &RlooOptions) -> Result<RunPlan, TrainError> {
        online::plan(options.run_options(), Self::step(options)?)
    }

    fn row_use(_options: &RlooOptions, _rules: &mut Rules) -> Result<RowUse, TrainError> {
        Ok(RowUse::Prompt)
    }

    fn open(options: RlooOptions, inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let (most, batch) =
            (options.rollouts.max_completion_length, options.training.per_device_eval_batch_size);
        let rewards = reward_functions(&options.rewards, most, batch, inputs.device)?;
        Self::with_rewards(options, rewards, inputs)
    }
}

/// Completions against the others of their prompt.
pub struct RlooObjective {
    loss: Loss,
    advantages: RlooAdvantages,
}

impl RlooObjective {
    fn new(options: &RlooLossOptions) -> Result<Self, LossError> {
        Ok(Self { loss: options.loss()?, advantages: options.advantages() })
    }
}

impl Objective for RlooObjective {
    fn metrics(&self) -> Metrics {
        self.loss.metrics()
    }

    fn needs_reference(&self) -> bool {
        self.advantages.beta != 0.0
    }

    fn needs_old(&self) -> bool {
        true
    }

    fn advantages(&self, rewards: &Rewards<'_>, sampled: &[Sampled]) -> Result<Advantages, LossError> {
        let kl = |s: &Sampled| match (&s.old, &s.reference) {
            (Some(old), Some(reference)) => old
                .iter()
                .zip(reference)
                .map(|(old, reference)| f64::from(*old) - f64::from(*reference))
                .sum(),
            _ => 0.0,
        };
        let tokens = sampled.iter().map(|s| s.targets() as f64).sum();
        self.advantages.advantages(rewards, &sampled.iter().map(kl).collect::<Vec<f64>>(), tokens)
    }

    fn terms(
        &self,
        stats: &TokenStats,
        completions: &[(Range<usize>, &Sampled)],
        step: &PolicyStep,
    ) -> Result<LossTerms, LossError> {
        let action = |(targets, sampled): &(Range<usize>, &Sampled)| Action {
            targets: targets.clone(),
            advantage: sampled.advantage,
            old: sampled.old.iter().flatten().map(|&old| f64::from(old)).sum(),
        };
        self.loss.terms(stats, &completions.iter().map(action).collect::<Vec<_>>(), step.sequences)
    }
}
