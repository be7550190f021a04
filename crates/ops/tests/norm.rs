//! RMSNorm.

use burnish_ops::{AnyTensor, gpu, layer_norm, reference, rms_norm};

use crate::case::{Body, Case, Input, assert_close, tensor, to_f64};

fn case(tokens: usize, dim: usize, eps: f32) -> Case {
    let gamma = Input { shift: 1.0, ..Input::new("gamma", &[dim], 0.3) };
    let run = move |body: Body, t: &[AnyTensor]| match body {
        Body::Fused => rms_norm(&t[0], &t[1], eps),
        Body::Reference => reference::rms_norm(&t[0], &t[1], eps),
        Body::Gpu => gpu::rms_norm(&t[0], &t[1], eps),
    };
    let inputs = vec![Input::new("x", &[tokens, dim], 1.0), gamma];
    Case { name: format!("rms_norm [{tokens}, {dim}], eps {eps}"), inputs, run: Box::new(run) }
}

fn layer_norm_case(tokens: usize, dim: usize, beta: bool) -> Case {
    let run = move |body: Body, t: &[AnyTensor]| match body {
        Body::Fused => layer_norm(&t[0], &t[1], t.get(2), 1e-3),
        Body::Reference => reference::layer_norm(&t[0], &t[1], t.get(2), 1e-3),
        Body::Gpu => gpu::layer_norm(&t[0], &t[1], t.get(2), 1e-3),
    };
    let gamma = Input { shift: 1.0, ..Input::new("gamma", &[dim], 0.3) };
    let mut inputs = vec![Input { shift: 0.5, ..Input::new("x", &[tokens, dim], 1.0) }, gamma];
    inputs.extend(beta.then(|| Input::new("beta", &[dim], 0.3)));
    Case { name: format!("layer_norm [{tokens}, {dim}], beta {beta}"), inputs, run: Box::new(run) }
}

#[test]
fn layer_norm_is_the_reference_which_differentiates() {
    for beta in [true, false] {
        for (tokens, dim) in [(3, 5), (40, 64), (7, 131)] {
            layer_norm_case(tokens, dim, beta).agrees();
        }
        layer_norm_case(3, 5, beta).differentiates();
    }
}

#[test]
fn the_kernel_is_the_reference() {
    for (tokens, dim) in [(1, 1), (3, 5), (40, 64), (7, 131)] {
        // One element and no epsilon normalises to a sign, whose gradient is zero.
        case(tokens, dim, 0.5).agrees();
    }
    case(40, 64, 1e-6).agrees();
}

#[test]
fn the_reference_differentiates() {
    case(3, 5, 1e-3).differentiates();
}

/// `y = x / sqrt(mean(x^2) + eps) * gamma`, by hand.
#[test]
fn by_hand() {
    let (x, gamma) = (tensor("x", &[2, 3]), tensor("gamma", &[3]));
    let (v, g) = (to_f64(&x), to_f64(&gamma));
    let want = v.chunks(3).flat_map(|row| {
        let rstd = (row.iter().map(|x| x * x).sum::<f64>() / 3.0 + 0.25).sqrt().recip();
        row.iter().zip(&g).map(move |(x, g)| x * rstd * g)
    });
    let want: Vec<f64> = want.collect();
    assert_close(&to_f64(&rms_norm(&x, &gamma, 0.25).unwrap()), &want, 1e-6, "rms_norm");
}
