//! AdamW on tensors: gradient accumulation, squared norm, update.

use burn::tensor::FloatDType;
use burnish_core::Dtype;

use crate::AnyTensor;
use crate::dispatch::dispatch;

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

/// A parameter to update: its f32 master, its moments, zeros at first, and its gradient.
pub type AdamItem = (AnyTensor, Option<AdamState>, AnyTensor);

/// One step on f32 parameters, in place where nobody else holds the tensors. On a GPU several share a launch.
#[must_use]
pub fn adam_steps(all: Vec<AdamItem>, hyper: &Adam) -> Vec<(AnyTensor, AdamState)> {
    let Some(gradient) = all.first().map(|(_, _, gradient)| gradient.clone()) else { return Vec::new() };
    let all = all.into_iter().map(|(master, state, gradient)| {
        let state = state.unwrap_or_else(|| {
            let zeros = || AnyTensor::new(master.carrier().zeros_like());
            AdamState { exp_avg: zeros(), exp_avg_sq: zeros() }
        });
        (master, state, gradient)
    });
    let all = all.collect();
    dispatch!([&gradient] => adamw::adam_steps(all, hyper))
}

/// One step on an f32 parameter, in place where nobody else holds the tensors.
#[must_use]
pub fn adam_step(
    master: AnyTensor,
    state: Option<AdamState>,
    gradient: &AnyTensor,
    hyper: &Adam,
) -> (AnyTensor, AdamState) {
    let mut all = adam_steps(vec![(master, state, gradient.clone())], hyper);
    all.pop().expect("invariant: one for one")
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
        Some(into) => dispatch!([&gradient] => adamw::add(into, gradient)),
    }
}

/// [`accumulate`] of each pair, whose second ones are f32; on a GPU several share a launch.
#[must_use]
pub fn accumulate_all(pairs: Vec<(AnyTensor, AnyTensor)>) -> Vec<AnyTensor> {
    // A second one: what is held here is not written to.
    let Some(of) = pairs.first().map(|(_, more)| more.clone()) else { return Vec::new() };
    dispatch!([&of] => adamw::add_all(pairs))
}

/// The sum of squares of an f32 tensor, in f64 and in a fixed order.
#[must_use]
pub fn sum_of_squares(tensor: &AnyTensor) -> f64 {
    sums_of_squares(&[tensor])[0]
}

/// [`sum_of_squares`] of each tensor. Elsewhere than on the CPU they are of one device, summed in f32, and the host reads
/// all sums at once.
#[must_use]
pub fn sums_of_squares(tensors: &[&AnyTensor]) -> Vec<f64> {
    dispatch!(tensors.iter().copied() => adamw::sums_of_squares(tensors))
}
