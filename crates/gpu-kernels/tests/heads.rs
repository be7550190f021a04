use burnish_gpu_kernels::{FloatType, HeadNorms, HeadShape, Heads, Turns, place_heads, place_heads_backward};

use crate::on_device::{client, close, download, dtypes, in_f64, numbers, rounding, upload};

const EPS: f32 = 1e-6;
const SCALE: f32 = 0.125;

/// A head's forward in f64, and the gradients of its element and gain.
struct Head {
    cos: Vec<f64>,
    sin: Vec<f64>,
    gain: Option<Vec<f64>>,
}

impl Head {
    fn turned(&self, x: &[f64], back: bool) -> Vec<f64> {
        let half = self.cos.len();
        let sign = if back { -1.0 } else { 1.0 };
        let mut y = x.to_vec();
        for i in 0..half {
            y[i] = x[i] * self.cos[i] - x[half + i] * self.sin[i] * sign;
            y[half + i] = x[half + i] * self.cos[i] + x[i] * self.sin[i] * sign;
        }
        y
    }

    fn rstd(x: &[f64]) -> f64 {
        1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt()
    }

    fn forward(&self, x: &[f64]) -> Vec<f64> {
        match &self.gain {
            None => self.turned(x, false),
            Some(gain) => {
                let rstd = Self::rstd(x);
                self.turned(&x.iter().zip(gain).map(|(x, g)| x * rstd * g).collect::<Vec<_>>(), false)
            }
        }
    }

    /// The gradient of `x`; adds the gain's.
    fn backward(&self, x: &[f64], d: &[f64], of_gain: &mut [f64]) -> Vec<f64> {
        let d = self.turned(d, true);
        let Some(gain) = &self.gain else { return d };
        let rstd = Self::rstd(x);
        let u: Vec<f64> = x.iter().map(|x| x * rstd).collect();
        let du: Vec<f64> = d.iter().zip(gain).map(|(d, g)| d * g).collect();
        let pull = u.iter().zip(&du).map(|(u, d)| u * d).sum::<f64>() / x.len() as f64;
        of_gain.iter_mut().zip(d.iter().zip(&u)).for_each(|(sum, (d, u))| *sum += d * u);
        u.iter().zip(&du).map(|(u, d)| (d - u * pull) * rstd).collect()
    }
}

#[test]
fn heads_are_placed_and_their_gradients_go_back_as_in_f64() {
    let client = client();
    let shapes = [
        (HeadShape { heads: 1, kv_heads: 1, dim: 2, half: 1 }, 1),
        (HeadShape { heads: 4, kv_heads: 2, dim: 64, half: 32 }, 7),
        // Rotated in part, of more tokens than groups.
        (HeadShape { heads: 3, kv_heads: 1, dim: 20, half: 5 }, 300),
        (HeadShape { heads: 2, kv_heads: 2, dim: 260, half: 130 }, 3),
        (HeadShape { heads: 5, kv_heads: 2, dim: 128, half: 64 }, 9),
        // Rotated in part, in vectors of four.
        (HeadShape { heads: 2, kv_heads: 1, dim: 80, half: 16 }, 5),
        // Of an odd number of elements.
        (HeadShape { heads: 2, kv_heads: 1, dim: 7, half: 2 }, 4),
    ];
    for (shape, tokens) in shapes {
        for (turned, normed) in [(true, true), (true, false), (false, true), (false, false)] {
            for &dtype in dtypes() {
                case(&client, shape, tokens, (turned, normed), dtype);
            }
        }
    }
}

fn case(
    client: &burnish_gpu_kernels::Client,
    shape: HeadShape,
    tokens: usize,
    (turned, normed): (bool, bool),
    dtype: FloatType,
) {
    let what = format!("{shape:?}, {tokens} tokens, turned {turned}, normed {normed}, {dtype:?}");
    let HeadShape { heads, kv_heads, dim, half } = shape;
    let all = heads + 2 * kv_heads;
    let qkv = numbers(dtype, tokens * all * dim, 1);
    let angles = numbers(FloatType::F32, tokens * half, 2);
    let cos: Vec<f32> = angles.iter().map(|a| (a * 3.0).cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| (a * 3.0).sin()).collect();
    let gains = [numbers(FloatType::F32, dim, 3), numbers(FloatType::F32, dim, 4)];
    let wide = |values: &[f32]| upload(client, FloatType::F32, values);
    let turns = turned.then(|| Turns { cos: wide(&cos), sin: wide(&sin) });
    let norms = normed.then(|| HeadNorms { q: wide(&gains[0]), k: wide(&gains[1]), eps: EPS });
    let qkv_at = upload(client, dtype, &qkv);
    let of = |heads: usize, seed| numbers(FloatType::F32, heads * tokens * dim, seed);
    let d = [of(heads, 5), of(kv_heads, 6), of(kv_heads, 7)];

    let mut placed = [heads, kv_heads, kv_heads].map(|h| vec![0.0f64; h * tokens * dim]);
    let mut dqkv = vec![0.0f64; qkv.len()];
    let mut of_gains = [vec![0.0f64; dim], vec![0.0f64; dim]];
    for (token, head) in (0..tokens).flat_map(|t| (0..all).map(move |h| (t, h))) {
        let (kind, index) = if head < heads {
            (0, head)
        } else if head < heads + kv_heads {
            (1, head - heads)
        } else {
            (2, head - heads - kv_heads)
        };
        let x = in_f64(&qkv[(token * all + head) * dim..][..dim]);
        let at = (index * tokens + token) * dim;
        let d = in_f64(&d[kind][at..][..dim]);
        let rotation = if turned { token * half..(token + 1) * half } else { 0..0 };
        let here = Head {
            cos: in_f64(&cos[rotation.clone()]),
            sin: in_f64(&sin[rotation]),
            gain: normed.then(|| in_f64(&gains[kind.min(1)])),
        };
        let (y, dx) = match kind {
            2 => (x, d),
            _ => (here.forward(&x), here.backward(&x, &d, &mut of_gains[kind])),
        };
        let scale = if kind == 0 { f64::from(SCALE) } else { 1.0 };
        placed[kind][at..at + dim].iter_mut().zip(y).for_each(|(to, y)| *to = y * scale);
        dqkv[(token * all + head) * dim..][..dim].copy_from_slice(&dx);
    }

    let got = place_heads(client, &qkv_at, shape, turns.as_ref(), norms.as_ref(), SCALE);
    let bound = 1e-5 + rounding(dtype);
    for (part, (got, expected)) in [&got.q, &got.k, &got.v].into_iter().zip(&placed).enumerate() {
        close(&format!("{what}: part {part}"), &download(client, got), expected, bound);
    }
    let d = Heads { q: wide(&d[0]), k: wide(&d[1]), v: wide(&d[2]) };
    let got = place_heads_backward(client, &qkv_at, &d, shape, turns.as_ref(), norms.as_ref(), normed);
    close(&format!("{what}: gradient"), &download(client, &got.qkv), &dqkv, 1e-4 + rounding(dtype));
    if let Some((q, k)) = got.gains {
        close(&format!("{what}: gain of queries"), &download(client, &q), &of_gains[0], 1e-4);
        close(&format!("{what}: gain of keys"), &download(client, &k), &of_gains[1], 1e-4);
    }
}
