//! What an optimizer does to tensors: accumulate, measure, step.

use burn::tensor::{FloatDType, Tensor};
use burnish_core::Dtype;

use crate::AnyTensor;

/// Hyper-parameters of one Adam step (Kingma and Ba, arXiv:1412.6980, algorithm 1; decoupled decay: Loshchilov and
/// Hutter, arXiv:1711.05101, algorithm 2), in `torch.optim`'s order of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay: decoupled (AdamW) or added to the gradient (Adam).
    pub weight_decay: f64,
    /// Whether the decay is decoupled.
    pub decoupled: bool,
    /// The number of this step, from 1.
    pub step: u64,
    /// Multiplies the gradient first (clipping, unscaling).
    pub grad_scale: f32,
}

/// The moments of one parameter, f32, of its shape.
#[derive(Clone, Debug)]
pub struct AdamState {
    /// The first moment, `exp_avg`.
    pub exp_avg: AnyTensor,
    /// The second moment, `exp_avg_sq`.
    pub exp_avg_sq: AnyTensor,
}

/// One step on an f32 parameter, in place where nobody else holds the tensors.
#[must_use]
pub fn adam_step(
    master: AnyTensor,
    state: Option<AdamState>,
    gradient: &AnyTensor,
    hyper: &Adam,
) -> (AnyTensor, AdamState) {
    let state = state.unwrap_or_else(|| {
        let zeros = || AnyTensor::new(master.carrier().zeros_like());
        AdamState { exp_avg: zeros(), exp_avg_sq: zeros() }
    });
    #[cfg(feature = "flex")]
    if crate::flex::holds(gradient) {
        return crate::flex::update::adam_step(master, state, gradient, hyper);
    }
    if crate::gpu::holds(gradient) {
        return crate::gpu::adam_step(master, state, gradient, hyper);
    }
    crate::reference::adam_step(master, state, gradient, hyper)
}

/// `into + gradient` in f32, in place where nobody else holds `into`.
#[must_use]
pub fn accumulate(into: Option<AnyTensor>, gradient: AnyTensor) -> AnyTensor {
    let gradient = match gradient.dtype() {
        Some(Dtype::Bf16 | Dtype::F16) => gradient.cast(FloatDType::F32),
        _ => gradient,
    };
    match into {
        None => gradient,
        Some(into) => {
            #[cfg(feature = "flex")]
            if crate::flex::holds(&gradient) {
                return crate::flex::update::add(into, &gradient);
            }
            // Taken, not shared: a backend may add where one of them lies.
            let own = |t: AnyTensor| Tensor::<1>::from_dispatch(t.dispatch());
            AnyTensor::new(own(into) + own(gradient))
        }
    }
}

/// The sum of squares of an f32 tensor, in f64 and in a fixed order.
#[must_use]
pub fn sum_of_squares(tensor: &AnyTensor) -> f64 {
    #[cfg(feature = "flex")]
    if crate::flex::holds(tensor) {
        return crate::flex::update::sum_of_squares(tensor);
    }
    crate::gpu::sums_of_squares(&[tensor])[0]
}

/// [`sum_of_squares`] of each tensor. Elsewhere than on the CPU they are of one device, summed in f32, and the host reads
/// all sums at once.
#[must_use]
pub fn sums_of_squares(tensors: &[&AnyTensor]) -> Vec<f64> {
    #[cfg(feature = "flex")]
    if tensors.iter().all(|t| crate::flex::holds(t)) {
        return tensors.iter().map(|t| crate::flex::update::sum_of_squares(t)).collect();
    }
    crate::gpu::sums_of_squares(tensors)
}
