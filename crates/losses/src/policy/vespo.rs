//! VESPO's weight of a sequence (Shen et al., arXiv:2602.10693).

/// `ln 1e-8`: below this a sequence's log-ratio is cut.
const LEAST: f64 = -18.420_680_743_952_367;
/// Above this log-ratios are cut, per token and per sequence.
const GREATEST: f64 = 20.0;

/// The gamma weight `phi(w) = e^l w^k e^(-l w)`, with `phi(1) = 1`; (k, l) by the sign of the advantage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VespoOptions {
    /// k for advantages of at least 0 (`vespo_k_pos`).
    pub k_pos: f64,
    /// l for advantages of at least 0 (`vespo_lambda_pos`).
    pub lambda_pos: f64,
    /// k for negative advantages (`vespo_k_neg`).
    pub k_neg: f64,
    /// l for negative advantages (`vespo_lambda_neg`).
    pub lambda_neg: f64,
}

impl Default for VespoOptions {
    fn default() -> Self {
        Self { k_pos: 2.0, lambda_pos: 3.0, k_neg: 3.0, lambda_neg: 2.0 }
    }
}

impl VespoOptions {
    /// phi of a sequence, without gradient.
    ///
    /// `log_ratios` are its tokens' `lp - old`, `sampler` the sampler's importance ratios (one per token or one in
    /// all).
    pub(super) fn weight(
        &self,
        advantage: f64,
        log_ratios: impl Iterator<Item = f64>,
        sampler: impl Iterator<Item = f64>,
    ) -> f64 {
        let policy: f64 = log_ratios.map(|r| r.clamp(-GREATEST, GREATEST)).sum();
        let sampler: f64 = sampler.map(|r| r.ln().clamp(LEAST, GREATEST)).sum();
        let log_w = (policy + sampler).clamp(LEAST, GREATEST);
        let (k, lambda) =
            if advantage >= 0.0 { (self.k_pos, self.lambda_pos) } else { (self.k_neg, self.lambda_neg) };
        let lambda = lambda.max(1e-4);
        let phi = (lambda + k * log_w - lambda * log_w.exp()).exp();
        if phi.is_finite() { phi } else { 0.0 }
    }
}
