//! `TokenChecks`: what only the tokens of all rows together show, such as rows that come twice and answers that do not end.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::example::{Example, IGNORED};
use crate::preference::{PreferenceExample, RewardExample};
use crate::preflight::{Concern, Finding};
use crate::prompts::PromptExample;
use crate::row_view::TextView;
use crate::tokenizer::Tokenizer;
use crate::unpaired::UnpairedExample;

/// The share of rows from which on a finding is one.
const MANY: f64 = 0.01;

/// Texts of a prepared row, each a prompt and what is learned after it.
pub trait Texts {
    /// The prompt and the answer of each text; of a text of one piece the prompt, or the answer, is empty.
    fn texts(&self) -> Vec<(&[u32], &[u32])>;
}

impl Texts for PreferenceExample {
    fn texts(&self) -> Vec<(&[u32], &[u32])> {
        vec![(&self.prompt, &self.chosen), (&self.prompt, &self.rejected)]
    }
}

impl Texts for RewardExample {
    fn texts(&self) -> Vec<(&[u32], &[u32])> {
        vec![(&self.chosen, &[]), (&self.rejected, &[])]
    }
}

impl Texts for UnpairedExample {
    fn texts(&self) -> Vec<(&[u32], &[u32])> {
        vec![(&self.prompt, &self.completion)]
    }
}

impl Texts for PromptExample {
    fn texts(&self) -> Vec<(&[u32], &[u32])> {
        vec![(&self.ids, &[])]
    }
}

/// Numbers of rows, counted from 1: how many there are and where the first is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    rows: usize,
    first: usize,
}

impl Found {
    fn add(&mut self, row: usize) {
        if self.rows == 0 {
            self.first = row;
        }
        self.rows += 1;
    }
}

/// What has been seen of the tokens of a data set.
#[derive(Clone, Debug)]
pub struct TokenChecks<'a> {
    tokenizer: &'a Tokenizer,
    /// The token that plain text gets in front.
    begins: Option<u32>,
    rows: usize,
    twice_begun: Found,
    not_begun: Found,
    not_ended: Found,
    repeated: Found,
    /// The row that the first repeated one repeats.
    original: usize,
    /// Hashes of rows, with the number of the first.
    seen: HashMap<u64, usize>,
    /// Tokens that are nothing but white space, as far as they were looked at.
    blank: HashMap<u32, bool>,
}

impl<'a> TokenChecks<'a> {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        let bos = tokenizer.bos_id();
        let first = tokenizer.encode("a", true).ok().and_then(|ids| ids.first().copied());
        Self {
            tokenizer,
            begins: bos.filter(|_| first == bos),
            rows: 0,
            twice_begun: Found::default(),
            not_begun: Found::default(),
            not_ended: Found::default(),
            repeated: Found::default(),
            original: 0,
            seen: HashMap::new(),
            blank: HashMap::new(),
        }
    }

    /// Rows of supervised fine-tuning that are not packed; one of `max_length` tokens may have lost its end.
    #[must_use]
    pub fn of_examples(tokenizer: &'a Tokenizer, examples: &[Example], max_length: Option<usize>) -> Self {
        let mut checks = Self::new(tokenizer);
        for example in examples {
            let learned = example.labels.iter().map(|&label| label != IGNORED);
            let whole = max_length.is_none_or(|most| example.len() < most);
            let ends = whole.then(|| checks.ends(&example.input_ids, learned)).flatten();
            checks.row([(&example.input_ids[..], &[][..])], ends);
        }
        checks
    }

    /// Rows of other types.
    #[must_use]
    pub fn of_texts<T: Texts>(tokenizer: &'a Tokenizer, examples: &[T]) -> Self {
        let mut checks = Self::new(tokenizer);
        for example in examples {
            let texts = example.texts();
            let ends =
                texts.iter().filter_map(|(_, answer)| checks.ends(answer, answer.iter().map(|_| true)));
            let ends = ends.collect::<Vec<_>>().into_iter().reduce(|all, one| all && one);
            checks.row(texts, ends);
        }
        checks
    }

    /// Sees the texts of the next row, whole; `answers` says whether what is learned of them is to end.
    pub fn see(&mut self, texts: &[TextView], answers: bool) {
        let ends = texts.iter().filter_map(|text| self.ends(&text.ids, text.learned.iter().copied()));
        let ends = ends.collect::<Vec<_>>().into_iter().reduce(|all, one| all && one).filter(|_| answers);
        self.row(texts.iter().map(|text| (&text.ids[..], &[][..])), ends);
    }

    /// Rows seen.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows whose tokens came before.
    #[must_use]
    pub fn repeated(&self) -> usize {
        self.repeated.rows
    }

    /// Rows of `other` whose tokens are those of a row seen here.
    #[must_use]
    pub fn shared(&self, other: &Self) -> usize {
        other.seen.keys().filter(|hash| self.seen.contains_key(hash)).count()
    }

    fn row<'t>(&mut self, texts: impl IntoIterator<Item = (&'t [u32], &'t [u32])>, ends: Option<bool>) {
        self.rows += 1;
        let number = self.rows;
        let (mut twice, mut not) = (false, false);
        let mut hasher = DefaultHasher::new();
        for (prompt, answer) in texts {
            let start: Vec<u32> = prompt.iter().chain(answer).take(2).copied().collect();
            let bos = self.tokenizer.bos_id();
            // A model whose only special token is the end of a text begins with it, too.
            twice |= bos.is_some() && start.len() == 2 && start.iter().all(|&id| Some(id) == bos);
            not |= self.begins.is_some() && start.first().copied() != self.begins;
            prompt.len().saturating_add(answer.len()).hash(&mut hasher);
            prompt.iter().chain(answer).for_each(|id| id.hash(&mut hasher));
        }
        for (is, found) in [
            (twice, &mut self.twice_begun),
            (not, &mut self.not_begun),
            (ends == Some(false), &mut self.not_ended),
        ] {
            if is {
                found.add(number);
            }
        }
        let first = *self.seen.entry(hasher.finish()).or_insert(number);
        if first != number {
            if self.repeated.rows == 0 {
                self.original = first;
            }
            self.repeated.add(number);
        }
    }

    /// Whether the last learned token that is not white space ends generation; `None` where nothing is learned or nothing
    /// ends generation.
    fn ends(
        &mut self,
        ids: &[u32],
        learned: impl DoubleEndedIterator<Item = bool> + ExactSizeIterator,
    ) -> Option<bool> {
        let tokenizer = self.tokenizer;
        let stops = tokenizer.stop_ids();
        if stops.is_empty() {
            return None;
        }
        let blank = &mut self.blank;
        let mut is_blank = |id: u32| {
            *blank
                .entry(id)
                .or_insert_with(|| tokenizer.decode(&[id], false).is_ok_and(|text| text.trim().is_empty()))
        };
        let mut from_end =
            ids.iter().rev().zip(learned.rev()).filter(|(_, learned)| *learned).map(|(id, _)| *id);
        from_end.find(|&id| stops.contains(&id) || !is_blank(id)).map(|id| stops.contains(&id))
    }

    /// What there is to say of it.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |concern, message, mend: &str| {
            findings.push(Finding { concern, message, mend: mend.to_owned() });
        };
        let rows = self.rows;
        let many = |found: Found| found.rows as f64 > MANY * rows as f64;
        let bos = self.tokenizer.named("bos_token").unwrap_or_default();
        if self.twice_begun.rows > 0 {
            let Found { rows: twice, first } = self.twice_begun;
            add(
                Concern::DoubledBos,
                format!("{twice} of {rows} rows begin with `{bos}` twice (first: row {first})"),
                "take it out of the chat template or out of the text: the tokenizer writes one",
            );
        }
        if self.not_begun.rows > 0 {
            let Found { rows: not, first } = self.not_begun;
            add(
                Concern::NoBos,
                format!(
                    "{not} of {rows} rows begin without `{bos}`, which the tokenizer puts before plain text (first: row {first})"
                ),
                "if the model was trained with it, let the chat template write it",
            );
        }
        if many(self.not_ended) {
            let Found { rows: not, first } = self.not_ended;
            let stops = self.tokenizer.stop_ids().iter().filter_map(|&id| self.tokenizer.token(id));
            add(
                Concern::EndNotLearned,
                format!(
                    "of {not} of {rows} rows what is learned does not end with a stop token ({}) (first: row {first})",
                    stops.collect::<Vec<_>>().join(", ")
                ),
                "the model does not learn to stop there: end them with it, or set `eos_token` to the token that ends them",
            );
        }
        if many(self.repeated) {
            let Found { rows: again, first } = self.repeated;
            add(
                Concern::Repeated,
                format!("{again} of {rows} rows came before (first: row {first} is row {})", self.original),
                "drop them, unless they are to weigh more",
            );
        }
        findings
    }

    /// What there is to say of rows to evaluate on that are trained on.
    #[must_use]
    pub fn evaluated(&self, eval: &Self) -> Option<Finding> {
        let shared = self.shared(eval);
        (shared > 0).then(|| Finding {
            concern: Concern::EvaluatedRowsTrained,
            message: format!("{shared} of {} rows to evaluate on are trained on", eval.seen.len()),
            mend: "take them out of one of the two: what is learned by heart says nothing of other rows"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
