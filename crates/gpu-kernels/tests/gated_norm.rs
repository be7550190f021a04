use burnish_gpu_kernels::{FloatType, gated_norm, gated_norm_backward};

use crate::on_device::{client, close, download, dtypes, in_f64, numbers, rounding, upload};

const EPS: f32 = 1e-4;

/// Rows, groups of a row, columns of a group: some of a plane, some that have a cube each.
const SHAPES: &[(usize, usize, usize)] =
    &[(1, 1, 3), (5, 3, 7), (9, 2, 24), (2, 2, 140), (3, 1, 516), (2, 2, 1030)];

/// Value and gradients in f64, a group after another.
fn naive(
    [x, gate, dy]: [&[f32]; 3],
    gamma: Option<&[f32]>,
    group: usize,
    before_gate: bool,
) -> [Vec<f64>; 4] {
    let (x, gate, dy, gamma) = (in_f64(x), in_f64(gate), in_f64(dy), gamma.map(in_f64));
    let gains = gamma.as_ref().map_or(1, Vec::len);
    let [mut y, mut dx, mut dgate] = [(); 3].map(|()| vec![0.0; x.len()]);
    let mut dgamma = vec![0.0; gains];
    for at in (0..x.len()).step_by(group) {
        let sigmoid: Vec<f64> = (0..group).map(|c| 1.0 / (1.0 + (-gate[at + c]).exp())).collect();
        let a: Vec<f64> = (0..group).map(|c| gate[at + c] * sigmoid[c]).collect();
        let before = before_gate || gamma.is_none();
        // What is normed, and what multiplies it behind.
        let v: Vec<f64> = (0..group).map(|c| x[at + c] * if before { 1.0 } else { a[c] }).collect();
        let rest = |c: usize| if before { a[c] } else { 1.0 };
        let g = |c: usize| gamma.as_ref().map_or(1.0, |gamma| gamma[(at + c) % gains]);
        let mean = v.iter().map(|v| v * v).sum::<f64>() / group as f64;
        let r = if gamma.is_some() { 1.0 / (mean + f64::from(EPS)).sqrt() } else { 1.0 };
        let d: Vec<f64> = (0..group).map(|c| dy[at + c] * g(c) * rest(c)).collect();
        let mut dot = d.iter().zip(&v).map(|(d, v)| d * v).sum::<f64>() / group as f64;
        if gamma.is_none() {
            dot = 0.0;
        }
        for c in 0..group {
            y[at + c] = v[c] * r * g(c) * rest(c);
            let dv = r * d[c] - v[c] * r.powi(3) * dot;
            let (own, by_gate) =
                if before { (dv, dy[at + c] * g(c) * v[c] * r) } else { (dv * a[c], dv * x[at + c]) };
            dx[at + c] = own;
            dgate[at + c] = by_gate * sigmoid[c] * (1.0 + gate[at + c] * (1.0 - sigmoid[c]));
            dgamma[(at + c) % gains] += dy[at + c] * v[c] * r * rest(c);
        }
    }
    [y, dx, dgate, dgamma]
}

#[test]
fn gated_norms_and_their_gradients_are_those_in_f64() {
    let client = client();
    for &(rows, groups, group) in SHAPES {
        let width = groups * group;
        for &dtype in dtypes() {
            let gains = numbers(FloatType::F32, width, 4);
            let (x, dy) =
                (numbers(FloatType::F32, rows * width, 1), numbers(FloatType::F32, rows * width, 3));
            let gate: Vec<f32> = numbers(dtype, rows * width, 2).iter().map(|x| x * 4.0).collect();
            let [x_at, dy_at] = [&x, &dy].map(|values| upload(&client, FloatType::F32, values));
            let gate_at = upload(&client, dtype, &gate);
            for (gamma, before_gate) in [
                (None, false),
                (Some(&gains[..group]), true),
                (Some(&gains[..group]), false),
                (Some(&gains[..]), true),
                (Some(&gains[..]), false),
            ] {
                let what =
                    format!("{rows}x{groups}x{group} {dtype:?} {:?} {before_gate}", gamma.map(<[_]>::len));
                let [y, dx, dgate, dgamma] = naive([&x, &gate, &dy], gamma, group, before_gate);
                let gamma_at = gamma.map(|gamma| upload(&client, FloatType::F32, gamma));
                let gamma_at = gamma_at.as_ref();
                let got =
                    gated_norm(&client, &x_at, &gate_at, gamma_at, rows, group, before_gate, EPS, dtype);
                close(&what, &download(&client, &got), &y, 2e-5 + rounding(dtype));
                let grad = |wants: bool| {
                    gated_norm_backward(
                        &client,
                        &x_at,
                        &gate_at,
                        gamma_at,
                        &dy_at,
                        rows,
                        group,
                        before_gate,
                        EPS,
                        wants,
                    )
                };
                let got = grad(true);
                let got_dx = download(&client, &got.x);
                close(&format!("{what} dx"), &got_dx, &dx, 2e-4);
                close(
                    &format!("{what} dgate"),
                    &download(&client, &got.gate),
                    &dgate,
                    2e-4 + rounding(dtype),
                );
                assert_eq!(got.gamma.is_some(), gamma.is_some());
                if let Some(gamma) = got.gamma {
                    close(&format!("{what} dgamma"), &download(&client, &gamma), &dgamma, 2e-4);
                }
                if rows == 5 {
                    let less = grad(false);
                    assert!(less.gamma.is_none());
                    assert_eq!(download(&client, &less.x), got_dx, "{what}: one gradient alone");
                }
            }
        }
    }
}

#[test]
fn gains_of_many_rows_are_those_in_f64() {
    let client = client();
    let (rows, groups, group) = (300, 2, 8);
    let [x, gate, dy] = [1, 2, 3].map(|seed| numbers(FloatType::F32, rows * groups * group, seed));
    let gains = numbers(FloatType::F32, groups * group, 4);
    let [x_at, gate_at, dy_at] = [&x, &gate, &dy].map(|values| upload(&client, FloatType::F32, values));
    for gamma in [&gains[..group], &gains[..]] {
        let gamma_at = upload(&client, FloatType::F32, gamma);
        let [_, dx, _, dgamma] = naive([&x, &gate, &dy], Some(gamma), group, true);
        let got = gated_norm_backward(
            &client,
            &x_at,
            &gate_at,
            Some(&gamma_at),
            &dy_at,
            rows,
            group,
            true,
            EPS,
            true,
        );
        close("dx", &download(&client, &got.x), &dx, 2e-4);
        close("dgamma", &download(&client, &got.gamma.unwrap()), &dgamma, 2e-4);
    }
}
