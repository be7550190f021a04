//! WPO: pairs weighted by how likely the policy is to have written them (Zhou et al., arXiv:2406.11827, eq. 2).

use std::ops::Range;

use burnish_ops::TokenStats;

/// `exp(mean_t(lp_t - ln sum_v p_v^2))` of a completion, no gradient; 1 without tokens.
pub(super) fn weight(stats: &TokenStats, targets: &Range<usize>) -> f64 {
    let aligned: f64 =
        targets.clone().map(|t| f64::from(stats.log_prob[t]) - f64::from(stats.log_sum_sq_probs[t])).sum();
    (aligned / targets.len().max(1) as f64).exp()
}
