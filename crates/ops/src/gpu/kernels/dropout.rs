//! Counted dropout where it is applied: no mask lies in memory.

use burn::tensor::Tensor;
use burnish_core::random::{dropout_row, dropout_threshold};
use burnish_gpu_kernels as kernels;

use super::{integers, of_rank};
use crate::cube::{Inputs, float, launch};
use crate::{AnyTensor, Dropout};

/// Rows `first..first + rows` of the dropout's times its mask, in the dtype of `x`.
pub(in crate::gpu) fn dropped(dropout: &Dropout, x: &Tensor<2>, first: usize) -> Option<Tensor<2>> {
    let [rows, columns] = x.dims();
    let (device, dtype) = (x.device(), x.dtype());
    let inputs = Inputs::of(&[&AnyTensor::new(x.clone())])?;
    let counted = dropout.rows[first..first + rows].iter();
    let keys: Vec<i32> = counted.map(|&row| dropout_row(dropout.key, row) as i32).collect();
    let mask = kernels::Mask {
        threshold: dropout_threshold(dropout.p),
        scale: 1.0 / (1.0 - dropout.p),
        first_column: dropout.first_column,
    };
    let inputs = inputs.and_integers(integers(keys, &device));
    let float = float(dtype)?;
    let [y] = launch(inputs, [(&[rows, columns], dtype)], |client, buffers| {
        [kernels::dropout(client, &buffers[0], &buffers[1], mask, float)]
    });
    Some(of_rank(&y))
}
