//! REINFORCE leave-one-out: sampled completions as single actions.

use std::ops::Range;

use burnish_core::OptionFaults;
use burnish_ops::TokenStats;

use crate::dual::Dual;
use crate::error::{AT_LEAST_0, at_least_0, within};
use crate::policy::Clipped;
use crate::sequence;
use crate::{LossError, LossTerms, Metrics};

/// A sampled completion in a micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Where its targets are; none where it was cut off and such completions are masked.
    pub targets: Range<usize>,
    /// Its advantage ([`crate::RlooAdvantages`]).
    pub advantage: f64,
    /// The sum of its targets' log-probabilities under the policy that sampled.
    pub old: f64,
}

/// `-min(p A, clip(p, 1-e, 1+e_h) A)`, mean over sequences, `p = e^(sum_t lp - old)` (Ahmadian et al.,
/// arXiv:2402.14740, with PPO's clipping).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rloo {
    low: f64,
    high: f64,
}

impl Default for Rloo {
    fn default() -> Self {
        Self { low: 0.2, high: 0.2 }
    }
}

impl Rloo {
    /// With `epsilon` and `epsilon_high` (`epsilon` when absent).
    ///
    /// # Errors
    /// If one is negative.
    pub fn new(epsilon: f64, epsilon_high: Option<f64>) -> Result<Self, LossError> {
        Self::faults(epsilon, epsilon_high).first()?;
        let high = epsilon_high.unwrap_or(epsilon);
        Ok(Self { low: epsilon, high })
    }

    /// The rules that the bounds break, all of them.
    #[must_use]
    pub fn faults(epsilon: f64, epsilon_high: Option<f64>) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("epsilon", at_least_0(epsilon), epsilon, AT_LEAST_0);
        if let Some(high) = epsilon_high {
            faults.range("epsilon_high", at_least_0(high), high, AT_LEAST_0);
        }
        faults
    }

    /// What [`Rloo::terms`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::sums(&["entropy"]);
        Clipped::name(&mut metrics);
        metrics
    }

    /// This micro-batch's part of the loss, given the number of sequences in the whole step.
    ///
    /// # Shapes
    /// - stats: `[targets]` each; entropies are metrics and may be empty
    /// - gradient: `[2, targets]`
    ///
    /// # Errors
    /// If a sequence lies outside the targets, or `sequences` is fewer than there are here.
    pub fn terms(
        &self,
        stats: &TokenStats,
        sampled: &[Sampled],
        sequences: f64,
    ) -> Result<LossTerms, LossError> {
        within("sequences", sequences, sampled.len() as f64)?;
        let targets = stats.log_prob.len();
        let mut terms = LossTerms::of_targets(targets);
        for (number, Sampled { targets: range, advantage, old }) in sampled.iter().enumerate() {
            sequence::check(number, range, targets)?;
            let log_prob = sequence::sum(&stats.log_prob[range.clone()]);
            let ratio = (Dual::first(log_prob) - *old).exp();
            let clipped = ratio.at_most(1.0 + self.high).at_least(1.0 - self.low);
            let loss = -(ratio * *advantage).min(clipped * *advantage);
            terms.value += loss.value / sequences;
            terms.gradient[range.clone()].fill((loss.slope[0] / sequences) as f32);
            if let Some(entropy) = stats.entropy.get(range.clone()) {
                terms.tally.add("entropy", sequence::sum(entropy), range.len() as f64);
            }
            let mut of_sequence = Clipped::default();
            of_sequence.count(ratio.value, *advantage, self.low, self.high);
            of_sequence.add_to(&mut terms.tally);
        }
        Ok(terms)
    }
}
