//! REINFORCE leave-one-out: from options to a run that is ready to start.

use std::ops::Range;

use burn::tensor::Device;
use burnish_config::{RlooLossOptions, RlooOptions};
use burnish_losses::{
    Advantages, LossError, Metrics, PolicyStep, Rewards, Rloo as Loss, RlooAdvantages, Sampled as Action,
    Terms,
};
use burnish_ops::TokenStats;

use crate::online::{Objective, Online, Parts, Sampled};
use crate::reward_functions::{WeightedReward, reward_functions};
use crate::run::{Run, Trainer};
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError};

/// A run of REINFORCE leave-one-out (Ahmadian et al., arXiv:2402.14740), everything but the weights read and checked.
pub struct Rloo(Run<Online<LeaveOneOut>>);

impl Rloo {
    /// As [`Trainer::prepare`], with reward functions of your own, each with its weight.
    ///
    /// # Errors
    /// As there.
    pub fn with_rewards(
        options: RlooOptions,
        rewards: Vec<WeightedReward>,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let objective = LeaveOneOut::new(&options.loss)?;
        let (rollouts, reference) = (options.rollouts.clone(), options.reference.clone());
        let parts = Parts { objective, options: rollouts, reference, rewards };
        Ok(Self(parts.prepare(&options, ranks, device, note)?))
    }
}

impl Trainer for Rloo {
    type Options = RlooOptions;

    fn prepare(
        options: RlooOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let (most, batch) =
            (options.rollouts.max_completion_length, options.training.per_device_eval_batch_size);
        let rewards = reward_functions(&options.rewards, most, batch, device)?;
        Self::with_rewards(options, rewards, ranks, device, note)
    }

    fn summary(&self) -> Result<String, TrainError> {
        self.0.summary()
    }

    fn run(self, ranks: &Ranks, stop: &Stop) -> Result<Outcome, TrainError> {
        self.0.run(ranks, stop)
    }
}

/// Completions against the others of their prompt.
struct LeaveOneOut {
    loss: Loss,
    advantages: RlooAdvantages,
}

impl LeaveOneOut {
    fn new(options: &RlooLossOptions) -> Result<Self, LossError> {
        let clip_range = match options.reward_clip_range.as_deref() {
            Some(&[low, high]) => Some((low, high)),
            _ => None,
        };
        let advantages =
            RlooAdvantages { beta: options.beta, normalize: options.normalize_advantages, clip_range };
        Ok(Self { loss: Loss::new(options.epsilon, options.epsilon_high)?, advantages })
    }
}

impl Objective for LeaveOneOut {
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
    ) -> Result<Terms, LossError> {
        let action = |(targets, sampled): &(Range<usize>, &Sampled)| Action {
            targets: targets.clone(),
            advantage: sampled.advantage,
            old: sampled.old.iter().flatten().map(|&old| f64::from(old)).sum(),
        };
        self.loss.terms(stats, &completions.iter().map(action).collect::<Vec<_>>(), step.sequences)
    }
}
