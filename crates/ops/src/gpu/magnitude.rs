//! Squared norms of adapted weights, by some rows at a time: no weight is widened as a whole.

use burn::tensor::Tensor;
use burnish_core::Compute;

use super::{product, to, wide_dtype};
use crate::{AnyTensor, OpsError};

/// Rows of a weight that are widened at a time.
const ROWS: usize = 1024;

/// First row and number of rows of each piece.
fn pieces(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(ROWS).map(move |start| (start, ROWS.min(rows - start)))
}

/// The factors, wide.
fn factors(a: &AnyTensor, b: &AnyTensor) -> Result<(Tensor<2>, Tensor<2>), OpsError> {
    let wide = wide_dtype(a);
    Ok((to(a.plain().rank()?, wide), to(b.plain().rank()?, wide)))
}

/// See [`crate::squared_row_norms`].
pub fn squared_row_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    let (a, b) = factors(a, b)?;
    let weight = weight.plain().rank::<2>()?;
    let mut parts = Vec::new();
    for (start, n) in pieces(weight.dims()[0]) {
        let w = to(weight.clone().narrow(0, start, n), a.dtype());
        let adapted = w + product::matmul(b.clone().narrow(0, start, n), a.clone(), Compute::Fp32) * scale;
        parts.push(adapted.powi_scalar(2).sum_dim(1).reshape([n]));
    }
    Ok(AnyTensor::new(Tensor::cat(parts, 0)))
}

/// See [`crate::squared_column_norms`].
pub fn squared_column_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    let (a, b) = factors(a, b)?;
    let weight = weight.plain().rank::<2>()?;
    let [rows, columns] = weight.dims();
    let mut sums: Tensor<1> = Tensor::zeros([columns], (&weight.device(), a.dtype()));
    for (start, n) in pieces(rows) {
        let w = to(weight.clone().narrow(0, start, n), a.dtype());
        let a = a.clone().narrow(1, start, n).transpose();
        let delta = product::matmul(a, b.clone().transpose(), Compute::Fp32);
        sums = sums + (w + delta * scale).powi_scalar(2).sum_dim(0).reshape([columns]);
    }
    Ok(AnyTensor::new(sums))
}
