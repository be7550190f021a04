//! A gate behind a norm, or before it: by kernels, or in Burn's operations.

use burn::tensor::activation::silu;

#[cfg(feature = "cube")]
use super::kernels;
use super::{to, wide_dtype};
use crate::gated_norm::GroupNorm;
use crate::{AnyTensor, OpsError};

/// See [`crate::gated_norm()`].
pub(crate) fn gated_norm(
    x: &AnyTensor,
    gate: &AnyTensor,
    norm: Option<&GroupNorm>,
) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::gated_norm(x, gate, norm) {
        return y;
    }
    let (wide, dtype) = (wide_dtype(x), gate.burn_dtype());
    let (x, gate) = (to(x.rank::<2>()?, wide), silu(to(gate.rank::<2>()?, wide)));
    let Some(norm) = norm else { return Ok(AnyTensor::new(to(x * gate, dtype))) };
    let ([tokens, width], group) = (x.dims(), norm.group);
    let mut gamma = to(norm.gamma.rank::<1>()?, wide);
    gamma = gamma.clone().repeat_dim(0, width / gamma.dims()[0]);
    let normed = |x: burn::tensor::Tensor<2>| {
        let x = x.reshape([tokens, width / group, group]);
        let mean = x.clone().powi_scalar(2).mean_dim(2) + norm.eps;
        (x / mean.sqrt()).reshape([tokens, width]) * gamma.clone().unsqueeze()
    };
    let y = if norm.before_gate { normed(x) * gate } else { normed(x * gate) };
    Ok(AnyTensor::new(to(y, dtype)))
}
