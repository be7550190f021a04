//! Activations of feed-forwards, gated and not.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};

fn inner(x: &AnyTensor, of: kernels::Gate) -> [usize; 2] {
    let shape = x.shape();
    [shape[0], if of.gated { shape[1] / 2 } else { shape[1] }]
}

/// `f(gate) up` or `f(x)` in `dtype`.
pub(in crate::gpu) fn gate(x: &AnyTensor, of: kernels::Gate, dtype: DType) -> Option<Tensor<2>> {
    let (shape, to) = (inner(x, of), float(dtype)?);
    let [y] = launch(Inputs::of(&[x])?, [(&shape, dtype)], |client, buffers| {
        [kernels::gate(client, &buffers[0], shape[1], of, to)]
    });
    Some(of_rank(&y))
}

/// The gradient of `x`, in its dtype, from that of the value.
pub(in crate::gpu) fn gate_backward(x: &AnyTensor, d: &Tensor<2>, of: kernels::Gate) -> Option<Tensor<2>> {
    let [_, inner] = inner(x, of);
    let inputs = Inputs::of(&[x, &AnyTensor::new(d.clone())])?;
    let (shape, dtype) = (x.shape(), x.burn_dtype());
    let outputs = [(shape.as_slice(), dtype)];
    let [dx] = launch(inputs, outputs, |client, buffers| {
        [kernels::gate_backward(client, &buffers[0], &buffers[1], inner, of)]
    });
    Some(of_rank(&dx))
}
