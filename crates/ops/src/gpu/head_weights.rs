//! Weights of heads of linear attention: by a kernel, or in Burn's operations.

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

#[cfg(feature = "cube")]
use super::kernels;
use super::{to, wide_dtype};
use crate::head_weights::{HeadSteps, LINE};
use crate::{AnyTensor, OpsError};

/// `ln(1 + e^x)`, as torch has it.
pub(super) fn softplus(x: Tensor<2>) -> Tensor<2> {
    let soft = x.clone().clamp_max(LINE).exp().log1p();
    soft.mask_where(x.clone().greater_elem(LINE), x)
}

/// See [`crate::head_weights()`].
pub(crate) fn head_weights(of: &HeadSteps) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(weights) = kernels::head_weights(of) {
        return weights;
    }
    let wide = wide_dtype(&of.steps);
    let numbers = |x: &AnyTensor| Ok::<_, OpsError>(to(x.rank::<1>()?, wide).unsqueeze::<2>());
    let x: Tensor<2> = to(of.steps.rank::<2>()?, wide) + numbers(&of.bias)?;
    let steps = softplus(x);
    let decay = -(steps.clone() * numbers(&of.log_rate)?.exp());
    let beta = match &of.learning {
        Some(learning) => sigmoid(to(learning.rank::<2>()?, wide)),
        None => steps,
    };
    let n = decay.shape().num_elements();
    Ok(AnyTensor::new(Tensor::cat(vec![decay.reshape([1, n]), beta.reshape([1, n])], 0)))
}
