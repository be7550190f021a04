//! Forward passes of a micro-batch: token losses and log-probabilities of its targets.

pub(crate) mod log_probs;
pub(crate) mod token_loss;
