//! Between Burn's tensors of any rank and those that optimizers update, which have at most three dimensions.

use burn::tensor::{FloatDType, Tensor};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, sum_of_squares};

/// Without the rank; more than three dimensions are flattened into two.
pub(super) fn flat<const D: usize>(tensor: Tensor<D>) -> AnyTensor {
    let dims = tensor.dims();
    match D {
        0 => AnyTensor::new(tensor.reshape([1])),
        1..=3 => AnyTensor::new(tensor),
        _ => AnyTensor::new(tensor.reshape([dims[0], dims[1..].iter().product()])),
    }
}

/// With the rank again.
pub(super) fn shaped<const D: usize>(value: &AnyTensor, shape: [usize; D]) -> Tensor<D> {
    const WHY: &str = "invariant: as it was flattened";
    match D {
        0 => value.rank::<1>().expect(WHY).reshape(shape),
        1..=3 => value.rank::<D>().expect(WHY),
        _ => value.rank::<2>().expect(WHY).reshape(shape),
    }
}

/// The gradient in f32, as updates take it; `None` if an element is not finite.
pub(super) fn finite(gradient: AnyTensor) -> Option<AnyTensor> {
    let wide = match gradient.dtype() {
        Some(Dtype::F32) => gradient,
        _ => gradient.cast(FloatDType::F32),
    };
    sum_of_squares(&wide).is_finite().then_some(wide)
}
