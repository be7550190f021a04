//! RMSNorm of groups of columns with a SiLU gate before or behind it (Mamba-2: Dao & Gu 2024), or the gate alone.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::activation::{SILU, value_and_slope};
use crate::rows::sum_slots;
use crate::scratch::{Pooled, Ptr, uninit};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::{SLICE, Slots, tasks};

/// Rows that are normed in groups and gated, of `[rows, width]`.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// `[rows, width]`.
    pub x: &'a [f32],
    /// `[rows, width]`.
    pub gate: &'a [f32],
    /// `[group]`, shared by all groups, or `[width]`. Without it there is no norm.
    pub gamma: Option<&'a [f32]>,
    /// Columns of a group; `width` is a multiple of it. Means nothing without a norm.
    pub group: usize,
    /// Whether the norm comes before the gate, and is of `x` alone.
    pub before_gate: bool,
    /// Added to the mean square.
    pub eps: f32,
}

/// Gradients of [`gated_norm_forward`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatedNormGrad {
    /// `[rows, width]`.
    pub x: Vec<f32>,
    /// `[rows, width]`.
    pub gate: Vec<f32>,
    /// Of the length of `gamma`; empty where it is not wanted or not there.
    pub gamma: Vec<f32>,
}

/// The gate alone.
const NO_NORM: u8 = 0;
/// `y = x * rstd(x) * gamma * silu(gate)`.
const BEFORE: u8 = 1;
/// `y = u * rstd(u) * gamma` with `u = x * silu(gate)`.
const AFTER: u8 = 2;

/// A norm whose shapes were checked.
struct Plan {
    kind: u8,
    /// Columns of a group.
    group: usize,
    /// Groups of all rows.
    groups: usize,
    /// Groups of a task.
    each: usize,
}

impl GatedNorm<'_> {
    fn plan(&self) -> Plan {
        assert_eq!(self.x.len(), self.gate.len(), "gated norm: `x` and `gate` are [rows, width]");
        let Some(gamma) = self.gamma else {
            // One group a task: any cut will do.
            return Plan { kind: NO_NORM, group: SLICE, groups: self.x.len().div_ceil(SLICE), each: 1 };
        };
        let group = self.group;
        assert!(
            group > 0 && !gamma.is_empty() && gamma.len().is_multiple_of(group),
            "gated norm: `gamma` is [group] or [width]"
        );
        assert!(self.x.len().is_multiple_of(gamma.len()), "gated norm: `x` is rows of groups");
        let kind = if self.before_gate { BEFORE } else { AFTER };
        Plan { kind, group, groups: self.x.len() / group, each: (SLICE / group).max(1) }
    }
}

impl Plan {
    fn chunks(&self) -> usize {
        self.groups.div_ceil(self.each)
    }

    /// The first element of a chunk and how many it has, of `len`.
    fn place(&self, chunk: usize, len: usize) -> (usize, usize) {
        let at = chunk * self.each * self.group;
        (at, (len - at).min(self.each * self.group))
    }
}

/// `name::<kind>(arguments)` of a kind that is known when it runs.
macro_rules! by_kind {
    ($kind:expr, $name:ident $arguments:tt) => {
        match $kind {
            NO_NORM => $name::<NO_NORM> $arguments,
            BEFORE => $name::<BEFORE> $arguments,
            _ => $name::<AFTER> $arguments,
        }
    };
}

/// `[rows, width]`: `x * rstd * gamma * silu(gate)`, or `u * rstd * gamma` with `u = x * silu(gate)`, or `x * silu(gate)`
/// without a norm; `rstd = 1 / sqrt(mean(square) + eps)` over each group.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn gated_norm_forward(norm: &GatedNorm<'_>) -> Vec<f32> {
    let (plan, isa, len) = (norm.plan(), isa(), norm.x.len());
    // SAFETY: the chunks cover every group.
    let mut y = unsafe { uninit(len) };
    let to = Ptr(y.as_mut_ptr());
    tasks(plan.chunks(), |chunk| {
        let (at, n) = plan.place(chunk, len);
        // SAFETY: shapes were checked; the groups are this task's.
        unsafe { by_kind!(plan.kind, forward_groups(isa, norm, plan.group, at, n, to.at(0))) };
    });
    y
}

#[inline(always)]
unsafe fn forward_body<S: Lanes, const KIND: u8>(
    norm: &GatedNorm<'_>,
    group: usize,
    at: usize,
    len: usize,
    y: *mut f32,
) {
    let gains = norm.gamma.unwrap_or_default();
    let mut from = at;
    while from < at + len {
        let n = group.min(at + len - from);
        let (x, gate, y) = (norm.x.as_ptr().add(from), norm.gate.as_ptr().add(from), y.add(from));
        let mut squares = [S::splat(0.0); 2];
        let (mut c, mut q) = (0, 0);
        while c < n {
            let mask = S::mask((n - c).min(S::N));
            let mut v = S::load_m(mask, x.add(c));
            if KIND != BEFORE {
                v = S::mul(v, value_and_slope::<S, SILU>(S::load_m(mask, gate.add(c))).0);
                S::store_m(mask, y.add(c), v);
            }
            if KIND != NO_NORM {
                squares[q] = S::fma(v, v, squares[q]);
                q ^= 1;
            }
            c += S::N;
        }
        if KIND != NO_NORM {
            let gamma = gains.as_ptr().add(from % gains.len());
            let mean = S::sum(S::add(squares[0], squares[1])) / n as f32;
            let rstd = S::splat(1.0 / (mean + norm.eps).sqrt());
            c = 0;
            while c < n {
                let mask = S::mask((n - c).min(S::N));
                let by = S::mul(rstd, S::load_m(mask, gamma.add(c)));
                let v = if KIND == BEFORE {
                    let a = value_and_slope::<S, SILU>(S::load_m(mask, gate.add(c))).0;
                    S::mul(S::load_m(mask, x.add(c)), a)
                } else {
                    S::load_m(mask, y.add(c))
                };
                S::store_m(mask, y.add(c), S::mul(v, by));
                c += S::N;
            }
        }
        from += n;
    }
}

dispatch! {
    /// # Safety
    /// `norm` was checked; `at..at + len` are whole groups of it (any elements without a norm), `y` is as `norm.x`.
    unsafe fn forward_groups = forward_body [const KIND: u8] [KIND]
        (norm: &GatedNorm<'_>, group: usize, at: usize, len: usize, y: *mut f32)
}

/// Gradients from `dy` `[rows, width]`; that of `gamma` where it is wanted and there.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn gated_norm_backward(norm: &GatedNorm<'_>, dy: &[f32], wants_gamma: bool) -> GatedNormGrad {
    let (plan, isa, len) = (norm.plan(), isa(), norm.x.len());
    assert_eq!(dy.len(), len, "gated norm: `dy` is [rows, width]");
    let gains = if wants_gamma { norm.gamma.map_or(0, <[f32]>::len) } else { 0 };
    // SAFETY: the chunks cover every group.
    let (mut dx, mut dgate) = unsafe { (uninit(len), uninit(len)) };
    if len == 0 {
        return GatedNormGrad { x: dx, gate: dgate, gamma: vec![0.0; gains] };
    }
    let to = [Ptr(dx.as_mut_ptr()), Ptr(dgate.as_mut_ptr())];
    let slots = if gains > 0 {
        Slots::new(plan.chunks(), gains)
    } else {
        // Nothing to sum: each chunk is a task.
        Slots { chunks: plan.chunks(), count: plan.chunks() }
    };
    let buffer = Pooled::take(slots.count * gains);
    let sums = buffer.ptr();
    tasks(slots.count, |slot| {
        // SAFETY: shapes were checked; the groups and the slot are this task's.
        unsafe {
            let own = if gains > 0 { sums.at(slot * gains) } else { std::ptr::null_mut() };
            if gains > 0 {
                std::ptr::write_bytes(own, 0, gains);
            }
            let to = to.map(|to| to.at(0));
            for chunk in slots.of(slot) {
                let (at, n) = plan.place(chunk, len);
                let dy = dy.as_ptr();
                by_kind!(plan.kind, backward_groups(isa, norm, plan.group, at, n, dy, to, own));
            }
        }
    });
    let mut gamma = vec![0.0; gains];
    if gains > 0 {
        // SAFETY: every slot was written.
        unsafe { sum_slots(isa, slots.count, gains, gains, sums.at(0), gamma.as_mut_ptr()) };
    }
    GatedNormGrad { x: dx, gate: dgate, gamma }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn backward_body<S: Lanes, const KIND: u8>(
    norm: &GatedNorm<'_>,
    group: usize,
    at: usize,
    len: usize,
    dy: *const f32,
    [dx, dgate]: [*mut f32; 2],
    dgamma: *mut f32,
) {
    let gains = norm.gamma.unwrap_or_default();
    let mut from = at;
    while from < at + len {
        let n = group.min(at + len - from);
        let (x, gate, dy) = (norm.x.as_ptr().add(from), norm.gate.as_ptr().add(from), dy.add(from));
        let (dx, dgate) = (dx.add(from), dgate.add(from));
        let gain = if KIND == NO_NORM { 0 } else { from % gains.len() };
        let gamma = gains.as_ptr().wrapping_add(gain);
        let (mut squares, mut dots) = (S::splat(0.0), S::splat(0.0));
        let mut c = 0;
        while c < n {
            let mask = S::mask((n - c).min(S::N));
            let (v, d) = (S::load_m(mask, x.add(c)), S::load_m(mask, dy.add(c)));
            let (a, slope) = value_and_slope::<S, SILU>(S::load_m(mask, gate.add(c)));
            if KIND == NO_NORM {
                S::store_m(mask, dx.add(c), S::mul(d, a));
                S::store_m(mask, dgate.add(c), S::mul(S::mul(d, v), slope));
            } else {
                // Of both kinds the sum is of `dy gamma x silu(gate)`.
                let u = S::mul(v, a);
                let normed = if KIND == BEFORE { v } else { u };
                squares = S::fma(normed, normed, squares);
                dots = S::fma(S::mul(d, S::load_m(mask, gamma.add(c))), u, dots);
                S::store_m(mask, dx.add(c), a);
                S::store_m(mask, dgate.add(c), slope);
            }
            c += S::N;
        }
        if KIND != NO_NORM {
            let rstd = 1.0 / (S::sum(squares) / n as f32 + norm.eps).sqrt();
            let pull = S::splat(S::sum(dots) / n as f32 * rstd * rstd * rstd);
            let rstd = S::splat(rstd);
            c = 0;
            while c < n {
                let mask = S::mask((n - c).min(S::N));
                let (v, d) = (S::load_m(mask, x.add(c)), S::load_m(mask, dy.add(c)));
                let (a, slope) = (S::load_m(mask, dx.add(c)), S::load_m(mask, dgate.add(c)));
                let by = S::mul(rstd, S::load_m(mask, gamma.add(c)));
                let (da, own) = if KIND == BEFORE {
                    S::store_m(mask, dx.add(c), S::fnma(v, pull, S::mul(S::mul(d, a), by)));
                    let normed = S::mul(d, v);
                    (S::mul(normed, by), S::mul(normed, a))
                } else {
                    let u = S::mul(v, a);
                    let du = S::fnma(u, pull, S::mul(d, by));
                    S::store_m(mask, dx.add(c), S::mul(du, a));
                    (S::mul(du, v), S::mul(d, u))
                };
                S::store_m(mask, dgate.add(c), S::mul(da, slope));
                if !dgamma.is_null() {
                    let sum = dgamma.add(gain + c);
                    S::store_m(mask, sum, S::fma(own, rstd, S::load_m(mask, sum)));
                }
                c += S::N;
            }
        }
        from += n;
    }
}

dispatch! {
    /// # Safety
    /// As [`forward_groups`]; `dy` and the gradients are as `norm.x`, `dgamma` as `norm.gamma` or null.
    unsafe fn backward_groups = backward_body [const KIND: u8] [KIND] (
        norm: &GatedNorm<'_>, group: usize, at: usize, len: usize, dy: *const f32, to: [*mut f32; 2],
        dgamma: *mut f32
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, with_isa};

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| burnish_core::random::mix32(i ^ (seed << 24)) as f32 / 1_073_741_824.0 - 2.0)
            .collect()
    }

    fn wide(v: &[f32]) -> Vec<f64> {
        v.iter().map(|&v| f64::from(v)).collect()
    }

    /// Value and gradients in f64, a group after another.
    fn naive(norm: &GatedNorm<'_>, dy: &[f32]) -> [Vec<f64>; 4] {
        let (x, gate, dy) = (wide(norm.x), wide(norm.gate), wide(dy));
        let gamma = norm.gamma.map(wide);
        let gains = gamma.as_ref().map_or(1, Vec::len);
        let silu = |z: f64| z / (1.0 + (-z).exp());
        let slope = |z: f64| {
            let s = 1.0 / (1.0 + (-z).exp());
            s * (1.0 + z * (1.0 - s))
        };
        let [mut y, mut dx, mut dgate] = [(); 3].map(|()| vec![0.0; x.len()]);
        let mut dgamma = vec![0.0; gains];
        let n = if gamma.is_some() { norm.group } else { 1 };
        for at in (0..x.len()).step_by(n) {
            let a: Vec<f64> = (0..n).map(|c| silu(gate[at + c])).collect();
            // What is normed, and what multiplies it behind.
            let v: Vec<f64> = (0..n).map(|c| x[at + c] * if norm.before_gate { 1.0 } else { a[c] }).collect();
            let rest: Vec<f64> = (0..n).map(|c| if norm.before_gate { a[c] } else { 1.0 }).collect();
            let (r, g): (f64, Vec<f64>) = match &gamma {
                Some(gamma) => {
                    let mean = v.iter().map(|v| v * v).sum::<f64>() / n as f64;
                    let of = |c: usize| gamma[(at + c) % gains];
                    (1.0 / (mean + f64::from(norm.eps)).sqrt(), (0..n).map(of).collect())
                }
                None => (1.0, vec![1.0; n]),
            };
            let d: Vec<f64> = (0..n).map(|c| dy[at + c] * g[c] * rest[c]).collect();
            let dot = (0..n).map(|c| d[c] * v[c]).sum::<f64>() / n as f64;
            for c in 0..n {
                y[at + c] = v[c] * r * g[c] * rest[c];
                let dv = if gamma.is_some() { r * d[c] - v[c] * r.powi(3) * dot } else { d[c] };
                let (own, by_gate) = if norm.before_gate {
                    (dv, dy[at + c] * g[c] * v[c] * r)
                } else {
                    (dv * a[c], dv * x[at + c])
                };
                dx[at + c] = own;
                dgate[at + c] = by_gate * slope(gate[at + c]);
                dgamma[(at + c) % gains] += dy[at + c] * v[c] * r * rest[c];
            }
        }
        [y, dx, dgate, dgamma]
    }

    #[track_caller]
    fn close(what: &str, got: &[f32], want: &[f64], bound: f64) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(got) - want).abs();
            assert!(error <= bound * (1.0 + want.abs()), "{what}[{i}]: {got}, not {want}");
        }
    }

    /// Rows, groups of a row, columns of a group.
    const SHAPES: &[(usize, usize, usize)] = &[(1, 1, 1), (3, 2, 5), (7, 3, 16), (40, 2, 33), (301, 8, 24)];

    #[test]
    fn agrees_with_f64_on_every_isa() {
        for &(rows, groups, group) in SHAPES {
            let width = groups * group;
            let [x, gate, dy] = [1, 2, 3].map(|seed| values(rows * width, seed));
            let gains = values(width, 4);
            for (gamma, before_gate) in [
                (None, false),
                (None, true),
                (Some(&gains[..group]), true),
                (Some(&gains[..group]), false),
                (Some(&gains[..]), true),
                (Some(&gains[..]), false),
            ] {
                let norm = GatedNorm { x: &x, gate: &gate, gamma, group, before_gate, eps: 1e-5 };
                let [y, dx, dgate, dgamma] = naive(&norm, &dy);
                for &isa in Isa::available() {
                    let what =
                        format!("{isa:?} {rows}x{groups}x{group} {before_gate} {:?}", gamma.map(<[_]>::len));
                    let (got, grad, less) = with_isa(isa, || {
                        let less = gated_norm_backward(&norm, &dy, false);
                        (gated_norm_forward(&norm), gated_norm_backward(&norm, &dy, true), less)
                    });
                    close(&format!("{what} y"), &got, &y, 4e-6);
                    close(&format!("{what} dx"), &grad.x, &dx, 2e-5);
                    close(&format!("{what} dgate"), &grad.gate, &dgate, 2e-5);
                    if gamma.is_some() {
                        close(&format!("{what} dgamma"), &grad.gamma, &dgamma, 2e-4);
                    } else {
                        assert!(grad.gamma.is_empty());
                    }
                    assert_eq!(less, GatedNormGrad { gamma: vec![], ..grad });
                }
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let (rows, width, group) = (400, 384, 48);
        let [x, gate, dy] = [1, 2, 3].map(|seed| values(rows * width, seed));
        let gains = values(width, 4);
        for gamma in [&gains[..group], &gains[..]] {
            let norm =
                GatedNorm { x: &x, gate: &gate, gamma: Some(gamma), group, before_gate: true, eps: 1e-6 };
            let [one, two] = [1, 2].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                pool.install(|| (gated_norm_forward(&norm), gated_norm_backward(&norm, &dy, true)))
            });
            assert_eq!(one, two);
        }
    }

    #[test]
    fn no_rows() {
        let gamma = [1.0, 2.0];
        let norm =
            GatedNorm { x: &[], gate: &[], gamma: Some(&gamma), group: 2, before_gate: true, eps: 1e-6 };
        assert!(gated_norm_forward(&norm).is_empty());
        let grad = gated_norm_backward(&norm, &[], true);
        assert_eq!(grad, GatedNormGrad { gamma: vec![0.0; 2], ..Default::default() });
    }

    #[test]
    #[should_panic(expected = "rows of groups")]
    fn refuses_rows_that_do_not_fit() {
        let (x, gamma) = ([1.0; 6], [1.0; 4]);
        let norm = GatedNorm { x: &x, gate: &x, gamma: Some(&gamma), group: 2, before_gate: true, eps: 1e-6 };
        let _ = gated_norm_forward(&norm);
    }
}
