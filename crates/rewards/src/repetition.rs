//! A penalty for repeated n-grams: `get_repetition_penalty_reward`.

use std::collections::HashSet;

use crate::{RewardError, RewardFunction, Sample};

/// The share of token n-grams that occurred before, times `max_penalty`; 0 where a completion is shorter than one n-gram.
///
/// Appendix C.2 of arXiv:2502.03373; TRL's `get_repetition_penalty_reward`.
#[derive(Clone, Copy, Debug)]
pub struct RepetitionPenalty {
    ngram_size: usize,
    max_penalty: f64,
}

impl RepetitionPenalty {
    /// # Errors
    ///
    /// [`RewardError::Setting`] if n-grams have no tokens or the penalty is positive.
    pub fn new(ngram_size: usize, max_penalty: f64) -> Result<Self, RewardError> {
        let refused = |setting, got, expected| {
            Err(RewardError::Setting { function: Self::NAME, setting, got, expected })
        };
        if ngram_size == 0 {
            return refused("repetition_ngram_size", ngram_size.to_string(), "at least 1");
        }
        if !(max_penalty <= 0.0 && max_penalty.is_finite()) {
            return refused(
                "repetition_max_penalty",
                max_penalty.to_string(),
                "a number that is not above 0",
            );
        }
        Ok(Self { ngram_size, max_penalty })
    }

    pub(crate) const NAME: &str = "repetition_penalty_reward";

    fn penalty(&self, tokens: &[u32]) -> f64 {
        let ngrams = tokens.windows(self.ngram_size);
        let total = ngrams.len();
        let unique = ngrams.collect::<HashSet<_>>().len();
        if unique == total { 0.0 } else { (1.0 - unique as f64 / total as f64) * self.max_penalty }
    }
}

impl RewardFunction for RepetitionPenalty {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| Some(self.penalty(sample.completion_ids))).collect())
    }
}
