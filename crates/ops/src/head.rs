//! The log-probability head: hidden states times the output projection, tile by tile, never a `[tokens, vocab]` tensor.
//!
//! `z = softcap(logit_scale * (h W^T + b)) / temperature`; per token the log-probability of its target (smoothed, where
//! [`HeadOptions::label_smoothing`] says so), the entropy,
//! whether the target is the first maximum, `log sum p^2` and the mean logit.

mod later_stats;
pub(crate) mod shard;

use std::sync::Arc;

use crate::dispatch::dispatch;
use crate::{AnyTensor, Linear, OpsError};

pub use burnish_core::HeadOptions;
pub use later_stats::LaterStats;
pub use shard::{AcrossVocab, VocabShard};

/// Per-token facts, each `[tokens]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// Log-probability of the target, in nats, smoothed as the options say.
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
/// With a `shard` the head holds that rank's rows, every rank has all hidden states and all targets, and statistics
/// and value are those of the whole vocabulary on every rank. The gradients of the hidden states and of a low-rank `A`
/// are this rank's addends: whoever split the head adds them up. Ranks exchange in the order of their calls and a pass
/// without gradients exchanges otherwise than one with, so what is tracked must be so on all ranks or on none.
///
/// # Errors
/// If a target is outside the vocabulary, or shapes or dtypes do not fit.
pub fn head_loss(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    coefficient: &Coefficient,
    value: impl FnOnce(&TokenStats) -> f32,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    crate::check::head(hidden, head, shard, Some(targets))?;
    dispatch!([hidden] => head::head_loss(hidden, head, shard, targets, options, coefficient, value))
}

/// The negative log-likelihood `-sum log_prob / denominator`, and its gradient in the same pass: the projection runs three
/// times in all, twice with a frozen head. A denominator below 1 is 1.
///
/// On a GPU nothing waits for the device: the statistics are on their way when it returns.
///
/// # Shapes
/// As of [`head_loss`], and so are a `shard` and the order of exchanges.
///
/// # Errors
/// As [`head_loss`].
pub fn head_nll(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    denominator: f64,
) -> Result<(AnyTensor, LaterStats), OpsError> {
    crate::check::head(hidden, head, shard, Some(targets))?;
    // The CPU's kernels make the gradient in forward whatever the coefficients are.
    #[cfg(feature = "flex")]
    if crate::flex::holds([hidden]) {
        return nll_by_coefficients(hidden, head, shard, targets, options, denominator);
    }
    crate::gpu::head_nll(hidden, head, shard, targets, options, denominator)
}

/// [`head_nll`] as a [`head_loss`].
pub(crate) fn nll_by_coefficients(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    denominator: f64,
) -> Result<(AnyTensor, LaterStats), OpsError> {
    let denominator = denominator.max(1.0);
    let coefficient: Coefficient = Arc::new(move |_, _| (-1.0 / denominator) as f32);
    let (loss, stats) = head_loss(hidden, head, shard, targets, options, &coefficient, |stats| {
        (-stats.log_prob.iter().map(|&log_prob| f64::from(log_prob)).sum::<f64>() / denominator) as f32
    })?;
    Ok((loss, stats.into()))
}

/// Log-probability and entropy per token as a tensor `[2, tokens]` to build any loss on; backward recomputes the
/// logits tile by tile. A `shard` as in [`head_loss`]: ranks exchange once, in forward.
///
/// # Errors
/// As [`head_loss`].
pub fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    crate::check::head(hidden, head, shard, Some(targets))?;
    dispatch!([hidden] => head::head_log_probs(hidden, head, shard, targets, options))
}

/// Plain logits `[tokens, vocab]` for sampling (temperature is the sampler's). Not recorded. Of a head that is split
/// over the vocabulary, those of this rank's rows.
///
/// # Errors
/// As [`head_loss`].
pub fn head_logits(hidden: &AnyTensor, head: &Linear, options: HeadOptions) -> Result<Vec<f32>, OpsError> {
    crate::check::head(hidden, head, None, None)?;
    if head.out() == 0 {
        return Ok(Vec::new());
    }
    dispatch!([hidden] => head::head_logits(hidden, head, options))
}

/// [`head_logits`] that stay on a device of CubeCL's, to draw from; `None` where `hidden` is on none.
///
/// # Errors
/// As [`head_logits`].
#[cfg(feature = "cube")]
pub fn resting_logits(
    hidden: &AnyTensor,
    head: &Linear,
    options: HeadOptions,
) -> Result<Option<crate::RestingLogits>, OpsError> {
    crate::check::head(hidden, head, None, None)?;
    if head.out() == 0 || crate::cube::client(hidden).is_none() {
        return Ok(None);
    }
    Ok(crate::RestingLogits::new(crate::gpu::head::resting_logits(hidden, head, options)?))
}
