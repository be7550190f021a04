//! Linear layers with low-rank adapters, several side by side on one input.
//!
//! `y = x W^T + b + s * (dropout(x) A^T) B^T`, weights in Hugging Face's layout `[out, in]`. The input may be
//! normalised (RMSNorm, LayerNorm) or behind an activation (SwiGLU and its kin) on the way in, and a residual added on the way out: those cost no pass over
//! memory of their own. LoRA: Hu et al., arXiv:2106.09685, equation 3. With a [`Magnitude`] (DoRA: Liu et al.,
//! arXiv:2402.09353) each output is scaled by `g = m / |W + s B A|` before the bias is added.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_core::{Activation, Compute, LinearParts, LoraParts};

use crate::dispatch::dispatch;
use crate::{AnyTensor, Magnitude, OpsError};

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
    /// Dropout on the adapter's input, while training. With a magnitude it reaches the base too, as in PEFT:
    /// `y = W x + (g - 1) W drop(x) + g s B A drop(x) + b`.
    pub dropout: Option<Dropout>,
    /// DoRA's magnitude; excludes `b_bias`.
    pub magnitude: Option<Magnitude>,
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
    /// What the operands of its products are on the CPU, the same for layers side by side; on other devices that is the
    /// weight's dtype.
    pub compute: Compute,
}

impl Linear {
    /// A linear layer without bias or adapter.
    #[must_use]
    pub fn new(weight: AnyTensor) -> Self {
        Self { weight, bias: None, low_rank: None, compute: Compute::Fp32 }
    }

    /// The number of outputs.
    #[must_use]
    pub fn out(&self) -> usize {
        self.weight.shape()[0]
    }

    /// The tensors that get gradients.
    #[must_use]
    pub fn parts(&self) -> LinearParts<&AnyTensor> {
        let lora = self.low_rank.as_ref().map(|low| LoraParts {
            a: &low.a,
            b: &low.b,
            b_bias: low.b_bias.as_ref(),
            magnitude: low.magnitude.as_ref().map(|magnitude| &magnitude.value),
        });
        LinearParts { weight: &self.weight, bias: self.bias.as_ref(), lora }
    }

    /// [`Self::parts`] in order, as inputs of an operation.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = AnyTensor> {
        self.parts().into_iter().map(|(_, tensor)| tensor.clone())
    }

    /// The adapter's rank; 0 without one.
    pub(crate) fn rank(&self) -> usize {
        self.low_rank.as_ref().map_or(0, |low| low.a.shape()[0])
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
    /// `(x - mean(x)) * rsqrt(var(x) + eps) * gamma + beta` of `[tokens, in]` (Ba et al., arXiv:1607.06450).
    LayerNorm {
        /// `[tokens, in]`.
        x: AnyTensor,
        /// `[in]`.
        gamma: AnyTensor,
        /// `[in]`.
        beta: Option<AnyTensor>,
        /// Added to the variance.
        eps: f32,
    },
    /// `silu(gate) * up` of `[tokens, 2 * in]`: gate, then up.
    SwiGlu(AnyTensor),
    /// `f(gate) * up` of `[tokens, 2 * in]` where it is `gated`, `f(x)` of `[tokens, in]` otherwise.
    Activated {
        /// `[tokens, 2 * in]` or `[tokens, in]`.
        x: AnyTensor,
        /// `f`.
        activation: Activation,
        /// Whether rows are gate, then up.
        gated: bool,
    },
}

impl LinearInput {
    pub(crate) fn tensor(&self) -> &AnyTensor {
        match self {
            Self::Plain(x)
            | Self::SwiGlu(x)
            | Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::Activated { x, .. } => x,
        }
    }

    /// A norm's parameters: gamma, and beta where there is one.
    pub(crate) fn norm(&self) -> Option<(&AnyTensor, Option<&AnyTensor>)> {
        match self {
            Self::RmsNorm { gamma, .. } => Some((gamma, None)),
            Self::LayerNorm { gamma, beta, .. } => Some((gamma, beta.as_ref())),
            _ => None,
        }
    }

    /// The activation, and whether rows are gate, then up.
    pub(crate) fn activation(&self) -> Option<(Activation, bool)> {
        match *self {
            Self::SwiGlu(_) => Some((Activation::Silu, true)),
            Self::Activated { activation, gated, .. } => Some((activation, gated)),
            _ => None,
        }
    }

    /// [`Self::tensor`] and the norm's parameters, in the order of an operation's inputs.
    pub(crate) fn tensors(&self) -> Vec<AnyTensor> {
        let (gamma, beta) = self.norm().unzip();
        [Some(self.tensor()), gamma, beta.flatten()].into_iter().flatten().cloned().collect()
    }

    /// What the layers read, `[tokens, in]`, normed and activated, in float32 and off the tape.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn read(&self) -> Result<AnyTensor, OpsError> {
        crate::gpu::linear::read(self)
    }

    /// The dtype of what [`linears`] gives of this input without a residual: on GPUs what lies behind a norm is in the weights'.
    #[must_use]
    pub fn out_dtype(&self, layers: &[Linear]) -> DType {
        dispatch!([self.tensor()] => linear::dtype(self, layers))
    }

    /// Features of the layers' input, of a tensor `width` wide.
    pub(crate) fn features(&self, width: usize) -> usize {
        if matches!(self.activation(), Some((_, true))) { width / 2 } else { width }
    }
}

/// Several linears on one input, their outputs side by side.
///
/// # Shapes
/// - input: `[tokens, in]` (gated: `[tokens, 2 * in]`)
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
    dispatch!([input.tensor()] => linear::linears(input, layers, residual))
}

/// [`linears`] whose output's values nobody reads, but its graph: on the CPU they are zeros, and their products are left out.
/// So it is with what a [`segment`](crate::segment()) returns when it [runs again](crate::runs_again()).
///
/// # Errors
/// As [`linears`].
pub fn linears_unread(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    crate::check::linears(input, layers, residual)?;
    dispatch!([input.tensor()] => linear::linears_unread(input, layers, residual))
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
    dispatch!([input.tensor()] => linear::linears_decode(input, layers, residual))
}
