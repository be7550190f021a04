//! Rows of tokens sorted by expert, what stands between experts' layers, and the sums of each token's rows.

use burn::tensor::{DType, Int, Tensor};
use burnish_core::ExpertGate;
use burnish_gpu_kernels as kernels;

use super::{Groups, gather_rows, of_rank};
use crate::AnyTensor;
use crate::cube::{Inputs, On, float, integers, launch, launch_all};

/// Where the rows of tokens lie, sorted by expert, each expert's filled up.
#[derive(Clone)]
pub(in crate::gpu) struct ExpertRows {
    pub(in crate::gpu) groups: Groups,
    /// The token of each row, and its place in `[tokens, per_token]`; none of what only fills up.
    tokens: Tensor<1, Int>,
    places: Tensor<1, Int>,
    /// The row of each place; none of another rank's.
    of_places: Tensor<1, Int>,
    per_token: usize,
}

/// Whether a kernel sorts rows of so many experts on the device of a tensor.
pub(in crate::gpu) fn sorts_experts(x: &AnyTensor, experts: usize) -> bool {
    On::device_of(x).is_some_and(|on| kernels::sorts_experts(on.client(), experts))
}

impl ExpertRows {
    /// Of `chosen` `[tokens * per_token]` among `experts`; as many `tiles` as are enough.
    pub(in crate::gpu) fn new(
        chosen: &Tensor<1, Int>,
        experts: usize,
        per_token: usize,
        tiles: usize,
        beside: &AnyTensor,
    ) -> Option<Self> {
        let on = On::device_of(beside)?;
        let rows = kernels::ExpertRows::new(on.client(), &integers(chosen)?, experts, per_token, tiles);
        let kernels::ExpertRows { of_tiles, starts, places, tokens, of_places } = rows;
        let [of_tiles, starts, places, tokens, of_places] =
            [of_tiles, starts, places, tokens, of_places].map(|words| on.integers(words));
        let groups = Groups::new(of_tiles, starts, experts);
        Some(Self { groups, tokens, places, of_places, per_token })
    }

    /// The rows of tokens, in `dtype`.
    pub(in crate::gpu) fn of_tokens(&self, x: &AnyTensor, dtype: DType) -> Option<Tensor<2>> {
        gather_rows(x, &self.tokens, dtype)
    }

    /// A number of each place, `[tokens, per_token]`, as one of each row, `[rows, 1]`; 0 of what only fills up.
    pub(in crate::gpu) fn to_rows(&self, numbers: &Tensor<2>) -> Option<Tensor<2>> {
        let column = AnyTensor::new(numbers.clone().reshape([-1, 1]));
        gather_rows(&column, &self.places, numbers.dtype())
    }

    /// A number of each row, `[rows, 1]`, as one of each place, `[tokens, per_token]`; 0 of what has no row.
    pub(in crate::gpu) fn to_places(&self, numbers: Tensor<2>) -> Option<Tensor<2>> {
        let dtype = numbers.dtype();
        let found = gather_rows(&AnyTensor::new(numbers), &self.of_places, dtype)?;
        Some(found.reshape([-1, self.per_token as i32]))
    }

    /// The sum of each token's rows, of each times its weight of `[tokens, per_token]`, in f32.
    pub(in crate::gpu) fn to_tokens(
        &self,
        rows: &Tensor<2>,
        weights: Option<&Tensor<2>>,
    ) -> Option<Tensor<2>> {
        combined(rows, (Some(&self.of_places), self.per_token), weights)
    }
}

/// The sum of each token's rows, which lie place after place, of each times its weight of `[tokens, per_token]`, in f32.
pub(in crate::gpu) fn weighed_places(rows: &Tensor<2>, weights: &Tensor<2>) -> Option<Tensor<2>> {
    combined(rows, (None, weights.dims()[1]), Some(weights))
}

fn combined(
    rows: &Tensor<2>,
    (of_places, each): (Option<&Tensor<1, Int>>, usize),
    weights: Option<&Tensor<2>>,
) -> Option<Tensor<2>> {
    let [places, columns] = rows.dims();
    let tokens = of_places.map_or(places, |of| of.dims()[0]) / each;
    let mut inputs = Inputs::of(&[&AnyTensor::new(rows.clone())])?;
    if let Some(weights) = weights {
        inputs = inputs.and(&AnyTensor::new(weights.clone()))?;
    }
    if let Some(of_places) = of_places {
        inputs = inputs.and_integers(of_places.clone());
    }
    let (weighted, sorted) = (weights.is_some(), of_places.is_some());
    let [y] = launch(inputs, [(&[tokens, columns], DType::F32)], |client, b| {
        let (weights, of_places) = (weighted.then(|| &b[1]), sorted.then(|| &b[b.len() - 1]));
        let dtype = kernels::FloatType::F32;
        [kernels::combine_rows(client, &b[0], of_places, weights, (each, columns), dtype)]
    });
    Some(of_rank(&y))
}

/// What stands between experts' layers, in `dtype`, of rows in f32.
pub(in crate::gpu) fn expert_gate(x: &Tensor<2>, gate: ExpertGate, dtype: DType) -> Option<Tensor<2>> {
    let ([rows, width], to) = (x.dims(), float(dtype)?);
    let inner = width / gate.reads(1);
    let inputs = Inputs::of(&[&AnyTensor::new(x.clone())])?;
    let [y] = launch(inputs, [(&[rows, inner], dtype)], |client, buffers| {
        [kernels::expert_gate(client, &buffers[0], inner, gate, to)]
    });
    Some(of_rank(&y))
}

/// What [`expert_gate_backward`] makes.
pub(in crate::gpu) struct ExpertGateBackward {
    /// The gradient of what stood before, times each row's weight.
    pub(in crate::gpu) dx: Tensor<2>,
    /// The value once more, times each row's weight.
    pub(in crate::gpu) value: Option<Tensor<2>>,
    /// `[rows, 1]`: the sum of each row's gradient times its value.
    pub(in crate::gpu) dots: Option<Tensor<2>>,
}

/// The gradient of [`expert_gate`] in `dtype`, from `d` of values without their `weights`; the value in a dtype where that is
/// said.
pub(in crate::gpu) fn expert_gate_backward(
    x: &Tensor<2>,
    d: &Tensor<2>,
    (rows, weights): (&ExpertRows, &Tensor<2>),
    gate: ExpertGate,
    dtype: DType,
    (value, dots): (Option<DType>, bool),
) -> Option<ExpertGateBackward> {
    let ([count, width], [_, inner], to) = (x.dims(), d.dims(), float(dtype)?);
    let tensors = [x, d, weights].map(|t| AnyTensor::new(t.clone()));
    let inputs = Inputs::of(&tensors.each_ref())?.and_integers(rows.places.clone());
    let of_value = match value {
        Some(dtype) => Some(float(dtype)?),
        None => None,
    };
    let mut outputs = vec![(vec![count, width], dtype)];
    outputs.extend(value.map(|dtype| (vec![count, inner], dtype)));
    outputs.extend(dots.then(|| (vec![count, 1], DType::F32)));
    let made = launch_all(inputs, outputs, |client, b| {
        let found = kernels::expert_gate_backward(
            client, &b[0], &b[1], &b[2], &b[3], inner, gate, to, of_value, dots,
        );
        [Some(found.dx), found.value, found.dots].into_iter().flatten().collect()
    });
    let mut made = made.iter().map(of_rank);
    let dx = made.next()?;
    let value = if value.is_some() { made.next() } else { None };
    Some(ExpertGateBackward { dx, value, dots: made.next() })
}
