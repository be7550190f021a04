//! Options of DPO and what they exclude.

use burnish_core::OptionFaults;

use crate::LossError;
use crate::error::{ABOVE_0, above_0};

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
    pub f_divergence_type: Divergence,
    /// The coefficient of [`Divergence::Alpha`].
    pub f_alpha_divergence_coef: f64,
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
            f_divergence_type: Divergence::ReverseKl,
            f_alpha_divergence_coef: 0.5,
            ld_alpha: None,
            use_weighting: false,
            discopop_tau: 0.05,
        }
    }
}

impl DpoOptions {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        let has = |loss| self.loss_type.contains(&loss);
        let smoothing = self.label_smoothing;
        faults.range("beta", above_0(self.beta), self.beta, ABOVE_0);
        let expected = "a number from 0 to below 1";
        faults.range("label_smoothing", (0.0..1.0).contains(&smoothing), smoothing, expected);
        faults.conflict(
            "loss_type",
            has(PreferenceLoss::ExoPair) && smoothing == 0.0,
            "label_smoothing: 0",
            "set label_smoothing above 0, whose logarithm it takes; its paper has 1e-3",
            "`label_smoothing` is 0; use a number above 0 with the loss `exo_pair`, which takes its logarithm; 1e-3 is its \
             paper's",
        );
        faults.conflict(
            "loss_type",
            has(PreferenceLoss::Robust) && smoothing >= 0.5,
            format_args!("label_smoothing: {smoothing}"),
            "set label_smoothing below 0.5: robust divides by 1 - 2 label_smoothing",
            format!(
                "`label_smoothing` is {smoothing}; use less than 0.5 with the loss `robust`, which divides by 1 - 2 \
                 label_smoothing"
            ),
        );
        if let Some(weights) = &self.loss_weights {
            let (losses, got) = (self.loss_type.len(), weights.len());
            let words: Vec<String> = self.loss_type.iter().map(|loss| format!("{:?}", loss.name())).collect();
            faults.conflict(
                "loss_weights",
                got != losses,
                format_args!("loss_type: [{}]", words.join(", ")),
                "give one weight per loss, or leave loss_weights out",
                format!(
                    "`loss_weights` has {got} values for {losses} losses in `loss_type`; give one per loss or leave it out"
                ),
            );
            for weight in weights {
                faults.range("loss_weights", weight.is_finite(), weight, "finite numbers");
            }
        }
        if let Some(alpha) = self.ld_alpha {
            faults.range("ld_alpha", (0.0..=1.0).contains(&alpha), alpha, "null or a number from 0 to 1");
        }
        faults.range("discopop_tau", above_0(self.discopop_tau), self.discopop_tau, ABOVE_0);
        let coefficient = self.f_alpha_divergence_coef;
        faults.range("f_alpha_divergence_coef", coefficient.is_finite(), coefficient, "a number");
        if self.f_divergence_type != Divergence::ReverseKl
            && let Some(loss) = self.loss_type.iter().find(|loss| !loss.takes_divergence())
        {
            faults.conflict(
                "f_divergence_type",
                true,
                format_args!("loss_type: {loss}"),
                "use reverse_kl with it, or only sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop, sft",
                format!(
                    "`f_divergence_type` `{}` has no form of the loss `{loss}`; use `reverse_kl` with it, or only sigmoid, \
                     sigmoid_norm, hinge, ipo, exo_pair, robust, discopop or sft",
                    self.f_divergence_type
                ),
            );
        }
        faults.conflict(
            "use_weighting",
            self.use_weighting && self.loss_type.iter().any(|loss| loss.compares()),
            "loss_type: aot, aot_unpaired or kto_pair",
            "these losses take pairs apart: keep one of the two",
            "`use_weighting` weighs pairs, which `aot`, `aot_unpaired` and `kto_pair` take apart; turn it off or use another \
             `loss_type`",
        );
        faults
    }

    pub(super) fn check(&self) -> Result<(), LossError> {
        if self.loss_type.is_empty() {
            return Err(LossError::NoLoss);
        }
        Ok(self.faults().first()?)
    }
}
