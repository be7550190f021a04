//! [`crate::rms_norm`] and [`crate::layer_norm`] on CPU kernels.

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::{AnyTensor, OpsError, apply};

pub(crate) fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    norm("rms_norm", x, gamma, None, eps, false)
}

pub(crate) fn layer_norm(
    x: &AnyTensor,
    gamma: &AnyTensor,
    beta: Option<&AnyTensor>,
    eps: f32,
) -> Result<AnyTensor, OpsError> {
    norm("layer_norm", x, gamma, beta, eps, true)
}

fn norm(
    op: &'static str,
    x: &AnyTensor,
    gamma: &AnyTensor,
    beta: Option<&AnyTensor>,
    eps: f32,
    centered: bool,
) -> Result<AnyTensor, OpsError> {
    let [tokens, hidden] = crate::check::matrix(x)?;
    let inputs: Vec<AnyTensor> = [Some(x), Some(gamma), beta].into_iter().flatten().cloned().collect();
    apply(op, &inputs, |inputs, wanted| {
        let (x, gamma) = (Host::f32_of(op, "x", &inputs[0])?, Host::f32_of(op, "gamma", &inputs[1])?);
        let beta = inputs.get(2).map(|beta| Host::f32_of(op, "beta", beta)).transpose()?;
        let (y, rstd) = if centered {
            kernels::layer_norm_forward(x.f32(), gamma.f32(), beta.as_ref().map(Host::f32), eps)
        } else {
            kernels::rms_norm_forward(x.f32(), gamma.f32(), eps)
        };
        let (of_gamma, of_beta) = (wanted[1], wanted.get(2).copied().unwrap_or(false));
        let has_beta = beta.is_some();
        let backward = Box::new(move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (x, gamma, dy) = (x.f32(), gamma.f32(), dy.f32());
            let grad = if centered {
                kernels::layer_norm_backward(x, gamma, &rstd, dy, (of_gamma, of_beta))
            } else {
                kernels::rms_norm_backward(x, gamma, &rstd, dy, of_gamma)
            };
            let of = |g: Option<Vec<f32>>| g.map(|g| tensor(g, &[hidden]));
            let mut all = vec![Some(tensor(grad.dx, &[tokens, hidden])), of(grad.dgamma)];
            if has_beta {
                all.push(of(grad.dbeta));
            }
            all
        });
        Ok((tensor(y, &[tokens, hidden]), backward))
    })
}
