//! Group relative policy optimisation: from options to a run that is ready to start.

use std::ops::Range;

use burnish_config::groups::GrpoLossOptions;
use burnish_config::{GrpoOptions, TrainerOptions};
use burnish_data::{Options as Rules, RowUse};
use burnish_losses::{
    Advantages, Correction, EntropyControl, FirstPass, Grpo as Loss, GrpoAdvantages, HighEntropy, LossError,
    LossTerms, Metrics, PolicyStep, Rewards, Rollout, SamplerCorrection,
};
use burnish_ops::TokenStats;

use crate::TrainError;
use crate::online::{self, Objective, Online, Parts, Sampled};
use crate::plan::RunPlan;
use crate::plan::step_passes::StepPasses;
use crate::run::{Run, Trainer};
use crate::scoring::reward_functions::{WeightedReward, reward_functions};
use crate::setup::run_inputs::RunInputs;

/// A run of group relative policy optimisation (Shao et al., arXiv:2402.03300) or one of its relatives, everything but
/// the weights read and checked.
pub type Grpo = Online<GrpoObjective>;

impl Grpo {
    /// As [`Trainer::open`], with reward functions of your own, each with its weight.
    ///
    /// # Errors
    /// Those of [`Trainer::open`].
    pub fn with_rewards(
        options: GrpoOptions,
        rewards: Vec<WeightedReward>,
        inputs: RunInputs<'_>,
    ) -> Result<Run<Self>, TrainError> {
        let (objective, step) = (GrpoObjective::of(&options)?, Self::step(&options)?);
        let (rollouts, reference) = (options.rollouts.clone(), options.reference.clone());
        let parts = Parts { objective, options: rollouts, reference, rewards };
        parts.open(&options, step, inputs)
    }
}

impl Trainer for Grpo {
    type Options = GrpoOptions;

    fn step(options: &GrpoOptions) -> Result<StepPasses, TrainError> {
        Ok(Self::step_passes(&GrpoObjective::of(options)?, &options.rollouts))
    }

    fn plan(options: &GrpoOptions) -> Result<RunPlan, TrainError> {
        online::plan(options.run_options(), Self::step(options)?)
    }

    fn row_use(_options: &GrpoOptions, _rules: &mut Rules) -> Result<RowUse, TrainError> {
        Ok(RowUse::Prompt)
    }

    fn open(options: GrpoOptions, inputs: RunInputs<'_>) -> Result<Run<Self>, TrainError> {
        let (most, batch) =
            (options.rollouts.max_completion_length, options.training.per_device_eval_batch_size);
        let rewards = reward_functions(&options.rewards, most, batch, inputs.device)?;
        Self::with_rewards(options, rewards, inputs)
    }
}

/// Completions against their group.
pub struct GrpoObjective {
    loss: Loss,
    advantages: GrpoAdvantages,
    control: Option<EntropyControl>,
    correction: Option<SamplerCorrection>,
}

impl GrpoObjective {
    /// The loss of these options, with a correction for a sampler that is not the policy.
    fn of(options: &GrpoOptions) -> Result<Self, LossError> {
        let mut objective = Self::new(&options.loss, options.rollouts.max_completion_length)?;
        if options.rollouts.samples_elsewhere() {
            objective.correction = options.loss.sampler_correction()?;
        }
        Ok(objective)
    }

    fn new(options: &GrpoLossOptions, max_completion_length: usize) -> Result<Self, LossError> {
        let loss = Loss::new(options.objective(max_completion_length))?;
        let (advantages, control) = (options.advantages(), options.entropy_control()?);
        Ok(Self { loss, advantages, control, correction: None })
    }
}

impl Objective for GrpoObjective {
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
    ) -> Result<LossTerms, LossError> {
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
