//! Options of GRPO's objective.

use crate::LossError;
use crate::error::range;

use super::{Gamma, ImportanceLevel, PolicyLoss};

/// Options of GRPO's objective; the defaults are TRL's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrpoOptions {
    /// The objective and what it is divided by.
    pub loss_type: PolicyLoss,
    /// What importance ratios are taken of.
    pub importance_sampling_level: ImportanceLevel,
    /// Weight of the KL term; 0 needs no reference.
    pub beta: f64,
    /// How far below 1 a ratio counts.
    pub epsilon: f64,
    /// How far above 1 a ratio counts (CISPO: its greatest value); `epsilon` when absent.
    pub epsilon_high: Option<f64>,
    /// Greatest ratio of the unclipped side (INTELLECT-2, arXiv:2505.07291, eq. 1).
    pub delta: Option<f64>,
    /// Whether the KL term is multiplied by the ratio.
    pub use_bias_correction_kl: bool,
    /// Drop sequences of negative advantage that the policy moved away from by more than this, nats per token.
    pub off_policy_mask_threshold: Option<f64>,
    /// Train on this part of the tokens, those of highest entropy; 1 is all.
    pub top_entropy_quantile: f64,
    /// `max_completion_length`, which `dr_grpo` divides by.
    pub max_completion_length: usize,
    /// SAPO's temperature for positive advantages.
    pub sapo_temperature_pos: f64,
    /// SAPO's temperature for other advantages.
    pub sapo_temperature_neg: f64,
    /// VESPO's constants.
    pub vespo: Gamma,
}

impl Default for GrpoOptions {
    fn default() -> Self {
        Self {
            loss_type: PolicyLoss::Dapo,
            importance_sampling_level: ImportanceLevel::Token,
            beta: 0.0,
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            use_bias_correction_kl: true,
            off_policy_mask_threshold: None,
            top_entropy_quantile: 1.0,
            max_completion_length: 512,
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            vespo: Gamma::default(),
        }
    }
}

impl GrpoOptions {
    /// `epsilon_high`, or `epsilon`.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    pub(super) fn check(&self) -> Result<(), LossError> {
        const AT_LEAST_0: &str = "a number of at least 0";
        const ABOVE_0: &str = "a number above 0";
        range(self.beta.is_finite() && self.beta >= 0.0, "beta", self.beta, AT_LEAST_0)?;
        range(self.epsilon >= 0.0, "epsilon", self.epsilon, AT_LEAST_0)?;
        range(self.high() >= 0.0, "epsilon_high", self.high(), AT_LEAST_0)?;
        if let Some(delta) = self.delta {
            range(
                delta > 0.0,
                "delta",
                delta,
                "a number above 0 (above 1 + epsilon to have its meaning), or none",
            )?;
        }
        if let Some(threshold) = self.off_policy_mask_threshold {
            range(!threshold.is_nan(), "off_policy_mask_threshold", threshold, "a number, or none")?;
        }
        let quantile = self.top_entropy_quantile;
        range((0.0..=1.0).contains(&quantile), "top_entropy_quantile", quantile, "a number from 0 to 1")?;
        range(self.sapo_temperature_pos > 0.0, "sapo_temperature_pos", self.sapo_temperature_pos, ABOVE_0)?;
        range(self.sapo_temperature_neg > 0.0, "sapo_temperature_neg", self.sapo_temperature_neg, ABOVE_0)?;
        let Gamma { k_pos, lambda_pos, k_neg, lambda_neg } = self.vespo;
        for (option, value) in [
            ("vespo_k_pos", k_pos),
            ("vespo_lambda_pos", lambda_pos),
            ("vespo_k_neg", k_neg),
            ("vespo_lambda_neg", lambda_neg),
        ] {
            range(value.is_finite() && value >= 0.0, option, value, AT_LEAST_0)?;
        }
        if self.loss_type == PolicyLoss::DrGrpo {
            let length = self.max_completion_length;
            range(
                length > 0,
                "max_completion_length",
                length as f64,
                "at least 1 with the loss `dr_grpo`, which divides by it",
            )?;
        }
        Ok(())
    }
}
