//! Token embedding, with a low-rank adapter: `y = g (W[ids] + s * A^T[ids] B^T)` (PEFT's LoRA and DoRA on embeddings).

use std::sync::Arc;

use crate::dispatch::dispatch;
use crate::{AnyTensor, Magnitude, OpsError};

/// A low-rank adapter on an embedding.
#[derive(Clone, Debug)]
pub struct EmbeddingLowRank {
    /// `[r, vocab]`.
    pub a: AnyTensor,
    /// `[hidden, r]`.
    pub b: AnyTensor,
    /// `alpha / r`, or `alpha / sqrt(r)`.
    pub scale: f32,
    /// DoRA's magnitude of each column: `[hidden]`.
    pub magnitude: Option<Magnitude>,
}

/// Rows of `weight` by id, in f32.
///
/// # Shapes
/// - ids: `[tokens]`, weight: `[vocab, hidden]`, output: `[tokens, hidden]`
///
/// # Errors
/// If an id is outside the vocabulary, or shapes or dtypes do not fit.
pub fn embedding(
    ids: &Arc<Vec<u32>>,
    weight: &AnyTensor,
    low_rank: Option<&EmbeddingLowRank>,
) -> Result<AnyTensor, OpsError> {
    crate::check::embedding(ids, weight, low_rank)?;
    dispatch!([weight] => embedding::embedding(ids, weight, low_rank))
}

/// Rows of `x` by index; its backward scatters.
///
/// # Shapes
/// - x: `[tokens, hidden]`, output: `[rows.len(), hidden]`
///
/// # Errors
/// If an index is out of range.
pub fn select_rows(x: &AnyTensor, rows: &Arc<Vec<usize>>) -> Result<AnyTensor, OpsError> {
    let [tokens, _] = crate::check::matrix(x)?;
    if let Some(&got) = rows.iter().find(|&&r| r >= tokens) {
        return Err(OpsError::Index { op: "select_rows", got, limit: tokens });
    }
    if rows.len() == tokens && rows.iter().enumerate().all(|(i, &r)| i == r) {
        return Ok(x.clone());
    }
    dispatch!([x] => embedding::select_rows(x, rows))
}
