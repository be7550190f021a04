//! RLOO: a completion's reward against the mean of the others of its group.

use burnish_core::OptionFaults;

use crate::LossError;
use crate::error::{AT_LEAST_0, at_least_0};

use super::statistics::{mean, spread, std, sum};
use super::{Advantages, Rewards, SMALL, zero_part};

/// How RLOO makes advantages (Ahmadian et al., arXiv:2402.14740); the defaults are TRL's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RlooAdvantages {
    /// Weight of the KL divergence that is taken off the reward.
    pub beta: f64,
    /// `normalize_advantages`: mean 0 and standard deviation 1 over the batch.
    pub normalize: bool,
    /// `reward_clip_range`: bounds of the weighted reward, before the KL divergence is taken off.
    pub clip_range: Option<(f64, f64)>,
}

impl Default for RlooAdvantages {
    fn default() -> Self {
        Self { beta: 0.05, normalize: false, clip_range: None }
    }
}

impl RlooAdvantages {
    /// What `reward_clip_range` takes.
    pub const CLIP_RANGE: &'static str = "null or two numbers, the lesser first";

    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("beta", at_least_0(self.beta), self.beta, AT_LEAST_0);
        if let Some((low, high)) = self.clip_range {
            faults.range("reward_clip_range", low <= high, format_args!("{low} {high}"), Self::CLIP_RANGE);
        }
        faults
    }

    /// The advantages of a generation batch: `r_i - (sum_j r_j - r_i) / (scored - 1)`, `r = reward - beta kl`.
    ///
    /// `kl` is `sum_t (old - ref)` over each completion's targets (k1) and `tokens` the targets of the generation batch,
    /// which the metric `kl` divides by; neither is read where `beta` is 0.
    ///
    /// # Shapes
    /// - kl: `[completions]`
    ///
    /// # Errors
    /// If the lists do not fit, `beta` is negative or the clip range is empty.
    pub fn advantages(
        &self,
        rewards: &Rewards<'_>,
        kl: &[f64],
        tokens: f64,
    ) -> Result<Advantages, LossError> {
        rewards.check()?;
        self.faults().first()?;
        let mut all = rewards.weighted();
        if let Some((low, high)) = self.clip_range {
            all.iter_mut().for_each(|r| *r = r.clamp(low, high));
        }
        if self.beta != 0.0 {
            if kl.len() != all.len() {
                let (got, expected) = (kl.len(), all.len());
                return Err(LossError::Length { what: "kl", got, expected, of: "completions" });
            }
            all.iter_mut().zip(kl).for_each(|(r, kl)| *r -= self.beta * kl);
        }
        let (mut advantages, mut stds) = (Vec::with_capacity(all.len()), Vec::new());
        for group in all.chunks(rewards.group) {
            let scored = group.iter().filter(|r| !r.is_nan()).count();
            let total = sum(group);
            stds.push(spread(group));
            // One alone has nothing to be compared with: 0/0.
            advantages.extend(group.iter().map(|r| r - (total - r) / (scored as f64 - 1.0)));
        }
        if self.normalize {
            let (mean, by) = (mean(&advantages), std(&advantages) + SMALL);
            advantages.iter_mut().for_each(|a| *a = (*a - mean) / by);
        }
        let mut out = Advantages::new(advantages, rewards, zero_part(&stds));
        if self.beta != 0.0 {
            out.tally.add("kl", kl.iter().sum::<f64>() / tokens.max(1.0), 1.0);
        }
        Ok(out)
    }
}
