//! RMSNorm: `x * rsqrt(mean(x^2) + eps) * gamma` (Zhang and Sennrich, arXiv:1910.07467, equation 4).

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

/// Normalises each row of `x`.
///
/// # Shapes
/// - x: `[tokens, hidden]`, gamma: `[hidden]`, output: `[tokens, hidden]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    crate::check::rms_norm(x, gamma)?;
    dispatch!([x] => norm::rms_norm(x, gamma, eps))
}
