use burnish_gpu_kernels::{Buffer, ConvHeadsShape, ConvReaders, FloatType, conv_heads, conv_heads_backward};

use crate::on_device::{client, close, download, dtypes, in_f64, numbers, rounding, upload};

const EPS: f32 = 1e-3;
const SCALES: [f32; 2] = [0.25, 1.0];

/// Tokens, channels, taps, channels of a head, heads that are scaled.
fn shape([tokens, channels, taps, head_dim, unit_heads]: [usize; 5]) -> ConvHeadsShape {
    ConvHeadsShape { tokens, channels, taps, head_dim, unit_heads }
}

/// Earlier rows, `more` of them before the first token's own; some tokens read none, and some all the same.
fn rows(shape: ConvHeadsShape, more: usize) -> Vec<i32> {
    let row = |token: usize, tap: usize| match token % 7 {
        3 if tap == 0 => -1,
        4 if tap == 1 => (token / 2) as i32,
        5 => 0,
        _ => (token + more) as i32 - tap as i32,
    };
    let tap = |tap| (0..shape.tokens).map(move |token| row(token, tap).max(-1));
    (0..shape.taps).flat_map(tap).collect()
}

/// Value and gradients of x, kernel and bias in f64.
fn naive(
    shape: ConvHeadsShape,
    [x, kernel, dy]: [&[f32]; 3],
    bias: Option<&[f32]>,
    rows: &[i32],
) -> [Vec<f64>; 4] {
    let ConvHeadsShape { tokens, channels, taps, head_dim, unit_heads } = shape;
    let (x, kernel, dy) = (in_f64(x), in_f64(kernel), in_f64(dy));
    let bias_of = bias.map_or(vec![0.0; channels], in_f64);
    let row = |tap: usize, token: usize| usize::try_from(rows[tap * tokens + token]).ok();
    let mut y = vec![0.0; tokens * channels];
    let mut dx = vec![0.0; x.len()];
    let mut dkernel = vec![0.0; kernel.len()];
    let mut dbias = vec![0.0; channels];
    for t in 0..tokens {
        let of = |j: usize, tap: usize| {
            row(tap, t).map_or(0.0, |row| kernel[tap * channels + j] * x[row * channels + j])
        };
        let c: Vec<f64> =
            (0..channels).map(|j| bias_of[j] + (0..taps).map(|tap| of(j, tap)).sum::<f64>()).collect();
        let sigmoid: Vec<f64> = c.iter().map(|c| 1.0 / (1.0 + (-c).exp())).collect();
        let s: Vec<f64> = c.iter().zip(&sigmoid).map(|(c, s)| c * s).collect();
        let d = &dy[t * channels..][..channels];
        for j in 0..channels {
            let head = j.checked_div(head_dim).unwrap_or(0);
            let (value, ds) = if head < unit_heads {
                let all = head * head_dim..(head + 1) * head_dim;
                let sum = all.clone().map(|i| s[i] * s[i]).sum::<f64>() + f64::from(EPS);
                let dot = all.map(|i| s[i] * d[i]).sum::<f64>();
                let by = f64::from(SCALES[usize::from(2 * head >= unit_heads)]) / sum.sqrt();
                (s[j] * by, by * (d[j] - s[j] * dot / sum))
            } else {
                (s[j], d[j])
            };
            y[t * channels + j] = value;
            let dc = ds * sigmoid[j] * (1.0 + c[j] * (1.0 - sigmoid[j]));
            dbias[j] += dc;
            for tap in 0..taps {
                if let Some(row) = row(tap, t) {
                    dx[row * channels + j] += dc * kernel[tap * channels + j];
                    dkernel[tap * channels + j] += dc * x[row * channels + j];
                }
            }
        }
    }
    [y, dx, dkernel, dbias]
}

#[test]
fn convolutions_and_their_gradients_are_those_in_f64() {
    let client = client();
    for (sizes, more) in [
        ([1, 3, 1, 1, 0], 0),
        ([5, 7, 2, 1, 2], 2),
        ([11, 48, 4, 8, 4], 0),
        ([9, 84, 3, 16, 2], 1),
        ([13, 72, 4, 24, 2], 3),
        ([3, 1300, 2, 516, 2], 0),
        ([9, 268, 4, 0, 0], 0),
    ] {
        let shape = shape(sizes);
        let rows = rows(shape, more);
        let of_x = shape.tokens + more;
        let words: Vec<u32> = rows.iter().map(|row| row.cast_unsigned()).collect();
        let rows_at = Buffer::of_words(&client, words);
        let readers = ConvReaders::of_rows(&client, &rows, shape.tokens, of_x);
        let kernel = numbers(FloatType::F32, shape.taps * shape.channels, 2);
        let bias = numbers(FloatType::F32, shape.channels, 3);
        let dy = numbers(FloatType::F32, shape.tokens * shape.channels, 4);
        let at = |values: &[f32]| upload(&client, FloatType::F32, values);
        let (kernel_at, bias_at, dy_at) = (at(&kernel), at(&bias), at(&dy));
        for &dtype in dtypes() {
            let x: Vec<f32> = numbers(dtype, of_x * shape.channels, 1).iter().map(|x| x * 4.0).collect();
            let x_at = upload(&client, dtype, &x);
            for biased in [false, true] {
                let what = format!("{sizes:?} {more} {dtype:?} {biased}");
                let [y, dx, dkernel, dbias] =
                    naive(shape, [&x, &kernel, &dy], biased.then_some(&bias), &rows);
                let bias_at = biased.then_some(&bias_at);
                let got = conv_heads(&client, &x_at, &kernel_at, bias_at, &rows_at, shape, SCALES, EPS);
                close(&what, &download(&client, &got), &y, 2e-5);
                let grad = |wants: bool| {
                    conv_heads_backward(
                        &client, &x_at, &kernel_at, bias_at, &rows_at, &readers, &dy_at, shape, SCALES, EPS,
                        wants,
                    )
                };
                let got = grad(true);
                let got_dx = download(&client, &got.x);
                close(&format!("{what} dx"), &got_dx, &dx, 2e-4 + rounding(dtype));
                close(&format!("{what} dkernel"), &download(&client, &got.kernel.unwrap()), &dkernel, 2e-4);
                assert_eq!(got.bias.is_some(), biased);
                if let Some(bias) = got.bias {
                    close(&format!("{what} dbias"), &download(&client, &bias), &dbias, 2e-4);
                }
                if shape.tokens == 11 {
                    let less = grad(false);
                    assert!(less.kernel.is_none() && less.bias.is_none());
                    assert_eq!(download(&client, &less.x), got_dx, "{what}: one gradient alone");
                }
            }
        }
    }
}

#[test]
fn kernels_of_many_tokens_get_their_gradient() {
    let client = client();
    let shape = shape([100, 12, 2, 4, 2]);
    let rows = rows(shape, 0);
    let rows_at = Buffer::of_words(&client, rows.iter().map(|row| row.cast_unsigned()).collect());
    let readers = ConvReaders::of_rows(&client, &rows, shape.tokens, shape.tokens);
    let [x, kernel, bias, dy] =
        [(1200, 1), (24, 2), (12, 3), (1200, 4)].map(|(n, seed)| numbers(FloatType::F32, n, seed));
    let [x_at, kernel_at, bias_at, dy_at] =
        [&x, &kernel, &bias, &dy].map(|values| upload(&client, FloatType::F32, values));
    let [_, dx, dkernel, dbias] = naive(shape, [&x, &kernel, &dy], Some(&bias), &rows);
    let got = conv_heads_backward(
        &client,
        &x_at,
        &kernel_at,
        Some(&bias_at),
        &rows_at,
        &readers,
        &dy_at,
        shape,
        SCALES,
        EPS,
        true,
    );
    close("dx", &download(&client, &got.x), &dx, 2e-4);
    close("dkernel", &download(&client, &got.kernel.unwrap()), &dkernel, 2e-4);
    close("dbias", &download(&client, &got.bias.unwrap()), &dbias, 2e-4);
}

#[test]
fn no_tokens_give_nothing() {
    let client = client();
    let shape = shape([0, 4, 2, 2, 2]);
    let (x, rows) = (Buffer::empty(&client, 0, FloatType::F32), Buffer::empty(&client, 0, FloatType::F32));
    let kernel = upload(&client, FloatType::F32, &[1.0; 8]);
    assert_eq!(conv_heads(&client, &x, &kernel, None, &rows, shape, SCALES, EPS).len, 0);
}
