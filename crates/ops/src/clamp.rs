//! Activations held in bounds.

use crate::{AnyTensor, OpsError};

/// `x` held in `-bound..=bound`.
///
/// # Shapes
/// - x and output: `[tokens, features]`
///
/// # Errors
/// If `x` is of another rank.
pub fn clamp(x: &AnyTensor, bound: f32) -> Result<AnyTensor, OpsError> {
    crate::check::matrix(x)?;
    #[cfg(feature = "flex")]
    if crate::flex::holds([x]) {
        return crate::flex::elementwise::clamp(x, bound);
    }
    Ok(AnyTensor::new(x.rank::<2>()?.clamp(-bound, bound)))
}
