//! A logit of each query head that takes part in softmax and has no value: a head may attend to nothing.
//!
//! Attention over the keys alone is done first: with the log-sum-exp `l` of a row's scores and the sink `s`, the row's
//! output is that times `exp(l - l')`, where `l' = log(exp(l) + exp(s))`. Backward reads `l'` where it read `l`, so the
//! gradients of queries, keys and values need nothing else.

use rayon::prelude::*;

use super::block::Plan;
use super::rows;
use crate::operand::Operand;

/// `log(exp(l) + exp(s))`.
fn with_sink(l: f32, s: f32) -> f32 {
    let m = l.max(s);
    m + ((l - m).exp() + (s - m).exp()).ln()
}

/// Gives the sinks their share of `n` rows of key head `kh`'s group, whose attention over keys is done.
///
/// # Safety
/// `out` points at the first row's output of the group's first head, rows at stride `out_width`; `lse` likewise at stride
/// `heads`.
pub(crate) unsafe fn take<O: Operand>(plan: &Plan<'_, O>, kh: usize, n: usize, out: *mut f32, lse: *mut f32) {
    let (d, g) = (plan.shape.head_dim, plan.shape.group());
    for h in 0..g {
        let Some(sink) = plan.shape.sink(kh * g + h) else { return };
        for t in 0..n {
            // SAFETY: the row and head are the caller's.
            unsafe {
                let (y, l) = (out.add(t * plan.shape.out_width() + h * d), lse.add(t * plan.shape.heads + h));
                let both = with_sink(*l, sink);
                rows::scale(plan.isa, d, y, (*l - both).exp(), y);
                *l = both;
            }
        }
    }
}

/// The gradient of the sinks, `[heads]`: of each the sum over rows of `-exp(s - l') * (d_out . out)`, in the order of rows.
pub(crate) fn gradient<O: Operand>(plan: &Plan<'_, O>, out: &[f32], lse: &[f32], d_out: &[f32]) -> Vec<f32> {
    let (d, heads, width) = (plan.shape.head_dim, plan.shape.heads, plan.shape.out_width());
    let of = |h: usize| {
        let sink = plan.shape.sink(h).unwrap_or(f32::NEG_INFINITY);
        let mut sum = 0.0_f64;
        for t in plan.shape.documents.iter().flat_map(Clone::clone) {
            let at = t * width + h * d;
            // SAFETY: the lengths of all buffers were checked against the shape.
            let dot = unsafe { rows::dot(plan.isa, d, d_out[at..at + d].as_ptr(), out[at..at + d].as_ptr()) };
            sum -= f64::from((sink - lse[t * heads + h]).exp() * dot);
        }
        sum as f32
    };
    (0..heads).into_par_iter().map(of).collect()
}
