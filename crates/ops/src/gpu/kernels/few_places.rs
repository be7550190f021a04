//! Products of a few tokens' rows, each by the matrices of its own experts.

use burn::tensor::{DType, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, float, launch};

/// Whose rows are multiplied, as [`kernels::FewPlaces`] has them.
#[derive(Clone, Copy)]
pub(in crate::gpu) struct FewPlaces<'a> {
    pub(in crate::gpu) chosen: &'a Tensor<1, Int>,
    pub(in crate::gpu) experts: usize,
    pub(in crate::gpu) each: usize,
}

/// What is done to sums, and another product of each place's row `[places, depth]` and its expert's matrix of
/// `[experts, outputs, depth]`.
pub(in crate::gpu) struct FewFinish<'a> {
    pub(in crate::gpu) more: Option<(&'a Tensor<2>, &'a Tensor<3>)>,
    /// `[experts, outputs]`, f32.
    pub(in crate::gpu) bias: Option<&'a Tensor<2>>,
    /// `[places, outputs]`.
    pub(in crate::gpu) add: Option<&'a Tensor<2>>,
    pub(in crate::gpu) scale: f32,
    pub(in crate::gpu) out: DType,
}

impl FewFinish<'_> {
    pub(in crate::gpu) const fn scaled(out: DType, scale: f32) -> Self {
        Self { more: None, bias: None, add: None, scale, out }
    }
}

/// `scale (x W^T + p Q^T) + bias + add` of each place, `[places, outputs]`, of factors rounded to `factors`; `w` is
/// `[experts, outputs, columns]`.
pub(in crate::gpu) fn few_places(
    x: &Tensor<2>,
    w: &Tensor<3>,
    of: FewPlaces<'_>,
    factors: DType,
    finish: &FewFinish<'_>,
) -> Option<Tensor<2>> {
    let [_, outputs, columns] = w.dims();
    let mut tensors = vec![AnyTensor::new(x.clone()), AnyTensor::new(w.clone())];
    if let Some((p, q)) = finish.more {
        tensors.extend([AnyTensor::new(p.clone()), AnyTensor::new(q.clone())]);
    }
    let depth = finish.more.map(|(p, _)| p.dims()[1]);
    let factors = float(factors)?;
    let read = Inputs::of(&tensors.iter().collect::<Vec<_>>())?;
    launched(read, of, outputs, finish, move |client, b, of, finish| {
        let more = depth.map(|depth| kernels::FewMore { p: &b[2], q: &b[3], depth });
        kernels::multiply_few_places(client, &b[0], (&b[1], [outputs, columns]), of, more, factors, finish)
    })
}

/// [`few_places`] by the codes of experts in fewer bits, without a copy of their elements, which are rounded to the dtype of `x`, and
/// without another product. `None` where they are in no fewer bits.
pub(in crate::gpu) fn few_places_by_codes(
    x: &Tensor<2>,
    weight: &AnyTensor,
    of: FewPlaces<'_>,
    finish: &FewFinish<'_>,
) -> Option<Tensor<2>> {
    let (layout, numbers, words) = weight.resting()?.whole()?;
    let [lines, columns] = layout.shape();
    if columns != x.dims()[1] || !lines.is_multiple_of(of.experts) {
        return None;
    }
    let read = Inputs::of(&[&AnyTensor::new(x.clone()), numbers])?.and_integers(words.clone());
    let layout = layout.clone();
    launched(read, of, lines / of.experts, finish, move |client, b, of, finish| {
        kernels::multiply_few_places_by_codes(client, &b[0], &layout, [&b[2], &b[1]], of, finish)
    })
}

/// Launches `kernel`, which gets the buffers of `read`.
fn launched(
    read: Inputs,
    FewPlaces { chosen, experts, each }: FewPlaces<'_>,
    outputs: usize,
    finish: &FewFinish<'_>,
    kernel: impl FnOnce(
        &kernels::Client,
        &[kernels::Buffer],
        kernels::FewPlaces<'_>,
        kernels::FewRows<'_>,
    ) -> kernels::Buffer,
) -> Option<Tensor<2>> {
    let count = read.len();
    let (places, dtype, scale) = (chosen.dims()[0], float(finish.out)?, finish.scale);
    let beside = [finish.bias, finish.add].map(|tensor| tensor.map(|tensor| AnyTensor::new(tensor.clone())));
    let mut read = read.and_integers(chosen.clone());
    for tensor in beside.iter().flatten() {
        read = read.and(tensor)?;
    }
    let [biased, adds] = beside.map(|tensor| tensor.is_some());
    let [y] = launch(read, [(&[places, outputs], finish.out)], |client, b| {
        let of = kernels::FewPlaces { chosen: &b[count], experts, each };
        let finish = kernels::FewRows {
            scale,
            bias: biased.then(|| &b[count + 1]),
            add: adds.then(|| &b[count + 1 + usize::from(biased)]),
            dtype,
        };
        [kernel(client, &b[..count], of, finish)]
    });
    Some(of_rank(&y))
}
