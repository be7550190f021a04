//! The loss of group relative policy optimisation.

use burnish_losses::{
    AdaptiveEntropy, Aggregation, CorrectionMode, EntropyControl, GrpoAdvantages, GrpoOptions,
    ImportanceLevel, LossError, PolicyLoss, SamplerCorrection, ScaleRewards, VespoOptions,
};

use crate::checks::{AT_LEAST_0, Checks, at_least_0};
use crate::groups::RolloutOptions;
use crate::table::options;

options! {
    /// The loss over sampled completions.
    GrpoLossOptions, "GRPO";
    /// The objective and what it is divided by.
    Trl loss_type: PolicyLoss = PolicyLoss::Dapo;
    /// Weight of the KL term; 0 needs no reference.
    Trl beta: f64 = 0.0;
    /// How far a ratio of policies may fall below 1, and rise above it.
    Trl epsilon: f64 = 0.2;
    /// How far it may rise above 1 (cispo: its greatest value); by default epsilon.
    Trl epsilon_high: Option<f64> = None;
    /// The greatest ratio on the side that is not clipped.
    Trl delta: Option<f64> = None;
    /// What ratios are taken of.
    Trl importance_sampling_level: ImportanceLevel = ImportanceLevel::Token;
    /// Multiply the KL term by the ratio, without which its gradient is biased.
    Trl use_bias_correction_kl: bool = true;
    /// What advantages are divided by.
    Trl scale_rewards: ScaleRewards = ScaleRewards::Group;
    /// How several rewards become one advantage.
    Trl multi_objective_aggregation: Aggregation = Aggregation::SumThenNormalize;
    /// sapo: the temperature of completions that are not better than their group.
    Trl sapo_temperature_neg: f64 = 1.05;
    /// sapo: the temperature of better ones.
    Trl sapo_temperature_pos: f64 = 1.0;
    /// vespo: the exponent of completions that are not worse than their group.
    Trl vespo_k_pos: f64 = 2.0;
    /// vespo: their decay.
    Trl vespo_lambda_pos: f64 = 3.0;
    /// vespo: the exponent of worse ones.
    Trl vespo_k_neg: f64 = 3.0;
    /// vespo: their decay.
    Trl vespo_lambda_neg: f64 = 2.0;
    /// Leave out completions with a negative advantage that the policy has moved away from by more than this (nats per
    /// token).
    Trl off_policy_mask_threshold: Option<f64> = None;
    /// Train on this share of the tokens, those of highest entropy.
    Trl top_entropy_quantile: f64 = 1.0;
    /// Weight of the entropy bonus.
    Trl entropy_coef: f64 = 0.0;
    /// Let the bonus follow the entropy.
    Trl use_adaptive_entropy: bool = false;
    /// Its least weight.
    Trl entropy_coef_min: f64 = 0.0;
    /// Its greatest weight.
    Trl entropy_coef_max: f64 = 1.0;
    /// How far a step moves the weight.
    Trl entropy_coef_delta: f64 = 0.005;
    /// The entropy, in nats, above which there is no bonus.
    Trl entropy_target: f64 = 0.2;
    /// Correct for a sampler that is not the model in training (rollout_url, rollout_quantization).
    Trl vllm_importance_sampling_correction: bool = true;
    /// What the correction is taken of, and what happens out of bounds.
    Trl vllm_importance_sampling_mode: CorrectionMode = CorrectionMode::SequenceMask;
    /// Its upper bound.
    Trl vllm_importance_sampling_clip_max: Option<f64> = Some(3.0);
    /// Its lower bound.
    Trl vllm_importance_sampling_clip_min: Option<f64> = None;
}

impl GrpoLossOptions {
    /// The objective, of completions of at most this many tokens.
    #[must_use]
    pub fn objective(&self, max_completion_length: usize) -> GrpoOptions {
        GrpoOptions {
            loss_type: self.loss_type,
            importance_sampling_level: self.importance_sampling_level,
            beta: self.beta,
            epsilon: self.epsilon,
            epsilon_high: self.epsilon_high,
            delta: self.delta,
            use_bias_correction_kl: self.use_bias_correction_kl,
            off_policy_mask_threshold: self.off_policy_mask_threshold,
            top_entropy_quantile: self.top_entropy_quantile,
            max_completion_length,
            sapo_temperature_pos: self.sapo_temperature_pos,
            sapo_temperature_neg: self.sapo_temperature_neg,
            vespo: VespoOptions {
                k_pos: self.vespo_k_pos,
                lambda_pos: self.vespo_lambda_pos,
                k_neg: self.vespo_k_neg,
                lambda_neg: self.vespo_lambda_neg,
            },
        }
    }

    /// From rewards to advantages.
    #[must_use]
    pub fn advantages(&self) -> GrpoAdvantages {
        GrpoAdvantages { aggregation: self.multi_objective_aggregation, scale: self.scale_rewards }
    }

    /// The control of the entropy bonus, if it follows the entropy.
    #[must_use]
    pub fn adaptive_entropy(&self) -> Option<AdaptiveEntropy> {
        self.use_adaptive_entropy.then_some(AdaptiveEntropy {
            least: self.entropy_coef_min,
            greatest: self.entropy_coef_max,
            delta: self.entropy_coef_delta,
            target: self.entropy_target,
        })
    }

    /// The entropy bonus, if there is one.
    ///
    /// # Errors
    /// If a coefficient is out of range.
    pub fn entropy_control(&self) -> Result<Option<EntropyControl>, LossError> {
        let adaptive = self.adaptive_entropy();
        let bonus = self.entropy_coef != 0.0 || adaptive.is_some();
        bonus.then(|| EntropyControl::new(self.entropy_coef, adaptive)).transpose()
    }

    /// The correction of completions that another engine sampled, if they are corrected.
    ///
    /// # Errors
    /// If the bounds do not fit each other or the mode.
    pub fn sampler_correction(&self) -> Result<Option<SamplerCorrection>, LossError> {
        let (mode, least, greatest) = self.sampler_bounds();
        let wanted = self.vllm_importance_sampling_correction;
        wanted.then(|| SamplerCorrection::new(mode, least, greatest)).transpose()
    }

    fn sampler_bounds(&self) -> (CorrectionMode, Option<f64>, Option<f64>) {
        (
            self.vllm_importance_sampling_mode,
            self.vllm_importance_sampling_clip_min,
            self.vllm_importance_sampling_clip_max,
        )
    }

    pub(crate) fn rules(&self, rollouts: &RolloutOptions, checks: &mut Checks<'_>) {
        checks.owner(self.objective(rollouts.max_completion_length).faults());
        checks.owner(EntropyControl::faults(self.entropy_coef, self.adaptive_entropy()));
        checks.range("entropy_coef_delta", at_least_0(self.entropy_coef_delta), AT_LEAST_0);
        let (mode, least, greatest) = self.sampler_bounds();
        // A mode without its bounds counts where something is corrected: completions of another sampler.
        let corrects = rollouts.samples_elsewhere() && self.vllm_importance_sampling_correction;
        let mode = if corrects { mode } else { CorrectionMode::default() };
        checks.owner(SamplerCorrection::faults(mode, least, greatest));
    }
}
