//! Completions labelled desirable or undesirable on their own, as TRL 1.16's `KTOTrainer` prepares them.

use crate::error::DataError;
use crate::preference::{Prepared, implicit, repeats_prompt};
use crate::prepare::Preparer;
use crate::row::{Content, Row, Text};
use crate::source::{Record, json_type};
use crate::split_prompt::Split;
use crate::statistics::Statistics;
use crate::tokenize;

/// Rows of pairs that are unpaired together: first all better answers of a window, then all worse ones.
const WINDOW: usize = 1000;

/// A prompt with an answer that is desirable or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnpairedExample {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the answer.
    pub completion: Vec<u32>,
    /// Whether the answer is desirable.
    pub desirable: bool,
}

/// The example whose completion is put to the prompt of example `index`, to estimate the KL term from answers that do
/// not belong to their prompts: the one before it in its chunk, and the chunk's last for its first.
///
/// TRL's chunks are its micro-batches (`per_device_train_batch_size` rows in file order), so that the answers of a
/// batch and its mismatched ones are the same set; a chunk of one row pairs it with itself.
///
/// ```
/// let partners: Vec<usize> = (0..7).map(|i| burnish_data::partner(i, 4, 7)).collect();
/// assert_eq!(partners, [3, 0, 1, 2, 6, 4, 5]);
/// ```
#[must_use]
pub fn partner(index: usize, chunk: usize, rows: usize) -> usize {
    let chunk = chunk.max(1);
    if index.is_multiple_of(chunk) { (index + chunk).min(rows).max(1) - 1 } else { index - 1 }
}

impl Preparer<'_> {
    /// Prepares unpaired answers: rows with `prompt`, `completion` and `label`, or pairs, of which every 1000 rows
    /// become their better answers and then their worse ones. With `keep_start`, rows whose prompt alone fills
    /// `max_length` are dropped and counted.
    ///
    /// # Errors
    /// The first fault in row order, each with file and line; no row, or no row left.
    pub fn unpaired(
        &self,
        name: &str,
        records: impl Iterator<Item = Result<Record, DataError>>,
    ) -> Result<Prepared<UnpairedExample>, DataError> {
        self.options.check()?;
        let (mut statistics, mut examples) = (Statistics::default(), Vec::new());
        let (mut worse, mut waiting) = (Vec::new(), 0);
        let parse = |record| {
            let row = Row::parse(record, &self.options.text_field)?;
            labelled(&row)?;
            Ok(row)
        };
        let make = |row: &Row| Ok((self.unpaired_splits(row)?, repeats_prompt(row)));
        let keep = |row: Row, (splits, repeated): (Vec<(Split, bool)>, bool)| {
            let diverges = splits.iter().find_map(|(split, _)| split.diverges.as_deref());
            statistics.see_row(&row, diverges);
            let paired = splits.len() == 2;
            let identical = paired && splits[0].0.completions == splits[1].0.completions;
            statistics.see_pair(&row, repeated, identical);
            for (split, desirable) in splits {
                let completion = split.completions.into_iter().next().unwrap_or_default();
                let example = UnpairedExample { prompt: split.prompt, completion, desirable };
                if !self.fits(example.prompt.len(), &[example.completion.len()], &mut statistics) {
                    continue;
                }
                statistics.desirable += usize::from(desirable);
                if paired && !desirable { worse.push(example) } else { examples.push(example) }
            }
            waiting += 1;
            if waiting == WINDOW {
                examples.append(&mut worse);
                waiting = 0;
            }
            Ok(())
        };
        let kind = tokenize::tokenised(name, records, parse, |_| Ok(()), make, keep)?;
        examples.append(&mut worse);
        self.finished(examples, statistics, kind)
    }

    /// One row as [`unpaired`](Self::unpaired) makes it, whatever its length: the better answer first.
    ///
    /// # Errors
    /// When the row has no label, or cannot be tokenised.
    pub fn unpaired_examples(&self, row: &Row) -> Result<Vec<UnpairedExample>, DataError> {
        labelled(row)?;
        let example = |(split, desirable): (Split, bool)| {
            let completion = split.completions.into_iter().next().unwrap_or_default();
            UnpairedExample { prompt: split.prompt, completion, desirable }
        };
        Ok(self.unpaired_splits(row)?.into_iter().map(example).collect())
    }

    /// The answers of a row, each split from the prompt on its own, the better one first.
    fn unpaired_splits(&self, row: &Row) -> Result<Vec<(Split, bool)>, DataError> {
        let split = |prompt: &Text, column, answer: &Text, desirable| -> Result<_, DataError> {
            Ok((self.split(row, prompt, &[(column, answer)])?, desirable))
        };
        let both = |prompt: &Text, chosen: &Text, rejected: &Text| {
            Ok(vec![split(prompt, "chosen", chosen, true)?, split(prompt, "rejected", rejected, false)?])
        };
        match &row.content {
            Content::Preference { prompt: Some(prompt), chosen, rejected } => both(prompt, chosen, rejected),
            Content::Preference { prompt: None, chosen, rejected } => {
                let (prompt, chosen, rejected) = implicit(row, chosen, rejected)?;
                both(&prompt, &chosen, &rejected)
            }
            Content::Unpaired { prompt, completion, .. }
            | Content::PromptCompletion { prompt, completion } => {
                Ok(vec![split(prompt, "completion", completion, labelled(row)?)?])
            }
            _ => unreachable!("`labelled` refuses other rows"),
        }
    }
}

/// The row's label (true for pairs); fails for rows that have none.
fn labelled(row: &Row) -> Result<bool, DataError> {
    let mend = match &row.content {
        Content::Unpaired { label, .. } => return Ok(*label),
        Content::Preference { .. } => return Ok(true),
        Content::PromptCompletion { .. } => {
            let label = row.columns.get("label");
            return match label.and_then(serde_json::Value::as_i64) {
                Some(0) => Ok(false),
                Some(1) => Ok(true),
                _ => Err(DataError::ColumnType {
                    place: row.place.clone(),
                    column: "label".to_owned(),
                    expected: "true or false",
                    got: label.map_or("nothing", json_type),
                }),
            };
        }
        _ => "give `prompt`, `completion` and `label` columns, or `chosen` and `rejected`",
    };
    Err(DataError::WrongKind {
        place: row.place.clone(),
        trainer: "unpaired preference optimisation",
        needs: "rows with `prompt`, `completion` and `label`, or preference rows",
        got: row.kind(),
        mend,
    })
}
