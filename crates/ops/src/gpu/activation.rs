//! Activations of feed-forwards, with their slopes.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{DType, Tensor};
use burnish_core::Activation;
#[cfg(feature = "cube")]
use burnish_gpu_kernels::Gate;

#[cfg(feature = "cube")]
use super::kernels;
use super::{to, wide, wide_dtype};
use crate::{AnyTensor, OpsError};

const GELU_CUBIC: f64 = 0.044_715;

/// `f(x)` of rows, in `dtype`.
pub(super) fn plain(f: Activation, x: &AnyTensor, dtype: DType) -> Result<Tensor<2>, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::gate(x, Gate { activation: f, gated: false }, dtype) {
        return Ok(y);
    }
    Ok(to(value(f, wide::<2>(x)?), dtype))
}

/// `f(gate) up` of rows `[gate | up]`, in `dtype`.
pub(super) fn gated(f: Activation, x: &AnyTensor, dtype: DType) -> Result<Tensor<2>, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::gate(x, Gate { activation: f, gated: true }, dtype) {
        return Ok(y);
    }
    let (gate, up) = gate_up(x)?;
    Ok(to(value(f, gate) * up, dtype))
}

/// The gradient of [`plain`]'s `x`, in its dtype, from that of the value.
pub(super) fn plain_backward(f: Activation, x: &AnyTensor, d: Tensor<2>) -> Result<Tensor<2>, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(dx) = kernels::gate_backward(x, &d, Gate { activation: f, gated: false }) {
        return Ok(dx);
    }
    Ok(to(to(d, wide_dtype(x)) * value_and_slope(f, wide::<2>(x)?).1, x.burn_dtype()))
}

/// The gradient of [`gated`]'s `x`, in its dtype, from that of the value.
pub(super) fn gated_backward(f: Activation, x: &AnyTensor, d: Tensor<2>) -> Result<Tensor<2>, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(dx) = kernels::gate_backward(x, &d, Gate { activation: f, gated: true }) {
        return Ok(dx);
    }
    let (dtype, (gate, up)) = (x.burn_dtype(), gate_up(x)?);
    let (value, slope) = value_and_slope(f, gate);
    let d = to(d, wide_dtype(x));
    let d_up = d.clone() * value;
    Ok(Tensor::cat(vec![to(d * up * slope, dtype), to(d_up, dtype)], 1))
}

fn gate_up(x: &AnyTensor) -> Result<(Tensor<2>, Tensor<2>), OpsError> {
    let (x, dtype) = (x.rank::<2>()?, wide_dtype(x));
    let half = x.dims()[1] / 2;
    Ok((to(x.clone().narrow(1, 0, half), dtype), to(x.narrow(1, half, half), dtype)))
}

/// `f(x)`.
pub(super) fn value(f: Activation, x: Tensor<2>) -> Tensor<2> {
    match f {
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::Gelu => x.clone() * normal_cdf(x),
        Activation::GeluTanh => x.clone() * sigmoid(inner(&x)),
        Activation::Relu => relu(x),
        Activation::Relu2 => relu(x).powi_scalar(2),
    }
}

/// `f(x)` and `f'(x)`.
pub(super) fn value_and_slope(f: Activation, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    match f {
        Activation::Silu => {
            let s = sigmoid(x.clone());
            (x.clone() * s.clone(), s.clone() * (x * (s.neg() + 1.0) + 1.0))
        }
        Activation::Gelu => {
            let cdf = normal_cdf(x.clone());
            let density = (x.clone().powi_scalar(2) * -0.5).exp() * (0.5 / PI).sqrt();
            (x.clone() * cdf.clone(), cdf + x * density)
        }
        Activation::GeluTanh => {
            let s = sigmoid(inner(&x));
            let rise = (x.clone().powi_scalar(2) * (3.0 * GELU_CUBIC) + 1.0) * (8.0 / PI).sqrt();
            let value = x * s.clone();
            (value.clone(), s.clone() + value * (s.neg() + 1.0) * rise)
        }
        Activation::Relu => (relu(x.clone()), x.greater_elem(0.0).float()),
        Activation::Relu2 => {
            let positive = relu(x);
            (positive.clone().powi_scalar(2), positive * 2.0)
        }
    }
}

/// The distribution function of the normal distribution.
fn normal_cdf(x: Tensor<2>) -> Tensor<2> {
    ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

/// Twice what the tanh form of GELU takes the tanh of.
fn inner(x: &Tensor<2>) -> Tensor<2> {
    x.clone() * (x.clone().powi_scalar(2) * GELU_CUBIC + 1.0) * (8.0 / PI).sqrt()
}
