//! The loss of REINFORCE leave-one-out.

use burnish_losses::{LossError, Rloo, RlooAdvantages};

use crate::checks::{AT_LEAST_0, Checks, at_least_0};
use crate::table::options;

options! {
    /// The loss over sampled completions.
    RlooLossOptions, "RLOO";
    /// Weight of the KL divergence from the reference, which is taken off the reward; 0 needs no reference.
    Trl beta: f64 = 0.05;
    /// How far a ratio of policies may fall below 1, and rise above it.
    Trl epsilon: f64 = 0.2;
    /// How far it may rise above 1; by default epsilon.
    Trl epsilon_high: Option<f64> = None;
    /// Scale advantages to mean 0 and standard deviation 1 over the sampled batch.
    Trl normalize_advantages: bool = false;
    /// The least and the greatest reward that counts.
    Trl reward_clip_range: Option<Vec<f64>> = None;
}

impl RlooLossOptions {
    /// From rewards to advantages.
    #[must_use]
    pub fn advantages(&self) -> RlooAdvantages {
        let clip_range = match self.reward_clip_range.as_deref() {
            Some(&[low, high]) => Some((low, high)),
            _ => None,
        };
        RlooAdvantages { beta: self.beta, normalize: self.normalize_advantages, clip_range }
    }

    /// The loss.
    ///
    /// # Errors
    /// If a bound of the ratio is out of range.
    pub fn loss(&self) -> Result<Rloo, LossError> {
        Rloo::new(self.epsilon, self.epsilon_high)
    }

    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.range("beta", at_least_0(self.beta), AT_LEAST_0);
        checks.owner(Rloo::faults(self.epsilon, self.epsilon_high));
        let two = self.reward_clip_range.as_ref().is_none_or(|range| range.len() == 2);
        checks.range("reward_clip_range", two, RlooAdvantages::CLIP_RANGE);
        checks.owner(self.advantages().faults());
    }
}
