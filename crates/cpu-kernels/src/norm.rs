//! Norms on their own (RMSNorm: Zhang & Sennrich 2019; LayerNorm: Ba et al. 2016), where no linear layer follows to fold
//! them into.

use crate::rows::{TileLayout, norm_backward_rows, norm_rows, sum_slots};
use crate::scratch::{Pooled, Ptr, uninit};
use crate::simd::isa;
use crate::tasks::{Slots, chunk_rows, tasks};

/// `y = x * rstd * gamma` with `rstd = 1 / sqrt(mean(x^2) + eps)` per row of `x` `[tokens, dim]`.
///
/// `dim` is `gamma`'s length. Returns `y` `[tokens, dim]` and `rstd` `[tokens]`.
///
/// # Panics
/// When `x` is not whole rows of `dim`.
#[must_use]
pub fn rms_norm_forward(x: &[f32], gamma: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    forward::<false>(x, gamma, None, eps)
}

/// `y = (x - mean) * rstd * gamma + beta` with `rstd = 1 / sqrt(var(x) + eps)` per row of `x` `[tokens, dim]`.
///
/// # Panics
/// As [`rms_norm_forward`], or when `beta` is not `[dim]`.
#[must_use]
pub fn layer_norm_forward(x: &[f32], gamma: &[f32], beta: Option<&[f32]>, eps: f32) -> (Vec<f32>, Vec<f32>) {
    forward::<true>(x, gamma, beta, eps)
}

fn forward<const CENTERED: bool>(
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    eps: f32,
) -> (Vec<f32>, Vec<f32>) {
    let (isa, n) = (isa(), gamma.len());
    assert!(n > 0 && x.len().is_multiple_of(n), "norm: `x` is [tokens, dim] and `gamma` [dim]");
    assert!(beta.is_none_or(|b| b.len() == n), "norm: `beta` is [dim]");
    let tokens = x.len() / n;
    // SAFETY: the chunks below cover every row of both.
    let (mut y, mut rstd) = unsafe { (uninit(x.len()), uninit(tokens)) };
    let (to, r) = (Ptr(y.as_mut_ptr()), Ptr(rstd.as_mut_ptr()));
    let rows = chunk_rows(tokens, n);
    tasks(tokens.div_ceil(rows), |chunk| {
        let row = chunk * rows;
        let m = (tokens - row).min(rows);
        // SAFETY: shapes were checked; the rows are this task's.
        unsafe {
            let (x, gamma) = (x.as_ptr().add(row * n), gamma.as_ptr());
            let beta = beta.map_or(std::ptr::null(), <[f32]>::as_ptr);
            let (r, to, place) = (r.at(row), to.at(row * n), TileLayout::rows(n));
            norm_rows::<f32, CENTERED>(isa, m, n, x, gamma, beta, eps, r, false, &(0..n), to, place);
        }
    });
    (y, rstd)
}

/// Gradients of a norm of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NormGrad {
    /// `[tokens, dim]`.
    pub dx: Vec<f32>,
    /// `[dim]`, when asked for.
    pub dgamma: Option<Vec<f32>>,
    /// `[dim]`, when asked for.
    pub dbeta: Option<Vec<f32>>,
}

/// Gradients of [`rms_norm_forward`] from `dy` `[tokens, dim]`: of `x`, and of `gamma` when asked for.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn rms_norm_backward(x: &[f32], gamma: &[f32], rstd: &[f32], dy: &[f32], wants_dgamma: bool) -> NormGrad {
    backward::<false>(x, gamma, rstd, dy, (wants_dgamma, false))
}

/// Gradients of [`layer_norm_forward`] from `dy` `[tokens, dim]`: of `x`, and of `gamma` and `beta` when asked for.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn layer_norm_backward(
    x: &[f32],
    gamma: &[f32],
    rstd: &[f32],
    dy: &[f32],
    wants: (bool, bool),
) -> NormGrad {
    backward::<true>(x, gamma, rstd, dy, wants)
}

fn backward<const CENTERED: bool>(
    x: &[f32],
    gamma: &[f32],
    rstd: &[f32],
    dy: &[f32],
    (wants_dgamma, wants_dbeta): (bool, bool),
) -> NormGrad {
    let (isa, n, tokens) = (isa(), gamma.len(), rstd.len());
    assert_eq!(x.len(), tokens * n, "norm: `x` is [tokens, dim]");
    assert_eq!(dy.len(), tokens * n, "norm: `dy` is [tokens, dim]");
    // SAFETY: the chunks below cover every row.
    let mut dx = unsafe { uninit(x.len()) };
    if tokens == 0 {
        let zeros = |wanted: bool| wanted.then(|| vec![0.0; n]);
        return NormGrad { dx, dgamma: zeros(wants_dgamma), dbeta: zeros(wants_dbeta) };
    }
    let to = Ptr(dx.as_mut_ptr());
    let rows = chunk_rows(tokens, n);
    let slots = Slots::new(tokens.div_ceil(rows), 2 * n);
    let buffer = Pooled::take(slots.count * 2 * n);
    let sums = buffer.ptr();
    tasks(slots.count, |slot| {
        for chunk in slots.of(slot) {
            let row = chunk * rows;
            let m = (tokens - row).min(rows);
            let first = chunk == slots.of(slot).start;
            // SAFETY: shapes were checked; the rows and the slot are this task's.
            unsafe {
                let (x, dy, dx) = (x.as_ptr().add(row * n), dy.as_ptr().add(row * n), to.at(row * n));
                let sum = |wanted: bool, at: usize| {
                    if wanted { sums.at(2 * slot * n + at) } else { std::ptr::null_mut() }
                };
                let (dgamma, dbeta) = (sum(wants_dgamma, 0), sum(wants_dbeta, n));
                let (gamma, rstd) = (gamma.as_ptr(), rstd.as_ptr().add(row));
                norm_backward_rows::<CENTERED>(isa, m, n, x, gamma, rstd, dy, dx, dgamma, dbeta, first);
            }
        }
    });
    let sum = |wanted: bool, at: usize| {
        // SAFETY: every slot was written; the sum fills all of it.
        wanted.then(|| unsafe {
            let mut sum = uninit(n);
            sum_slots(isa, slots.count, 2 * n, n, sums.at(at), sum.as_mut_ptr());
            sum
        })
    };
    let (dgamma, dbeta) = (sum(wants_dgamma, 0), sum(wants_dbeta, n));
    NormGrad { dx, dgamma, dbeta }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, with_isa};

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| burnish_core::random::mix32(i ^ (seed << 20)) as f32 / 2_147_483_648.0 - 1.0)
            .collect()
    }

    #[test]
    fn agrees_with_f64_on_every_isa() {
        for &isa in Isa::available() {
            for (t, n) in [(1, 5), (13, 16), (65, 33), (200, 100), (300, 512)] {
                let (x, gamma, dy) = (values(t * n, 1), values(n, 2), values(t * n, 3));
                let (y, dx, dgamma) = with_isa(isa, || {
                    let (y, rstd) = rms_norm_forward(&x, &gamma, 1e-6);
                    let all = rms_norm_backward(&x, &gamma, &rstd, &dy, true);
                    let less = rms_norm_backward(&x, &gamma, &rstd, &dy, false);
                    assert_eq!(less, NormGrad { dgamma: None, ..all.clone() });
                    (y, all.dx, all.dgamma.expect("asked for"))
                });
                let mut sums = vec![0.0; n];
                for row in 0..t {
                    let at = |v: &[f32], c: usize| f64::from(v[row * n + c]);
                    let r = 1.0 / ((0..n).map(|c| at(&x, c).powi(2)).sum::<f64>() / n as f64 + 1e-6).sqrt();
                    let g = |c: usize| f64::from(gamma[c]);
                    let mean = (0..n).map(|c| at(&dy, c) * g(c) * at(&x, c)).sum::<f64>() / n as f64;
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let want = at(&x, c) * r * g(c);
                        assert!((at(&y, c) - want).abs() < 2e-6 * r, "{isa:?} y {row} {c}");
                        let want = r * at(&dy, c) * g(c) - at(&x, c) * r.powi(3) * mean;
                        assert!((at(&dx, c) - want).abs() < 1e-5 * r, "{isa:?} dx {row} {c}");
                        *sum += at(&dy, c) * at(&x, c) * r;
                    }
                }
                for (c, &want) in sums.iter().enumerate() {
                    assert!(
                        (f64::from(dgamma[c]) - want).abs() < 1e-4,
                        "{isa:?} dgamma {c}: {} {want}",
                        dgamma[c]
                    );
                }
            }
        }
    }

    #[test]
    fn no_rows() {
        assert_eq!(rms_norm_forward(&[], &[1.0, 2.0], 1e-6), (vec![], vec![]));
        let none = NormGrad { dgamma: Some(vec![0.0, 0.0]), ..NormGrad::default() };
        assert_eq!(rms_norm_backward(&[], &[1.0, 2.0], &[], &[], true), none);
    }
}
