//! Muon's elementwise and rowwise parts, besides orthogonalising.

use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burnish_core::Dtype;
use half::bf16;

use super::sum_rows;
use crate::AnyTensor;
use crate::muon::{Momentum, Noise};

/// See [`crate::muon_momentum`].
#[must_use]
pub fn muon_momentum(
    momentum: AnyTensor,
    gradient: AnyTensor,
    step: &Momentum,
    noise: &Noise,
) -> (AnyTensor, AnyTensor) {
    let narrow = momentum.dtype() == Some(Dtype::Bf16);
    let m = if narrow { momentum.cast(FloatDType::F32) } else { momentum }.carrier();
    let g = gradient.carrier() * step.grad_scale;
    let rest = 1.0 - step.beta;
    let m = m.clone() + (g.clone() - m) * rest;
    let update = if step.nesterov { m.clone() - (m.clone() - g) * rest } else { m.clone() };
    let m = AnyTensor::new(m);
    let m = if narrow { round_stochastically(&m, noise) } else { m };
    (m, AnyTensor::new(update))
}

/// On the host: Burn has no operation on the bits of a float.
fn round_stochastically(tensor: &AnyTensor, noise: &Noise) -> AnyTensor {
    let places = noise.runs.iter().cloned().flatten();
    let values = tensor.to_f32();
    let rounded: Vec<bf16> = values
        .iter()
        .zip(places)
        .map(|(&x, i)| {
            let bits = noise.stream.words(i / 8)[(i % 8 / 2) as usize] >> (16 * (i % 2)) & 0xffff;
            match x.is_finite() {
                true => bf16::from_bits((x.to_bits().wrapping_add(bits) >> 16) as u16),
                false => bf16::from_f32(x),
            }
        })
        .collect();
    assert_eq!(rounded.len(), values.len(), "muon: runs and elements");
    AnyTensor::from_elements(rounded, &tensor.shape(), &tensor.device())
}

/// See [`crate::muon_apply`].
#[must_use]
pub fn muon_apply(master: AnyTensor, direction: &AnyTensor, shrink: f64, rate: f64) -> AnyTensor {
    AnyTensor::new(master.carrier() * shrink - direction.carrier() * rate)
}

/// See [`crate::muon_adapt`].
#[must_use]
pub fn muon_adapt(direction: AnyTensor, second: AnyTensor, beta2: f64, eps: f64) -> (AnyTensor, AnyTensor) {
    let (o, v) = (direction.carrier(), second.carrier());
    let v = v.clone() + (o.clone() * o.clone() - v) * (1.0 - beta2);
    let o = o / (v.clone().sqrt() + eps);
    (AnyTensor::new(o), AnyTensor::new(v))
}

fn rows(tensor: &AnyTensor) -> Tensor<2> {
    let shape = tensor.shape();
    let columns = shape.last().copied().unwrap_or(0);
    let elements: usize = shape.iter().product();
    tensor
        .piece(0..elements, &[elements / columns.max(1), columns])
        .rank()
        .expect("invariant: cut with two dimensions")
}

/// See [`crate::row_squares`].
#[must_use]
pub fn row_squares(tensor: &AnyTensor) -> Vec<f64> {
    let sums = AnyTensor::new(sum_rows(rows(tensor), true)).to_data();
    sums.convert::<f64>().try_into_vec().expect("invariant: converted to f64")
}

/// See [`crate::scale_rows`].
#[must_use]
pub fn scale_rows(tensor: AnyTensor, factors: &[f32]) -> AnyTensor {
    let (shape, values) = (tensor.shape(), rows(&tensor));
    assert_eq!(values.dims()[0], factors.len(), "scale_rows: rows and factors");
    let data = TensorData::new(factors.to_vec(), [factors.len(), 1]);
    let factors =
        Tensor::<2>::from_data(data, (&values.device(), DType::F32)).cast(super::float(values.dtype()));
    AnyTensor::new(values * factors).piece(0..shape.iter().product(), &shape)
}
