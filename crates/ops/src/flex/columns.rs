//! [`crate::permute_columns`] and [`crate::norm_columns`] on CPU kernels.

use std::sync::Arc;

use burnish_cpu_kernels as kernels;

use super::attention::kernel_rotary;
use super::host::{Host, tensor};
use crate::column_norm::ColumnNorm;
use crate::{AnyTensor, OpsError, Rotary, apply};

pub(crate) fn permute(
    x: &AnyTensor,
    from: &Arc<Vec<u32>>,
    back: &Arc<Vec<u32>>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "permute_columns";
    let shape = x.shape();
    apply(OP, std::slice::from_ref(x), |plain, _| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        let (back, own) = (back.clone(), shape.clone());
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            vec![Some(tensor(kernels::permute_columns(dy.f32(), &back), &own))]
        };
        Ok((tensor(kernels::permute_columns(x.f32(), from), &shape), Box::new(backward)))
    })
}

/// A norm of groups with its gains, which may be stored in fewer bits.
struct View {
    first: usize,
    groups: usize,
    width: usize,
    gamma: Vec<f32>,
    beta: Option<Vec<f32>>,
}

impl View {
    fn kernel(&self) -> kernels::GroupNorm<'_> {
        let (gamma, beta) = (&self.gamma, self.beta.as_deref());
        kernels::GroupNorm { first: self.first, groups: self.groups, width: self.width, gamma, beta }
    }
}

pub(crate) fn norm(
    x: &AnyTensor,
    norms: &[ColumnNorm],
    centered: bool,
    eps: f32,
    rotary: Option<&Rotary>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "norm_columns";
    let ([_, columns], shape) = (crate::check::matrix(x)?, x.shape());
    let mut inputs = vec![x.clone()];
    inputs.extend(norms.iter().flat_map(|norm| std::iter::once(&norm.gamma).chain(&norm.beta)).cloned());
    let rotary = rotary.cloned();
    apply(OP, &inputs, |plain, wanted| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        let (mut rest, mut wanted) = (plain[1..].iter(), wanted[1..].iter().copied());
        let (mut views, mut wants) = (Vec::new(), Vec::new());
        for &ColumnNorm { first, groups, width, ref beta, .. } in norms {
            let mut next = || {
                let gain = rest.next().expect("invariant: a tensor for each gain");
                (gain.to_f32(), wanted.next().unwrap_or(false))
            };
            let (gamma, of_gamma) = next();
            let (beta, of_beta) = beta.as_ref().map(|_| next()).unzip();
            views.push(View { first, groups, width, gamma, beta });
            wants.push((of_gamma, of_beta.unwrap_or(false)));
        }
        let shapes: Vec<Vec<usize>> = norms.iter().map(|norm| norm.gamma.shape()).collect();
        let (y, rstd) = {
            let norms: Vec<_> = views.iter().map(View::kernel).collect();
            let rotary = rotary.as_ref().map(kernel_rotary);
            kernels::group_norm_forward(x.f32(), columns, &norms, centered, eps, rotary.as_ref())
        };
        let own = shape.clone();
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let norms: Vec<_> = views.iter().map(View::kernel).collect();
            let rotary = rotary.as_ref().map(kernel_rotary);
            let (x, dy, rotary) = (x.f32(), dy.f32(), rotary.as_ref());
            let (dx, found) =
                kernels::group_norm_backward(x, columns, &norms, centered, rotary, &rstd, dy, &wants);
            let mut all = vec![Some(tensor(dx, &own))];
            for ((found, shape), view) in found.into_iter().zip(shapes).zip(&views) {
                all.push(found.dgamma.map(|g| tensor(g, &shape)));
                if view.beta.is_some() {
                    all.push(found.dbeta.map(|g| tensor(g, &shape)));
                }
            }
            all
        };
        Ok((tensor(y, &shape), Box::new(backward)))
    })
}
