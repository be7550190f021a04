//! Sums of f32 in one order, whatever a tuner would choose.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, launch};

/// The inputs of a sum; `None` where there is nothing to sum, or it is not of f32.
fn inputs(x: &Tensor<2>) -> Option<Inputs> {
    let [rows, columns] = x.dims();
    let there = rows > 0 && columns > 0 && x.dtype() == DType::F32;
    there.then(|| Inputs::of(&[&AnyTensor::new(x.clone())]))?
}

/// The sum of each row, or of its squares, `[rows]`.
pub(in crate::gpu) fn sum_rows(x: &Tensor<2>, squares: bool) -> Option<Tensor<1>> {
    let (inputs, rows) = (inputs(x)?, x.dims()[0]);
    let [y] = launch("sum_rows", inputs, [(&[rows], DType::F32)], move |client, buffers| {
        [kernels::sum_rows(client, &buffers[0], rows, squares)]
    });
    Some(of_rank(&y))
}

/// The sum over rows, `[columns]`.
pub(in crate::gpu) fn over_rows(x: &Tensor<2>) -> Option<Tensor<1>> {
    let (inputs, columns) = (inputs(x)?, x.dims()[1]);
    let [y] = launch("over_rows", inputs, [(&[columns], DType::F32)], move |client, buffers| {
        [kernels::over_rows(client, &buffers[0], columns)]
    });
    Some(of_rank(&y))
}

/// The sum of each tensor's squares, `[tensors]`; `None` where they are not all of f32 or one has no elements.
pub(in crate::gpu) fn sums_of_squares(tensors: &[&AnyTensor]) -> Option<Tensor<1>> {
    let there = |t: &&AnyTensor| t.carrier().dtype() == DType::F32 && t.shape().iter().all(|&n| n > 0);
    if !tensors.iter().all(there) {
        return None;
    }
    let count = [tensors.len()];
    let [sums] =
        launch("sums_of_squares", Inputs::of(tensors)?, [(&count, DType::F32)], move |client, buffers| {
            [kernels::sums_of_squares(client, &buffers)]
        });
    Some(of_rank(&sums))
}
