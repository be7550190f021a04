//! Backward of a group of linear layers: its arguments and results. A `Job` makes the gradients of the input
//! and of the adapters by chunks of rows; `weight_grad` those of the weights.

mod chunk;
mod job;
mod low_rank;
mod magnitude;
mod pack;

use super::input::{Norm, Reads};
use super::weight_grad::{magnified_weight_grads, weight_grads};
use super::{Input, Linear, LinearsSaved, check, compute};
use crate::operand::{Operand, with_operand};
use crate::simd::isa;
use burnish_core::LinearPart::{Bias, LoraA, LoraB, LoraBBias};
use burnish_core::{Activation, LinearParts};
use job::{Job, Part};
use std::marker::PhantomData;

/// The gradients asked of [`linears_backward`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of the input tensor.
    pub dx: bool,
    /// Of a norm's `gamma`.
    pub dgamma: bool,
    /// Of [`Input::LayerNorm`]'s `beta`.
    pub dbeta: bool,
    /// Per layer; those of parts that it lacks are not computed, nor is that of a magnitude (see
    /// [`column_dots`](super::column_dots)).
    pub linears: Vec<LinearParts<bool>>,
}

/// Gradients from [`linears_backward`].
#[derive(Debug, Default)]
pub struct LinearsGrad {
    /// Of the input tensor, in its shape (`[tokens, 2 * in]` where it is gated).
    pub dx: Option<Vec<f32>>,
    /// `[in]`.
    pub dgamma: Option<Vec<f32>>,
    /// `[in]`.
    pub dbeta: Option<Vec<f32>>,
    /// Per layer the gradient of each part that it has, where it was wanted.
    pub linears: Vec<LinearParts<Option<Vec<f32>>>>,
}

/// Gradients of [`super::linears_forward`] from `dy` `[tokens, sum of out]`.
///
/// The residual's gradient is `dy` itself and not returned. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape, or `saved` is not of a forward with these arguments.
#[must_use]
pub fn linears_backward(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    saved: &LinearsSaved,
    dy: &[f32],
    wanted: &Wanted,
) -> LinearsGrad {
    check(tokens, in_dim, &input, linears);
    let (reads, dx) = (input.reads(), std::ptr::null_mut());
    with_operand!(isa(), compute(linears), O => backward::<O>(tokens, in_dim, reads, dx, linears, saved, dy, wanted))
}

/// [`linears_backward`] of layers behind an activation, where the gradient of its input `x`, `[tokens, 2 * in]` where it is
/// `gated`, `[tokens, in]` otherwise, takes the place of `x`; [`LinearsGrad::dx`] is none.
///
/// # Panics
/// As [`linears_backward`]; when the input's gradient is not wanted, a weight's is, or there are no layers.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "those of `linears_backward`, the input by its parts")]
pub fn activated_linears_backward_in_place(
    tokens: usize,
    in_dim: usize,
    x: &mut [f32],
    (activation, gated): (Activation, bool),
    linears: &[Linear<'_>],
    saved: &LinearsSaved,
    dy: &[f32],
    wanted: &Wanted,
) -> LinearsGrad {
    check(tokens, in_dim, &Input::Activated { x, activation, gated }, linears);
    assert!(
        wanted.dx && !linears.is_empty() && wanted.linears.iter().all(|part| !part.weight),
        "linears: in place there is a gradient of the input, and none of weights, which read the input after it"
    );
    let dx = x.as_mut_ptr();
    let reads = Reads::Activated(dx.cast_const(), (activation, gated));
    with_operand!(isa(), compute(linears), O => backward::<O>(tokens, in_dim, reads, dx, linears, saved, dy, wanted))
}

#[allow(clippy::too_many_arguments, reason = "those of `linears_backward`")]
fn backward<O: Operand>(
    tokens: usize,
    in_dim: usize,
    input: Reads<'_>,
    dx: *mut f32,
    linears: &[Linear<'_>],
    saved: &LinearsSaved,
    dy: &[f32],
    wanted: &Wanted,
) -> LinearsGrad {
    let total: usize = linears.iter().map(|l| l.out).sum();
    assert_eq!(dy.len(), tokens * total, "linears: `dy` is [tokens, sum of out]");
    assert_eq!(wanted.linears.len(), linears.len(), "linears: `wanted.linears` has one entry per layer");
    assert_eq!(saved.t.len(), linears.len(), "linears: `saved.t` has one entry per layer");
    for (layer, t) in linears.iter().zip(&saved.t) {
        let len = layer.low_rank.map(|low| low.rank * tokens);
        assert_eq!(t.as_ref().map(Vec::len), len, "linears: `saved.t` is [tokens, rank]");
    }
    let norm = input.is_norm();
    assert_eq!(
        saved.rstd.as_ref().map(Vec::len),
        norm.then_some(tokens),
        "linears: `saved.rstd` is [tokens]"
    );

    let isa = isa();
    let wants_dgamma = wanted.dgamma && norm;
    let wants_dbeta =
        wanted.dbeta && matches!(input, Reads::Norm(Norm { centered: true, beta: Some(_), .. }));
    let (mut offset, mut ranks) = (0, 0);
    let mut partial = 0;
    let mut place = |wanted: bool, len: usize| {
        let at = partial;
        partial += if wanted { len.next_multiple_of(16) } else { 0 };
        wanted.then_some(at)
    };
    let mut parts = Vec::with_capacity(linears.len());
    for ((layer, want), t) in linears.iter().zip(&wanted.linears).zip(&saved.t) {
        let r = layer.rank();
        let wanted = layer.wanted(want);
        let wants = |part| wanted.wants(part);
        parts.push(Part {
            layer,
            at: offset,
            t: t.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()),
            u: ranks * tokens,
            da: place(wants(LoraA), r * in_dim),
            db: place(wants(LoraB), r * layer.out),
            sums: place(wants(Bias) || wants(LoraBBias), layer.out),
            wanted,
            gains: layer.gains(),
        });
        offset += layer.out;
        ranks += r;
    }
    let (dgamma_at, dbeta_at) = (place(wants_dgamma, in_dim), place(wants_dbeta, in_dim));
    let job = Job {
        isa,
        tokens,
        in_dim,
        input,
        dy,
        total,
        rstd: saved.rstd.as_ref().map_or(std::ptr::null(), |r| r.as_ptr()),
        dgamma_at,
        dbeta_at,
        partial,
        wants_dx: wanted.dx,
        dx,
        parts: &parts,
        operand: PhantomData::<O>,
    };
    let mut grad = job.run();
    let weights: Vec<bool> = wanted.linears.iter().map(|wanted| wanted.weight).collect();
    let rstd = saved.rstd.as_deref();
    let mut weights = weight_grads::<O>(isa, tokens, in_dim, input, linears, rstd, dy, &weights);
    magnified_weight_grads::<O>(isa, tokens, in_dim, input, linears, rstd, dy, &mut weights);
    for (to, weight) in grad.linears.iter_mut().zip(weights) {
        to.weight = weight;
    }
    grad
}
