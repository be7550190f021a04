//! Causal attention over flattened documents, with grouped key/value heads.
//!
//! There is no padding: tokens of all documents lie one after another and attention never leaves a document. Rotary
//! embedding (Su et al., arXiv:2104.09864, in the half-rotation form of Llama) and per-head norms (Qwen3) are folded
//! into the operation. The score matrix is never kept: backward recomputes it from the log-sum-exp.

use std::sync::Arc;

use burnish_core::Compute;

use crate::dispatch::dispatch;
use crate::gpu::Angles;
use crate::{AnyTensor, Documents, OpsError};

/// What attention looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `c * tanh(score / c)`.
    pub softcap: Option<f32>,
    /// Linear biases (`ALiBi`): `slope * (j - i)` is added to query `i`'s capped score of key `j`, a slope per query head;
    /// empty for none.
    pub slopes: Arc<Vec<f32>>,
    /// Key `j` is visible to query `i` when `0 <= i - j < window`.
    pub window: Option<usize>,
    /// For each document the one that it continues (several completions one prompt), which continues none itself: its
    /// tokens see all of that one's too, before their own. Empty where none does.
    pub parents: Arc<Vec<Option<usize>>>,
    /// What the operands of its products are on the CPU; softmax is fp32 either way.
    pub compute: Compute,
}

/// A rotary table and each token's position in it. Layers share one: a device gets the angles once.
#[derive(Clone, Debug)]
pub struct Rotary {
    pub(crate) table: Arc<Vec<f32>>,
    pub(crate) positions: Arc<Vec<u32>>,
    pub(crate) rotary_dim: usize,
    pub(crate) angles: Angles,
}

impl Rotary {
    /// Rotates the first `rotary_dim` dimensions of a head.
    ///
    /// # Shapes
    /// - table: `[positions, rotary_dim]`: cosines, then sines, the attention factor multiplied in
    /// - positions: `[tokens]`
    #[must_use]
    pub fn new(table: Arc<Vec<f32>>, positions: Arc<Vec<u32>>, rotary_dim: usize) -> Self {
        Self { table, positions, rotary_dim, angles: Angles::default() }
    }

    /// A token's cosines, then its sines: `[rotary_dim]`.
    ///
    /// # Panics
    /// If there is no such token, or its position is outside the table.
    #[must_use]
    pub fn of(&self, token: usize) -> &[f32] {
        &self.table[self.positions[token] as usize * self.rotary_dim..][..self.rotary_dim]
    }

    /// Cosines of all tokens, and sines: `[tokens, rotary_dim / 2]` each.
    pub(crate) fn halves(&self) -> [Vec<f32>; 2] {
        let half = self.rotary_dim / 2;
        [0, half].map(|from| {
            let mut rows = Vec::with_capacity(self.positions.len() * half);
            for &p in self.positions.iter() {
                rows.extend_from_slice(&self.table[p as usize * self.rotary_dim + from..][..half]);
            }
            rows
        })
    }
}

/// Per-head RMS norms of queries and keys, applied before the rotation.
#[derive(Clone, Debug)]
pub struct HeadNorm {
    /// `[head_dim]`.
    pub q: AnyTensor,
    /// `[head_dim]`.
    pub k: AnyTensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// Attention of `qkv` within each of `documents`. A query head's sink takes part in its softmax as a score of no key, so
/// that what is left for the keys sums to less than one (gpt-oss).
///
/// # Shapes
/// - sinks: `[heads]`
/// - qkv: `[tokens, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values
/// - output: `[tokens, heads * head_dim]`; rows outside every document are zero
///
/// # Errors
/// If shapes or dtypes do not fit, documents overlap, or a position is outside the rotary table.
pub fn attention(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    crate::check::attention(qkv, shape, documents, rotary, norm, sinks)?;
    dispatch!([qkv] => attention::attention(qkv, shape, documents, rotary, norm, sinks))
}

/// [`attention()`], and each query head's largest score over all visible pairs: plain, `[heads]`, on `qkv`'s device.
///
/// A score is what softmax sees before any cap: `scale * q . k` after norm and rotation (the "max logit" of QK-Clip, Kimi
/// K2, arXiv:2507.20534). A head that saw no pair has negative infinity; one with a score that is infinite or not a
/// number has NaN. Nobody who does not ask pays for it: [`attention()`] keeps no maxima.
///
/// # Errors
/// As [`attention()`].
pub fn attention_with_peaks(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    crate::check::attention(qkv, shape, documents, rotary, norm, sinks)?;
    dispatch!([qkv] => attention::attention_with_peaks(qkv, shape, documents, rotary, norm, sinks))
}
