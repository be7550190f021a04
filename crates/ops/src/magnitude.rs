//! DoRA's magnitude (Liu et al., arXiv:2402.09353) and the norms of adapted weights that it divides by.

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

/// The magnitude of a layer's outputs (DoRA).
#[derive(Clone, Debug)]
pub struct Magnitude {
    /// `[out]`: the magnitudes, trained.
    pub value: AnyTensor,
    /// `[out]`: `|W + s B A|` of each output, from [`row_norms`] (of an embedding [`column_norms`]). A constant: no
    /// gradient flows into it (section 4.3 of the paper).
    pub norm: AnyTensor,
}

/// `|W + scale * B A|` of each row: `[out]`, plain, f32 (of f64 factors f64). Nothing of the size of `W` is made.
///
/// # Shapes
/// - weight: `[out, in]`, a: `[r, in]`, b: `[out, r]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn row_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    Ok(root(&squared_row_norms(weight, a, b, scale)?))
}

/// The squares of [`row_norms`]: what is summed over ranks that each hold some of the columns.
///
/// # Errors
/// As [`row_norms`].
pub fn squared_row_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    crate::check::norms("row_norms", weight, a, b, false)?;
    dispatch!([weight, a] => magnitude::squared_row_norms(weight, a, b, scale))
}

/// `|W + scale * A^T B^T|` of each column of an embedding's table: `[hidden]`, plain.
///
/// # Shapes
/// - weight: `[vocab, hidden]`, a: `[r, vocab]`, b: `[hidden, r]`
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn column_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    Ok(root(&squared_column_norms(weight, a, b, scale)?))
}

/// The squares of [`column_norms`]: what is summed over ranks that each hold some of the rows.
///
/// # Errors
/// As [`column_norms`].
pub fn squared_column_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    crate::check::norms("column_norms", weight, a, b, true)?;
    dispatch!([weight, a] => magnitude::squared_column_norms(weight, a, b, scale))
}

fn root(squares: &AnyTensor) -> AnyTensor {
    AnyTensor::new(squares.carrier().sqrt())
}
