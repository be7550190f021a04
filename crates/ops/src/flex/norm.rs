//! [`crate::rms_norm`] on CPU kernels.

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "rms_norm";

pub(crate) fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    let [tokens, hidden] = crate::check::matrix(x)?;
    apply(OP, &[x.clone(), gamma.clone()], |inputs, wanted| {
        let (x, gamma) = (Host::f32_of(OP, "x", &inputs[0])?, Host::f32_of(OP, "gamma", &inputs[1])?);
        let (y, rstd) = kernels::rms_norm_forward(x.f32(), gamma.f32(), eps);
        let want_gamma = wanted[1];
        let backward = Box::new(move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (dx, dgamma) = kernels::rms_norm_backward(x.f32(), gamma.f32(), &rstd, dy.f32(), want_gamma);
            vec![Some(tensor(dx, &[tokens, hidden])), dgamma.map(|g| tensor(g, &[hidden]))]
        });
        Ok((tensor(y, &[tokens, hidden]), backward))
    })
}
