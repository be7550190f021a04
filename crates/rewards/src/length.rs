//! Rewards for length in tokens: `get_soft_overlong_punishment`, `length_reward`.

use crate::{RewardError, RewardFunction, Sample};

/// Nothing up to `max_completion_len - soft_punish_cache` tokens, then linearly down to -1 at `max_completion_len`, and -1
/// beyond.
///
/// DAPO's soft overlong punishment (arXiv:2503.14476, equation 13); TRL's `get_soft_overlong_punishment`.
#[derive(Clone, Copy, Debug)]
pub struct SoftOverlongPunishment {
    max_completion_len: usize,
    soft_punish_cache: usize,
}

impl SoftOverlongPunishment {
    /// # Errors
    ///
    /// [`RewardError::Setting`] if the cache is longer than the completion may be.
    pub fn new(max_completion_len: usize, soft_punish_cache: usize) -> Result<Self, RewardError> {
        if soft_punish_cache > max_completion_len {
            return Err(RewardError::Setting {
                function: Self::NAME,
                setting: "overlong_soft_punish_cache",
                got: soft_punish_cache.to_string(),
                expected: "at most overlong_max_completion_len",
            });
        }
        Ok(Self { max_completion_len, soft_punish_cache })
    }

    pub(crate) const NAME: &str = "soft_overlong_punishment_reward";
}

impl RewardFunction for SoftOverlongPunishment {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        let free = self.max_completion_len - self.soft_punish_cache;
        let punishment = |tokens: usize| {
            if tokens <= free {
                0.0
            } else if tokens <= self.max_completion_len {
                -((tokens - free) as f64) / self.soft_punish_cache as f64
            } else {
                -1.0
            }
        };
        Ok(samples.iter().map(|sample| Some(punishment(sample.completion_ids.len()))).collect())
    }
}

/// The number of tokens of a completion, the one that ended it included, times a factor.
///
/// A factor below 0 rewards short completions, one above 0 long ones.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    scale: f64,
}

impl Length {
    /// # Errors
    ///
    /// [`RewardError::Setting`] if the factor is not finite.
    pub fn new(scale: f64) -> Result<Self, RewardError> {
        if !scale.is_finite() {
            return Err(RewardError::Setting {
                function: Self::NAME,
                setting: "length_scale",
                got: scale.to_string(),
                expected: "a finite number",
            });
        }
        Ok(Self { scale })
    }

    pub(crate) const NAME: &str = "length_reward";
}

impl RewardFunction for Length {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| Some(self.scale * sample.completion_ids.len() as f64)).collect())
    }
}
