//! The update of Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), as PyTorch computes it.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use crate::elementwise::slices;
use crate::scratch::Ptr;
use crate::simd::{Lanes, dispatch, isa};

/// Constants of one step of [`adamw_update`] or [`adam_update`]; what follows from them is made in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled from the gradient in AdamW, added to it in Adam.
    pub weight_decay: f64,
    /// `1 - beta1^step`, steps counted from 1.
    pub bias_correction1: f64,
    /// `1 - beta2^step`.
    pub bias_correction2: f64,
    /// Multiplies the gradient first (clipping, accumulation, loss scaling).
    pub grad_scale: f64,
}

/// AdamW: `p *= 1 - lr wd`; `m = b1 m + (1 - b1) g`; `v = b2 v + (1 - b2) g^2`;
/// `p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps)`.
///
/// # Panics
/// When the lengths differ.
pub fn adamw_update(master: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], step: &AdamStep) {
    run(master, m, v, grad, step, true);
}

/// Adam: as [`adamw_update`], with `g += wd p` in place of the decoupled decay.
///
/// # Panics
/// When the lengths differ.
pub fn adam_update(master: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], step: &AdamStep) {
    run(master, m, v, grad, step, false);
}

fn run(p: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], step: &AdamStep, decoupled: bool) {
    let len = grad.len();
    assert!(
        p.len() == len && m.len() == len && v.len() == len,
        "adam: parameter, moments and gradient lengths"
    );
    let isa = isa();
    let (p, m, v) = (Ptr(p.as_mut_ptr()), Ptr(m.as_mut_ptr()), Ptr(v.as_mut_ptr()));
    slices(len, |at, n| {
        // SAFETY: slices are disjoint and in bounds.
        unsafe { adam_slice(isa, p.at(at), m.at(at), v.at(at), grad.as_ptr().add(at), n, step, decoupled) };
    });
}

#[inline(always)]
unsafe fn adam_body<S: Lanes>(
    p: *mut f32,
    m: *mut f32,
    v: *mut f32,
    grad: *const f32,
    n: usize,
    step: &AdamStep,
    decoupled: bool,
) {
    let b2 = S::splat(step.beta2 as f32);
    let (c1, c2) = (S::splat((1.0 - step.beta1) as f32), S::splat((1.0 - step.beta2) as f32));
    let shrink = S::splat(if decoupled { 1.0 - step.lr * step.weight_decay } else { 1.0 } as f32);
    let decay = S::splat(if decoupled { 0.0 } else { step.weight_decay } as f32);
    let (root2, eps) = (S::splat(step.bias_correction2.sqrt() as f32), S::splat(step.eps as f32));
    let rate = S::splat((step.lr / step.bias_correction1) as f32);
    let gs = S::splat(step.grad_scale as f32);
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let old = S::load_m(mask, p.add(j));
        let g = S::fma(decay, old, S::mul(gs, S::load_m(mask, grad.add(j))));
        // In PyTorch's order: a step towards g, then v b2 + ((1 - b2) g) g.
        let m0 = S::load_m(mask, m.add(j));
        let m1 = S::add(m0, S::mul(c1, S::sub(g, m0)));
        let v1 = S::add(S::mul(b2, S::load_m(mask, v.add(j))), S::mul(S::mul(c2, g), g));
        let denominator = S::add(S::div(S::sqrt(v1), root2), eps);
        S::store_m(mask, m.add(j), m1);
        S::store_m(mask, v.add(j), v1);
        S::store_m(mask, p.add(j), S::sub(S::mul(shrink, old), S::div(S::mul(rate, m1), denominator)));
        j += S::N;
    }
}

dispatch! {
    /// # Safety
    /// The four slices hold `n` values.
    unsafe fn adam_slice = adam_body [] [] (
        p: *mut f32, m: *mut f32, v: *mut f32, grad: *const f32, n: usize, step: &AdamStep, decoupled: bool
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, with_isa};

    /// Three steps against the formulas in f64.
    #[test]
    fn three_steps_of_both_on_every_isa() {
        let n = 103;
        let start: Vec<f32> = (0..n).map(|i| (i as f32 * 0.3).sin()).collect();
        for &isa in Isa::available() {
            for decoupled in [true, false] {
                let (mut p, mut m, mut v) = (start.clone(), vec![0.0; n], vec![0.0; n]);
                let mut want: Vec<[f64; 3]> = start.iter().map(|&x| [f64::from(x), 0.0, 0.0]).collect();
                let (lr, b1, b2, eps, wd, gs) = (1e-2_f64, 0.9_f64, 0.999_f64, 1e-8_f64, 0.1_f64, 0.5_f64);
                for t in 1..=3 {
                    let grad: Vec<f32> = (0..n).map(|i| ((i * t) as f32 * 0.7).cos() * 0.1).collect();
                    let (bc1, bc2) = (1.0 - b1.powi(t as i32), 1.0 - b2.powi(t as i32));
                    let step = AdamStep {
                        lr,
                        beta1: b1,
                        beta2: b2,
                        eps,
                        weight_decay: wd,
                        bias_correction1: bc1,
                        bias_correction2: bc2,
                        grad_scale: gs,
                    };
                    let update = if decoupled { adamw_update } else { adam_update };
                    with_isa(isa, || update(&mut p, &mut m, &mut v, &grad, &step));
                    for (w, &g) in want.iter_mut().zip(&grad) {
                        let mut g = gs * f64::from(g);
                        if decoupled {
                            w[0] *= 1.0 - lr * wd;
                        } else {
                            g += wd * w[0];
                        }
                        w[1] = b1 * w[1] + (1.0 - b1) * g;
                        w[2] = b2 * w[2] + (1.0 - b2) * g * g;
                        w[0] -= lr / bc1 * w[1] / (w[2].sqrt() / bc2.sqrt() + eps);
                    }
                }
                for (i, w) in want.iter().enumerate() {
                    for (what, got, want, tolerance) in
                        [("p", p[i], w[0], 1e-6), ("m", m[i], w[1], 1e-7), ("v", v[i], w[2], 1e-8)]
                    {
                        assert!(
                            (f64::from(got) - want).abs() < tolerance,
                            "{isa:?} {what}[{i}] {got} {want}"
                        );
                    }
                }
            }
        }
    }
}
