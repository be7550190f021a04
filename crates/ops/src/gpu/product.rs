//! Products with a weight, in the dtype that the weight is stored in.
//!
//! Burn promotes nothing, so the other operand is cast. Units for matrices accumulate products of 16-bit numbers in f32
//! and round once, to the dtype of the operands. Products of f32 are multiplied in f32; where [`Compute`] lets operands be
//! rounded, units for matrices take them as TF32.

use burn::tensor::{DType, Tensor};
use burnish_core::Compute;

use super::to;

/// `a b`, of matrices or of batches of them.
pub(super) fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>, compute: Compute) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if compute == Compute::Fp32
        && let Some(y) = super::kernels::product(&a, &b)
    {
        return y;
    }
    #[cfg(not(feature = "cube"))]
    let _ = compute;
    a.matmul(b)
}

/// `x W^T` in the weight's dtype.
pub(super) fn forward(x: Tensor<2>, weight: &Tensor<2>, compute: Compute) -> Tensor<2> {
    same(&x, weight);
    matmul(x, weight.clone().transpose(), compute)
}

/// `dy W`, the input's gradient, as `wide`.
pub(super) fn of_input(dy: Tensor<2>, weight: &Tensor<2>, wide: DType, compute: Compute) -> Tensor<2> {
    to(matmul(to(dy, weight.dtype()), weight.clone(), compute), wide)
}

/// `dy^T x`, the weight's gradient, as `wide`; computed in the dtype of `x`.
pub(super) fn of_weight(dy: Tensor<2>, x: Tensor<2>, wide: DType, compute: Compute) -> Tensor<2> {
    to(matmul(to(dy, x.dtype()).transpose(), x, compute), wide)
}

fn same(x: &Tensor<2>, weight: &Tensor<2>) {
    assert_eq!(x.dtype(), weight.dtype(), "invariant: the operand was cast to its weight's dtype");
}
