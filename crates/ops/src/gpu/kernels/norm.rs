//! RMSNorm of rows.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};

/// The norm of `x` in `dtype` and the reciprocal of each row's deviation, `[rows, 1]`, in f32.
pub(in crate::gpu) fn rms_norm(
    x: &AnyTensor,
    gamma: &Tensor<1>,
    eps: f32,
    dtype: DType,
) -> Option<(Tensor<2>, Tensor<2>)> {
    let to = float(dtype)?;
    let inputs = Inputs::of(&[x, &AnyTensor::new(gamma.clone())])?;
    let shape = x.shape();
    let rows = shape[0];
    let outputs = [(shape.as_slice(), dtype), (&[rows, 1], DType::F32)];
    let [y, rstd] = launch(inputs, outputs, |client, buffers| {
        let made = kernels::rms_norm(client, &buffers[0], &buffers[1], rows, eps, to);
        [made.y, made.rstd]
    });
    Some((of_rank(&y), of_rank(&rstd)))
}

/// The gradients of `x`, in its dtype, and of gamma where it is wanted.
pub(in crate::gpu) fn rms_norm_backward(
    x: &AnyTensor,
    gamma: &Tensor<1>,
    rstd: &Tensor<2>,
    dy: &Tensor<2>,
    want_gamma: bool,
) -> Option<(Tensor<2>, Option<Tensor<1>>)> {
    let any = [AnyTensor::new(gamma.clone()), AnyTensor::new(rstd.clone()), AnyTensor::new(dy.clone())];
    let inputs = Inputs::of(&[x, &any[0], &any[1], &any[2]])?;
    let (shape, dtype) = (x.shape(), x.burn_dtype());
    let backward = move |client: &kernels::Client, b: Vec<kernels::Buffer>| {
        kernels::rms_norm_backward(client, &b[0], &b[1], &b[2], &b[3], want_gamma)
    };
    let of_x = (shape.as_slice(), dtype);
    if want_gamma {
        let outputs = [of_x, (&shape[1..], DType::F32)];
        let [dx, of_gamma] = launch(inputs, outputs, |client, buffers| {
            let made = backward(client, buffers);
            [made.dx, made.gamma.expect("invariant: it was asked for")]
        });
        return Some((of_rank(&dx), Some(of_rank(&of_gamma))));
    }
    let [dx] = launch(inputs, [of_x], |client, buffers| [backward(client, buffers).dx]);
    Some((of_rank(&dx), None))
}
