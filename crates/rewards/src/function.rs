//! What gives rewards.

use crate::{RewardError, Sample};

/// A function that scores completions.
///
/// It is shared by the ranks of a process, which call it at the same time, each with the completions of its own share.
/// Runs repeat, and ranks agree with one rank, as far as the reward of a sample depends on nothing but the sample.
pub trait RewardFunction: Send + Sync {
    /// Its name in metrics: `rewards/{name}/mean`.
    fn name(&self) -> &str;

    /// One finite number per sample, in their order; `None` where a sample cannot be scored.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from scoring: a column that a row lacks, a program that died, or
    /// [`RewardError::Function`] for errors of other crates. It ends the run.
    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError>;
}
