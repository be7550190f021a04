//! Masks of the policy loss: entropy quantile, off-policy sequences, truncated completions.

/// Tokens of high entropy in a step: the fork tokens of Wang et al. (arXiv:2506.01939).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HighEntropy {
    /// The least entropy that counts, in nats.
    pub threshold: f32,
    /// Tokens of the step that reach it.
    pub tokens: f64,
    /// Their mean entropy, in nats.
    pub mean: f64,
}

impl HighEntropy {
    /// The upper `quantile` of the entropies of all loss tokens of the step. Nothing without tokens.
    ///
    /// Interpolated linearly, in f32, as `torch.quantile` does.
    pub(super) fn new(quantile: f64, entropies: &[f32]) -> Self {
        let mut sorted = entropies.to_vec();
        sorted.sort_by(f32::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return Self { threshold: f32::INFINITY, tokens: 0.0, mean: 0.0 };
        };
        let rank = (1.0 - quantile) as f32 * last as f32;
        let (below, above) = (rank.floor() as usize, (rank.ceil() as usize).min(last));
        let (low, high, weight) = (sorted[below], sorted[above], rank - rank.floor());
        let threshold =
            if weight < 0.5 { low + weight * (high - low) } else { high - (high - low) * (1.0 - weight) };
        let high = &sorted[sorted.partition_point(|&h| h < threshold)..];
        let tokens = high.len() as f64;
        Self { threshold, tokens, mean: high.iter().map(|&h| f64::from(h)).sum::<f64>() / tokens.max(1.0) }
    }
}

/// Whether a sequence is dropped because the policy moved away from it (DeepSeek-V3.2's off-policy sequence masking):
/// a negative advantage and `mean_t(sampled - lp)` above the threshold. A NaN, which a sampler gives for a token it
/// could not score, says nothing.
pub(super) fn is_off_policy(advantage: f64, threshold: f64, sampled: &[f32], log_probs: &[f32]) -> bool {
    let drift: f64 = sampled
        .iter()
        .zip(log_probs)
        .map(|(&s, &lp)| f64::from(s) - f64::from(lp))
        .filter(|d| !d.is_nan())
        .sum();
    advantage < 0.0 && drift / sampled.len().max(1) as f64 > threshold
}

/// Whether a completion was cut off: its last token is none of `ends` (the end-of-sequence tokens, and padding where
/// it is one). With `mask_truncated_completions` such a sequence has no targets.
#[must_use]
pub fn is_truncated(completion: &[u32], ends: &[u32]) -> bool {
    completion.last().is_some_and(|last| !ends.contains(last))
}
