//! Backward of a mixture of experts.

use burnish_core::{LinearPart, LinearParts, LoraParts};
use rayon::prelude::*;

use super::{
    ExpertMatrix, Experts, ExpertsSaved, Groups, activate, activate_backward, combine, gather, weigh,
};
use crate::linear::{Input, LinearsSaved, Wanted, linears_backward};
use crate::scratch::Ptr;

/// The gradients asked of [`experts_backward`].
#[derive(Clone, Debug, Default)]
pub struct ExpertsWanted {
    /// Of the tokens.
    pub dx: bool,
    /// Of the router's weights.
    pub dweights: bool,
    /// Of gate and up; those of parts that it lacks are not computed.
    pub gate_up: LinearParts<bool>,
    /// Of the second layer.
    pub down: LinearParts<bool>,
}

/// Gradients from [`experts_backward`].
#[derive(Debug, Default)]
pub struct ExpertsGrad {
    /// `[tokens, hidden]`.
    pub dx: Option<Vec<f32>>,
    /// `[tokens, per_token]`.
    pub dweights: Option<Vec<f32>>,
    /// Of the parts of gate and up, in their shapes; zeros of an expert without a token.
    pub gate_up: LinearParts<Option<Vec<f32>>>,
    /// Of the second layer's.
    pub down: LinearParts<Option<Vec<f32>>>,
}

/// The stacked gradients of a matrix of experts while each writes its own.
struct Stacked {
    parts: LinearParts<Option<Vec<f32>>>,
    /// Where they lie, and how much of them is one expert's.
    at: Vec<(LinearPart, Ptr, usize)>,
}

impl Stacked {
    fn new(
        matrix: &ExpertMatrix<'_>,
        count: usize,
        [out, input]: [usize; 2],
        asked: &LinearParts<bool>,
    ) -> Self {
        let lora = matrix.low_rank.map(|_| LoraParts { a: (), b: (), b_bias: None, magnitude: None });
        let rank = matrix.low_rank.map_or(0, |low| low.rank);
        let mut at = Vec::new();
        let all = LinearParts { weight: (), bias: matrix.bias.map(drop), lora };
        let mut parts = all.map(|part, ()| {
            let len: usize = part.shape(false, out, input, rank).iter().product();
            asked.wants(part).then(|| vec![0.0; count * len])
        });
        for part in LinearPart::ALL {
            if let Some(all) = parts.found_mut(part) {
                at.push((part, Ptr(all.as_mut_ptr()), all.len() / count));
            }
        }
        Self { parts, at }
    }

    fn wants(&self, part: LinearPart) -> bool {
        self.at.iter().any(|(own, ..)| *own == part)
    }

    /// Which a linear's backward makes.
    fn asked(&self) -> LinearParts<bool> {
        let parts: Vec<LinearPart> = self.at.iter().map(|(part, ..)| *part).collect();
        LinearParts::of(&parts)
    }

    /// Writes an expert's gradient of a part.
    ///
    /// # Safety
    /// No one else writes that expert's.
    unsafe fn write(&self, expert: usize, part: LinearPart, gradient: &[f32]) {
        let Some((_, to, len)) = self.at.iter().find(|(own, ..)| *own == part) else { return };
        assert_eq!(gradient.len(), *len, "invariant: a gradient has its part's shape");
        // SAFETY: the vector holds `len` elements of each expert, and lives as long as `self`.
        unsafe { std::ptr::copy_nonoverlapping(gradient.as_ptr(), to.at(expert * len), *len) }
    }
}

/// Gradients of [`super::experts_forward`] from `dy` `[tokens, hidden]`. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape, or `saved` is not of a forward with these arguments.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "the forward's arguments, and what backward adds")]
pub fn experts_backward(
    tokens: usize,
    x: &[f32],
    weights: &[f32],
    chosen: &[u32],
    experts: &Experts<'_>,
    saved: &ExpertsSaved,
    dy: &[f32],
    wanted: &ExpertsWanted,
) -> ExpertsGrad {
    let each = experts.check(tokens, x, weights, chosen);
    let (hidden, inner) = (experts.hidden, experts.inner);
    assert_eq!(dy.len(), tokens * hidden, "experts: `dy` is [tokens, hidden]");
    assert_eq!(saved.gate_up.len(), experts.count, "experts: `saved` is of other experts");
    let groups = Groups::new(experts.count, chosen);
    let up = Stacked::new(&experts.gate_up, experts.count, experts.up_shape(), &wanted.gate_up);
    let down = Stacked::new(&experts.down, experts.count, experts.down_shape(), &wanted.down);
    let into_up = wanted.dx || !up.at.is_empty();
    let of_expert = |e: usize| -> (Vec<f32>, Vec<f32>) {
        let (places, gate_up) = (groups.of(e), saved.gate_up[e].as_slice());
        let rows = places.len();
        if rows == 0 {
            return (Vec::new(), Vec::new());
        }
        let own_dy = gather(dy, hidden, places, each);
        let saved_of =
            |low: &Option<Vec<f32>>| LinearsSaved { t: vec![low.clone()], z: vec![None], rstd: None };
        // The second layer, whose input was weighted.
        let mut z = activate(experts.gate, rows, inner, gate_up);
        weigh(&mut z, inner, places, weights);
        let ask = Wanted { dx: into_up || wanted.dweights, linears: vec![down.asked()], ..Wanted::default() };
        let (layer, low) = (experts.down_layer(e), saved_of(&saved.low[e][1]));
        let mut grad = linears_backward(rows, inner, Input::Plain(&z), &[layer], &low, &own_dy, &ask);
        drop(z);
        // SAFETY: each expert is one task's.
        unsafe { write(&down, e, grad.linears.pop()) };
        if let Some(bias) = experts.down_bias(e).filter(|_| down.wants(LinearPart::Bias)) {
            let mut sum = vec![0.0; bias.len()];
            for (row, &place) in own_dy.chunks_exact(hidden).zip(places) {
                let w = weights[place as usize];
                sum.iter_mut().zip(row).for_each(|(sum, d)| *sum += w * d);
            }
            // SAFETY: as above.
            unsafe { down.write(e, LinearPart::Bias, &sum) };
        }
        let Some(du) = grad.dx else { return (Vec::new(), Vec::new()) };
        let (mut d_gate_up, act) = activate_backward(experts.gate, rows, inner, gate_up, &du);
        let mut dweights = Vec::new();
        if wanted.dweights {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            dweights = du.chunks_exact(inner).zip(act.chunks_exact(inner)).map(|(d, a)| dot(d, a)).collect();
            if let Some(bias) = experts.down_bias(e) {
                for (to, row) in dweights.iter_mut().zip(own_dy.chunks_exact(hidden)) {
                    *to += dot(row, bias);
                }
            }
        }
        drop((du, act, own_dy));
        if !into_up {
            return (Vec::new(), dweights);
        }
        weigh(&mut d_gate_up, experts.gate.reads(inner), places, weights);
        let own = gather(x, hidden, places, each);
        let ask = Wanted { dx: wanted.dx, linears: vec![up.asked()], ..Wanted::default() };
        let (layer, low) = (experts.up_layer(e), saved_of(&saved.low[e][0]));
        let mut grad = linears_backward(rows, hidden, Input::Plain(&own), &[layer], &low, &d_gate_up, &ask);
        // SAFETY: as above.
        unsafe { write(&up, e, grad.linears.pop()) };
        (grad.dx.unwrap_or_default(), dweights)
    };
    let (dx, dweights): (Vec<_>, Vec<_>) =
        (0..experts.count).into_par_iter().with_max_len(1).map(of_expert).unzip();
    let dx = wanted.dx.then(|| combine(&dx, &groups.rows(chosen.len()), chosen, each, hidden));
    let dweights = wanted.dweights.then(|| {
        let mut all = vec![0.0; chosen.len()];
        for (e, own) in dweights.iter().enumerate() {
            for (&place, d) in groups.of(e).iter().zip(own) {
                all[place as usize] = *d;
            }
        }
        all
    });
    ExpertsGrad { dx, dweights, gate_up: up.parts, down: down.parts }
}

/// Writes what a linear's backward found of an expert.
///
/// # Safety
/// No one else writes that expert's.
unsafe fn write(to: &Stacked, expert: usize, found: Option<LinearParts<Option<Vec<f32>>>>) {
    for (part, gradient) in found.into_iter().flatten() {
        if let Some(gradient) = gradient {
            // SAFETY: the caller's.
            unsafe { to.write(expert, part, &gradient) };
        }
    }
}
