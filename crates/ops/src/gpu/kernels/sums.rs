//! Sums of f32 in one order, whatever a tuner would choose; and of pairs of tensors.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, launch, launch_all};

/// The inputs of a sum; `None` where there is nothing to sum, or it is not of f32.
fn inputs(x: &Tensor<2>) -> Option<Inputs> {
    let [rows, columns] = x.dims();
    let there = rows > 0 && columns > 0 && x.dtype() == DType::F32;
    there.then(|| Inputs::of(&[&AnyTensor::new(x.clone())]))?
}

/// The sum of each row, or of its squares, `[rows]`.
pub(in crate::gpu) fn sum_rows(x: &Tensor<2>, squares: bool) -> Option<Tensor<1>> {
    let (inputs, rows) = (inputs(x)?, x.dims()[0]);
    let [y] = launch(inputs, [(&[rows], DType::F32)], |client, buffers| {
        [kernels::sum_rows(client, &buffers[0], rows, squares)]
    });
    Some(of_rank(&y))
}

/// The sum over rows, `[columns]`.
pub(in crate::gpu) fn over_rows(x: &Tensor<2>) -> Option<Tensor<1>> {
    let (inputs, columns) = (inputs(x)?, x.dims()[1]);
    let [y] = launch(inputs, [(&[columns], DType::F32)], |client, buffers| {
        [kernels::over_rows(client, &buffers[0], columns)]
    });
    Some(of_rank(&y))
}

/// The sum of each tensor's squares, `[tensors]`; `None` where they are not all of f32 or one has no elements.
pub(in crate::gpu) fn sums_of_squares(tensors: &[&AnyTensor]) -> Option<Tensor<1>> {
    let there = |t: &&AnyTensor| t.burn_dtype() == DType::F32 && t.shape().iter().all(|&n| n > 0);
    if !tensors.iter().all(there) {
        return None;
    }
    let count = [tensors.len()];
    let [sums] = launch(Inputs::of(tensors)?, [(&count, DType::F32)], |client, buffers| {
        [kernels::sums_of_squares(client, &buffers)]
    });
    Some(of_rank(&sums))
}

/// The sum of each pair, some pairs a launch; the pairs back where a tensor is not f32 or no kernel adds it.
pub(in crate::gpu) fn accumulate(
    pairs: Vec<(AnyTensor, AnyTensor)>,
) -> Result<Vec<AnyTensor>, Vec<(AnyTensor, AnyTensor)>> {
    let fits = |t: &AnyTensor| t.burn_dtype() == DType::F32 && Inputs::of(&[t]).is_some();
    if !pairs.iter().all(|(into, more)| fits(into) && fits(more)) {
        return Err(pairs);
    }
    let mut sums = Vec::with_capacity(pairs.len());
    let mut pairs = pairs.into_iter().peekable();
    while pairs.peek().is_some() {
        let group: Vec<_> = pairs.by_ref().take(kernels::SUMS_TOGETHER).collect();
        let outputs = group.iter().map(|(into, _)| (into.shape(), DType::F32)).collect();
        // What is held here may not be written to.
        let inputs = {
            let all: Vec<AnyTensor> = group.into_iter().flat_map(|(into, more)| [into, more]).collect();
            Inputs::of(&all.iter().collect::<Vec<_>>()).expect("invariant: asked of each")
        };
        sums.extend(launch_all(inputs, outputs, |client, buffers| {
            let mut buffers = buffers.into_iter();
            let mut pairs = Vec::new();
            while let (Some(into), Some(more)) = (buffers.next(), buffers.next()) {
                pairs.push((into, more));
            }
            kernels::accumulate(client, pairs)
        }));
    }
    Ok(sums)
}
