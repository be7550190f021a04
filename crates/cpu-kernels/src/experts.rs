//! A mixture of experts' feed-forwards: each token goes through the experts that its router chose, and through no other.
//!
//! Tokens of one expert are gathered into rows of a GEMM of its own ([`linears_forward`](crate::linears_forward)), so no
//! row is padded and none is dropped. An expert's output is weighted before its second layer, which is linear; so the
//! gradient of a weight is a product of rows that backward makes anyway, and no output is kept.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{ExpertsGrad, ExpertsWanted, experts_backward};
pub use forward::{ExpertsOut, ExpertsSaved, experts_decode, experts_forward};

use std::ops::Range;

use burnish_core::{Compute, ELSEWHERE, ExpertGate};

use crate::activation::{GateRows, activate_backward_rows, activate_rows};
use crate::linear::{Linear, LowRank, Weight};
use crate::rows::TileLayout;
use crate::simd::isa;

/// A low-rank branch of each expert's matrix: `scale * B A`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertLowRank<'a> {
    /// Rank `r` of each expert, at least 1.
    pub rank: usize,
    /// `[experts, r, in]`.
    pub a: &'a [f32],
    /// `[experts, out, r]`.
    pub b: &'a [f32],
    /// The branch's factor.
    pub scale: f32,
}

/// One layer of all experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMatrix<'a> {
    /// `[experts, out, in]`.
    pub weight: Weight<'a>,
    /// `[experts, out]`.
    pub bias: Option<&'a [f32]>,
    /// The low-rank branch, if any.
    pub low_rank: Option<ExpertLowRank<'a>>,
}

/// The experts of a feed-forward.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// How many.
    pub count: usize,
    /// Features of a token.
    pub hidden: usize,
    /// Features between an expert's layers.
    pub inner: usize,
    /// Gate and up, `[experts, 2 * inner, hidden]`, or up alone.
    pub gate_up: ExpertMatrix<'a>,
    /// `[experts, hidden, inner]`.
    pub down: ExpertMatrix<'a>,
    /// What stands between the layers.
    pub gate: ExpertGate,
    /// What the operands of products are.
    pub compute: Compute,
}

impl<'a> ExpertMatrix<'a> {
    /// One expert's layer.
    fn layer(&self, expert: usize, [out, input]: [usize; 2], compute: Compute) -> Linear<'a> {
        fn part(all: &[f32], at: usize, len: usize) -> &[f32] {
            &all[at * len..(at + 1) * len]
        }
        let low_rank = self.low_rank.map(|low| LowRank {
            rank: low.rank,
            a: part(low.a, expert, low.rank * input),
            b: part(low.b, expert, out * low.rank),
            b_bias: None,
            scale: low.scale,
            dropout: None,
            magnitude: None,
        });
        let len = out * input;
        Linear {
            out,
            weight: self.weight.part(expert * len..(expert + 1) * len),
            bias: self.bias.map(|bias| part(bias, expert, out)),
            low_rank,
            compute,
        }
    }

    fn check(&self, what: &str, count: usize, [out, input]: [usize; 2]) {
        assert_eq!(self.weight.len(), count * out * input, "experts: `{what}` is [experts, out, in]");
        assert!(
            self.bias.is_none_or(|bias| bias.len() == count * out),
            "experts: the bias of `{what}` is [experts, out]"
        );
        if let Some(low) = &self.low_rank {
            assert_eq!(low.a.len(), count * low.rank * input, "experts: `a` of `{what}` is [experts, r, in]");
            assert_eq!(low.b.len(), count * out * low.rank, "experts: `b` of `{what}` is [experts, out, r]");
        }
    }
}

impl<'a> Experts<'a> {
    fn up_shape(&self) -> [usize; 2] {
        [self.gate.reads(self.inner), self.hidden]
    }

    fn down_shape(&self) -> [usize; 2] {
        [self.hidden, self.inner]
    }

    /// Gate and up of an expert.
    fn up_layer(&self, expert: usize) -> Linear<'a> {
        self.gate_up.layer(expert, self.up_shape(), self.compute)
    }

    /// An expert's second layer; its bias is weighted and so added apart.
    fn down_layer(&self, expert: usize) -> Linear<'a> {
        Linear { bias: None, ..self.down.layer(expert, self.down_shape(), self.compute) }
    }

    fn down_bias(&self, expert: usize) -> Option<&'a [f32]> {
        self.down.bias.map(|bias| &bias[expert * self.hidden..(expert + 1) * self.hidden])
    }

    /// Asserts that every slice has the length its shape says; gives the experts of each token.
    fn check(&self, tokens: usize, x: &[f32], weights: &[f32], chosen: &[u32]) -> usize {
        assert!(self.count > 0 && self.hidden > 0 && self.inner > 0, "experts: a size is 0");
        assert_eq!(x.len(), tokens * self.hidden, "experts: `x` is [tokens, hidden]");
        assert_eq!(chosen.len(), weights.len(), "experts: `chosen` and `weights` are [tokens, per_token]");
        let each = chosen.len().checked_div(tokens).unwrap_or(1);
        assert_eq!(chosen.len(), tokens * each, "experts: `chosen` is [tokens, per_token]");
        let known = |&e: &u32| (e as usize) < self.count || e == ELSEWHERE;
        assert!(chosen.iter().all(known), "experts: `chosen` counts from 0");
        self.gate_up.check("gate_up", self.count, self.up_shape());
        self.down.check("down", self.count, self.down_shape());
        each
    }
}

/// Which rows each expert computes: places in `[tokens, per_token]`, by expert, then by token. Nobody here computes those
/// of experts that are [`ELSEWHERE`].
struct Groups {
    places: Vec<u32>,
    starts: Vec<usize>,
}

impl Groups {
    fn new(experts: usize, chosen: &[u32]) -> Self {
        let mut starts = vec![0; experts + 1];
        let here = || chosen.iter().enumerate().filter(|(_, e)| **e != ELSEWHERE);
        for (_, &e) in here() {
            starts[e as usize + 1] += 1;
        }
        for e in 0..experts {
            starts[e + 1] += starts[e];
        }
        let (mut next, mut places) = (starts.clone(), vec![0; starts[experts]]);
        for (place, &e) in here() {
            places[next[e as usize]] = place as u32;
            next[e as usize] += 1;
        }
        Self { places, starts }
    }

    fn of(&self, expert: usize) -> &[u32] {
        &self.places[self.range(expert)]
    }

    fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    /// Of each of `places` its row among its expert's.
    fn rows(&self, places: usize) -> Vec<u32> {
        let mut rows = vec![0; places];
        for expert in 0..self.starts.len() - 1 {
            for (row, &place) in self.of(expert).iter().enumerate() {
                rows[place as usize] = row as u32;
            }
        }
        rows
    }
}

/// Rows of `x` at the tokens of `places`.
fn gather(x: &[f32], width: usize, places: &[u32], each: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(places.len() * width);
    for &place in places {
        let token = place as usize / each;
        rows.extend_from_slice(&x[token * width..(token + 1) * width]);
    }
    rows
}

/// Each token's sum of its rows, in the order of its experts: `parts` are rows by expert.
fn combine(parts: &[Vec<f32>], rows: &[u32], chosen: &[u32], each: usize, width: usize) -> Vec<f32> {
    use rayon::prelude::*;
    let mut sums = vec![0.0; rows.len() / each * width];
    sums.par_chunks_mut(width).enumerate().with_min_len(16).for_each(|(token, sum)| {
        let here = |place: &usize| chosen[*place] != ELSEWHERE;
        for place in (token * each..(token + 1) * each).filter(here) {
            let (part, row) = (&parts[chosen[place] as usize], rows[place] as usize);
            sum.iter_mut().zip(&part[row * width..(row + 1) * width]).for_each(|(sum, x)| *sum += x);
        }
    });
    sums
}

/// Where element `i` of a row has its gate and its up, of clamped gates.
fn columns(gate: ExpertGate, inner: usize, i: usize) -> [usize; 2] {
    if matches!(gate, ExpertGate::Clamped { .. }) { [2 * i, 2 * i + 1] } else { [i, inner + i] }
}

/// What stands between the layers, of `rows` rows `[2 * inner]`, or `[inner]` without gates.
fn activate(gate: ExpertGate, rows: usize, inner: usize, x: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), rows * gate.reads(inner), "invariant: rows of gate and up");
    let mut out = vec![0.0; rows * inner];
    match gate {
        ExpertGate::Halves(activation) | ExpertGate::Plain(activation) => {
            let gated = matches!(gate, ExpertGate::Halves(_));
            let (to, from) = (TileLayout::rows(inner), GateRows::new(inner, gated));
            // SAFETY: `x` is `[rows, 2 inner]`, or `[rows, inner]` without gates, `out` `[rows, inner]`.
            unsafe {
                activate_rows(
                    isa(),
                    (activation, gated),
                    rows,
                    inner,
                    x.as_ptr(),
                    from,
                    out.as_mut_ptr(),
                    to,
                );
            }
        }
        ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
            for (to, row) in out.chunks_exact_mut(inner).zip(x.chunks_exact(2 * inner)) {
                for (i, to) in to.iter_mut().enumerate() {
                    let [g, u] = columns(gate, inner, i);
                    let (g, u) = (row[g].min(limit), row[u].clamp(-limit, limit));
                    *to = g / (1.0 + (-alpha * g).exp()) * (u + 1.0);
                }
            }
        }
    }
    out
}

/// Backward of [`activate`]: the gradient of its input, and its output once more.
fn activate_backward(
    gate: ExpertGate,
    rows: usize,
    inner: usize,
    x: &[f32],
    d: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    assert!(x.len() == rows * gate.reads(inner) && d.len() == rows * inner, "invariant: rows of gate and up");
    let (mut dx, mut out) = (vec![0.0; x.len()], vec![0.0; d.len()]);
    match gate {
        ExpertGate::Halves(activation) | ExpertGate::Plain(activation) => {
            let to = TileLayout::rows(inner);
            let gated = matches!(gate, ExpertGate::Halves(_));
            let (from, by) = (x.as_ptr(), (dx.as_mut_ptr(), out.as_mut_ptr()));
            // SAFETY: `x` and `dx` are `[rows, 2 inner]`, or `[rows, inner]` without gates, `d` and `out` `[rows, inner]`.
            unsafe {
                let kind = (activation, gated);
                activate_backward_rows::<f32, true>(
                    isa(),
                    kind,
                    rows,
                    inner,
                    from,
                    GateRows::new(inner, gated),
                    (d.as_ptr(), inner),
                    by.0,
                    by.1,
                    to,
                );
            }
        }
        ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
            let rows = x.chunks_exact(2 * inner).zip(dx.chunks_exact_mut(2 * inner));
            for ((row, to), (out, d)) in rows.zip(out.chunks_exact_mut(inner).zip(d.chunks_exact(inner))) {
                for (i, (out, d)) in out.iter_mut().zip(d).enumerate() {
                    let [at_g, at_u] = columns(gate, inner, i);
                    let (g, u) = (row[at_g].min(limit), row[at_u].clamp(-limit, limit));
                    let s = 1.0 / (1.0 + (-alpha * g).exp());
                    let value = g * s;
                    *out = value * (u + 1.0);
                    // At the bound the gradient passes, as PyTorch's clamp has it.
                    if row[at_g] <= limit {
                        to[at_g] = d * (u + 1.0) * (s + alpha * value * (1.0 - s));
                    }
                    if (-limit..=limit).contains(&row[at_u]) {
                        to[at_u] = d * value;
                    }
                }
            }
        }
    }
    (dx, out)
}

/// Multiplies each row by its place's weight.
fn weigh(rows: &mut [f32], width: usize, places: &[u32], weights: &[f32]) {
    for (row, &place) in rows.chunks_exact_mut(width).zip(places) {
        let w = weights[place as usize];
        row.iter_mut().for_each(|x| *x *= w);
    }
}
