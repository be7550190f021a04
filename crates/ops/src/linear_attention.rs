//! Linear attention with decay: of each head a state that forgets, and learns from each token; by the gated delta rule (Yang et
//! al., arXiv:2412.06464) only what the state does not say already. Without it this is Mamba-2's state space (Dao and Gu,
//! arXiv:2405.21060). Where each channel of a key has a decay of its own it is Kimi Delta Attention (Kimi Team, arXiv:2510.26692), or
//! gated linear attention (Yang et al., arXiv:2312.06635).

use std::ops::Range;

use crate::dispatch::dispatch;
use crate::recurrent_states::RecurrentStates;
use crate::{AnyTensor, Documents, OpsError};

/// What a call reads.
#[derive(Clone, Copy)]
pub(crate) enum Inputs<'a> {
    /// Queries, keys and values; decays and betas of heads.
    OfHeads([&'a AnyTensor; 2]),
    /// Queries, keys and values; decays of channels; betas of heads.
    OfChannels([&'a AnyTensor; 3]),
}

impl<'a> Inputs<'a> {
    /// The operation's name.
    pub(crate) fn op(&self) -> &'static str {
        match self {
            Self::OfHeads(_) => "linear_attention",
            Self::OfChannels(_) => "channel_linear_attention",
        }
    }

    pub(crate) fn all(&self) -> &[&'a AnyTensor] {
        match self {
            Self::OfHeads(all) => all,
            Self::OfChannels(all) => all,
        }
    }

    /// As [`Inputs::all`] has them.
    ///
    /// # Panics
    /// If they are neither two nor three.
    pub(crate) fn of(all: &'a [AnyTensor]) -> Self {
        match all {
            [qkv, weights] => Self::OfHeads([qkv, weights]),
            [qkv, decays, betas] => Self::OfChannels([qkv, decays, betas]),
            _ => unreachable!("invariant: of heads there are two, of channels three"),
        }
    }

    /// Queries, keys and values.
    pub(crate) fn qkv(&self) -> &'a AnyTensor {
        self.all()[0]
    }
}

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
    fn check(&self, inputs: &Inputs<'_>) -> Result<usize, OpsError> {
        let op = inputs.op();
        let [tokens, width] = crate::check::matrix(inputs.qkv())?;
        let wrong = |what, got: Vec<usize>, expected: Vec<usize>| OpsError::Shape { op, what, got, expected };
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
        match inputs {
            Inputs::OfHeads([_, weights]) => {
                crate::check::shape(op, "weights", weights.shape(), &[2, tokens * self.heads])?;
            }
            Inputs::OfChannels([_, decays, betas]) => {
                if self.key_heads != self.heads {
                    return Err(wrong("heads", vec![self.heads], vec![self.key_heads]));
                }
                crate::check::shape(op, "decays", decays.shape(), &[tokens, keys])?;
                crate::check::shape(op, "betas", betas.shape(), &[tokens, self.heads])?;
            }
        }
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
    walked(Inputs::OfHeads([qkv, weights]), shape, texts, parents)
}

/// [`linear_attention`] in which each channel of a key forgets by itself: with the delta rule Kimi Delta Attention (Kimi Team,
/// arXiv:2510.26692), `S <- diag(exp(decay)) S; S <- S + k (beta (v - S^T k))^T; y = S^T q`, whose queries are scaled and keys of unit
/// length as they come.
///
/// # Shapes
/// - qkv: `[tokens, _]`; decays: `[tokens, heads * key_dim]`, logarithms, at most 0; betas: `[tokens, heads]`
/// - output: `[tokens, heads * value_dim]`, f32; rows outside every text are zeros
///
/// # Errors
/// As [`linear_attention`], or if heads share keys.
pub fn channel_linear_attention(
    [qkv, decays, betas]: [&AnyTensor; 3],
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    walked(Inputs::OfChannels([qkv, decays, betas]), shape, texts, parents)
}

fn walked(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let tokens = shape.check(&inputs)?;
    crate::texts::check(inputs.op(), texts, parents, tokens)?;
    dispatch!(inputs.all().iter().copied() => linear_attention::linear_attention(inputs, shape, texts, parents))
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
        self.walk(Inputs::OfHeads([&qkv.plain(), &weights.plain()]), shape, texts)
    }

    /// [`channel_linear_attention`] of new rows, as [`RecurrentStates::linear_attention`].
    ///
    /// # Errors
    /// As [`channel_linear_attention`], or if there is not one range of rows per sequence.
    pub fn channel_linear_attention(
        &mut self,
        inputs: [&AnyTensor; 3],
        shape: &LinearAttentionShape,
        texts: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        let inputs = inputs.map(AnyTensor::plain);
        self.walk(Inputs::OfChannels(inputs.each_ref()), shape, texts)
    }

    fn walk(
        &mut self,
        inputs: Inputs<'_>,
        shape: &LinearAttentionShape,
        texts: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        let tokens = shape.check(&inputs)?;
        crate::texts::check(inputs.op(), texts, &[], tokens)?;
        let states = self.before(inputs.op(), texts, shape.state(), &inputs.qkv().device())?;
        let (y, states) = stepped(inputs, shape, texts, states)?;
        self.keep(&states)?;
        Ok(y)
    }
}

fn stepped(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    dispatch!(inputs.all().iter().copied() => linear_attention::stepped(inputs, shape, texts, states))
}
