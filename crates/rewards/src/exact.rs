//! A reward for the reference answer word for word: `exact_match_reward`.

use serde_json::Value;

use crate::{RewardError, RewardFunction, Sample};

/// 1 where a completion is the text in the row's `solution`, or one of the texts where that is a list, spaces around it aside;
/// else 0. None for a row without one.
///
/// Not TRL's: for tasks whose right answers can be written down.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactMatch;

impl ExactMatch {
    pub(crate) const NAME: &str = "exact_match_reward";
}

impl RewardFunction for ExactMatch {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        let says = |sample: &Sample<'_>, solution: &Value| {
            solution.as_str().is_some_and(|text| text.trim() == sample.completion.trim())
        };
        let score = |sample: &Sample<'_>| match sample.columns.get("solution")? {
            Value::Array(several) => Some(several.iter().any(|one| says(sample, one))),
            one => one.is_string().then(|| says(sample, one)),
        };
        Ok(samples.iter().map(|sample| score(sample).map(f64::from)).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn one_text_or_one_of_several() {
        let prompt = json!("p");
        let score = |completion: &str, solution: Value| {
            let columns = Map::from_iter([("solution".to_owned(), solution)]);
            let sample = Sample { prompt: &prompt, completion, completion_ids: &[], columns: &columns };
            ExactMatch.score(&[sample]).unwrap()[0]
        };
        assert_eq!(score(" Nine.\n", json!("Nine.")), Some(1.0));
        assert_eq!(score("Nine", json!("Nine.")), Some(0.0));
        assert_eq!(score("b", json!(["a", "b"])), Some(1.0));
        assert_eq!(score("c", json!(["a", "b"])), Some(0.0));
        assert_eq!(score("9", json!(9)), None);
        let columns = Map::new();
        let sample = Sample { prompt: &prompt, completion: "a", completion_ids: &[], columns: &columns };
        assert_eq!(ExactMatch.score(&[sample]).unwrap(), [None]);
    }
}
