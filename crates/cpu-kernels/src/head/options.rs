//! `HeadOptions` and `HeadStats`: options and results of the fused log-probability head.

use burnish_core::{HeadOptions, LinearParts};

/// Asserts that the options make logits.
pub(super) fn check(options: &HeadOptions) {
    assert!(options.temperature > 0.0, "head: temperature {} must be positive", options.temperature);
    let smoothing = options.label_smoothing;
    assert!((0.0..=1.0).contains(&smoothing), "head: label smoothing {smoothing} must be from 0 to 1");
    assert!(options.softcap.is_none_or(|c| c > 0.0), "head: softcap {:?} must be positive", options.softcap);
}

/// Statistics of each token's distribution over the vocabulary; every vector has one entry per row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadStats {
    /// Log-probability of the target, smoothed as the options say.
    pub log_prob: Vec<f32>,
    /// Entropy in nats.
    pub entropy: Vec<f32>,
    /// `ln Σ p²`.
    pub log_sum_sq_probs: Vec<f32>,
    /// Mean of `z` over the vocabulary.
    pub mean_logit: Vec<f32>,
    /// `ln Σ exp z`.
    pub log_z: Vec<f32>,
    /// Whether the target is the first maximum.
    pub is_top1: Vec<bool>,
}

impl HeadStats {
    pub(crate) fn with_capacity(n: usize) -> Self {
        let v = || Vec::with_capacity(n);
        Self {
            log_prob: v(),
            entropy: v(),
            log_sum_sq_probs: v(),
            mean_logit: v(),
            log_z: v(),
            is_top1: Vec::with_capacity(n),
        }
    }

    /// Appends the statistics of further tokens, `n`.
    pub(crate) fn append(&mut self, more: Self, n: usize) {
        let lengths = [
            more.log_prob.len(),
            more.entropy.len(),
            more.log_sum_sq_probs.len(),
            more.mean_logit.len(),
            more.log_z.len(),
            more.is_top1.len(),
        ];
        assert!(lengths == [n; 6], "head: combined statistics of {lengths:?} tokens, expected {n} each");
        self.log_prob.extend(more.log_prob);
        self.entropy.extend(more.entropy);
        self.log_sum_sq_probs.extend(more.log_sum_sq_probs);
        self.mean_logit.extend(more.mean_logit);
        self.log_z.extend(more.log_z);
        self.is_top1.extend(more.is_top1);
    }
}

/// Which gradients to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadWanted {
    /// Hidden states.
    pub hidden: bool,
    /// The head's own (a tied embedding is the same weight; the caller adds the two gradients). A magnitude's is made of
    /// a head without bias and soft cap, where no magnitude is zero.
    pub parts: LinearParts<bool>,
}

/// Gradients of the head; `None` where not wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadGrad {
    /// `[rows, in]`.
    pub hidden: Option<Vec<f32>>,
    /// Of each part that the head has.
    pub parts: LinearParts<Option<Vec<f32>>>,
}
