//! Linear layers with low-rank adapters, several side by side on one input.
//!
//! `y = x W^T + b + s * (dropout(x) A^T) B^T`, weights in Hugging Face's layout `[out, in]`. The input may be
//! normalised (RMSNorm) or gated (SwiGLU) on the way in, and a residual added on the way out: those cost no pass over
//! memory of their own. LoRA: Hu et al., arXiv:2106.09685, equation 3.

use std::sync::Arc;

use crate::{AnyTensor, OpsError};

/// Counted dropout on an adapter's input.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The site's key: `burnish_core::random::Stream::dropout_key`.
    pub key: u64,
    /// The probability of dropping an element.
    pub p: f32,
    /// Per token, its counter in the step's global batch.
    pub rows: Arc<Vec<u64>>,
    /// The mask's column at the input's first: not 0 where the input is some columns of a wider one (row-parallel
    /// layers).
    pub first_column: u32,
}

/// A low-rank adapter on a linear layer.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[r, in]`.
    pub a: AnyTensor,
    /// `[out, r]`.
    pub b: AnyTensor,
    /// `[out]`, scaled like the rest (PEFT's `lora_bias`).
    pub b_bias: Option<AnyTensor>,
    /// `alpha / r`, or `alpha / sqrt(r)`.
    pub scale: f32,
    /// Dropout on the adapter's input, while training.
    pub dropout: Option<Dropout>,
}

/// A linear layer.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`, in its stored dtype.
    pub weight: AnyTensor,
    /// `[out]`.
    pub bias: Option<AnyTensor>,
    /// Its adapter.
    pub low_rank: Option<LowRank>,
}

impl Linear {
    /// A linear layer without bias or adapter.
    #[must_use]
    pub fn new(weight: AnyTensor) -> Self {
        Self { weight, bias: None, low_rank: None }
    }

    /// The number of outputs.
    #[must_use]
    pub fn out(&self) -> usize {
        self.weight.shape()[0]
    }

    /// The tensors in a fixed order: weight, bias, a, b, b_bias.
    pub(crate) fn tensors(&self) -> Vec<AnyTensor> {
        let mut all = vec![self.weight.clone()];
        all.extend(self.bias.clone());
        if let Some(l) = &self.low_rank {
            all.extend([l.a.clone(), l.b.clone()]);
            all.extend(l.b_bias.clone());
        }
        all
    }
}

/// What a group of linears reads.
#[derive(Clone, Debug)]
pub enum LinearInput {
    /// `[tokens, in]` as it is.
    Plain(AnyTensor),
    /// `x * rsqrt(mean(x^2) + eps) * gamma` of `[tokens, in]`.
    RmsNorm {
        /// `[tokens, in]`.
        x: AnyTensor,
        /// `[in]`.
        gamma: AnyTensor,
        /// Added to the mean square.
        eps: f32,
    },
    /// `silu(gate) * up` of `[tokens, 2 * in]`: gate, then up.
    SwiGlu(AnyTensor),
}

impl LinearInput {
    pub(crate) fn tensor(&self) -> &AnyTensor {
        match self {
            Self::Plain(x) | Self::SwiGlu(x) | Self::RmsNorm { x, .. } => x,
        }
    }
}

/// Several linears on one input, their outputs side by side.
///
/// # Shapes
/// - input: `[tokens, in]` (SwiGLU: `[tokens, 2 * in]`)
/// - residual: `[tokens, sum of outs]`, added to the output
/// - output: `[tokens, sum of outs]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn linears(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    crate::check::linears(input, layers, residual)?;
    #[cfg(feature = "flex")]
    if crate::flex::holds(input.tensor()) {
        return crate::flex::linear::linears(input, layers, residual);
    }
    crate::reference::linears(input, layers, residual)
}

/// [`linears`] for the few tokens of a decoding step: reads weights where they lie. Plain tensors only, nothing is
/// recorded; equal to [`linears`] up to rounding.
///
/// # Errors
/// As [`linears`].
pub fn linears_decode(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    crate::check::linears(input, layers, residual)?;
    #[cfg(feature = "flex")]
    if crate::flex::holds(input.tensor()) {
        return crate::flex::linear::linears_decode(input, layers, residual);
    }
    crate::reference::linears(input, layers, residual)
}
