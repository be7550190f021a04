//! Convolutions and their gradients against naive loops in f64.

use super::*;
use crate::simd::{Isa, with_isa};

fn values(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| burnish_core::random::mix32(i ^ (seed << 24)) as f32 / 1_073_741_824.0 - 2.0)
        .collect()
}

/// Tokens, channels, taps, channels of a head, heads that are scaled.
type Shape = (usize, usize, usize, usize, usize);

const SHAPES: &[Shape] = &[
    (1, 1, 1, 1, 0),
    (3, 5, 2, 1, 5),
    (9, 40, 4, 8, 4),
    (70, 99, 3, 16, 2),
    (133, 72, 4, 24, 3),
    (67, 280, 1, 24, 11),
    (130, 600, 4, 300, 1),
    (65, 515, 2, 7, 0),
];

struct Case {
    x: Vec<f32>,
    kernel: Vec<f32>,
    bias: Vec<f32>,
    rows: Vec<Vec<i32>>,
    scales: Vec<f32>,
    dy: Vec<f32>,
    head_dim: usize,
}

impl Case {
    /// `more` rows than tokens. Every token reads earlier rows, some none, and some all the same.
    fn new((tokens, channels, taps, head_dim, heads): Shape, more: usize) -> Self {
        let row = |token: usize, tap: usize| match token % 7 {
            3 if tap == 0 => -1,
            5 => (token / 2) as i32,
            6 => 0,
            _ => (token + more) as i32 - tap as i32,
        };
        Self {
            x: values((tokens + more) * channels, 1),
            kernel: values(taps * channels, 2),
            bias: values(channels, 3),
            rows: (0..taps).map(|tap| (0..tokens).map(|token| row(token, tap).max(-1)).collect()).collect(),
            scales: (0..heads).map(|head| 0.5 + head as f32 / 4.0).collect(),
            dy: values(tokens * channels, 4),
            head_dim,
        }
    }

    fn conv(&self, biased: bool) -> ConvHeads<'_> {
        ConvHeads {
            x: &self.x,
            kernel: &self.kernel,
            bias: biased.then_some(&self.bias),
            rows: &self.rows,
            head_dim: self.head_dim,
            scales: &self.scales,
            eps: 1e-3,
        }
    }
}

/// Value and gradients of x, kernel and bias in f64.
fn naive(conv: &ConvHeads<'_>, dy: &[f32]) -> [Vec<f64>; 4] {
    let channels = conv.kernel.len() / conv.rows.len();
    let tokens = conv.rows[0].len();
    let mut y = vec![0.0; tokens * channels];
    let mut dx = vec![0.0; conv.x.len()];
    let mut dkernel = vec![0.0; conv.kernel.len()];
    let mut dbias = vec![0.0; channels];
    for t in 0..tokens {
        let c: Vec<f64> = (0..channels)
            .map(|j| {
                let bias = conv.bias.map_or(0.0, |bias| f64::from(bias[j]));
                let tap = |(l, rows): (usize, &Vec<i32>)| match usize::try_from(rows[t]) {
                    Ok(row) => {
                        f64::from(conv.kernel[l * channels + j]) * f64::from(conv.x[row * channels + j])
                    }
                    Err(_) => 0.0,
                };
                bias + conv.rows.iter().enumerate().map(tap).sum::<f64>()
            })
            .collect();
        let sigmoid: Vec<f64> = c.iter().map(|c| 1.0 / (1.0 + (-c).exp())).collect();
        let s: Vec<f64> = c.iter().zip(&sigmoid).map(|(c, s)| c * s).collect();
        let d: Vec<f64> = dy[t * channels..][..channels].iter().map(|&d| f64::from(d)).collect();
        for j in 0..channels {
            let head = j / conv.head_dim;
            let (value, ds) = match conv.scales.get(head) {
                Some(&scale) => {
                    let all = head * conv.head_dim..(head + 1) * conv.head_dim;
                    let sum = all.clone().map(|i| s[i] * s[i]).sum::<f64>() + f64::from(conv.eps);
                    let dot = all.map(|i| s[i] * d[i]).sum::<f64>();
                    let by = f64::from(scale) / sum.sqrt();
                    (s[j] * by, by * (d[j] - s[j] * dot / sum))
                }
                None => (s[j], d[j]),
            };
            y[t * channels + j] = value;
            let dc = ds * sigmoid[j] * (1.0 + c[j] * (1.0 - sigmoid[j]));
            dbias[j] += dc;
            for (l, rows) in conv.rows.iter().enumerate() {
                if let Ok(row) = usize::try_from(rows[t]) {
                    dx[row * channels + j] += dc * f64::from(conv.kernel[l * channels + j]);
                    dkernel[l * channels + j] += dc * f64::from(conv.x[row * channels + j]);
                }
            }
        }
    }
    [y, dx, dkernel, dbias]
}

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= bound * (1.0 + want.abs()), "{what}[{i}]: {got}, not {want}");
    }
}

#[test]
fn agrees_with_f64_on_every_isa() {
    for (&shape, more) in SHAPES.iter().zip([0, 2, 0, 3, 0, 0, 70, 0]) {
        let case = Case::new(shape, more);
        for biased in [false, true] {
            let conv = case.conv(biased);
            let [y, dx, dkernel, dbias] = naive(&conv, &case.dy);
            for &isa in Isa::available() {
                let what = format!("{isa:?} {shape:?} {more} {biased}");
                let (got, grad, less) = with_isa(isa, || {
                    let less = conv_heads_backward(&conv, &case.dy, false);
                    (conv_heads_forward(&conv), conv_heads_backward(&conv, &case.dy, true), less)
                });
                close(&format!("{what} y"), &got, &y, 4e-6);
                close(&format!("{what} dx"), &grad.x, &dx, 4e-5);
                close(&format!("{what} dkernel"), &grad.kernel, &dkernel, 4e-5);
                close(&format!("{what} dbias"), &grad.bias, if biased { &dbias } else { &[] }, 4e-5);
                assert_eq!(less.x, grad.x, "{what}");
                assert!(less.kernel.is_empty() && less.bias.is_empty());
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let case = Case::new((777, 600, 4, 24, 20), 3);
    let conv = case.conv(true);
    let [one, two] = [1, 2].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| (conv_heads_forward(&conv), conv_heads_backward(&conv, &case.dy, true)))
    });
    assert_eq!(one, two);
}

#[test]
fn no_tokens() {
    let (kernel, bias, rows) = ([1.0; 4], [0.5; 2], [vec![], vec![]]);
    let conv = ConvHeads {
        x: &[],
        kernel: &kernel,
        bias: Some(&bias),
        rows: &rows,
        head_dim: 1,
        scales: &[1.0],
        eps: 1e-6,
    };
    assert!(conv_heads_forward(&conv).is_empty());
    let none = ConvHeadsGrad { x: vec![], kernel: vec![0.0; 4], bias: vec![0.0; 2] };
    assert_eq!(conv_heads_backward(&conv, &[], true), none);
}

#[test]
#[should_panic(expected = "inside `x`")]
fn refuses_rows_outside() {
    let rows = [vec![0, 2]];
    let conv = ConvHeads {
        x: &[1.0; 2],
        kernel: &[1.0],
        bias: None,
        rows: &rows,
        head_dim: 1,
        scales: &[],
        eps: 1e-6,
    };
    let _ = conv_heads_forward(&conv);
}
