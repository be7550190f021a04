//! Sequences as ranges of a micro-batch's targets.

use std::ops::Range;

use burnish_ops::TokenStats;

use crate::{LossError, MetricSums};

/// A completion in a micro-batch without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its targets among those of the micro-batch.
    pub targets: Range<usize>,
    /// Its tokens: as many as targets, but one more where there is no prompt, as nothing predicts the first token.
    pub tokens: usize,
}

impl From<Range<usize>> for Completion {
    fn from(targets: Range<usize>) -> Self {
        Self { tokens: targets.len(), targets }
    }
}

/// Fails unless `targets` lies within the micro-batch.
pub(crate) fn check(sequence: usize, targets: &Range<usize>, all: usize) -> Result<(), LossError> {
    if targets.start <= targets.end && targets.end <= all {
        Ok(())
    } else {
        Err(LossError::Targets { sequence, start: targets.start, end: targets.end, targets: all })
    }
}

pub(crate) fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v)).sum()
}

/// Adds `entropy` and, under `logits`, the mean logit.
pub(crate) fn measure(tally: &mut MetricSums, stats: &TokenStats, targets: &Range<usize>, logits: &str) {
    let tokens = targets.len() as f64;
    if let Some(entropy) = stats.entropy.get(targets.clone()) {
        tally.add("entropy", sum(entropy), tokens);
    }
    if let Some(mean_logit) = stats.mean_logit.get(targets.clone()) {
        tally.add(logits, sum(mean_logit), tokens);
    }
}
