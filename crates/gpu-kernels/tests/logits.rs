use burnish_gpu_kernels::{FloatType, PARTS, RowGradients, Scaling, Smoothing, logit_gradient, logit_parts};

use crate::on_device::{
    client, close, download, dtypes, numbers, rounded, rounding, upload, upload_integers,
};

const PLAIN: Scaling = Scaling { scale: 1.0, softcap: 0.0, temperature: 1.0 };
const CAPPED: Scaling = Scaling { scale: 1.5, softcap: 5.0, temperature: 0.7 };

fn logit(z: f64, s: Scaling) -> f64 {
    let z = z * f64::from(s.scale);
    let cap = f64::from(s.softcap);
    (if cap == 0.0 { z } else { cap * (z / cap).tanh() }) / f64::from(s.temperature)
}

/// Rows of logits: of few and of many entries, the largest first, last, twice, and hidden ones.
fn rows_of(dtype: FloatType, rows: usize, vocab: usize) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
    let mut z: Vec<f32> = numbers(dtype, rows * vocab, 11).iter().map(|z| z * 8.0).collect();
    z[0] = 8.0;
    let last = rows * vocab - 1;
    z[last] = 8.0;
    z[last - (vocab - 1).min(3)] = 8.0;
    if vocab > 4 {
        z[2] = rounded(dtype, -1e30);
    }
    let mut targets: Vec<u32> = (0..rows).map(|r| (r * 13 % vocab) as u32).collect();
    targets[rows - 1] = vocab as u32 - 1;
    let owned = (0..rows).map(|r| if r % 4 == 2 { 0.0 } else { 1.0 }).collect();
    (z, targets, owned)
}

#[test]
fn parts_of_rows_are_those_in_f64() {
    let client = client();
    for &(rows, vocab) in &[(1, 1), (3, 7), (6, 300), (5, 4097), (3, 20_008), (2, 9_001)] {
        for (scaling, &dtype) in
            [PLAIN, CAPPED].into_iter().flat_map(|s| dtypes().iter().map(move |d| (s, d)))
        {
            let (z, targets, owned) = rows_of(dtype, rows, vocab);
            let mut columns = vec![Vec::new(); PARTS];
            for ((z, &target), &own) in z.chunks(vocab).zip(&targets).zip(&owned) {
                // The cap makes neighbours one in f32, so that the first maximum is asked of what came.
                let first = !z.iter().enumerate().any(|(i, &v)| {
                    let of = z[target as usize];
                    v > of || (v == of && i < target as usize)
                });
                let z: Vec<f64> = z.iter().map(|&z| logit(f64::from(z), scaling)).collect();
                let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let below: Vec<f64> = z.iter().map(|z| (z - top).max(-200.0)).collect();
                let e: Vec<f64> = below.iter().map(|b| b.exp()).collect();
                let own = f64::from(own);
                let part = [
                    top,
                    e.iter().sum(),
                    e.iter().map(|e| e * e).sum(),
                    e.iter().zip(&below).map(|(e, b)| e * b).sum(),
                    z.iter().sum(),
                    z[target as usize] * own,
                    if first { own } else { 0.0 },
                ];
                columns.iter_mut().zip(part).for_each(|(column, number)| column.push(number));
            }
            let at = (upload(&client, dtype, &z), upload_integers(&client, &targets));
            let owned_at = upload(&client, FloatType::F32, &owned);
            let got = download(&client, &logit_parts(&client, &at.0, &at.1, &owned_at, scaling));
            for (i, expected) in columns.iter().enumerate() {
                let got: Vec<f32> = got.iter().skip(i).step_by(PARTS).copied().collect();
                close(&format!("part {i} of {rows} rows of {vocab}, {scaling:?}"), &got, expected, 2e-5);
            }
        }
    }
}

#[test]
fn gradients_of_logits_are_those_in_f64_and_lie_where_logits_lay() {
    let client = client();
    // Of one entry all cancels.
    for &(rows, vocab) in &[(1, 2), (3, 7), (6, 300), (5, 4097), (3, 20_008), (2, 9_001)] {
        for (scaling, &dtype) in
            [PLAIN, CAPPED].into_iter().flat_map(|s| dtypes().iter().map(move |d| (s, d)))
        {
            let (first, tokens, smoothing) = (2, rows + 3, 0.1f64);
            let (z, targets, owned) = rows_of(dtype, rows, vocab);
            let upstream = numbers(FloatType::F32, 2 * tokens, 12);
            let (mut log_z, mut entropy) = (vec![0.0f32; tokens], vec![0.0f32; tokens]);
            let mut expected = Vec::new();
            for (r, raw) in z.chunks(vocab).enumerate() {
                let raw: Vec<f64> = raw.iter().map(|&z| f64::from(z)).collect();
                let z: Vec<f64> = raw.iter().map(|&z| logit(z, scaling)).collect();
                let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let norm = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
                let log_p: Vec<f64> = z.iter().map(|z| (z - norm).max(-200.0)).collect();
                let h = -log_p.iter().map(|l| l * l.exp()).sum::<f64>();
                (log_z[first + r], entropy[first + r]) = (norm as f32, h as f32);
                let g = |row: usize| f64::from(upstream[row * tokens + first + r]);
                for j in 0..vocab {
                    let is_target = j == targets[r] as usize;
                    let own = if is_target { g(0) * f64::from(owned[r]) * (1.0 - smoothing) } else { 0.0 };
                    let d = own + g(0) * smoothing / vocab as f64
                        - log_p[j].exp() * (g(0) + g(1) * (log_p[j] + h));
                    let cap = f64::from(scaling.softcap);
                    let t = if cap == 0.0 { 0.0 } else { (raw[j] * f64::from(scaling.scale) / cap).tanh() };
                    let slope = (1.0 - t * t) * f64::from(scaling.scale) / f64::from(scaling.temperature);
                    expected.push(d * slope);
                }
            }
            let wide = |values: &[f32]| upload(&client, FloatType::F32, values);
            let (targets_at, owned_at) = (upload_integers(&client, &targets), wide(&owned));
            let of = RowGradients {
                log_z: wide(&log_z),
                entropy: wide(&entropy),
                upstream: wide(&upstream),
                first,
                tokens,
            };
            let smoothing = Smoothing { entropy: true, target: 0.9, each: (smoothing / vocab as f64) as f32 };
            let what = format!("{rows} rows of {vocab} in {dtype:?}, {scaling:?}");
            let z_at = upload(&client, dtype, &z);
            let held = z_at.clone();
            let got = logit_gradient(&client, z_at, &targets_at, &owned_at, &of, scaling, smoothing);
            let got = download(&client, &got);
            close(&what, &got, &expected, 2e-4 + rounding(dtype));
            assert_eq!(download(&client, &held), z, "{what}: what another holds stays");
            let own = logit_gradient(&client, held, &targets_at, &owned_at, &of, scaling, smoothing);
            assert_eq!(download(&client, &own), got, "{what}: in place");
        }
    }
}
