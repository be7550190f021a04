//! Optimizer updates on CPU kernels.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use burnish_cpu_kernels as kernels;

use super::host::Host;
use crate::AnyTensor;
use crate::adamw::{Adam, AdamState};

/// The tensor over storage of exactly its elements in order, which it does not copy unless it is a view.
pub(crate) fn flex(tensor: AnyTensor) -> FlexTensor {
    Tensor::<1>::from_dispatch(tensor.dispatch())
        .try_into_primitive::<burn::backend::Flex>()
        .expect("invariant: optimizer tensors are plain and on the CPU")
        .to_contiguous()
}

pub(crate) fn any(tensor: FlexTensor) -> AnyTensor {
    AnyTensor::new(Tensor::<1>::from_primitive::<burn::backend::Flex>(tensor))
}

pub(crate) fn adam_steps(
    all: Vec<(AnyTensor, AdamState, AnyTensor)>,
    hyper: &Adam,
) -> Vec<(AnyTensor, AdamState)> {
    all.into_iter().map(|(master, state, gradient)| adam_step(master, state, &gradient, hyper)).collect()
}

fn adam_step(
    master: AnyTensor,
    state: AdamState,
    gradient: &AnyTensor,
    hyper: &Adam,
) -> (AnyTensor, AdamState) {
    let (mut p, mut m, mut v) = (flex(master), flex(state.exp_avg), flex(state.exp_avg_sq));
    let g = Host::of(gradient).expect("invariant: a gradient has its parameter's backend");
    let steps = hyper.step as i32;
    let update = if hyper.decoupled { kernels::adamw_update } else { kernels::adam_update };
    update(
        p.storage_mut::<f32>(),
        m.storage_mut::<f32>(),
        v.storage_mut::<f32>(),
        g.f32(),
        &kernels::AdamStep {
            lr: hyper.lr,
            beta1: hyper.beta1,
            beta2: hyper.beta2,
            eps: hyper.eps,
            weight_decay: hyper.weight_decay,
            bias_correction1: 1.0 - hyper.beta1.powi(steps),
            bias_correction2: 1.0 - hyper.beta2.powi(steps),
            grad_scale: hyper.grad_scale.into(),
        },
    );
    (any(p), AdamState { exp_avg: any(m), exp_avg_sq: any(v) })
}

pub(crate) fn add(into: AnyTensor, other: AnyTensor) -> AnyTensor {
    let other = Host::of(&other).expect("invariant: gradients share a backend");
    let mut into = flex(into);
    kernels::add_assign(into.storage_mut::<f32>(), other.f32());
    any(into)
}

pub(crate) fn add_all(pairs: Vec<(AnyTensor, AnyTensor)>) -> Vec<AnyTensor> {
    pairs.into_iter().map(|(into, other)| add(into, other)).collect()
}

pub(crate) fn sums_of_squares(tensors: &[&AnyTensor]) -> Vec<f64> {
    tensors.iter().map(|tensor| sum_of_squares(tensor)).collect()
}

fn sum_of_squares(tensor: &AnyTensor) -> f64 {
    let host = Host::of(tensor).expect("invariant: on the CPU");
    let sum = kernels::sum_of_squares(host.f32());
    // The kernel squares in f32: what overflows there need not be infinite.
    if sum.is_finite() { sum } else { host.f32().iter().map(|&x| f64::from(x) * f64::from(x)).sum() }
}
