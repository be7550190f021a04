use burnish_gpu_kernels::{FloatType, rms_norm, rms_norm_backward};

use crate::on_device::{client, close, download, dtypes, numbers, rounding, upload};

const EPS: f32 = 1e-5;

/// Rows and columns: of a vector and of one element, of fewer elements than units, of more, and of a model.
const SHAPES: &[(usize, usize)] = &[(1, 1), (3, 7), (5, 64), (2, 130), (7, 1028), (4, 2051), (9, 4096)];

#[test]
fn rows_are_normalised_as_in_f64() {
    let client = client();
    for &(rows, columns) in SHAPES {
        for &dtype in dtypes() {
            let x = numbers(dtype, rows * columns, 1);
            let gamma = numbers(FloatType::F32, columns, 2);
            let device = (upload(&client, dtype, &x), upload(&client, FloatType::F32, &gamma));
            let got = rms_norm(&client, &device.0, &device.1, rows, EPS, dtype);
            let (mut y, mut rstd) = (Vec::new(), Vec::new());
            for row in x.chunks(columns) {
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
                let reciprocal = 1.0 / (mean + f64::from(EPS)).sqrt();
                rstd.push(reciprocal);
                y.extend(row.iter().zip(&gamma).map(|(&x, &g)| f64::from(x) * reciprocal * f64::from(g)));
            }
            let what = format!("{rows} rows of {columns} in {dtype:?}");
            close(&format!("{what}: rstd"), &download(&client, &got.rstd), &rstd, 2e-6);
            close(&what, &download(&client, &got.y), &y, 2e-6 + rounding(dtype));
        }
    }
}

#[test]
fn gradients_of_a_norm_are_those_in_f64() {
    let client = client();
    for &(rows, columns) in &[(1, 3), (3, 7), (600, 64), (2, 130), (5, 2051), (9, 4096)] {
        for &dtype in dtypes() {
            let (x, dy) = (numbers(dtype, rows * columns, 3), numbers(FloatType::F32, rows * columns, 4));
            let gamma = numbers(FloatType::F32, columns, 5);
            let at = |dtype, values: &[f32]| upload(&client, dtype, values);
            let (x_at, gamma_at, dy_at) =
                (at(dtype, &x), at(FloatType::F32, &gamma), at(FloatType::F32, &dy));
            let rstd = rms_norm(&client, &x_at, &gamma_at, rows, EPS, dtype).rstd;
            let mut dx = Vec::new();
            let mut of_gamma = vec![0.0f64; columns];
            for (x, dy) in x.chunks(columns).zip(dy.chunks(columns)) {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
                let reciprocal = 1.0 / (mean + f64::from(EPS)).sqrt();
                let u: Vec<f64> = x.iter().map(|&x| f64::from(x) * reciprocal).collect();
                let d: Vec<f64> = dy.iter().zip(&gamma).map(|(&d, &g)| f64::from(d) * f64::from(g)).collect();
                let pull = u.iter().zip(&d).map(|(u, d)| u * d).sum::<f64>() / columns as f64;
                dx.extend(u.iter().zip(&d).map(|(u, d)| (d - u * pull) * reciprocal));
                for ((sum, u), &dy) in of_gamma.iter_mut().zip(&u).zip(dy) {
                    *sum += u * f64::from(dy);
                }
            }
            let what = format!("{rows} rows of {columns} in {dtype:?}");
            let got = rms_norm_backward(&client, &x_at, &gamma_at, &rstd, &dy_at, true);
            close(&what, &download(&client, &got.dx), &dx, 1e-4 + rounding(dtype));
            let got_gamma = download(&client, &got.gamma.unwrap());
            close(&format!("{what}: gamma"), &got_gamma, &of_gamma, 1e-4);
            let alone = rms_norm_backward(&client, &x_at, &gamma_at, &rstd, &dy_at, false);
            assert!(alone.gamma.is_none());
            assert_eq!(
                download(&client, &alone.dx),
                download(&client, &got.dx),
                "{what}: one gradient alone"
            );
            let again = rms_norm_backward(&client, &x_at, &gamma_at, &rstd, &dy_at, true);
            assert_eq!(download(&client, &again.gamma.unwrap()), got_gamma, "{what}: bits repeat");
        }
    }
}
