//! `NamedRows`: what rows are called, and by which key they are kept as tokens.

use burnish_data::{ContentKey, DataError, Dataset, Preparer, Record, RowCache};

use crate::TrainError;

/// Rows to read, for the trainer that makes examples of them.
pub(crate) struct NamedRows<'a> {
    /// What messages call them.
    pub(crate) name: &'a str,
    /// Where they may be as tokens already: by a digest of the rows, of the tokenizer and its templates.
    pub(crate) kept: Option<(&'a RowCache, ContentKey)>,
}

impl NamedRows<'_> {
    /// The rows as supervised fine-tuning takes them: kept ones where there are any, else prepared and then kept.
    pub(crate) fn dataset(
        &self,
        preparer: &Preparer<'_>,
        records: impl Iterator<Item = Result<Record, DataError>>,
    ) -> Result<Dataset, TrainError> {
        let kept = self.kept.as_ref();
        let kept = kept.map(|(cache, key)| (cache, key.clone().and(format!("{:?}", preparer.options))));
        if let Some(dataset) = kept.as_ref().and_then(|(cache, key)| cache.read(key)) {
            return Ok(dataset);
        }
        let dataset = preparer.prepare(self.name, records)?;
        if let Some((cache, key)) = kept {
            // A run does not end for want of room in a cache.
            let _ = cache.write(&key, &dataset);
        }
        Ok(dataset)
    }
}
