//! Importance ratios of current and old policy, and the KL term.

use crate::dual::Dual;

use super::kind::ImportanceLevel;

/// The ratios of a sequence's tokens. In [`Dual`] the first variable is the token's log-probability, the second the
/// sequence's mean log-ratio, which every token moves by one over the length.
pub(super) struct Ratios<'a> {
    level: ImportanceLevel,
    log_probs: &'a [f32],
    old: Option<&'a [f32]>,
    mean: f64,
}

impl<'a> Ratios<'a> {
    /// Without `old`, the old policy is the current one, held fixed.
    pub(super) fn new(level: ImportanceLevel, log_probs: &'a [f32], old: Option<&'a [f32]>) -> Self {
        let mut ratios = Self { level, log_probs, old, mean: 0.0 };
        let sum: f64 = (0..log_probs.len()).map(|t| ratios.log_ratio(t)).sum();
        ratios.mean = sum / log_probs.len().max(1) as f64;
        ratios
    }

    pub(super) fn log_prob(&self, token: usize) -> Dual {
        Dual::first(f64::from(self.log_probs[token]))
    }

    pub(super) fn log_ratio(&self, token: usize) -> f64 {
        self.old.map_or(0.0, |old| f64::from(self.log_probs[token]) - f64::from(old[token]))
    }

    /// `p` of the whole sequence.
    pub(super) fn of_sequence(&self) -> Dual {
        Dual::second(self.mean).exp()
    }

    /// `p` of a token at the level asked for.
    pub(super) fn of(&self, token: usize) -> Dual {
        match self.level {
            ImportanceLevel::Token => Dual::first(self.log_ratio(token)).exp(),
            ImportanceLevel::Sequence => self.of_sequence(),
        }
    }

    /// `e^d - d - 1`, `d = ref - lp`: the k3 estimate of the KL divergence from the reference, times the ratio where
    /// its expectation is to be unbiased off policy (DeepSeek-V3.2, arXiv:2512.02556).
    pub(super) fn kl(&self, token: usize, reference: f32, unbiased: bool) -> Dual {
        let d = -self.log_prob(token) + f64::from(reference);
        let k3 = d.exp() - d - 1.0;
        if unbiased { k3 * self.of(token) } else { k3 }
    }
}
