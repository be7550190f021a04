//! A reward for the format of a completion: `think_format_reward`.

use crate::{RewardError, RewardFunction, Sample};

/// 1 where a completion begins with `<think>`, says that nowhere else and closes it with `</think>`, else 0.
///
/// As TRL's `think_format_reward`: the pattern `^<think>(?!.*<think>)(.*?)</think>.*$`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThinkFormat;

impl RewardFunction for ThinkFormat {
    fn name(&self) -> &str {
        "think_format_reward"
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| Some(f64::from(u8::from(thinks(sample.completion))))).collect())
    }
}

fn thinks(completion: &str) -> bool {
    completion
        .strip_prefix("<think>")
        .is_some_and(|rest| !rest.contains("<think>") && rest.contains("</think>"))
}
