//! Rows by index, and their gradient without atomics.

use burn::tensor::{DType, Device, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::{integers, of_rank};
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};

/// Rows `ids` of `table`, in f32.
pub(in crate::gpu) fn gather_rows(table: &AnyTensor, ids: &Tensor<1, Int>) -> Option<Tensor<2>> {
    if ids.dtype() != DType::I32 {
        return None;
    }
    let ([n], columns) = (ids.dims(), table.shape()[1]);
    let inputs = Inputs::of(&[table])?.and_integers(ids.clone());
    let [y] = launch("gather_rows", inputs, [(&[n, columns], DType::F32)], move |client, buffers| {
        [kernels::gather_rows(client, &buffers[0], &buffers[1], columns, kernels::FloatType::F32)]
    });
    Some(of_rank(&y))
}

/// The places of `ids` by the row that they name: where each of `rows` begins, and the places, in order.
fn places(ids: impl Iterator<Item = usize> + Clone, rows: usize, device: &Device) -> [Tensor<1, Int>; 2] {
    let mut starts = vec![0i32; rows + 1];
    for id in ids.clone() {
        starts[id + 1] += 1;
    }
    for row in 0..rows {
        starts[row + 1] += starts[row];
    }
    let mut order = vec![0i32; starts[rows] as usize];
    let mut next = starts.clone();
    for (place, id) in ids.enumerate() {
        order[next[id] as usize] = place as i32;
        next[id] += 1;
    }
    [integers(starts, device), integers(order, device)]
}

/// The sums of the rows of `dy` that go to each of `rows`, which `ids` names; in `dtype`.
pub(in crate::gpu) fn scatter_rows(
    dy: &Tensor<2>,
    ids: impl Iterator<Item = usize> + Clone,
    rows: usize,
    dtype: DType,
) -> Option<Tensor<2>> {
    let (columns, device) = (dy.dims()[1], dy.device());
    let inputs = Inputs::of(&[&AnyTensor::new(dy.clone())])?;
    let to = float(dtype)?;
    let [starts, order] = places(ids, rows, &device);
    let inputs = inputs.and_integers(starts).and_integers(order);
    let [sums] = launch("scatter_rows", inputs, [(&[rows, columns], dtype)], move |client, buffers| {
        let places = kernels::Places { starts: buffers[1].clone(), order: buffers[2].clone() };
        [kernels::scatter_rows(client, &buffers[0], &places, columns, to)]
    });
    Some(of_rank(&sums))
}
