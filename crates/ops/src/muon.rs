//! Muon on tensors beside orthogonalisation: momentum, second moments, update.

use std::ops::Range;

use burnish_core::random::Stream;

use crate::AnyTensor;
use crate::dispatch::dispatch;

/// One step of Muon's momentum, in `torch.optim.Muon`'s order of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// Decay.
    pub beta: f64,
    /// Whether the update looks one step ahead.
    pub nesterov: bool,
    /// Multiplies the gradient first (clipping, unscaling).
    pub grad_scale: f32,
}

/// Chance that belongs to the elements of a logical tensor, wherever they lie.
#[derive(Clone, Debug)]
pub struct Noise {
    /// 16 bits per element: block `i / 8` of the stream for element `i`.
    pub stream: Stream,
    /// Which elements of the logical tensor a tensor holds, in its order.
    pub runs: Vec<Range<u64>>,
}

/// Moves the momentum towards the gradient and returns (momentum, update), both in place where nobody else holds the
/// tensors: `m += (1 - b) (g - m)`; the update, in the gradient's place, is `m - (1 - b) (m - g)` with Nesterov and else
/// `m`.
///
/// The gradient is f32. The momentum is f32, or bf16: then it is rounded up or down by `noise`, and the update made before.
#[must_use]
pub fn muon_momentum(
    momentum: AnyTensor,
    gradient: AnyTensor,
    step: &Momentum,
    noise: &Noise,
) -> (AnyTensor, AnyTensor) {
    dispatch!([&gradient] => muon::muon_momentum(momentum, gradient, step, noise))
}

/// `p = shrink p - rate o`, f32, in place where nobody else holds `p`.
#[must_use]
pub fn muon_apply(master: AnyTensor, direction: &AnyTensor, shrink: f64, rate: f64) -> AnyTensor {
    dispatch!([direction] => muon::muon_apply(master, direction, shrink, rate))
}

/// `v += (1 - b2) (o^2 - v)` and `o /= sqrt(v) + eps`, element by element: (direction, second moment).
#[must_use]
pub fn muon_adapt(direction: AnyTensor, second: AnyTensor, beta2: f64, eps: f64) -> (AnyTensor, AnyTensor) {
    dispatch!([&direction] => muon::muon_adapt(direction, second, beta2, eps))
}

/// The signs of the elements: -1, 0 or 1.
#[must_use]
pub fn signs(tensor: &AnyTensor) -> AnyTensor {
    AnyTensor::new(tensor.carrier().sign())
}

/// The sum of squares of each row, the last dimension; elements are far from the ends of f32's range.
#[must_use]
pub fn row_squares(tensor: &AnyTensor) -> Vec<f64> {
    dispatch!([tensor] => muon::row_squares(tensor))
}

/// Multiplies each row, the last dimension, by a factor of its own; in place where nobody else holds it.
///
/// # Panics
/// If there are not as many factors as rows.
#[must_use]
pub fn scale_rows(tensor: AnyTensor, factors: &[f32]) -> AnyTensor {
    dispatch!([&tensor] => muon::scale_rows(tensor, factors))
}
