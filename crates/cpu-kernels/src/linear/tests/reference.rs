//! A naive reference in f64, written from the formulas alone.

use crate::linear::*;
use burnish_core::LinearPart::{Bias, LoraA, LoraB, LoraBBias};
use burnish_core::random::{dropout_bits, dropout_row, dropout_threshold, mix32};
use burnish_core::{Activation, Compute};

/// Values in [-1, 1), a function of `seed`.
pub(super) fn values(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32).map(|i| mix32(i ^ seed.wrapping_mul(0x0123_4567)) as f32 / 2_147_483_648.0 - 1.0).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Norm,
    Gate,
    /// LayerNorm, with beta or without.
    Layer(bool),
    /// An activation, gated or not.
    Act(Activation, bool),
}

/// A group of layers with made-up values. Rank 0 is no branch; odd layers have no branch bias.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) tokens: usize,
    pub(super) dim: usize,
    pub(super) outs: Vec<usize>,
    pub(super) rank: usize,
    pub(super) kind: Kind,
    pub(super) bias: bool,
    pub(super) dropout: f32,
    pub(super) storage: usize,
    pub(super) residual: bool,
    /// Of even layers with a branch (which then has no bias); what the forward keeps.
    pub(super) magnitude: Option<bool>,
    pub(super) compute: Compute,
    /// Values of -1, 0 and 1 alone: every sum is exact.
    pub(super) whole: bool,
}

/// Owned values of a case.
struct Data {
    x: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    layers: Vec<Layer>,
    rows: Vec<u64>,
    residual: Vec<f32>,
}

struct Layer {
    w: Vec<f32>,
    w16: Vec<half::bf16>,
    h16: Vec<half::f16>,
    bias: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    b_bias: Vec<f32>,
    m: Vec<f32>,
    norm: Vec<f32>,
}

#[derive(Default)]
pub(super) struct Want {
    pub(super) y: Vec<f64>,
    pub(super) dx: Vec<f64>,
    /// The largest term of `dx`, before the norm's two terms cancel.
    pub(super) dx_top: f64,
    pub(super) dgamma: Vec<f64>,
    pub(super) dbeta: Vec<f64>,
    pub(super) linears: Vec<WantLinear>,
}

#[derive(Default)]
pub(super) struct WantLinear {
    pub(super) weight: Vec<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) b_bias: Vec<f64>,
    pub(super) m: Vec<f64>,
    /// The largest token's part of `m`, its terms without signs: a row whose base and low rank all but cancel has a small norm, and its
    /// terms, over that norm, are larger than what is left of them.
    pub(super) m_top: f64,
}

/// What a layer's adapter makes of one token.
struct Low {
    /// What dropout multiplies the columns with.
    kept: Vec<f64>,
    /// The columns that it leaves.
    seen: Vec<f64>,
    /// `A` on those.
    low: Vec<f64>,
}

const EPS: f32 = 1e-5;

fn key(layer: usize) -> u64 {
    0x1234_5678_9abc + layer as u64
}

fn scale(layer: usize) -> f32 {
    0.5 + layer as f32
}

impl Case {
    pub(super) fn new(tokens: usize, dim: usize, outs: &[usize], rank: usize) -> Self {
        let outs = outs.to_vec();
        Self {
            tokens,
            dim,
            outs,
            rank,
            kind: Kind::Plain,
            bias: false,
            dropout: 0.0,
            storage: 0,
            residual: false,
            magnitude: None,
            compute: Compute::Fp32,
            whole: false,
        }
    }

    fn values(&self, n: usize, seed: u32) -> Vec<f32> {
        let values = values(n, seed);
        if self.whole { values.iter().map(|x| (1.5 * x).round()).collect() } else { values }
    }

    /// The same values for the first tokens alone (without residual).
    pub(super) fn first(&self, tokens: usize) -> Self {
        Self { tokens, ..self.clone() }
    }

    /// Elements of the input tensor per token.
    fn width(&self) -> usize {
        if matches!(self.kind, Kind::Gate | Kind::Act(_, true)) { 2 * self.dim } else { self.dim }
    }

    fn total(&self) -> usize {
        self.outs.iter().sum()
    }

    pub(super) fn dy(&self) -> Vec<f32> {
        self.values(self.tokens * self.total(), 3)
    }

    fn data(&self) -> Data {
        let (k, r) = (self.dim, self.rank);
        let values = |n, seed| self.values(n, seed);
        let layers = self.outs.iter().enumerate().map(|(j, &out)| {
            let seed = 10 * (j as u32 + 1);
            let mut w = values(out * k, seed);
            let w16: Vec<_> = w.iter().map(|&x| half::bf16::from_f32(x)).collect();
            let h16: Vec<_> = w.iter().map(|&x| half::f16::from_f32(x)).collect();
            match self.storage {
                1 => w = w16.iter().map(|x| x.to_f32()).collect(),
                2 => w = h16.iter().map(|x| x.to_f32()).collect(),
                _ => {}
            }
            let (bias, a, b) = (values(out, seed + 1), values(r * k, seed + 2), values(out * r, seed + 3));
            let norm: Vec<f32> = (0..out).map(|o| row_norm(&w, &a, &b, (o, k, r), scale(j)) as f32).collect();
            let m = norm.iter().zip(values(out, seed + 5)).map(|(n, v)| n * (1.1 + 0.4 * v)).collect();
            Layer { w, w16, h16, bias, a, b, b_bias: values(out, seed + 4), m, norm }
        });
        Data {
            x: values(self.tokens * self.width(), 1),
            beta: values(k, 6),
            gamma: values(k, 2).iter().map(|x| 1.0 + 0.3 * x).collect(),
            layers: layers.collect(),
            rows: (0..self.tokens as u64).map(|i| 5 * i + (i << 33)).collect(),
            residual: values(self.tokens * self.total(), 4),
        }
    }

    fn with<R>(&self, data: &Data, work: impl FnOnce(Input<'_>, &[Linear<'_>]) -> R) -> R {
        let input = match self.kind {
            Kind::Plain => Input::Plain(&data.x),
            Kind::Norm => Input::RmsNorm { x: &data.x, gamma: &data.gamma, eps: EPS },
            Kind::Gate => Input::SwiGlu(&data.x),
            Kind::Layer(beta) => Input::LayerNorm {
                x: &data.x,
                gamma: &data.gamma,
                beta: beta.then_some(&data.beta),
                eps: EPS,
            },
            Kind::Act(activation, gated) => Input::Activated { x: &data.x, activation, gated },
        };
        let linears: Vec<Linear<'_>> = data
            .layers
            .iter()
            .enumerate()
            .map(|(j, l)| Linear {
                compute: self.compute,
                out: self.outs[j],
                weight: match self.storage {
                    1 => Weight::Bf16(&l.w16),
                    2 => Weight::F16(&l.h16),
                    _ => Weight::F32(&l.w),
                },
                bias: self.bias.then_some(&l.bias[..]),
                low_rank: (self.rank > 0).then_some(LowRank {
                    rank: self.rank,
                    a: &l.a,
                    b: &l.b,
                    b_bias: self.has_b_bias(j).then_some(&l.b_bias[..]),
                    scale: scale(j),
                    dropout: (self.dropout > 0.0).then_some(Dropout {
                        key: key(j),
                        p: self.dropout,
                        rows: &data.rows,
                        first_column: 0,
                    }),
                    magnitude: self.magnitude.filter(|_| self.has_magnitude(j)).map(|keep| Magnitude {
                        m: &l.m,
                        norm: &l.norm,
                        keep,
                    }),
                }),
            })
            .collect();
        work(input, &linears)
    }

    fn has_b_bias(&self, layer: usize) -> bool {
        self.bias && self.rank > 0 && layer.is_multiple_of(2) && !self.has_magnitude(layer)
    }

    pub(super) fn has_magnitude(&self, layer: usize) -> bool {
        self.magnitude.is_some() && self.rank > 0 && layer.is_multiple_of(2)
    }

    /// The magnitudes' gradients as a caller makes them: from `z` where it was kept, from the output otherwise.
    pub(super) fn magnitude_grads(&self, out: &LinearsOut) -> Vec<Option<Vec<f32>>> {
        let (data, total, dy) = (self.data(), self.total(), self.dy());
        let mut at = 0;
        let mut all = Vec::new();
        for (j, &n) in self.outs.iter().enumerate() {
            all.push(self.has_magnitude(j).then(|| {
                let l = &data.layers[j];
                let (from, over) = match &out.saved.z[j] {
                    Some(z) => ((&z[..], n, 0), &l.norm),
                    None => ((&out.y[..], total, at), &l.m),
                };
                let sums = column_dots(self.tokens, n, (&dy, total, at), from);
                sums.iter().zip(over).map(|(s, d)| s / d).collect()
            }));
            at += n;
        }
        all
    }

    fn run_wanting(&self, weight: bool) -> (LinearsOut, LinearsGrad) {
        let data = self.data();
        let one = LinearParts { weight, ..LinearParts::of(&[Bias, LoraA, LoraB, LoraBBias]) };
        let wanted = Wanted { dx: true, dgamma: true, dbeta: true, linears: vec![one; self.outs.len()] };
        self.with(&data, |input, linears| {
            let residual = self.residual.then_some(&data.residual[..]);
            let out = linears_forward(self.tokens, self.dim, input, linears, residual);
            let grad =
                linears_backward(self.tokens, self.dim, input, linears, &out.saved, &self.dy(), &wanted);
            (out, grad)
        })
    }

    /// The gradients, where the input's takes the place of the input.
    pub(super) fn run_in_place(&self) -> (LinearsGrad, Vec<f32>) {
        let (data, mut x) = (self.data(), self.data().x);
        let one = LinearParts::of(&[Bias, LoraA, LoraB, LoraBBias]);
        let wanted = Wanted { dx: true, dgamma: true, dbeta: true, linears: vec![one; self.outs.len()] };
        let grad = self.with(&data, |input, linears| {
            let out = linears_forward(self.tokens, self.dim, input, linears, None);
            let f = match input {
                Input::SwiGlu(_) => (Activation::Silu, true),
                Input::Activated { activation, gated, .. } => (activation, gated),
                _ => panic!("not behind an activation"),
            };
            let (saved, dy) = (&out.saved, self.dy());
            activated_linears_backward_in_place(
                self.tokens,
                self.dim,
                &mut x,
                f,
                linears,
                saved,
                &dy,
                &wanted,
            )
        });
        (grad, x)
    }

    pub(super) fn run(&self) -> (LinearsOut, LinearsGrad) {
        self.run_wanting(true)
    }

    /// Forward, and forward whose output nobody reads.
    pub(super) fn forwards(&self) -> [LinearsOut; 2] {
        let data = self.data();
        self.with(&data, |input, linears| {
            let residual = self.residual.then_some(&data.residual[..]);
            [linears_forward, linears_unread]
                .map(|forward| forward(self.tokens, self.dim, input, linears, residual))
        })
    }

    /// The output as decoding makes it.
    pub(super) fn decode(&self) -> Vec<f32> {
        let data = self.data();
        self.with(&data, |input, linears| {
            let residual = self.residual.then_some(&data.residual[..]);
            linears_decode(self.tokens, self.dim, input, linears, residual)
        })
    }

    pub(super) fn run_frozen(&self) -> (LinearsOut, LinearsGrad) {
        self.run_wanting(false)
    }

    pub(super) fn backward(&self, saved: &LinearsSaved, wanted: &Wanted) -> LinearsGrad {
        let data = self.data();
        self.with(&data, |input, linears| {
            linears_backward(self.tokens, self.dim, input, linears, saved, &self.dy(), wanted)
        })
    }

    /// Outputs with the input moved by `h * direction`.
    pub(super) fn shifted(&self, direction: &[f32], h: f64) -> Vec<f64> {
        let data = self.data();
        let x: Vec<f64> =
            data.x.iter().zip(direction).map(|(x, d)| f64::from(*x) + h * f64::from(*d)).collect();
        let h = self.hidden(&data, &x);
        (0..self.tokens).flat_map(|t| self.row(&data, &h, t)).collect()
    }

    /// The layers' input.
    fn hidden(&self, data: &Data, x: &[f64]) -> Vec<f64> {
        let k = self.dim;
        let mut h = Vec::with_capacity(self.tokens * k);
        for t in 0..self.tokens {
            match self.kind {
                Kind::Plain => h.extend_from_slice(&x[t * k..(t + 1) * k]),
                Kind::Norm => {
                    let row = &x[t * k..(t + 1) * k];
                    let r = self.rstd(row);
                    h.extend(row.iter().zip(&data.gamma).map(|(x, g)| x * r * f64::from(*g)));
                }
                Kind::Gate => {
                    let row = &x[2 * t * k..2 * (t + 1) * k];
                    h.extend((0..k).map(|c| row[c] / (1.0 + (-row[c]).exp()) * row[k + c]));
                }
                Kind::Layer(beta) => {
                    let row = centered(&x[t * k..(t + 1) * k]);
                    let r = self.rstd(&row);
                    let b = |c: usize| if beta { f64::from(data.beta[c]) } else { 0.0 };
                    h.extend((0..k).map(|c| row[c] * r * f64::from(data.gamma[c]) + b(c)));
                }
                Kind::Act(f, gated) => {
                    let row = &x[t * self.width()..];
                    h.extend((0..k).map(|c| activated(f, row[c]).0 * if gated { row[k + c] } else { 1.0 }));
                }
            }
        }
        h
    }

    fn rstd(&self, row: &[f64]) -> f64 {
        1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + f64::from(EPS)).sqrt()
    }

    /// What dropout multiplies the columns of one token with.
    fn kept(&self, data: &Data, layer: usize, t: usize) -> Vec<f64> {
        if self.dropout == 0.0 {
            return vec![1.0; self.dim];
        }
        let (row, threshold) = (dropout_row(key(layer), data.rows[t]), dropout_threshold(self.dropout));
        let scale = 1.0 / (1.0 - f64::from(self.dropout));
        (0..self.dim as u32).map(|c| if dropout_bits(row, c) >= threshold { scale } else { 0.0 }).collect()
    }

    /// What a layer's adapter reads of one token, and what its first factor makes of it.
    fn low(&self, data: &Data, h: &[f64], layer: usize, t: usize) -> Low {
        let k = self.dim;
        let kept = self.kept(data, layer, t);
        let seen: Vec<f64> = h[t * k..(t + 1) * k].iter().zip(&kept).map(|(x, kept)| x * kept).collect();
        let of =
            |i: usize| seen.iter().zip(&data.layers[layer].a[i * k..]).map(|(x, a)| x * f64::from(*a)).sum();
        let low = (0..self.rank).map(of).collect();
        Low { kept, seen, low }
    }

    fn row(&self, data: &Data, h: &[f64], t: usize) -> Vec<f64> {
        let (k, r) = (self.dim, self.rank);
        let mut y = Vec::new();
        for (j, l) in data.layers.iter().enumerate() {
            let low = self.low(data, h, j, t);
            let x = &h[t * k..(t + 1) * k];
            for o in 0..self.outs[j] {
                let (s, w) = (f64::from(scale(j)), &l.w[o * k..(o + 1) * k]);
                let mut v = if self.has_magnitude(j) {
                    let dropped = x.iter().zip(&low.kept).map(|(x, kept)| x * (1.0 - kept));
                    let dropped: f64 = dropped.zip(w).map(|(x, w)| x * f64::from(*w)).sum();
                    dropped + f64::from(l.m[o]) / f64::from(l.norm[o]) * self.z(data, &low, j, o).0
                } else {
                    let base: f64 = x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum();
                    base + s * (0..r).map(|i| low.low[i] * f64::from(l.b[o * r + i])).sum::<f64>()
                };
                v += if self.bias { f64::from(l.bias[o]) } else { 0.0 };
                v += if self.has_b_bias(j) { s * f64::from(l.b_bias[o]) } else { 0.0 };
                y.push(v);
            }
        }
        if self.residual {
            let n = y.len();
            y.iter_mut().enumerate().for_each(|(c, y)| *y += f64::from(data.residual[t * n + c]));
        }
        y
    }

    /// `W drop(x) + s B A drop(x)` of one token and row, and the sum of its terms without their signs.
    fn z(&self, data: &Data, low: &Low, layer: usize, o: usize) -> (f64, f64) {
        let (k, r, l) = (self.dim, self.rank, &data.layers[layer]);
        let base = low.seen.iter().zip(&l.w[o * k..]).map(|(x, w)| x * f64::from(*w));
        let low = (0..r).map(|i| f64::from(scale(layer)) * low.low[i] * f64::from(l.b[o * r + i]));
        base.chain(low).fold((0.0, 0.0), |(sum, unsigned), term| (sum + term, unsigned + term.abs()))
    }

    pub(super) fn reference(&self) -> Want {
        self.reference_wanting(true)
    }

    pub(super) fn reference_frozen(&self) -> Want {
        self.reference_wanting(false)
    }

    fn reference_wanting(&self, weight: bool) -> Want {
        let data = self.data();
        let (k, r, total) = (self.dim, self.rank, self.total());
        let x: Vec<f64> = data.x.iter().map(|&x| f64::from(x)).collect();
        let h = self.hidden(&data, &x);
        let mut want =
            Want { dx: vec![0.0; x.len()], dgamma: vec![0.0; k], dbeta: vec![0.0; k], ..Want::default() };
        for (j, &out) in self.outs.iter().enumerate() {
            let some = |on: bool, n: usize| vec![0.0; if on { n } else { 0 }];
            want.linears.push(WantLinear {
                weight: some(weight, out * k),
                bias: some(self.bias, out),
                a: some(r > 0, r * k),
                b: some(r > 0, out * r),
                b_bias: some(self.has_b_bias(j), out),
                m: some(self.has_magnitude(j), out),
                m_top: 0.0,
            });
        }
        let dy = self.dy();
        for t in 0..self.tokens {
            want.y.extend(self.row(&data, &h, t));
            let x_t = &h[t * k..(t + 1) * k];
            let mut dh = vec![0.0; k];
            let mut at = t * total;
            for (j, l) in data.layers.iter().enumerate() {
                let (low, s, out, g) =
                    (self.low(&data, &h, j, t), f64::from(scale(j)), self.outs[j], &mut want.linears[j]);
                let mut u = vec![0.0; r];
                for o in 0..out {
                    let d = f64::from(dy[at + o]);
                    let gain = if self.has_magnitude(j) {
                        let (z, unsigned) = self.z(&data, &low, j, o);
                        let norm = f64::from(l.norm[o]);
                        g.m[o] += d * z / norm;
                        g.m_top = g.m_top.max((d * unsigned / norm).abs());
                        f64::from(l.m[o]) / f64::from(l.norm[o])
                    } else {
                        1.0
                    };
                    for c in 0..k {
                        let kept = if self.has_magnitude(j) { low.kept[c] } else { 1.0 };
                        let seen = 1.0 + (gain - 1.0) * kept;
                        dh[c] += seen * d * f64::from(l.w[o * k + c]);
                        if weight {
                            g.weight[o * k + c] += seen * d * x_t[c];
                        }
                    }
                    let raw = d;
                    let d = gain * d;
                    for (i, u) in u.iter_mut().enumerate() {
                        *u += s * d * f64::from(l.b[o * r + i]);
                        g.b[o * r + i] += s * d * low.low[i];
                    }
                    g.bias.iter_mut().skip(o).take(1).for_each(|g| *g += raw);
                    g.b_bias.iter_mut().skip(o).take(1).for_each(|g| *g += s * d);
                }
                for c in 0..k {
                    let kept = low.kept[c];
                    for (i, u) in u.iter().enumerate() {
                        dh[c] += u * f64::from(l.a[i * k + c]) * kept;
                        g.a[i * k + c] += u * x_t[c] * kept;
                    }
                }
                at += out;
            }
            self.input_backward(&data, &x, t, &dh, &mut want);
        }
        want
    }

    fn input_backward(&self, data: &Data, x: &[f64], t: usize, dh: &[f64], want: &mut Want) {
        let k = self.dim;
        match self.kind {
            Kind::Plain => want.dx[t * k..(t + 1) * k].copy_from_slice(dh),
            Kind::Norm => {
                let row = &x[t * k..(t + 1) * k];
                let r = self.rstd(row);
                let g = |c: usize| f64::from(data.gamma[c]);
                let mean = (0..k).map(|c| dh[c] * g(c) * row[c]).sum::<f64>() / k as f64;
                for c in 0..k {
                    want.dx_top = want.dx_top.max((r * dh[c] * g(c)).abs());
                    want.dx[t * k + c] = r * dh[c] * g(c) - row[c] * r * r * r * mean;
                    want.dgamma[c] += dh[c] * row[c] * r;
                }
            }
            Kind::Gate => {
                for c in 0..k {
                    let (g, u) = (x[2 * t * k + c], x[(2 * t + 1) * k + c]);
                    let s = 1.0 / (1.0 + (-g).exp());
                    want.dx[2 * t * k + c] = dh[c] * u * s * (1.0 + g * (1.0 - s));
                    want.dx[(2 * t + 1) * k + c] = dh[c] * g * s;
                }
            }
            Kind::Layer(_) => {
                let row = centered(&x[t * k..(t + 1) * k]);
                let r = self.rstd(&row);
                let hg: Vec<f64> = (0..k).map(|c| dh[c] * f64::from(data.gamma[c])).collect();
                let mean = hg.iter().zip(&row).map(|(h, x)| h * x).sum::<f64>() / k as f64;
                let shared = hg.iter().sum::<f64>() / k as f64;
                for c in 0..k {
                    want.dx_top = want.dx_top.max((r * hg[c]).abs());
                    want.dx[t * k + c] = r * (hg[c] - shared) - row[c] * r * r * r * mean;
                    want.dgamma[c] += dh[c] * row[c] * r;
                    want.dbeta[c] += dh[c];
                }
            }
            Kind::Act(f, gated) => {
                let row = &x[t * self.width()..];
                let to = &mut want.dx[t * self.width()..];
                for c in 0..k {
                    let (value, slope) = activated(f, row[c]);
                    to[c] = dh[c] * slope * if gated { row[k + c] } else { 1.0 };
                    if gated {
                        to[k + c] = dh[c] * value;
                    }
                }
            }
        }
    }
}

/// `|W_o + s B_o A|`.
pub(super) fn row_norm(w: &[f32], a: &[f32], b: &[f32], (o, k, r): (usize, usize, usize), s: f32) -> f64 {
    let element = |c: usize| {
        let low: f64 = (0..r).map(|i| f64::from(b[o * r + i]) * f64::from(a[i * k + c])).sum();
        f64::from(w[o * k + c]) + f64::from(s) * low
    };
    (0..k).map(|c| element(c).powi(2)).sum::<f64>().sqrt()
}

/// A row less its mean.
fn centered(row: &[f64]) -> Vec<f64> {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    row.iter().map(|x| x - mean).collect()
}

/// The distribution function of the normal distribution, by its series.
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

/// An activation and its slope.
pub(super) fn activated(f: Activation, x: f64) -> (f64, f64) {
    let positive = if x > 0.0 { 1.0 } else { 0.0 };
    match f {
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            (x * s, s * (1.0 + x * (1.0 - s)))
        }
        Activation::Gelu => {
            let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            (x * normal_cdf(x), normal_cdf(x) + x * density)
        }
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            let t = (scale * (x + 0.044_715 * x.powi(3))).tanh();
            let inner = scale * (1.0 + 3.0 * 0.044_715 * x * x);
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
        }
        Activation::Relu => (x * positive, positive),
        Activation::Relu2 => (x * x * positive, 2.0 * x * positive),
    }
}
