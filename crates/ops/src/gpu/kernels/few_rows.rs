//! Products of a few rows with a matrix in fewer bits.

use burn::tensor::{DType, Tensor};
use burnish_core::FEW_ROWS;
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};
use crate::gpu::product::Finish;

/// `x W^T` by the codes of `weight`, without a copy of its elements, which are rounded to the dtype of `x`; all of `finish` but
/// another product is done. `None` where it is in no fewer bits, or there are more rows.
pub(in crate::gpu) fn few_rows(x: &Tensor<2>, weight: &AnyTensor, finish: &Finish<2>) -> Option<Tensor<2>> {
    let [rows, columns] = x.dims();
    if !(1..=FEW_ROWS).contains(&rows) {
        return None;
    }
    let (layout, numbers, words) = weight.resting()?.whole()?;
    let [outputs, of_row] = layout.shape();
    if of_row != columns {
        return None;
    }
    let (out, scale) = (finish.out, finish.scale);
    let dtype = float(out)?;
    let x = AnyTensor::new(x.clone());
    let bias = finish.bias.as_ref().map(|bias| AnyTensor::new(super::super::to(bias.clone(), DType::F32)));
    let add = finish.add.as_ref().map(|add| AnyTensor::new(add.clone()));
    let tensors: Vec<&AnyTensor> = [&x, numbers].into_iter().chain(&bias).chain(&add).collect();
    let inputs = Inputs::of(&tensors)?.and_integers(words.clone());
    let (layout, biased, adds) = (layout.clone(), bias.is_some(), add.is_some());
    let [y] = launch(inputs, [(&[rows, outputs], out)], |client, buffers| {
        let (x, numbers, words) = (&buffers[0], &buffers[1], &buffers[buffers.len() - 1]);
        let finish = kernels::FewRows {
            scale,
            bias: biased.then(|| &buffers[2]),
            add: adds.then(|| &buffers[2 + usize::from(biased)]),
            dtype,
        };
        [kernels::multiply_few_rows(client, x, &layout, [words, numbers], finish)]
    });
    Some(of_rank(&y))
}
