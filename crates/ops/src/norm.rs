//! Norms of rows: RMSNorm (Zhang and Sennrich, arXiv:1910.07467, equation 4) and LayerNorm (Ba et al.,
//! arXiv:1607.06450).

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

/// `x * rsqrt(mean(x^2) + eps) * gamma` of each row of `x`.
///
/// # Shapes
/// - x: `[tokens, hidden]`, gamma: `[hidden]`, output: `[tokens, hidden]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    crate::check::norm("rms_norm", x, gamma, None)?;
    dispatch!([x] => norm::rms_norm(x, gamma, eps))
}

/// `(x - mean(x)) * rsqrt(var(x) + eps) * gamma + beta` of each row of `x`.
///
/// # Shapes
/// - x: `[tokens, hidden]`, gamma and beta: `[hidden]`, output: `[tokens, hidden]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn layer_norm(
    x: &AnyTensor,
    gamma: &AnyTensor,
    beta: Option<&AnyTensor>,
    eps: f32,
) -> Result<AnyTensor, OpsError> {
    crate::check::norm("layer_norm", x, gamma, beta)?;
    dispatch!([x] => norm::layer_norm(x, gamma, beta, eps))
}
