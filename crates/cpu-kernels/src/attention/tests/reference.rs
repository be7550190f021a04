//! Attention in f64, row by row, written for clarity alone.

use crate::attention::{AttentionShape, HeadNorm, Rotary};

pub(super) struct Forward {
    pub(super) out: Vec<f64>,
    pub(super) lse: Vec<f64>,
}

pub(super) struct Backward {
    pub(super) dqkv: Vec<f64>,
    pub(super) dq_norm: Vec<f64>,
    pub(super) dk_norm: Vec<f64>,
    pub(super) d_sinks: Vec<f64>,
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// Norm then rotary of one head row.
fn prepare(x: &[f64], gain: Option<(&[f64], f64)>, table: Option<&[f32]>) -> Vec<f64> {
    let mut y = x.to_vec();
    if let Some((g, eps)) = gain {
        let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt();
        y.iter_mut().zip(g).for_each(|(y, g)| *y *= r * g);
    }
    if let Some(t) = table {
        let h = t.len() / 2;
        for i in 0..h {
            let (a, b, c, s) = (y[i], y[i + h], f64::from(t[i]), f64::from(t[i + h]));
            y[i] = a * c - b * s;
            y[i + h] = b * c + a * s;
        }
    }
    y
}

/// Gradient of `prepare`: returns dx and adds to the gain's gradient.
fn prepare_grad(
    x: &[f64],
    gain: Option<(&[f64], f64)>,
    table: Option<&[f32]>,
    dy: &[f64],
    dgain: &mut [f64],
) -> Vec<f64> {
    let mut d = dy.to_vec();
    if let Some(t) = table {
        let h = t.len() / 2;
        for i in 0..h {
            let (a, b, c, s) = (d[i], d[i + h], f64::from(t[i]), f64::from(t[i + h]));
            d[i] = a * c + b * s;
            d[i + h] = b * c - a * s;
        }
    }
    if let Some((g, eps)) = gain {
        let n = x.len() as f64;
        let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / n + eps).sqrt();
        let dot: f64 = (0..x.len()).map(|i| d[i] * g[i] * x[i]).sum::<f64>() / n;
        for i in 0..x.len() {
            dgain[i] += d[i] * x[i] * r;
            d[i] = r * (d[i] * g[i] - x[i] * r * r * dot);
        }
    }
    d
}

struct Prepared {
    q: Vec<Vec<f64>>,
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

fn gains(norm: Option<&HeadNorm<'_>>) -> (Vec<f64>, Vec<f64>, f64) {
    norm.map_or((vec![], vec![], 0.0), |n| (widen(n.q), widen(n.k), f64::from(n.eps)))
}

fn split(
    qkv: &[f64],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    norm: Option<&HeadNorm<'_>>,
) -> Prepared {
    let (w, d, h, kv) = (shape.qkv_width(), shape.head_dim, shape.heads, shape.kv_heads);
    let (gq, gk, eps) = gains(norm);
    let rows = qkv.len() / w;
    let mut p = Prepared { q: vec![], k: vec![], v: vec![] };
    for t in 0..rows {
        let table = rotary.map(|r| r.row(t));
        let at = |i: usize| &qkv[t * w + i * d..t * w + (i + 1) * d];
        for i in 0..h {
            p.q.push(prepare(at(i), norm.map(|_| (&gq[..], eps)), table));
        }
        for i in 0..kv {
            p.k.push(prepare(at(h + i), norm.map(|_| (&gk[..], eps)), table));
            p.v.push(at(h + kv + i).to_vec());
        }
    }
    p
}

/// In eight sums, as one would wait for each addition.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

/// Visible keys (document-local), raw scores, capped scores and probabilities of one query.
fn row(
    p: &Prepared,
    shape: &AttentionShape<'_>,
    start: usize,
    i: usize,
    head: usize,
) -> (usize, Vec<f64>, Vec<f64>, f64) {
    let kh = head / shape.group();
    let lo = shape.window.map_or(0, |w| (i + 1).saturating_sub(w));
    let q = &p.q[(start + i) * shape.heads + head];
    let capped: Vec<f64> = (lo..=i)
        .map(|j| {
            let s = f64::from(shape.scale) * dot(q, &p.k[(start + j) * shape.kv_heads + kh]);
            shape.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
        })
        .collect();
    let slope = shape.slopes.get(head).map_or(0.0, |&s| f64::from(s));
    let biased: Vec<f64> = (lo..=i).zip(&capped).map(|(j, s)| s + slope * (j as f64 - i as f64)).collect();
    let sink = shape.sinks.get(head).map(|&s| f64::from(s));
    let all = || biased.iter().copied().chain(sink);
    let m = all().fold(f64::NEG_INFINITY, f64::max);
    let z: f64 = all().map(|s| (s - m).exp()).sum();
    let lse = m + z.ln();
    let probs = biased.iter().map(|s| (s - lse).exp()).collect();
    (lo, capped, probs, lse)
}

pub(super) fn forward(
    qkv: &[f64],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    norm: Option<&HeadNorm<'_>>,
) -> Forward {
    let (d, h) = (shape.head_dim, shape.heads);
    let rows = qkv.len() / shape.qkv_width();
    let p = split(qkv, shape, rotary, norm);
    let mut f = Forward { out: vec![0.0; rows * h * d], lse: vec![0.0; rows * h] };
    for doc in shape.documents {
        for i in 0..doc.len() {
            for head in 0..h {
                let (lo, _, probs, lse) = row(&p, shape, doc.start, i, head);
                let t = doc.start + i;
                f.lse[t * h + head] = lse;
                for (n, pr) in probs.iter().enumerate() {
                    let v = &p.v[(doc.start + lo + n) * shape.kv_heads + head / shape.group()];
                    f.out[(t * h + head) * d..][..d].iter_mut().zip(v).for_each(|(o, v)| *o += pr * v);
                }
            }
        }
    }
    f
}

/// Each query head's largest score before the cap, over all visible pairs.
pub(super) fn peaks(
    qkv: &[f64],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    norm: Option<&HeadNorm<'_>>,
) -> Vec<f64> {
    let p = split(qkv, shape, rotary, norm);
    let raw = AttentionShape { softcap: None, ..*shape };
    let mut peaks = vec![f64::NEG_INFINITY; shape.heads];
    for doc in shape.documents {
        for i in 0..doc.len() {
            for (head, peak) in peaks.iter_mut().enumerate() {
                let (_, scores, _, _) = row(&p, &raw, doc.start, i, head);
                *peak = scores.into_iter().fold(*peak, f64::max);
            }
        }
    }
    peaks
}

pub(super) fn backward(
    qkv: &[f64],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    norm: Option<&HeadNorm<'_>>,
    d_out: &[f64],
) -> Backward {
    let (w, d, h, kv) = (shape.qkv_width(), shape.head_dim, shape.heads, shape.kv_heads);
    let rows = qkv.len() / w;
    let p = split(qkv, shape, rotary, norm);
    let mut dq = vec![vec![0.0; d]; rows * h];
    let mut dk = vec![vec![0.0; d]; rows * kv];
    let mut dv = vec![vec![0.0; d]; rows * kv];
    let mut d_sinks = vec![0.0; shape.sinks.len()];
    for doc in shape.documents {
        for i in 0..doc.len() {
            for head in 0..h {
                let (lo, capped, probs, lse) = row(&p, shape, doc.start, i, head);
                let t = doc.start + i;
                let go = &d_out[(t * h + head) * d..(t * h + head + 1) * d];
                let kvrow = |n: usize| (doc.start + lo + n) * kv + head / shape.group();
                let dp: Vec<f64> = (0..probs.len()).map(|n| dot(go, &p.v[kvrow(n)])).collect();
                let mean = dot(&dp, &probs);
                if let Some(&sink) = shape.sinks.get(head) {
                    d_sinks[head] -= (f64::from(sink) - lse).exp() * mean;
                }
                for n in 0..probs.len() {
                    let cap = shape.softcap.map_or(1.0, |c| 1.0 - (capped[n] / f64::from(c)).powi(2));
                    let ds = probs[n] * (dp[n] - mean) * cap * f64::from(shape.scale);
                    for e in 0..d {
                        dq[t * h + head][e] += ds * p.k[kvrow(n)][e];
                        dk[kvrow(n)][e] += ds * p.q[t * h + head][e];
                        dv[kvrow(n)][e] += probs[n] * go[e];
                    }
                }
            }
        }
    }
    let (gq, gk, eps) = gains(norm);
    let mut b = Backward { dqkv: vec![0.0; rows * w], dq_norm: vec![0.0; d], dk_norm: vec![0.0; d], d_sinks };
    for t in 0..rows {
        let table = rotary.map(|r| r.row(t));
        for i in 0..h + 2 * kv {
            let at = t * w + i * d..t * w + (i + 1) * d;
            let x = &qkv[at.clone()];
            let g = if i < h {
                let gain = norm.map(|_| (&gq[..], eps));
                prepare_grad(x, gain, table, &dq[t * h + i], &mut b.dq_norm)
            } else if i < h + kv {
                let gain = norm.map(|_| (&gk[..], eps));
                prepare_grad(x, gain, table, &dk[t * kv + i - h], &mut b.dk_norm)
            } else {
                dv[t * kv + i - h - kv].clone()
            };
            b.dqkv[at].copy_from_slice(&g);
        }
    }
    b
}

/// Output of the last row of one document that fills the buffer (no norm, no window, no cap).
pub(super) fn last_row(qkv: &[f64], shape: &AttentionShape<'_>, rotary: Option<&Rotary<'_>>) -> Vec<f64> {
    let (d, w) = (shape.head_dim, shape.qkv_width());
    let rows = qkv.len() / w;
    let head = |t: usize, i: usize| &qkv[t * w + i * d..t * w + (i + 1) * d];
    let mut out = vec![];
    for h in 0..shape.heads {
        let kh = shape.heads + h / shape.group();
        let q = prepare(head(rows - 1, h), None, rotary.map(|r| r.row(rows - 1)));
        let s: Vec<f64> = (0..rows)
            .map(|j| f64::from(shape.scale) * dot(&q, &prepare(head(j, kh), None, rotary.map(|r| r.row(j)))))
            .collect();
        let m = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let z: f64 = s.iter().map(|x| (x - m).exp()).sum();
        let mut o = vec![0.0; d];
        for (j, x) in s.iter().enumerate() {
            let p = (x - m).exp() / z;
            o.iter_mut().zip(head(j, kh + shape.kv_heads)).for_each(|(o, v)| *o += p * v);
        }
        out.extend(o);
    }
    out
}
