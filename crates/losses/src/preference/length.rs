//! LD-DPO: tokens beyond the pair's shared length count less (Liu et al., arXiv:2409.06411).

/// How a completion's log-probabilities are summed: `sum_{t <= s} lp + a sum_{t > s} lp`, s the shorter completion's
/// targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lengths {
    /// `ld_alpha`, a; 1 is the plain sum.
    pub(super) alpha: f64,
    /// s.
    pub(super) shared: usize,
}

impl Lengths {
    pub(super) fn new(alpha: Option<f64>, chosen: usize, rejected: usize) -> Self {
        Self { alpha: alpha.unwrap_or(1.0), shared: chosen.min(rejected) }
    }

    pub(super) fn weight(self, position: usize) -> f64 {
        if position < self.shared { 1.0 } else { self.alpha }
    }

    pub(super) fn sum(self, log_probs: &[f32]) -> f64 {
        log_probs.iter().enumerate().map(|(t, &lp)| self.weight(t) * f64::from(lp)).sum()
    }
}
