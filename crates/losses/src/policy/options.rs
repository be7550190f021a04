//! Options of GRPO's objective.

use burnish_core::OptionFaults;

use crate::LossError;
use crate::error::{ABOVE_0, AT_LEAST_0, at_least_0};

use super::{ImportanceLevel, PolicyLoss, VespoOptions};

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
    pub vespo: VespoOptions,
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
            vespo: VespoOptions::default(),
        }
    }
}

impl GrpoOptions {
    /// `epsilon_high`, or `epsilon`.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("beta", at_least_0(self.beta), self.beta, AT_LEAST_0);
        faults.range("epsilon", at_least_0(self.epsilon), self.epsilon, AT_LEAST_0);
        if let Some(high) = self.epsilon_high {
            faults.range("epsilon_high", at_least_0(high), high, AT_LEAST_0);
        }
        if let Some(delta) = self.delta {
            let because = ": above 1 + epsilon it has its meaning";
            faults.range_because("delta", delta > 0.0, delta, "null or a number above 0", because);
        }
        if let Some(threshold) = self.off_policy_mask_threshold {
            faults.range("off_policy_mask_threshold", !threshold.is_nan(), threshold, "null or a number");
        }
        let quantile = self.top_entropy_quantile;
        faults.range(
            "top_entropy_quantile",
            (0.0..=1.0).contains(&quantile),
            quantile,
            "a number from 0 to 1",
        );
        for (option, temperature) in [
            ("sapo_temperature_pos", self.sapo_temperature_pos),
            ("sapo_temperature_neg", self.sapo_temperature_neg),
        ] {
            faults.range(option, temperature > 0.0, temperature, ABOVE_0);
        }
        let VespoOptions { k_pos, lambda_pos, k_neg, lambda_neg } = self.vespo;
        for (option, value) in [
            ("vespo_k_pos", k_pos),
            ("vespo_lambda_pos", lambda_pos),
            ("vespo_k_neg", k_neg),
            ("vespo_lambda_neg", lambda_neg),
        ] {
            faults.range(option, at_least_0(value), value, AT_LEAST_0);
        }
        faults.range_because(
            "max_completion_length",
            self.max_completion_length > 0 || self.loss_type != PolicyLoss::DrGrpo,
            self.max_completion_length,
            "a whole number that is at least 1",
            " with the loss `dr_grpo`, which divides by it",
        );
        faults
    }

    pub(super) fn check(&self) -> Result<(), LossError> {
        Ok(self.faults().first()?)
    }
}
