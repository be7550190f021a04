//! Forward of a mixture of experts.

use rayon::prelude::*;

use super::{Experts, Groups, activate, combine, gather, weigh};
use crate::linear::{Input, linears_decode, linears_forward};

/// Outputs of [`experts_forward`].
#[derive(Debug)]
pub struct ExpertsOut {
    /// `[tokens, hidden]`.
    pub y: Vec<f32>,
    /// What [`super::experts_backward`] reads besides the arguments.
    pub saved: ExpertsSaved,
}

/// What the backward needs from the forward, by expert; of its rows, which are by token.
#[derive(Debug, Default)]
pub struct ExpertsSaved {
    /// Gate and up, `[rows, 2 * inner]`.
    pub(super) gate_up: Vec<Vec<f32>>,
    /// The low-rank activations of both layers, `[rows, rank]`.
    pub(super) low: Vec<[Option<Vec<f32>>; 2]>,
}

/// `sum over a token's experts of weight * down(gated(gate_up(x)))`; `weights` and `chosen` are `[tokens, per_token]`.
///
/// Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn experts_forward(
    tokens: usize,
    x: &[f32],
    weights: &[f32],
    chosen: &[u32],
    experts: &Experts<'_>,
) -> ExpertsOut {
    let (y, found) = run(tokens, x, weights, chosen, experts, |rows, width, input, layer| {
        let mut out = linears_forward(rows, width, input, &[layer], None);
        (out.y, out.saved.t.pop().flatten())
    });
    let (gate_up, low) = found.into_iter().unzip();
    ExpertsOut { y, saved: ExpertsSaved { gate_up, low } }
}

/// [`experts_forward`] for decoding: fastest for a few tokens, and nothing is kept for a backward.
///
/// Results equal [`experts_forward`]'s up to rounding.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn experts_decode(
    tokens: usize,
    x: &[f32],
    weights: &[f32],
    chosen: &[u32],
    experts: &Experts<'_>,
) -> Vec<f32> {
    run(tokens, x, weights, chosen, experts, |rows, width, input, layer| {
        (linears_decode(rows, width, input, &[layer], None), None)
    })
    .0
}

/// Of an expert gate and up, and the low-rank activations of both layers.
type Kept = (Vec<f32>, [Option<Vec<f32>>; 2]);

fn run(
    tokens: usize,
    x: &[f32],
    weights: &[f32],
    chosen: &[u32],
    experts: &Experts<'_>,
    linear: impl Fn(usize, usize, Input<'_>, crate::Linear<'_>) -> (Vec<f32>, Option<Vec<f32>>) + Sync,
) -> (Vec<f32>, Vec<Kept>) {
    let each = experts.check(tokens, x, weights, chosen);
    let (hidden, inner) = (experts.hidden, experts.inner);
    let groups = Groups::new(experts.count, chosen);
    let of_expert = |e: usize| {
        let places = groups.of(e);
        let rows = places.len();
        if rows == 0 {
            return (Vec::new(), (Vec::new(), [None, None]));
        }
        let own = gather(x, hidden, places, each);
        let (gate_up, low_up) = linear(rows, hidden, Input::Plain(&own), experts.up_layer(e));
        drop(own);
        let mut z = activate(experts.gate, rows, inner, &gate_up);
        weigh(&mut z, inner, places, weights);
        let (mut y, low_down) = linear(rows, inner, Input::Plain(&z), experts.down_layer(e));
        if let Some(bias) = experts.down_bias(e) {
            for (row, &place) in y.chunks_exact_mut(hidden).zip(places) {
                let w = weights[place as usize];
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += w * b);
            }
        }
        (y, (gate_up, [low_up, low_down]))
    };
    let (parts, kept): (Vec<_>, Vec<_>) =
        (0..experts.count).into_par_iter().with_max_len(1).map(of_expert).unzip();
    (combine(&parts, &groups.rows(chosen.len()), chosen, each, hidden), kept)
}
