//! Activations of feed-forwards, with their slopes.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::Tensor;
use burn::tensor::activation::{relu, sigmoid};
use burnish_core::Activation;

const GELU_CUBIC: f64 = 0.044_715;

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
