//! The log-probability head: hidden states times the output projection, tile by tile, never a `[tokens, vocab]` tensor.
//!
//! `z = softcap(logit_scale * (h W^T + b)) / temperature`; per token the log-probability of its target, the entropy,
//! whether the target is the first maximum, `log sum p^2` and the mean logit.

use std::sync::Arc;

use crate::{AnyTensor, Linear, OpsError};

/// How logits are made from the projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOptions {
    /// Divides the logits.
    pub temperature: f32,
    /// `c * tanh(z / c)` before the temperature.
    pub softcap: Option<f32>,
    /// Multiplies the projection.
    pub logit_scale: f32,
}

impl Default for HeadOptions {
    fn default() -> Self {
        Self { temperature: 1.0, softcap: None, logit_scale: 1.0 }
    }
}

/// Per-token facts, each `[tokens]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// Log-probability of the target, in nats.
    pub log_prob: Vec<f32>,
    /// Entropy of the distribution, in nats.
    pub entropy: Vec<f32>,
    /// `log sum p^2`.
    pub log_sum_sq_probs: Vec<f32>,
    /// The mean of the logits over the vocabulary.
    pub mean_logit: Vec<f32>,
    /// Whether the target is the first maximum.
    pub is_top1: Vec<bool>,
}

/// `d loss / d log_prob` of a row, known from its log-probability.
pub type Coefficient = Arc<dyn Fn(usize, f32) -> f32 + Send + Sync>;

/// A scalar loss over tokens whose coefficients are known in forward; its gradient is made in the same pass, so the
/// projection runs three times in all (twice with a frozen head) where recomputation needs four.
///
/// # Shapes
/// - hidden: `[tokens, hidden]`, head: `[vocab, hidden]`, targets: `[tokens]`
/// - output: `[1]`, the value that `value` computes from the statistics
///
/// Without tokens nothing is computed and every gradient is zero.
///
/// # Errors
/// If a target is outside the vocabulary, or shapes or dtypes do not fit.
pub fn head_loss(
    hidden: &AnyTensor,
    head: &Linear,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    coefficient: &Coefficient,
    value: impl FnOnce(&TokenStats) -> f32,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    crate::check::head(hidden, head, Some(targets))?;
    #[cfg(feature = "flex")]
    if crate::flex::holds(hidden) && !targets.is_empty() {
        return crate::flex::head::head_loss(hidden, head, targets, options, coefficient, value);
    }
    crate::reference::head_loss(hidden, head, targets, options, coefficient, value)
}

/// Log-probability and entropy per token as a tensor `[2, tokens]` to build any loss on; backward recomputes the
/// logits tile by tile.
///
/// # Errors
/// As [`head_loss`].
pub fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    crate::check::head(hidden, head, Some(targets))?;
    #[cfg(feature = "flex")]
    if crate::flex::holds(hidden) && !targets.is_empty() {
        return crate::flex::head::head_log_probs(hidden, head, targets, options);
    }
    crate::reference::head_log_probs(hidden, head, targets, options)
}

/// Plain logits `[tokens, vocab]` for sampling (temperature is the sampler's). Not recorded.
///
/// # Errors
/// As [`head_loss`].
pub fn head_logits(hidden: &AnyTensor, head: &Linear, options: HeadOptions) -> Result<Vec<f32>, OpsError> {
    crate::check::head(hidden, head, None)?;
    #[cfg(feature = "flex")]
    if crate::flex::holds(hidden) {
        return crate::flex::head::head_logits(hidden, head, options);
    }
    crate::reference::head_logits(hidden, head, options)
}
