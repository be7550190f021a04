//! [`crate::gated_norm()`] on CPU kernels.

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::gated_norm::{GroupNorm, OP};
use crate::{AnyTensor, OpsError, apply};

/// What the kernels read.
struct Call {
    x: Host,
    gate: Host,
    gamma: Option<Vec<f32>>,
    group: usize,
    before_gate: bool,
    eps: f32,
}

impl Call {
    fn norm(&self) -> kernels::GatedNorm<'_> {
        let Self { x, gate, gamma, group, before_gate, eps } = self;
        kernels::GatedNorm {
            x: x.f32(),
            gate: gate.f32(),
            gamma: gamma.as_deref(),
            group: *group,
            before_gate: *before_gate,
            eps: *eps,
        }
    }
}

/// See [`crate::gated_norm()`].
pub(crate) fn gated_norm(
    x: &AnyTensor,
    gate: &AnyTensor,
    norm: Option<&GroupNorm>,
) -> Result<AnyTensor, OpsError> {
    let shape = crate::check::matrix(x)?;
    let inputs: Vec<AnyTensor> = [x, gate].into_iter().chain(norm.map(|norm| &norm.gamma)).cloned().collect();
    let (group, eps, before_gate) =
        norm.map_or((shape[1].max(1), 0.0, true), |norm| (norm.group, norm.eps, norm.before_gate));
    apply(OP, &inputs, move |plain, wanted| {
        let (x, gate) = (Host::f32_of(OP, "x", &plain[0])?, Host::f32_of(OP, "gate", &plain[1])?);
        // Small, and in whichever dtype it is stored.
        let gamma = plain.get(2).map(AnyTensor::to_f32);
        let call = Call { x, gate, gamma, group, before_gate, eps };
        let y = kernels::gated_norm_forward(&call.norm());
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let of_gamma = wanted.get(2).is_some_and(|wanted| *wanted);
            let found = kernels::gated_norm_backward(&call.norm(), dy.f32(), of_gamma);
            let gamma = [found.gamma.len()];
            let all = [(found.x, &shape[..]), (found.gate, &shape), (found.gamma, &gamma)];
            let gradients = all.into_iter().zip(wanted);
            gradients.map(|((values, shape), wanted)| wanted.then(|| tensor(values, shape))).collect()
        };
        Ok((tensor(y, &shape), Box::new(backward)))
    })
}
