//! RMSNorm of rows.

use burn::tensor::Tensor;

use super::{constant, over_rows, to, wide, wide_dtype};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "rms_norm";

/// `1 / sqrt(mean(x^2) + eps)` over the last dimension, which stays as 1.
pub(super) fn reciprocal<const D: usize>(x: &Tensor<D>, eps: f32) -> Tensor<D> {
    (x.clone().powi_scalar(2).mean_dim(D - 1) + eps).sqrt().recip()
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

/// See [`crate::rms_norm()`].
pub fn rms_norm(x: &AnyTensor, gamma: &AnyTensor, eps: f32) -> Result<AnyTensor, OpsError> {
    let inputs = [x.clone(), gamma.clone()];
    if x.shape()[0] == 0 {
        let none = to(x.plain().rank::<2>()?, wide_dtype(x));
        return constant(OP, &inputs, true, AnyTensor::new(none));
    }
    apply(OP, &inputs, |inputs, wanted| {
        let dtype = wide_dtype(&inputs[0]);
        let (x, gamma) = (wide::<2>(&inputs[0])?, to(inputs[1].rank::<1>()?, dtype));
        let rstd = reciprocal(&x, eps);
        let y = x * rstd.clone() * gamma.clone().unsqueeze();
        let (saved, want_gamma) = (inputs[0].clone(), wanted[1]);
        let back = move |upstream: AnyTensor| {
            let (x, dy) = (wide::<2>(&saved), wide::<2>(&upstream));
            let (x, dy) = (x.expect("invariant: a matrix"), dy.expect("invariant: a matrix"));
            let (dx, of_gamma) = backward(x, rstd, &gamma, dy, want_gamma);
            let dx = to(dx, saved.carrier().dtype());
            vec![Some(AnyTensor::new(dx)), of_gamma.map(|g| AnyTensor::new(over_rows(g)))]
        };
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}
