//! Muon's elementwise and rowwise parts on CPU kernels.

use burnish_core::Dtype;
use burnish_cpu_kernels as kernels;
use half::bf16;

use super::adamw::{any, flex};
use super::host::Host;
use crate::AnyTensor;
use crate::muon::{Momentum, Noise};

pub(crate) fn muon_momentum(
    momentum: AnyTensor,
    gradient: AnyTensor,
    step: &Momentum,
    noise: &Noise,
) -> (AnyTensor, AnyTensor) {
    let narrow = momentum.dtype() == Some(Dtype::Bf16);
    let (mut m, mut g) = (flex(momentum), flex(gradient));
    let step =
        kernels::MuonMomentum { beta: step.beta, nesterov: step.nesterov, grad_scale: step.grad_scale };
    if narrow {
        let (m, g) = (m.storage_mut::<bf16>(), g.storage_mut::<f32>());
        kernels::muon_momentum_bf16(m, g, &step, noise.stream, &noise.runs);
    } else {
        kernels::muon_momentum(m.storage_mut::<f32>(), g.storage_mut::<f32>(), &step);
    }
    (any(m), any(g))
}

pub(crate) fn muon_apply(master: AnyTensor, direction: &AnyTensor, shrink: f64, rate: f64) -> AnyTensor {
    let mut p = flex(master);
    let o = Host::of(direction).expect("invariant: a direction has its parameter's backend");
    kernels::muon_apply(p.storage_mut::<f32>(), o.f32(), shrink, rate);
    any(p)
}

pub(crate) fn muon_adapt(
    direction: AnyTensor,
    second: AnyTensor,
    beta2: f64,
    eps: f64,
) -> (AnyTensor, AnyTensor) {
    let (mut o, mut v) = (flex(direction), flex(second));
    kernels::muon_adapt(o.storage_mut::<f32>(), v.storage_mut::<f32>(), beta2, eps);
    (any(o), any(v))
}

fn columns(tensor: &AnyTensor) -> usize {
    tensor.shape().last().copied().unwrap_or(0)
}

pub(crate) fn row_squares(tensor: &AnyTensor) -> Vec<f64> {
    let host = Host::of(tensor).expect("invariant: on the CPU");
    kernels::row_squares(host.f32(), columns(tensor))
}

pub(crate) fn scale_rows(tensor: AnyTensor, factors: &[f32]) -> AnyTensor {
    let columns = columns(&tensor);
    let mut values = flex(tensor);
    kernels::scale_rows(values.storage_mut::<f32>(), columns, factors);
    any(values)
}
