//! A batch of data as a model takes it: tokens, and the rows that have a target.

use std::sync::Arc;

use burnish_data::Batch;
use burnish_models::Tokens;

/// A micro-batch ready for a model.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// The tokens.
    pub tokens: Tokens,
    /// The tokens that predict something.
    pub rows: Arc<Vec<usize>>,
    /// What they predict.
    pub targets: Arc<Vec<u32>>,
    /// Dropout counters of those tokens.
    pub row_ids: Arc<Vec<u64>>,
    /// Tokens as TRL counts them.
    pub num_tokens: usize,
}

impl MicroBatch {
    /// The micro-batch of a batch.
    #[must_use]
    pub fn new(batch: Batch) -> Self {
        let rows: Vec<usize> = (0..batch.len()).filter(|&i| batch.labels[i] >= 0).collect();
        Self {
            targets: Arc::new(rows.iter().map(|&i| batch.labels[i] as u32).collect()),
            row_ids: Arc::new(rows.iter().map(|&i| batch.row_ids[i]).collect()),
            rows: Arc::new(rows),
            num_tokens: batch.num_tokens,
            tokens: Tokens {
                ids: Arc::new(batch.input_ids),
                positions: Arc::new(batch.positions),
                documents: batch.documents.into(),
                parents: Arc::new(batch.parents),
                rows: Arc::new(batch.row_ids),
            },
        }
    }

    /// One token that predicts nothing: what a rank without rows runs, so that all make the same passes.
    #[must_use]
    pub fn empty() -> Self {
        let tokens = burnish_models::Tokens::from_sequences(&[[0]]);
        Self { tokens, rows: Arc::default(), targets: Arc::default(), row_ids: Arc::default(), num_tokens: 0 }
    }
}
