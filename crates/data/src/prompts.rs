//! Prompts to sample completions of, with the columns of their rows that reward functions read.

use serde_json::{Map, Value};

use crate::error::DataError;
use crate::preference::Prepared;
use crate::prepare::Preparer;
use crate::row::{Content, Row, Text};
use crate::row_origin::RowOrigin;
use crate::source::Record;
use crate::statistics::Statistics;
use crate::tokenize;

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptExample {
    /// Token ids that sampling starts from.
    pub ids: Vec<u32>,
    /// The prompt as it is in the file.
    pub prompt: Text,
    /// The row's other columns but `completion`, `completion_ids`, `tools` and `chat_template_kwargs`; null ones are
    /// left out.
    pub columns: Map<String, Value>,
    /// File and line.
    pub place: RowOrigin,
}

impl Preparer<'_> {
    /// Prepares prompts: rows with a `prompt`, whatever their other columns. A conversation gets the header of an
    /// assistant turn, or its final assistant message is left open. `max_length` does not apply.
    ///
    /// # Errors
    /// The first fault in row order, each with file and line; no row at all.
    pub fn prompts(
        &self,
        name: &str,
        records: impl Iterator<Item = Result<Record, DataError>>,
    ) -> Result<Prepared<PromptExample>, DataError> {
        self.options.check()?;
        let (mut statistics, mut examples) = (Statistics::default(), Vec::new());
        let make = |row: &Row| {
            let ids = self.prompt(row)?;
            if ids.is_empty() {
                return Err(DataError::EmptyPrompt { place: row.place.clone() });
            }
            Ok(ids)
        };
        let keep = |row: Row, ids: Vec<u32>| {
            statistics.see_row(&row, None);
            statistics.longest = statistics.longest.max(ids.len());
            statistics.tokens += ids.len();
            let Content::Prompt(prompt) = row.content else { unreachable!("parsed as a prompt") };
            examples.push(PromptExample { ids, prompt, columns: row.columns, place: row.place });
            Ok(())
        };
        let kind = tokenize::tokenised(name, records, Row::parse_prompt, |_| Ok(()), make, keep)?;
        self.shuffle(&mut examples, 1);
        statistics.examples = examples.len();
        Ok(Prepared { examples, statistics, kind })
    }
}
