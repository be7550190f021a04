//! Norms of rows.

use burn::tensor::{DType, Tensor};

#[cfg(feature = "cube")]
use super::kernels;
use super::{constant, over_rows, to, wide, wide_dtype};
use crate::{AnyTensor, OpsError, apply};

/// `1 / sqrt(mean(x^2) + eps)` over the last dimension, which stays as 1.
pub(super) fn reciprocal<const D: usize>(x: &Tensor<D>, eps: f32) -> Tensor<D> {
    (x.clone().powi_scalar(2).mean_dim(D - 1) + eps).sqrt().recip()
}

/// `x` less its mean over the last dimension.
pub(super) fn centered<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let mean = x.clone().mean_dim(D - 1);
    x - mean
}

/// The gradient of `x`, and of `gamma` where it is wanted before its sum over all but the last dimension, from `dy` of
/// `y = x rstd gamma`.
pub(super) fn backward<const D: usize>(
    x: Tensor<D>,
    rstd: Tensor<D>,
    gamma: &Tensor<1>,
    dy: Tensor<D>,
    want_gamma: bool,
) -> (Tensor<D>, Option<Tensor<D>>) {
    let unit = x * rstd.clone();
    let of_gamma = want_gamma.then(|| dy.clone() * unit.clone());
    let d_unit = dy * gamma.clone().unsqueeze();
    let mean = (d_unit.clone() * unit.clone()).mean_dim(D - 1);
    ((d_unit - unit * mean) * rstd, of_gamma)
}

/// A norm of rows: LayerNorm where it is `centers`, else RMSNorm.
#[derive(Clone)]
pub(super) struct Norm {
    pub(super) gamma: Tensor<1>,
    pub(super) beta: Option<Tensor<1>>,
    pub(super) eps: f32,
    pub(super) centers: bool,
}

/// The gradients of a norm's input and parameters.
pub(super) struct NormGrad {
    pub(super) dx: Tensor<2>,
    pub(super) gamma: Option<Tensor<1>>,
    pub(super) beta: Option<Tensor<1>>,
}

impl Norm {
    /// From plain tensors.
    pub(super) fn new(
        gamma: &AnyTensor,
        beta: Option<&AnyTensor>,
        eps: f32,
        centers: bool,
        dtype: DType,
    ) -> Result<Self, OpsError> {
        let beta = beta.map(|beta| Ok::<_, OpsError>(to(beta.rank::<1>()?, dtype))).transpose()?;
        Ok(Self { gamma: to(gamma.rank::<1>()?, dtype), beta, eps, centers })
    }

    fn centered(&self, x: Tensor<2>) -> Tensor<2> {
        if self.centers { centered(x) } else { x }
    }

    /// The norm of `x`, in `dtype`, and the reciprocal of its deviation.
    pub(super) fn forward(
        &self,
        x: &AnyTensor,
        rstd: Option<Tensor<2>>,
        dtype: DType,
    ) -> Result<(Tensor<2>, Tensor<2>), OpsError> {
        #[cfg(feature = "cube")]
        if !self.centers
            && let Some(made) = kernels::rms_norm(x, &self.gamma, self.eps, dtype)
        {
            return Ok(made);
        }
        let x = self.centered(wide::<2>(x)?);
        let rstd = rstd.unwrap_or_else(|| reciprocal(&x, self.eps));
        let y = x * rstd.clone() * self.gamma.clone().unsqueeze();
        let y = match &self.beta {
            Some(beta) => y + beta.clone().unsqueeze(),
            None => y,
        };
        Ok((to(y, dtype), rstd))
    }

    /// Gradients from wide `dy`; that of `x` has its dtype.
    pub(super) fn backward(
        &self,
        x: &AnyTensor,
        rstd: Tensor<2>,
        dy: Tensor<2>,
        (want_gamma, want_beta): (bool, bool),
    ) -> Result<NormGrad, OpsError> {
        #[cfg(feature = "cube")]
        if !self.centers
            && let Some((dx, gamma)) = kernels::rms_norm_backward(x, &self.gamma, &rstd, &dy, want_gamma)
        {
            return Ok(NormGrad { dx, gamma, beta: None });
        }
        let (dtype, x) = (x.burn_dtype(), wide::<2>(x)?);
        let beta = want_beta.then(|| over_rows(dy.clone()));
        let (dx, gamma) = backward(self.centered(x), rstd, &self.gamma, dy, want_gamma);
        Ok(NormGrad { dx: to(self.centered(dx), dtype), gamma: gamma.map(over_rows), beta })
    }
}

/// See [`crate::rms_norm()`].
pub fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    norm("rms_norm", x, gamma, None, eps, false)
}

/// See [`crate::layer_norm()`].
pub fn layer_norm(
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
    centers: bool,
) -> Result<AnyTensor, OpsError> {
    let inputs: Vec<AnyTensor> = [Some(x), Some(gamma), beta].into_iter().flatten().cloned().collect();
    if x.shape()[0] == 0 {
        let none = to(x.plain().rank::<2>()?, wide_dtype(x));
        return constant(op, &inputs, true, AnyTensor::new(none));
    }
    apply(op, &inputs, |inputs, wanted| {
        let dtype = wide_dtype(&inputs[0]);
        let norm = Norm::new(&inputs[1], inputs.get(2), eps, centers, dtype)?;
        let (y, rstd) = norm.forward(&inputs[0], None, dtype)?;
        let saved = inputs[0].clone();
        let (has_beta, want) = (inputs.len() > 2, (wanted[1], wanted.get(2).copied().unwrap_or(false)));
        let back = move |upstream: AnyTensor| {
            let dy = wide::<2>(&upstream).expect("invariant: a matrix");
            let grad = norm.backward(&saved, rstd, dy, want);
            let NormGrad { dx, gamma, beta } = grad.expect("invariant: a matrix");
            let mut all = vec![Some(AnyTensor::new(dx)), gamma.map(AnyTensor::new)];
            if has_beta {
                all.push(beta.map(AnyTensor::new));
            }
            all
        };
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}
