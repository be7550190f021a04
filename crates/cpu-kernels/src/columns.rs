//! Columns of activations: in another order, and norms of groups of them (queries and keys between projection and
//! attention).

use crate::attention::{RowMap, apply, gradient};
use crate::rows::{TileLayout, norm_backward_rows, norm_rows, sum_slots};
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::simd::isa;
use crate::tasks::{Slots, chunk_rows, tasks};
use crate::{NormGrad, Rotary};

/// Column `j` of each row of the result is column `from[j]` of the row of `x`, `[tokens, from.len()]`.
///
/// # Panics
/// When `x` is not whole rows, or `from` names a column outside them.
#[must_use]
pub fn permute_columns(x: &[f32], from: &[u32]) -> Vec<f32> {
    let n = from.len();
    assert!(n > 0 && x.len().is_multiple_of(n), "permute_columns: `x` is [tokens, columns]");
    assert!(from.iter().all(|&c| (c as usize) < n), "permute_columns: a column lies outside the row");
    let tokens = x.len() / n;
    // SAFETY: the chunks below cover every row.
    let mut y = unsafe { uninit(x.len()) };
    let (to, rows) = (Ptr(y.as_mut_ptr()), chunk_rows(tokens, n));
    tasks(tokens.div_ceil(rows), |chunk| {
        for row in chunk * rows..tokens.min((chunk + 1) * rows) {
            // SAFETY: the row is this task's, and columns were checked.
            unsafe {
                let (x, y) = (x.as_ptr().add(row * n), to.at(row * n));
                for (j, &c) in from.iter().enumerate() {
                    *y.add(j) = *x.add(c as usize);
                }
            }
        }
    });
    y
}

/// A norm of groups of neighbouring columns, each on its own.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// The first column of the first group.
    pub first: usize,
    /// Groups, one after another.
    pub groups: usize,
    /// Columns of a group.
    pub width: usize,
    /// `[width]`, or `[groups * width]` where each group has its own.
    pub gamma: &'a [f32],
    /// Of the shape of `gamma`; LayerNorm alone has it.
    pub beta: Option<&'a [f32]>,
}

impl GroupNorm<'_> {
    fn check(&self, columns: usize) {
        let Self { first, groups, width, gamma, beta } = *self;
        assert!(width > 0 && first + groups * width <= columns, "group norm: columns lie in the row");
        let shared = gamma.len() == width || gamma.len() == groups * width;
        assert!(
            shared && beta.is_none_or(|b| b.len() == gamma.len()),
            "group norm: gains of {}",
            gamma.len()
        );
    }

    /// Where a group's gains begin.
    fn gains(&self, group: usize) -> usize {
        if self.gamma.len() == self.width { 0 } else { group * self.width }
    }
}

/// RMSNorm (LayerNorm where it is `centered`) of groups of columns of `x` `[tokens, columns]`; other columns stay as they
/// are. With a `rotary` groups are heads, which it turns first.
///
/// Returns `y` `[tokens, columns]`, and for each token and group the inverse deviation.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn group_norm_forward(
    x: &[f32],
    columns: usize,
    norms: &[GroupNorm<'_>],
    centered: bool,
    eps: f32,
    rotary: Option<&Rotary<'_>>,
) -> (Vec<f32>, Vec<f32>) {
    let tokens = check(x, columns, norms, rotary);
    let (isa, each) = (isa(), norms.iter().map(|norm| norm.groups).sum::<usize>());
    // SAFETY: the chunks below cover every row of both.
    let (mut y, mut rstd) = unsafe { (uninit(x.len()), uninit(tokens * each)) };
    let (to, r, rows) = (Ptr(y.as_mut_ptr()), Ptr(rstd.as_mut_ptr()), chunk_rows(tokens, columns));
    let widest = norms.iter().map(|norm| norm.width).max().unwrap_or(0);
    tasks(tokens.div_ceil(rows), |chunk| {
        scratch(widest, |turned| {
            for row in chunk * rows..tokens.min((chunk + 1) * rows) {
                // SAFETY: shapes were checked; the row is this task's, `turned` holds a group.
                unsafe {
                    let (x, y, mut r) =
                        (x.as_ptr().add(row * columns), to.at(row * columns), r.at(row * each));
                    std::ptr::copy_nonoverlapping(x, y, columns);
                    for norm in norms {
                        let n = norm.width;
                        for group in 0..norm.groups {
                            let (at, gain) = (norm.first + group * n, norm.gains(group));
                            let mut from = x.add(at);
                            if let Some(rotary) = rotary {
                                apply(isa, turn(n, rotary), from, rotary.row(row).as_ptr(), turned);
                                from = turned;
                            }
                            let gamma = norm.gamma.as_ptr().add(gain);
                            let beta = norm.beta.map_or(std::ptr::null(), |beta| beta.as_ptr().add(gain));
                            let (to, place, all) = (y.add(at), TileLayout::rows(n), 0..n);
                            if centered {
                                norm_rows::<f32, true>(
                                    isa, 1, n, from, gamma, beta, eps, r, false, &all, to, place,
                                );
                            } else {
                                norm_rows::<f32, false>(
                                    isa, 1, n, from, gamma, beta, eps, r, false, &all, to, place,
                                );
                            }
                            r = r.add(1);
                        }
                    }
                }
            }
        });
    });
    (y, rstd)
}

/// Gradients of [`group_norm_forward`] from `dy` `[tokens, columns]`: of `x`, and for each norm those of its gains
/// (`dx` is empty there), where `wants` says so of gamma and beta.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub fn group_norm_backward(
    x: &[f32],
    columns: usize,
    norms: &[GroupNorm<'_>],
    centered: bool,
    rotary: Option<&Rotary<'_>>,
    rstd: &[f32],
    dy: &[f32],
    wants: &[(bool, bool)],
) -> (Vec<f32>, Vec<NormGrad>) {
    let tokens = check(x, columns, norms, rotary);
    let (isa, each) = (isa(), norms.iter().map(|norm| norm.groups).sum::<usize>());
    assert!(rstd.len() == tokens * each && dy.len() == x.len(), "group norm: `dy` is [tokens, columns]");
    assert_eq!(wants.len(), norms.len(), "group norm: what is wanted of each norm");
    // Gamma's sums of all norms, then beta's.
    let gains: usize = norms.iter().map(|norm| norm.gamma.len()).sum();
    // SAFETY: the chunks below cover every row.
    let mut dx = unsafe { uninit(x.len()) };
    let (to, rows) = (Ptr(dx.as_mut_ptr()), chunk_rows(tokens, columns));
    let slots = Slots::new(tokens.div_ceil(rows), 2 * gains);
    let buffer = Pooled::take((slots.count * 2 * gains).max(1));
    let sums = buffer.ptr();
    let widest = norms.iter().map(|norm| norm.width).max().unwrap_or(0);
    tasks(slots.count, |slot| {
        // SAFETY: the slot is this task's.
        let own = unsafe { sums.at(slot * 2 * gains) };
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(own, 0, 2 * gains) };
        scratch(2 * widest, |turned| {
            for row in slots.of(slot).flat_map(|chunk| chunk * rows..tokens.min((chunk + 1) * rows)) {
                // SAFETY: shapes were checked; the row is this task's, `turned` holds two groups.
                unsafe {
                    let x = x.as_ptr().add(row * columns);
                    let (dy, dx) = (dy.as_ptr().add(row * columns), to.at(row * columns));
                    std::ptr::copy_nonoverlapping(dy, dx, columns);
                    let (mut r, mut sum) = (rstd.as_ptr().add(row * each), own);
                    for (norm, &(gamma, beta)) in norms.iter().zip(wants) {
                        let n = norm.width;
                        for group in 0..norm.groups {
                            let (at, gain) = (norm.first + group * n, norm.gains(group));
                            let (mut from, mut into) = (x.add(at), dx.add(at));
                            if let Some(rotary) = rotary {
                                apply(isa, turn(n, rotary), from, rotary.row(row).as_ptr(), turned);
                                (from, into) = (turned.cast_const(), turned.add(widest));
                            }
                            let wanted = |wanted: bool, at: usize| {
                                if wanted { sum.add(at + gain) } else { std::ptr::null_mut() }
                            };
                            let (dgamma, dbeta) = (wanted(gamma, 0), wanted(beta, gains));
                            let (g, dy) = (norm.gamma.as_ptr().add(gain), dy.add(at));
                            if centered {
                                norm_backward_rows::<true>(
                                    isa, 1, n, from, g, r, dy, into, dgamma, dbeta, false,
                                );
                            } else {
                                norm_backward_rows::<false>(
                                    isa, 1, n, from, g, r, dy, into, dgamma, dbeta, false,
                                );
                            }
                            if let Some(rotary) = rotary {
                                let none = std::ptr::null_mut();
                                let table = rotary.row(row).as_ptr();
                                gradient(isa, turn(n, rotary), from, table, into, dx.add(at), none);
                            }
                            r = r.add(1);
                        }
                        sum = sum.add(norm.gamma.len());
                    }
                }
            }
        });
    });
    let mut at = 0;
    let of = |(norm, &(gamma, beta)): (&GroupNorm<'_>, &(bool, bool))| {
        let n = norm.gamma.len();
        let sum = |wanted: bool, at: usize| {
            wanted.then(|| {
                if slots.count == 0 {
                    return vec![0.0; n];
                }
                // SAFETY: every slot was written; the sum fills all of it.
                unsafe {
                    let mut sum = uninit(n);
                    sum_slots(isa, slots.count, 2 * gains, n, sums.at(at), sum.as_mut_ptr());
                    sum
                }
            })
        };
        let found = NormGrad { dx: Vec::new(), dgamma: sum(gamma, at), dbeta: sum(beta, gains + at) };
        at += n;
        found
    };
    let found = norms.iter().zip(wants).map(of).collect();
    (dx, found)
}

/// The rotation of a head, without norm or scale.
fn turn(width: usize, rotary: &Rotary<'_>) -> RowMap {
    RowMap::pair(width, 1.0, Some(rotary), None).1
}

fn check(x: &[f32], columns: usize, norms: &[GroupNorm<'_>], rotary: Option<&Rotary<'_>>) -> usize {
    assert!(columns > 0 && x.len().is_multiple_of(columns), "group norm: `x` is [tokens, columns]");
    let tokens = x.len() / columns;
    for norm in norms {
        norm.check(columns);
        if let Some(rotary) = rotary {
            rotary.check(tokens, norm.width);
        }
    }
    tokens
}
