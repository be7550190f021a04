//! Rewards for the right final answer: `accuracy_reward`, `reasoning_accuracy_reward`, `final_answer_reward`,
//! `get_cosine_scaled_reward`.

use serde_json::Value;

use crate::answer::Answer;
use crate::{RewardError, RewardFunction, Sample};

/// 1 where the marked answer of a completion is that of the row's `solution`, else 0; none where the solution has no answer.
///
/// TRL's `accuracy_reward`: a completion marks its answer by `\boxed{..}`, or by LaTeX soon after the word "answer"; numbers
/// are compared as such, formulas by their values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy;

/// As [`Accuracy`] for what follows the reasoning; 0 where that does not end.
///
/// TRL's `reasoning_accuracy_reward`.
#[derive(Clone, Debug)]
pub struct ReasoningAccuracy {
    delimiters: Vec<String>,
}

impl ReasoningAccuracy {
    /// The answer follows the last occurrence of the first of these that occurs.
    #[must_use]
    pub fn new(delimiters: Vec<String>) -> Self {
        Self { delimiters }
    }

    pub(crate) const NAME: &str = "reasoning_accuracy_reward";
}

impl Default for ReasoningAccuracy {
    fn default() -> Self {
        Self::new(vec!["</think>".to_owned()])
    }
}

impl Accuracy {
    pub(crate) const NAME: &str = "accuracy_reward";
}

impl RewardFunction for Accuracy {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        each_solution(Self::NAME, samples, |sample, solution| {
            correct(solution, sample.completion).map(f64::from)
        })
    }
}

impl RewardFunction for ReasoningAccuracy {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        each_solution(Self::NAME, samples, |sample, solution| {
            let found = self
                .delimiters
                .iter()
                .find_map(|delimiter| sample.completion.rsplit_once(delimiter.as_str()));
            found.map_or(Some(0.0), |(_, answer)| correct(solution, answer).map(f64::from))
        })
    }
}

/// As [`Accuracy`], but a completion that marks no answer says its last formula or number.
///
/// Not TRL's: for models that answer without LaTeX.
#[derive(Clone, Copy, Debug, Default)]
pub struct FinalAnswer;

impl FinalAnswer {
    pub(crate) const NAME: &str = "final_answer_reward";
}

impl RewardFunction for FinalAnswer {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        each_solution(Self::NAME, samples, |sample, solution| {
            let solution = Answer::of_solution(solution)?;
            let given = Answer::said_by(sample.completion);
            Some(f64::from(given.is_some_and(|given| solution.is(&given))))
        })
    }
}

/// [`Accuracy`] scaled by length along a cosine: a right answer is worth more the shorter, a wrong one costs more the shorter.
///
/// Appendix C.1 of arXiv:2502.03373; TRL's `get_cosine_scaled_reward`. The defaults are TRL's, which has none for `max_len`:
/// here it is 512, as many tokens as a completion of a GRPO run has by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineScaled {
    /// Tokens at which the long end is reached.
    pub max_len: usize,
    /// Reward of a wrong completion without tokens.
    pub min_value_wrong: f64,
    /// Reward of a wrong completion of `max_len` tokens or more.
    pub max_value_wrong: f64,
    /// Reward of a right completion of `max_len` tokens or more.
    pub min_value_correct: f64,
    /// Reward of a right completion without tokens.
    pub max_value_correct: f64,
}

impl Default for CosineScaled {
    fn default() -> Self {
        Self {
            max_len: 512,
            min_value_wrong: -1.0,
            max_value_wrong: -0.5,
            min_value_correct: 0.5,
            max_value_correct: 1.0,
        }
    }
}

impl CosineScaled {
    /// # Errors
    ///
    /// [`RewardError::Setting`] if the length is 0 or a value not finite.
    pub fn checked(self) -> Result<Self, RewardError> {
        let refused = |setting, got, expected| {
            Err(RewardError::Setting { function: Self::NAME, setting, got, expected })
        };
        if self.max_len == 0 {
            return refused("cosine_max_len", self.max_len.to_string(), "at least 1");
        }
        for (setting, value) in [
            ("cosine_min_value_wrong", self.min_value_wrong),
            ("cosine_max_value_wrong", self.max_value_wrong),
            ("cosine_min_value_correct", self.min_value_correct),
            ("cosine_max_value_correct", self.max_value_correct),
        ] {
            if !value.is_finite() {
                return refused(setting, value.to_string(), "a finite number");
            }
        }
        Ok(self)
    }

    pub(crate) const NAME: &str = "cosine_scaled_reward";

    /// The reward of a right or wrong completion, `progress` of the way to the long end.
    pub(crate) fn at(&self, right: bool, progress: f64) -> f64 {
        let (long, short) = if right {
            (self.min_value_correct, self.max_value_correct)
        } else {
            (self.max_value_wrong, self.min_value_wrong)
        };
        long + 0.5 * (short - long) * (1.0 + (progress * std::f64::consts::PI).cos())
    }
}

impl RewardFunction for CosineScaled {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        each_solution(Self::NAME, samples, |sample, solution| {
            let right = correct(solution, sample.completion)?;
            Some(self.at(right, (sample.completion_ids.len() as f64 / self.max_len as f64).min(1.0)))
        })
    }
}

pub(crate) fn correct(solution: &str, completion: &str) -> Option<bool> {
    let solution = Answer::of_solution(solution)?;
    Some(Answer::of_completion(completion).is_some_and(|given| solution.is(&given)))
}

pub(crate) fn each_solution(
    function: &str,
    samples: &[Sample<'_>],
    score: impl Fn(&Sample<'_>, &str) -> Option<f64>,
) -> Result<Vec<Option<f64>>, RewardError> {
    let one = |(i, sample): (usize, &Sample<'_>)| match sample.columns.get("solution") {
        Some(Value::String(solution)) => Ok(score(sample, solution)),
        other => Err(RewardError::Column {
            function: function.to_owned(),
            column: "solution",
            sample: i + 1,
            got: other
                .map_or_else(|| "missing".to_owned(), |value| value.to_string().chars().take(40).collect()),
            expected: "a text with the right answer",
        }),
    };
    samples.iter().enumerate().map(one).collect()
}
