//! Group relative policy optimisation: from options to a run that is ready to start.

use std::ops::Range;

use burn::tensor::Device;
use burnish_config::{GrpoLossOptions, GrpoOptions};
use burnish_losses::{
    AdaptiveEntropy, Advantages, Correction, EntropyControl, FirstPass, Gamma, Grpo as Loss, GrpoAdvantages,
    GrpoOptions as LossOptions, HighEntropy, LossError, Metrics, PolicyStep, Rewards, Rollout,
    SamplerCorrection, Terms,
};
use burnish_ops::TokenStats;

use crate::online::{Objective, Online, Parts, Sampled};
use crate::reward_functions::{WeightedReward, reward_functions};
use crate::run::{Run, Trainer};
use crate::training::Outcome;
use crate::{Ranks, Stop, TrainError};

/// A run of group relative policy optimisation (Shao et al., arXiv:2402.03300) or one of its relatives, everything but
/// the weights read and checked.
pub struct Grpo(Run<Online<Groups>>);

impl Grpo {
    /// As [`Trainer::prepare`], with reward functions of your own, each with its weight.
    ///
    /// # Errors
    /// As there.
    pub fn with_rewards(
        options: GrpoOptions,
        rewards: Vec<WeightedReward>,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let mut objective = Groups::new(&options.loss, options.rollouts.max_completion_length)?;
        if options.rollouts.rollout_url.is_some() {
            objective.correction = correction(&options.loss)?;
        }
        let (rollouts, reference) = (options.rollouts.clone(), options.reference.clone());
        let parts = Parts { objective, options: rollouts, reference, rewards };
        Ok(Self(parts.prepare(&options, ranks, device, note)?))
    }
}

impl Trainer for Grpo {
    type Options = GrpoOptions;

    fn prepare(
        options: GrpoOptions,
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

/// How a server is corrected for.
fn correction(options: &GrpoLossOptions) -> Result<Option<SamplerCorrection>, LossError> {
    let mode = options.vllm_importance_sampling_mode.word().parse()?;
    let (least, greatest) =
        (options.vllm_importance_sampling_clip_min, options.vllm_importance_sampling_clip_max);
    let wanted = options.vllm_importance_sampling_correction;
    wanted.then(|| SamplerCorrection::new(mode, least, greatest)).transpose()
}

/// Completions against their group.
struct Groups {
    loss: Loss,
    advantages: GrpoAdvantages,
    control: Option<EntropyControl>,
    correction: Option<SamplerCorrection>,
}

impl Groups {
    fn new(options: &GrpoLossOptions, max_completion_length: usize) -> Result<Self, LossError> {
        let loss = Loss::new(LossOptions {
            loss_type: options.loss_type.word().parse()?,
            importance_sampling_level: options.importance_sampling_level.word().parse()?,
            beta: options.beta,
            epsilon: options.epsilon,
            epsilon_high: options.epsilon_high,
            delta: options.delta,
            use_bias_correction_kl: options.use_bias_correction_kl,
            off_policy_mask_threshold: options.off_policy_mask_threshold,
            top_entropy_quantile: options.top_entropy_quantile,
            max_completion_length,
            sapo_temperature_pos: options.sapo_temperature_pos,
            sapo_temperature_neg: options.sapo_temperature_neg,
            vespo: Gamma {
                k_pos: options.vespo_k_pos,
                lambda_pos: options.vespo_lambda_pos,
                k_neg: options.vespo_k_neg,
                lambda_neg: options.vespo_lambda_neg,
            },
        })?;
        let advantages = GrpoAdvantages {
            aggregation: options.multi_objective_aggregation.word().parse()?,
            scale: options.scale_rewards.word().parse()?,
        };
        let adaptive = options.use_adaptive_entropy.then_some(AdaptiveEntropy {
            least: options.entropy_coef_min,
            greatest: options.entropy_coef_max,
            delta: options.entropy_coef_delta,
            target: options.entropy_target,
        });
        let bonus = options.entropy_coef != 0.0 || adaptive.is_some();
        let control = bonus.then(|| EntropyControl::new(options.entropy_coef, adaptive)).transpose()?;
        Ok(Self { loss, advantages, control, correction: None })
    }
}

impl Objective for Groups {
    fn metrics(&self) -> Metrics {
        let mut metrics = self.loss.metrics();
        if self.control.is_none() {
            metrics.sums.retain(|name| *name != "policy_loss");
        }
        metrics
    }

    fn needs_reference(&self) -> bool {
        self.loss.needs_reference()
    }

    fn needs_old(&self) -> bool {
        self.correction.is_some()
    }

    fn advantages(&self, rewards: &Rewards<'_>, _sampled: &[Sampled]) -> Result<Advantages, LossError> {
        self.advantages.advantages(rewards)
    }

    fn needs(&self) -> FirstPass {
        self.loss.needs()
    }

    fn high_entropy(&self, entropies: &[f32]) -> Option<HighEntropy> {
        self.loss.high_entropy(entropies)
    }

    fn entropy_control(&self) -> Option<EntropyControl> {
        self.control
    }

    fn correction(&self) -> Option<&SamplerCorrection> {
        self.correction.as_ref()
    }

    fn terms(
        &self,
        stats: &TokenStats,
        completions: &[(Range<usize>, &Sampled)],
        step: &PolicyStep,
    ) -> Result<Terms, LossError> {
        let mut rollouts = Vec::with_capacity(completions.len());
        for (targets, sampled) in completions {
            let old = sampled.old.as_deref();
            let sampling = &sampled.sampling[..targets.len()];
            let correction = match (&self.correction, old) {
                (Some(correction), Some(old)) => correction.ratios(old, sampling)?.0,
                _ => Correction::None,
            };
            rollouts.push(Rollout {
                targets: targets.clone(),
                advantage: sampled.advantage,
                old,
                reference: sampled.reference.as_deref(),
                sampling: self.correction.as_ref().map(|_| sampling),
                correction,
            });
        }
        self.loss.terms(stats, &rollouts, step)
    }
}
