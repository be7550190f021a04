//! Products with a weight, in the dtype that the weight is stored in.
//!
//! Burn promotes nothing, so the other operand is cast. Units for matrices accumulate products of 16-bit numbers in f32
//! and round once, to the dtype of the operands.

use burn::tensor::{DType, Tensor};

use super::to;

/// `x W^T` in the weight's dtype.
pub(super) fn forward(x: Tensor<2>, weight: &Tensor<2>) -> Tensor<2> {
    same(&x, weight);
    x.matmul(weight.clone().transpose())
}

/// `dy W`, the input's gradient, as `wide`.
pub(super) fn of_input(dy: Tensor<2>, weight: &Tensor<2>, wide: DType) -> Tensor<2> {
    to(to(dy, weight.dtype()).matmul(weight.clone()), wide)
}

/// `dy^T x`, the weight's gradient, as `wide`; computed in the dtype of `x`.
pub(super) fn of_weight(dy: Tensor<2>, x: Tensor<2>, wide: DType) -> Tensor<2> {
    to(to(dy, x.dtype()).transpose().matmul(x), wide)
}

fn same(x: &Tensor<2>, weight: &Tensor<2>) {
    assert_eq!(x.dtype(), weight.dtype(), "invariant: the operand was cast to its weight's dtype");
}
