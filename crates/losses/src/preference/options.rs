//! Options of DPO and what they exclude.

use crate::LossError;
use crate::error::range;

use super::{Divergence, PreferenceLoss};

/// Options of DPO; the defaults are TRL's.
#[derive(Clone, Debug, PartialEq)]
pub struct DpoOptions {
    /// The losses, summed with their weights.
    pub loss_type: Vec<PreferenceLoss>,
    /// One weight per loss; all 1 when absent.
    pub loss_weights: Option<Vec<f64>>,
    /// Strength of the reference, b.
    pub beta: f64,
    /// Probability that a label is wrong, for `exo_pair`, `robust`, `aot` and `aot_unpaired`.
    pub label_smoothing: f64,
    /// How log-ratios become scores.
    pub f_divergence: Divergence,
    /// LD-DPO's weight of tokens beyond the shorter completion's length.
    pub ld_alpha: Option<f64>,
    /// WPO: weight pairs by the policy's likelihood.
    pub use_weighting: bool,
    /// DiscoPOP's temperature.
    pub discopop_tau: f64,
}

impl Default for DpoOptions {
    fn default() -> Self {
        Self {
            loss_type: vec![PreferenceLoss::Sigmoid],
            loss_weights: None,
            beta: 0.1,
            label_smoothing: 0.0,
            f_divergence: Divergence::ReverseKl,
            ld_alpha: None,
            use_weighting: false,
            discopop_tau: 0.05,
        }
    }
}

impl DpoOptions {
    pub(super) fn check(&self) -> Result<(), LossError> {
        let has = |loss| self.loss_type.contains(&loss);
        let Self { beta, label_smoothing: smoothing, discopop_tau: tau, .. } = *self;
        if self.loss_type.is_empty() {
            return Err(LossError::NoLoss);
        }
        if let Some(weights) = &self.loss_weights {
            if weights.len() != self.loss_type.len() {
                return Err(LossError::Weights { expected: self.loss_type.len(), got: weights.len() });
            }
            for &weight in weights {
                range(weight.is_finite(), "loss_weights", weight, "finite numbers")?;
            }
        }
        range(beta.is_finite() && beta > 0.0, "beta", beta, "a number above 0")?;
        range(
            (0.0..1.0).contains(&smoothing),
            "label_smoothing",
            smoothing,
            "a number from 0 to less than 1",
        )?;
        if has(PreferenceLoss::ExoPair) {
            let expected =
                "a number above 0 with the loss `exo_pair`, which takes its logarithm; 1e-3 is its paper's";
            range(smoothing > 0.0, "label_smoothing", smoothing, expected)?;
        }
        if has(PreferenceLoss::Robust) {
            let expected = "less than 0.5 with the loss `robust`, which divides by 1 - 2 label_smoothing";
            range(smoothing < 0.5, "label_smoothing", smoothing, expected)?;
        }
        if has(PreferenceLoss::Discopop) {
            range(tau.is_finite() && tau > 0.0, "discopop_tau", tau, "a number above 0")?;
        }
        if let Some(alpha) = self.ld_alpha {
            range((0.0..=1.0).contains(&alpha), "ld_alpha", alpha, "a number from 0 to 1, or none")?;
        }
        if let Divergence::Alpha { coefficient } = self.f_divergence {
            range(coefficient.is_finite(), "f_alpha_divergence_coef", coefficient, "a finite number")?;
        }
        if self.f_divergence != Divergence::ReverseKl
            && let Some(loss) = self.loss_type.iter().find(|l| !l.takes_divergence())
        {
            return Err(LossError::Divergence { divergence: self.f_divergence.name(), loss: loss.name() });
        }
        if self.use_weighting && self.loss_type.iter().any(|l| l.sorts()) {
            return Err(LossError::Conflict {
                what: "`use_weighting` weighs pairs, which `aot` and `aot_unpaired` take apart",
                mend: "turn it off or use another `loss_type`",
            });
        }
        Ok(())
    }
}
