//! [`crate::scaled_sum`], [`crate::clamp`] and [`crate::xielu`] on CPU kernels.

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::{AnyTensor, OpsError, apply};

pub(crate) fn scaled_sum(
    x: &AnyTensor,
    factor: f32,
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "scaled_sum";
    let shape = x.shape();
    let inputs: Vec<AnyTensor> = std::iter::once(x).chain(residual).cloned().collect();
    apply(OP, &inputs, |plain, wanted| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        let residual = plain.get(1).map(|r| Host::f32_of(OP, "residual", r)).transpose()?;
        let y = kernels::scaled_sum(x.f32(), factor, residual.as_ref().map(Host::f32));
        let (wanted, own) = (wanted.to_vec(), shape.clone());
        let backward = move |upstream: AnyTensor| {
            let scaled = || {
                if factor == 1.0 {
                    return upstream.clone();
                }
                let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
                tensor(kernels::scaled_sum(dy.f32(), factor, None), &own)
            };
            let of = |(i, &wanted): (usize, &bool)| {
                wanted.then(|| if i == 0 { scaled() } else { upstream.clone() })
            };
            wanted.iter().enumerate().map(of).collect()
        };
        Ok((tensor(y, &shape), Box::new(backward)))
    })
}

pub(crate) fn clamp(x: &AnyTensor, bound: f32) -> Result<AnyTensor, OpsError> {
    const OP: &str = "clamp";
    let shape = x.shape();
    apply(OP, std::slice::from_ref(x), |plain, _| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        let (y, own) = (kernels::clamp(x.f32(), bound), shape.clone());
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            vec![Some(tensor(kernels::clamp_backward(x.f32(), bound, dy.f32()), &own))]
        };
        Ok((tensor(y, &shape), Box::new(backward)))
    })
}

pub(crate) fn xielu(x: &AnyTensor, alpha_p: &AnyTensor, alpha_n: &AnyTensor) -> Result<AnyTensor, OpsError> {
    const OP: &str = "xielu";
    let shape = x.shape();
    apply(OP, &[x.clone(), alpha_p.clone(), alpha_n.clone()], |plain, wanted| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        // Each in whichever dtype it is stored; of one element.
        let alphas = [&plain[1], &plain[2]].map(|alpha| f64::from(alpha.to_f32()[0]));
        // `ln(1 + exp(a))`, and its slope.
        let [p, n] = alphas.map(|a| a.max(0.0) + (-a.abs()).exp().ln_1p());
        let slopes = alphas.map(|a| 1.0 / (1.0 + (-a).exp()));
        let (p, n) = (p as f32, (n + 0.5) as f32);
        let y = kernels::xielu_forward(x.f32(), p, n);
        let (wanted, own) = (wanted.to_vec(), shape.clone());
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (dx, dp, dn) = kernels::xielu_backward(x.f32(), p, n, dy.f32());
            let number = |value: f64| tensor(vec![value as f32], &[1]);
            let all = [tensor(dx, &own), number(dp * slopes[0]), number(dn * slopes[1])];
            all.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((tensor(y, &shape), Box::new(backward)))
    })
}
