//! Weights of heads of linear attention: how much of a state each token keeps, and how much of it is learned.

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

pub(crate) const OP: &str = "head_weights";
/// Beyond it a softplus is the line that it comes near to, as torch has it.
pub(crate) const LINE: f32 = 20.0;

/// What heads give of each token, and their numbers.
#[derive(Clone, Debug)]
pub struct HeadSteps {
    /// How far a token steps, before its bias and softplus: `[tokens, heads]`.
    pub steps: AnyTensor,
    /// How much of it is learned, before a sigmoid, `[tokens, heads]`; as far as it steps where there is none.
    pub learning: Option<AnyTensor>,
    /// Added to steps: `[heads]`.
    pub bias: AnyTensor,
    /// The logarithm of what is forgotten by a step: `[heads]`.
    pub log_rate: AnyTensor,
}

impl HeadSteps {
    /// The steps, the numbers of heads and, last, what is learned.
    pub(crate) fn inputs(&self) -> Vec<AnyTensor> {
        let Self { steps, learning, bias, log_rate } = self;
        [steps, bias, log_rate].into_iter().chain(learning).cloned().collect()
    }
}

/// The logarithm of what is kept of a state, `-softplus(steps + bias) exp(log_rate)`, and how much of a token is learned,
/// `sigmoid(learning)` or the softplus, as [`linear_attention`](crate::linear_attention()) reads them.
///
/// # Shapes
/// - output: `[2, tokens * heads]`, f32
///
/// # Errors
/// If shapes do not fit.
pub fn head_weights(of: &HeadSteps) -> Result<AnyTensor, OpsError> {
    let [tokens, heads] = crate::check::matrix(&of.steps)?;
    if let Some(learning) = &of.learning {
        crate::check::shape(OP, "learning", learning.shape(), &[tokens, heads])?;
    }
    for (what, numbers) in [("bias", &of.bias), ("log_rate", &of.log_rate)] {
        crate::check::shape(OP, what, numbers.shape(), &[heads])?;
    }
    let inputs = of.inputs();
    dispatch!(&inputs => head_weights::head_weights(of))
}
