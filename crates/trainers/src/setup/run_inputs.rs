//! `RunInputs`: the inputs of a run beside its options: ranks, a device, rows from memory.

use burn::tensor::Device;
use burnish_data::{ContentKey, DataError, Finding, Record, RowCache, RowOrigin};
use serde_json::Value;

use crate::Ranks;

/// Ranks and device of a run; rows where they do not come from files; who hears what the user should know.
///
/// ```no_run
/// use burnish_trainers::{Ranks, RunInputs};
/// use serde_json::json;
///
/// let (ranks, device) = (Ranks::alone(), burn::tensor::Device::flex());
/// let rows = ["one", "two"].map(|text| json!({"text": text}));
/// let inputs = RunInputs::new(&ranks, &device).rows(rows).notes(|note| eprintln!("{note}"));
/// ```
pub struct RunInputs<'a> {
    pub(crate) ranks: &'a Ranks,
    pub(crate) device: &'a Device,
    pub(crate) note: Box<dyn FnMut(&str) + 'a>,
    pub(crate) rows: Option<RowsInMemory>,
    pub(crate) eval_rows: Option<RowsInMemory>,
    pub(crate) cache: Option<RowCache>,
}

impl<'a> RunInputs<'a> {
    /// Rows come from the files that options name; nobody hears notes.
    #[must_use]
    pub fn new(ranks: &'a Ranks, device: &'a Device) -> Self {
        Self { ranks, device, note: Box::new(|_| ()), rows: None, eval_rows: None, cache: None }
    }

    /// Trains on these rows, JSON objects with the columns that the trainer reads; the same on every rank.
    #[must_use]
    pub fn rows(self, rows: impl IntoIterator<Item = Value>) -> Self {
        Self { rows: Some(RowsInMemory(rows.into_iter().collect())), ..self }
    }

    /// Evaluates on these rows, where `eval_strategy` says when.
    #[must_use]
    pub fn eval_rows(self, rows: impl IntoIterator<Item = Value>) -> Self {
        Self { eval_rows: Some(RowsInMemory(rows.into_iter().collect())), ..self }
    }

    /// Keeps the rows of large files as tokens, for runs to come, unless options say not to.
    #[must_use]
    pub fn row_cache(self, cache: RowCache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// Says what has been found in rows.
    pub(crate) fn say(&mut self, found: impl IntoIterator<Item = Finding>) {
        found.into_iter().for_each(|finding| (self.note)(&format!("data: {finding}")));
    }

    /// `note` hears what the user should know.
    #[must_use]
    pub fn notes(self, note: impl FnMut(&str) + 'a) -> Self {
        Self { note: Box::new(note), ..self }
    }
}

/// Rows that a program has in memory.
#[derive(Clone, Debug)]
pub(crate) struct RowsInMemory(Vec<Value>);

impl RowsInMemory {
    /// What messages call them.
    pub(crate) const NAME: &'static str = "rows in memory";

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A digest of the rows as JSON.
    pub(crate) fn digest(&self) -> String {
        self.0.iter().fold(ContentKey::new("rows in memory"), |key, row| key.and(row.to_string())).hex()
    }

    /// The rows as a reader of files gives them.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<Record, DataError>> + '_ {
        self.0.iter().enumerate().map(|(row, value)| {
            let place = RowOrigin::given(&format!("{}, row {}", Self::NAME, row + 1));
            match value {
                Value::Object(fields) => Ok(Record { place, fields: fields.clone() }),
                Value::Array(_) => Err(DataError::NotAnObject { place, got: "an array" }),
                Value::String(_) => Err(DataError::NotAnObject { place, got: "a string" }),
                _ => Err(DataError::NotAnObject { place, got: "a number, a boolean or null" }),
            }
        })
    }
}
