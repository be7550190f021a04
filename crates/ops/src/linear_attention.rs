//! Linear attention with decay: of each head a state that forgets, and learns from each token; by the gated delta rule (Yang et
//! al., arXiv:2412.06464) only what the state does not say already. Without it this is Mamba-2's state space (Dao and Gu,
//! arXiv:2405.21060).

use std::ops::Range;

use crate::dispatch::dispatch;
use crate::recurrent_states::RecurrentStates;
use crate::{AnyTensor, Documents, OpsError};

pub(crate) const OP: &str = "linear_attention";

/// Heads in a row of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, those of one head of keys one after another.
    pub heads: usize,
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// The first column of queries, keys and values.
    pub columns: [usize; 3],
    /// Whether a token learns only what the state does not say already.
    pub delta_rule: bool,
}

impl LinearAttentionShape {
    /// Elements of the states of a text.
    #[must_use]
    pub fn state(&self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }

    /// Tokens.
    fn check(&self, qkv: &AnyTensor, weights: &AnyTensor) -> Result<usize, OpsError> {
        let [tokens, width] = crate::check::matrix(qkv)?;
        let wrong =
            |what, got: Vec<usize>, expected: Vec<usize>| OpsError::Shape { op: OP, what, got, expected };
        let (keys, values) = (self.key_heads * self.key_dim, self.heads * self.value_dim);
        let mut columns: Vec<Range<usize>> =
            self.columns.iter().zip([keys, keys, values]).map(|(&first, of)| first..first + of).collect();
        columns.sort_by_key(|columns| columns.start);
        if columns.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(wrong("columns", self.columns.to_vec(), vec![keys, keys, values]));
        }
        let needs = columns.iter().map(|columns| columns.end).max().unwrap_or(0);
        if width < needs {
            return Err(wrong("qkv", vec![tokens, width], vec![tokens, needs]));
        }
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            return Err(wrong("heads", vec![self.heads], vec![self.key_heads]));
        }
        crate::check::shape(OP, "weights", weights.shape(), &[2, tokens * self.heads])?;
        Ok(tokens)
    }
}

/// What each token reads of its text's states: `S <- exp(decay) S; S <- S + k (beta (v - S^T k))^T` with the delta rule, without it
/// `S + k (beta v)^T`; then `S^T q`. Texts begin from nothing, or from what the one that they continue left (`parents`, each before its
/// own).
///
/// # Shapes
/// - qkv: `[tokens, _]`; weights: `[2, tokens * heads]`, decay (a logarithm, at most 0) and beta of each token's heads
/// - output: `[tokens, heads * value_dim]`, f32; rows outside every text are zeros
///
/// # Errors
/// If shapes do not fit, or a text lies outside the rows, over another, or continues one that comes later.
pub fn linear_attention(
    qkv: &AnyTensor,
    weights: &AnyTensor,
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let tokens = shape.check(qkv, weights)?;
    crate::texts::check(OP, texts, parents, tokens)?;
    dispatch!([qkv, weights] => linear_attention::linear_attention([qkv, weights], shape, texts, parents))
}

impl RecurrentStates {
    /// [`linear_attention`] of new rows, each sequence's behind what it has said; plain tensors.
    ///
    /// # Errors
    /// As [`linear_attention`], or if there is not one range of rows per sequence.
    pub fn linear_attention(
        &mut self,
        qkv: &AnyTensor,
        weights: &AnyTensor,
        shape: &LinearAttentionShape,
        texts: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        let tokens = shape.check(qkv, weights)?;
        crate::texts::check(OP, texts, &[], tokens)?;
        let states = self.before(OP, texts, shape.state(), &qkv.device())?;
        let (y, states) = stepped([&qkv.plain(), &weights.plain()], shape, texts, states)?;
        self.keep(&states)?;
        Ok(y)
    }
}

fn stepped(
    inputs: [&AnyTensor; 2],
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    dispatch!(inputs => linear_attention::stepped(inputs, shape, texts, states))
}
