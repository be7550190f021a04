//! The weight of the entropy bonus, constant or controlled.

use burnish_core::OptionFaults;

use crate::LossError;
use crate::error::{AT_LEAST_0, at_least_0};

/// `use_adaptive_entropy`: the bonus follows the entropy (Skywork-OR1, He et al., arXiv:2505.22312, section 3.2.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveEntropy {
    /// `entropy_coef_min`.
    pub least: f64,
    /// `entropy_coef_max`.
    pub greatest: f64,
    /// `entropy_coef_delta`: how far a step moves the coefficient.
    pub delta: f64,
    /// `entropy_target`, in nats: above it there is no bonus.
    pub target: f64,
}

impl Default for AdaptiveEntropy {
    fn default() -> Self {
        Self { least: 0.0, greatest: 1.0, delta: 0.005, target: 0.2 }
    }
}

/// The state of the bonus: part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyControl {
    /// The coefficient, logged as `entropy_coef`.
    pub coefficient: f64,
    /// The mean entropy of the last step; infinite before the first.
    pub last_entropy: f64,
    adaptive: Option<AdaptiveEntropy>,
}

impl EntropyControl {
    /// Starts at `entropy_coef`.
    ///
    /// # Errors
    /// If a coefficient is not finite, the bounds are out of order, or the step is negative.
    pub fn new(entropy_coef: f64, adaptive: Option<AdaptiveEntropy>) -> Result<Self, LossError> {
        Self::faults(entropy_coef, adaptive).first()?;
        Ok(Self { coefficient: entropy_coef, last_entropy: f64::INFINITY, adaptive })
    }

    /// The rules that the coefficients break, all of them.
    #[must_use]
    pub fn faults(entropy_coef: f64, adaptive: Option<AdaptiveEntropy>) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("entropy_coef", entropy_coef.is_finite(), entropy_coef, "a number");
        if let Some(AdaptiveEntropy { least, greatest, delta, target }) = adaptive {
            faults.conflict(
                "entropy_coef_min",
                least > greatest || least.is_nan(),
                format_args!("entropy_coef_max: {greatest}"),
                "swap them",
                format!("`entropy_coef_min` is {least}, above `entropy_coef_max`: {greatest}; swap them"),
            );
            faults.range("entropy_coef_max", greatest.is_finite(), greatest, "a number");
            faults.range("entropy_coef_delta", at_least_0(delta), delta, AT_LEAST_0);
            faults.range("entropy_target", target.is_finite(), target, "a number");
        }
        faults
    }

    /// The coefficient of the next step, 0 while the entropy is above the target; nothing where there is no bonus.
    #[must_use]
    pub fn applied(&self) -> Option<f64> {
        match self.adaptive {
            Some(adaptive) if self.last_entropy > adaptive.target => Some(0.0),
            None if self.coefficient == 0.0 => None,
            _ => Some(self.coefficient),
        }
    }

    /// After a step, given the mean entropy of its tokens ([`super::HighEntropy::mean`] where it is used).
    pub fn update(&mut self, entropy: f64) {
        if let Some(AdaptiveEntropy { least, greatest, delta, target }) = self.adaptive {
            self.coefficient = if entropy <= target {
                (self.coefficient + delta).min(greatest)
            } else {
                (self.coefficient - delta).max(least)
            };
            self.last_entropy = entropy;
        }
    }
}
