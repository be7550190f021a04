//! `PairRows` and `PairBatch`: pairs of a chosen and a rejected completion, and a micro-batch of them.

use std::ops::Range;

use burnish_data::{Answered, CompletionCollator, PreferenceExample, Prepared};
use burnish_losses::Completion;
use burnish_models::TokenRow;

use crate::forward::log_probs::micro_batch;
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;
use crate::{MicroBatch, TrainError};

/// Pairs to train on and to evaluate on, and how they are laid out.
pub(crate) struct PairRows {
    pub(crate) train: Prepared<PreferenceExample>,
    pub(crate) eval: Option<Prepared<PreferenceExample>>,
    pub(crate) collator: CompletionCollator,
}

impl PairRows {
    /// The rows that a run's options name; what is found in them is said.
    pub(crate) fn read(setup: &Setup, inputs: &mut RunInputs<'_>) -> Result<Self, TrainError> {
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().preferences(name, records)?),
            |name, records| Ok(rows.preparer_in_order().preparer().preferences(name, records)?),
        )?;
        inputs.say(rows.findings(&train, eval.as_ref()));
        let collator = CompletionCollator {
            max_length: rows.rules.max_length,
            truncation: rows.rules.truncation,
            ..CompletionCollator::default()
        };
        Ok(Self { train, eval, collator })
    }
}

/// The texts of a pair as a start reads them: each with its prompt, as long as in training.
pub(crate) fn texts_of_pair(collator: &CompletionCollator, pair: &PreferenceExample) -> Vec<TokenRow> {
    [&pair.chosen, &pair.rejected].map(|answer| text_of_answer(collator, &pair.prompt, answer)).into()
}

/// The same of one answer.
pub(crate) fn text_of_answer(collator: &CompletionCollator, prompt: &[u32], completion: &[u32]) -> TokenRow {
    let document = Answered { prompt, completion, ..Answered::default() };
    TokenRow::unlabelled(collator.completions([document]).batch.input_ids)
}

/// A rank's pairs of a micro-batch.
pub struct PairBatch {
    pub(crate) batch: MicroBatch,
    /// The chosen and the rejected completion of each.
    pub(crate) pairs: Vec<[Completion; 2]>,
    /// Targets of each pair's prompt, where the collator makes them targets.
    pub(crate) prompts: Vec<Range<usize>>,
    /// The rows of the data set.
    pub(crate) rows: Vec<usize>,
    /// The place of the first in the step.
    pub(crate) first: usize,
}

impl PairBatch {
    /// The pairs `rows` of a data set, of which the first is number `first` of its step.
    pub(crate) fn new(
        collator: &CompletionCollator,
        data: &Prepared<PreferenceExample>,
        rows: Vec<usize>,
        first: usize,
    ) -> Self {
        let examples: Vec<&PreferenceExample> = rows.iter().map(|&row| &data.examples[row]).collect();
        let documents = collator.preferences(&examples, first).completions;
        let prompts = documents.spans.iter().take(rows.len()).map(|span| span.prompt.clone()).collect();
        let (batch, mut chosen) = micro_batch(documents);
        let rejected = chosen.split_off(rows.len());
        let pairs = chosen.into_iter().zip(rejected).map(|(chosen, rejected)| [chosen, rejected]).collect();
        Self { batch, pairs, prompts, rows, first }
    }

    /// Targets of the chosen completions, with those of their prompts.
    pub(crate) fn chosen_targets(&self) -> f64 {
        let completions: usize = self.pairs.iter().map(|[chosen, _]| chosen.targets.len()).sum();
        let prompts: usize = self.prompts.iter().map(ExactSizeIterator::len).sum();
        (completions + prompts) as f64
    }
}
