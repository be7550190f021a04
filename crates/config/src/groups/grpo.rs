//! The loss of group relative policy optimisation.

use crate::choice::{GrpoLoss, ImportanceSampling, RewardAggregation, RewardScale, SamplerCorrectionMode};
use crate::table::options;

options! {
    /// The loss over sampled completions.
    GrpoLossOptions, "GRPO";
    /// The objective and what it is divided by.
    Trl loss_type: GrpoLoss = GrpoLoss::Dapo;
    /// Weight of the KL term; 0 needs no reference.
    Trl beta: f64 = 0.0;
    /// How far a ratio of policies may fall below 1, and rise above it.
    Trl epsilon: f64 = 0.2;
    /// How far it may rise above 1 (cispo: its greatest value); by default epsilon.
    Trl epsilon_high: Option<f64> = None;
    /// The greatest ratio on the side that is not clipped.
    Trl delta: Option<f64> = None;
    /// What ratios are taken of.
    Trl importance_sampling_level: ImportanceSampling = ImportanceSampling::Token;
    /// Multiply the KL term by the ratio, without which its gradient is biased.
    Trl use_bias_correction_kl: bool = true;
    /// What advantages are divided by.
    Trl scale_rewards: RewardScale = RewardScale::Group;
    /// How several rewards become one advantage.
    Trl multi_objective_aggregation: RewardAggregation = RewardAggregation::SumThenNormalize;
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
    /// Correct for a sampler that is not the model in training (rollout_url).
    Trl vllm_importance_sampling_correction: bool = true;
    /// What the correction is taken of, and what happens out of bounds.
    Trl vllm_importance_sampling_mode: SamplerCorrectionMode = SamplerCorrectionMode::SequenceMask;
    /// Its upper bound.
    Trl vllm_importance_sampling_clip_max: Option<f64> = Some(3.0);
    /// Its lower bound.
    Trl vllm_importance_sampling_clip_min: Option<f64> = None;
}
