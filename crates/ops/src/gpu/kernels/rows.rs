//! Rows by index, and their gradient without atomics.

use burn::tensor::{DType, Device, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::{integers, of_rank};
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};

/// Rows `ids` of `table`, in `dtype`; zeros for [`NO_ROW`](kernels::NO_ROW).
pub(in crate::gpu) fn gather_rows(
    table: &AnyTensor,
    ids: &Tensor<1, Int>,
    dtype: DType,
) -> Option<Tensor<2>> {
    if ids.dtype() != DType::I32 {
        return None;
    }
    let ([n], columns, to) = (ids.dims(), table.shape()[1], float(dtype)?);
    let inputs = Inputs::of(&[table])?.and_integers(ids.clone());
    let [y] = launch(inputs, [(&[n, columns], dtype)], |client, buffers| {
        [kernels::gather_rows(client, &buffers[0], &buffers[1], columns, to)]
    });
    Some(of_rank(&y))
}

/// Places by the row that they name: where each row begins, and the places, in order.
#[derive(Clone)]
pub(in crate::gpu) struct Places {
    starts: Tensor<1, Int>,
    order: Tensor<1, Int>,
}

impl Places {
    /// Of `ids`, some of which name none of `rows`.
    pub(in crate::gpu) fn new(
        ids: impl Iterator<Item = Option<usize>> + Clone,
        rows: usize,
        device: &Device,
    ) -> Self {
        let mut starts = vec![0i32; rows + 1];
        for id in ids.clone().flatten() {
            starts[id + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut order = vec![0i32; starts[rows] as usize];
        let mut next = starts.clone();
        for (place, id) in ids.enumerate().filter_map(|(place, id)| Some((place, id?))) {
            order[next[id] as usize] = place as i32;
            next[id] += 1;
        }
        Self { starts: integers(starts, device), order: integers(order, device) }
    }
}

/// The sums of the rows of `dy` that go to each row, in `dtype`.
pub(in crate::gpu) fn scatter_rows(
    dy: &Tensor<2>,
    places: impl FnOnce() -> Places,
    dtype: DType,
) -> Option<Tensor<2>> {
    let inputs = Inputs::of(&[&AnyTensor::new(dy.clone())])?;
    let to = float(dtype)?;
    let Places { starts, order } = places();
    let (columns, rows) = (dy.dims()[1], starts.dims()[0] - 1);
    let inputs = inputs.and_integers(starts).and_integers(order);
    let [sums] = launch(inputs, [(&[rows, columns], dtype)], |client, buffers| {
        let places = kernels::Places { starts: buffers[1].clone(), order: buffers[2].clone() };
        [kernels::scatter_rows(client, &buffers[0], &places, columns, to)]
    });
    Some(of_rank(&sums))
}
