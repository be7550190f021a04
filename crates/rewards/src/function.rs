//! `RewardFunction`: the trait of what scores completions.

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

/// A closure as a reward function: the reward of one sample, `None` where it cannot be scored.
///
/// ```
/// use burnish_rewards::{RewardFunction, Sample, reward_fn};
///
/// let short = reward_fn("short", |sample| Some(-(sample.completion.len() as f64)));
/// let (prompt, columns) = ("Why?".into(), serde_json::Map::new());
/// let sample = Sample { prompt: &prompt, completion: "Because.", completion_ids: &[], columns: &columns };
/// assert_eq!((short.name(), short.score(&[sample]).unwrap()), ("short", vec![Some(-8.0)]));
/// ```
pub fn reward_fn<F>(name: impl Into<String>, reward: F) -> impl RewardFunction
where
    F: Fn(&Sample<'_>) -> Option<f64> + Send + Sync,
{
    Closure { name: name.into(), reward }
}

struct Closure<F> {
    name: String,
    reward: F,
}

impl<F: Fn(&Sample<'_>) -> Option<f64> + Send + Sync> RewardFunction for Closure<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| (self.reward)(sample)).collect())
    }
}
