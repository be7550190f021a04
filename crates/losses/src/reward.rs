//! The reward model's loss: Bradley–Terry, with margins and centering.

use burnish_core::OptionFaults;

use crate::dual::Dual;
use crate::error::{at_least_0, within};
use crate::metric_sums::Extreme;
use crate::{LossError, LossTerms, MetricSums, Metrics};

/// `-ln sigmoid(r_c - r_r - margin) + c (r_c + r_r)^2`, averaged over pairs.
///
/// Bradley–Terry as in Ouyang et al. (arXiv:2203.02155, eq. 1), the margin of Touvron et al. (arXiv:2307.09288, eq. 2),
/// the centering of Eisenstein et al. (arXiv:2312.09244).
///
/// ```
/// use burnish_losses::Reward;
///
/// let loss = Reward::new(None).unwrap();
/// // Two rewards that are equal: ln 2, and slopes of one half in opposite directions.
/// let terms = loss.terms(&[0.3], &[0.3], None, 1.0).unwrap();
/// assert!((terms.value - 2f64.ln()).abs() < 1e-12);
/// assert_eq!(terms.gradient, [-0.5, 0.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reward {
    center: Option<f64>,
}

impl Reward {
    /// With `center_rewards_coefficient`, c.
    ///
    /// # Errors
    /// If the coefficient is negative or not a number.
    pub fn new(center_rewards_coefficient: Option<f64>) -> Result<Self, LossError> {
        Self::faults(center_rewards_coefficient).first()?;
        Ok(Self { center: center_rewards_coefficient })
    }

    /// The rules that the option breaks.
    #[must_use]
    pub fn faults(center_rewards_coefficient: Option<f64>) -> OptionFaults {
        let mut faults = OptionFaults::default();
        if let Some(c) = center_rewards_coefficient {
            let expected = "null or a number that is at least 0";
            faults.range("center_rewards_coefficient", at_least_0(c), c, expected);
        }
        faults
    }

    /// What [`Reward::terms`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            least: vec!["min_reward"],
            greatest: vec!["max_reward"],
            ..Metrics::sums(&["mean_reward", "accuracy", "margin"])
        }
    }

    /// This micro-batch's part of the loss. `pairs` is the number of pairs in the whole step, over micro-batches and
    /// ranks.
    ///
    /// # Shapes
    /// - chosen, rejected, margins: `[pairs here]`
    /// - gradient: `[2 * pairs here]`, of the chosen rewards and then of the rejected
    ///
    /// # Errors
    /// If the lists differ in length, or `pairs` is fewer than there are here.
    pub fn terms(
        &self,
        chosen: &[f32],
        rejected: &[f32],
        margins: Option<&[f32]>,
        pairs: f64,
    ) -> Result<LossTerms, LossError> {
        let here = chosen.len();
        let length = |what, got| LossError::Length { what, got, expected: here, of: "pairs" };
        if rejected.len() != here {
            return Err(length("rewards of rejected completions", rejected.len()));
        }
        if let Some(margins) = margins.filter(|m| m.len() != here) {
            return Err(length("margins", margins.len()));
        }
        within("pairs", pairs, here as f64)?;

        let mut terms = LossTerms { gradient: vec![0.0; 2 * here], ..LossTerms::default() };
        for pair in 0..here {
            let (c, r) = (Dual::first(f64::from(chosen[pair])), Dual::second(f64::from(rejected[pair])));
            let margin = margins.map_or(0.0, |m| f64::from(m[pair]));
            let mut loss = -(c - r - margin).log_sigmoid();
            if let Some(coefficient) = self.center {
                loss = loss + (c + r).square() * coefficient;
            }
            terms.value += loss.value / pairs;
            terms.gradient[pair] = (loss.slope[0] / pairs) as f32;
            terms.gradient[here + pair] = (loss.slope[1] / pairs) as f32;
            measure(&mut terms.tally, c.value, r.value);
        }
        Ok(terms)
    }
}

/// `min_reward`, `mean_reward`, `max_reward`, `accuracy`, `margin`.
fn measure(tally: &mut MetricSums, chosen: f64, rejected: f64) {
    tally.add("mean_reward", chosen + rejected, 2.0);
    tally.extreme("min_reward", Extreme::Least(chosen.min(rejected)));
    tally.extreme("max_reward", Extreme::Greatest(chosen.max(rejected)));
    tally.add("accuracy", f64::from(u8::from(chosen > rejected)), 1.0);
    tally.add("margin", chosen - rejected, 1.0);
}
