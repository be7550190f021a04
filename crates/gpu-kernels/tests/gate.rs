use burnish_core::Activation;
use burnish_gpu_kernels::{FloatType, Gate, gate, gate_backward};

use crate::on_device::{client, close, download, dtypes, numbers, rounding, upload};

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The distribution function of the normal distribution, by its series.
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 {
        term *= x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

pub(crate) fn value(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => x * normal_cdf(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0).powi(2),
    }
}

/// By a central difference, or by one side's where the function has a corner.
fn slope(f: Activation, x: f64) -> f64 {
    let h = 1e-5;
    (value(f, x + h) - value(f, x - h)) / (2.0 * h)
}

const ALL: [Activation; 5] =
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Relu2];

#[test]
fn activations_and_their_gradients_are_those_in_f64() {
    let client = client();
    for (f, gated) in ALL.into_iter().flat_map(|f| [(f, true), (f, false)]) {
        let of = Gate { activation: f, gated };
        for &(rows, inner) in &[(1, 1), (3, 7), (5, 66), (3, 1000)] {
            for &dtype in dtypes() {
                let width = if gated { 2 * inner } else { inner };
                let x: Vec<f32> = numbers(dtype, rows * width, 7).iter().map(|x| x * 4.0).collect();
                let d = numbers(FloatType::F32, rows * inner, 8);
                let (x_at, d_at) = (upload(&client, dtype, &x), upload(&client, FloatType::F32, &d));
                let (mut y, mut dx) = (Vec::new(), Vec::new());
                for (x, d) in x.chunks(width).zip(d.chunks(inner)) {
                    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                    let up = |i: usize| if gated { x[inner + i] } else { 1.0 };
                    y.extend((0..inner).map(|i| value(f, x[i]) * up(i)));
                    dx.extend((0..inner).map(|i| f64::from(d[i]) * up(i) * slope(f, x[i])));
                    if gated {
                        dx.extend((0..inner).map(|i| f64::from(d[i]) * value(f, x[i])));
                    }
                }
                let what = format!("{of:?} of {rows} rows of {inner} in {dtype:?}");
                let got = gate(&client, &x_at, inner, of, dtype);
                close(&what, &download(&client, &got), &y, 2e-5 + rounding(dtype));
                let got = gate_backward(&client, &x_at, &d_at, inner, of);
                close(&format!("{what}: gradient"), &download(&client, &got), &dx, 2e-5 + rounding(dtype));
            }
        }
    }
}
