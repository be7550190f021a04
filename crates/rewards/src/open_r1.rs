//! Rewards of open-r1 by their names in its recipes: `format`, `tag_count`, `cosine`, `repetition_penalty`, `reasoning_steps`.
//!
//! They look at texts where TRL's functions of similar names look at tokens. `accuracy` is [`crate::Accuracy`].

use std::collections::HashSet;

use crate::accuracy::{correct, each_solution};
use crate::{CosineScaled, RewardError, RewardFunction, Sample};

/// 1 where a completion is `<think>`, reasoning, `</think>`, `<answer>`, an answer and `</answer>`, each tag on a line of its
/// own, else 0.
///
/// open-r1's `format`: the pattern `^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$`, in which `.` takes line breaks and
/// `$` the end of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagFormat;

impl TagFormat {
    pub(crate) const NAME: &str = "format";
}

impl RewardFunction for TagFormat {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| Some(f64::from(u8::from(tagged(sample.completion))))).collect())
    }
}

fn tagged(completion: &str) -> bool {
    const BETWEEN: &str = "\n</think>\n<answer>\n";
    const END: &str = "\n</answer>";
    let Some(rest) = completion.strip_prefix("<think>\n") else { return false };
    // Any place where the middle may be, as the pattern may be matched later: the first leaves most for the answer.
    let Some((_, answer)) = rest.split_once(BETWEEN) else { return false };
    answer.match_indices(END).any(|(at, _)| {
        let after = &answer[at + END.len()..];
        after.is_empty() || after.starts_with('\n')
    })
}

/// A quarter for each of the four tags that stands exactly once, with its line breaks.
///
/// open-r1's `tag_count`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagCount;

impl TagCount {
    pub(crate) const NAME: &str = "tag_count";
}

impl RewardFunction for TagCount {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        const TAGS: [&str; 4] = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"];
        let count = |text: &str| TAGS.iter().filter(|tag| text.matches(*tag).count() == 1).count();
        Ok(samples.iter().map(|sample| Some(0.25 * count(sample.completion) as f64)).collect())
    }
}

/// [`CosineScaled`] over the characters of a completion, which goes on past the long end.
///
/// open-r1's `cosine`.
#[derive(Clone, Copy, Debug)]
pub struct CosineByCharacters(CosineScaled);

impl CosineByCharacters {
    /// # Errors
    ///
    /// As [`CosineScaled::checked`].
    pub fn new(scaled: CosineScaled) -> Result<Self, RewardError> {
        scaled.checked().map(Self)
    }

    pub(crate) const NAME: &str = "cosine";
}

impl RewardFunction for CosineByCharacters {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        each_solution(Self::NAME, samples, |sample, solution| {
            let right = correct(solution, sample.completion)?;
            let progress = sample.completion.chars().count() as f64 / self.0.max_len as f64;
            Some(self.0.at(right, progress))
        })
    }
}

/// The share of word n-grams that occurred before, times `max_penalty`; 0 for a text shorter than one. Words are lower case.
///
/// open-r1's `repetition_penalty`; its zero for nothing repeated is `-0.0` there.
#[derive(Clone, Copy, Debug)]
pub struct WordRepetition {
    ngram_size: usize,
    max_penalty: f64,
}

impl WordRepetition {
    /// # Errors
    ///
    /// As [`crate::RepetitionPenalty::new`].
    pub fn new(ngram_size: usize, max_penalty: f64) -> Result<Self, RewardError> {
        crate::RepetitionPenalty::new(ngram_size, max_penalty)?;
        Ok(Self { ngram_size, max_penalty })
    }

    pub(crate) const NAME: &str = "repetition_penalty";
}

impl RewardFunction for WordRepetition {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        let penalty = |text: &str| {
            let lower = text.to_lowercase();
            let words: Vec<&str> = lower.split_whitespace().collect();
            let ngrams = words.windows(self.ngram_size);
            let total = ngrams.len();
            let unique = ngrams.collect::<HashSet<_>>().len();
            if unique == total { 0.0 } else { (1.0 - unique as f64 / total as f64) * self.max_penalty }
        };
        Ok(samples.iter().map(|sample| Some(penalty(sample.completion))).collect())
    }
}

/// A third for each sign of a next step, at most 1: `Step 1:`, a numbered or marked line, `First,`, `Second,`, `Next,`,
/// `Finally,`.
///
/// open-r1's `reasoning_steps`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReasoningSteps;

impl ReasoningSteps {
    pub(crate) const NAME: &str = "reasoning_steps";
}

impl RewardFunction for ReasoningSteps {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        Ok(samples.iter().map(|sample| Some((steps(sample.completion) as f64 / 3.0).min(1.0))).collect())
    }
}

/// Matches of `(Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)`, `^` being the start of the text.
fn steps(text: &str) -> usize {
    let numbered = |rest: &str, end: char| {
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with(end)
    };
    let words = ["\n-", "\n*", "First,", "Second,", "Next,", "Finally,"];
    let plain: usize = words.iter().map(|word| text.matches(word).count()).sum();
    let named =
        text.match_indices("Step ").filter(|(at, word)| numbered(&text[at + word.len()..], ':')).count();
    plain + named + usize::from(numbered(text, '.'))
}
