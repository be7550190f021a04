//! One token at a time, for a few: two passes over the state, some columns after the others.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::rows::{load, store};
use crate::simd::{Lanes, dispatch};

/// Rows up to which a chunk goes token by token.
pub(super) const FEW: usize = 4;

/// A token of a head.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) delta_rule: bool,
    pub(super) query: *const f32,
    pub(super) key: *const f32,
    pub(super) value: *const f32,
    /// What is kept of the state: a number, or one of each channel.
    pub(super) keep: *const f32,
    pub(super) beta: f32,
    /// `[key_dim, value_dim]` at stride `ld`.
    pub(super) state: *mut f32,
    pub(super) ld: usize,
    pub(super) out: *mut f32,
}

/// `V` vectors of columns from `c`, the last one masked to `n` columns in all.
#[inline(always)]
unsafe fn columns<S: Lanes, const V: usize, const CHANNELS: bool>(t: &Token, c: usize, n: usize) {
    let mask = S::mask(n - (V - 1) * S::N);
    // Of channels each row is kept on its own.
    let mut keep = S::splat(if CHANNELS { 1.0 } else { *t.keep });
    let (beta, state) = (S::splat(t.beta), t.state.add(c));
    let mut said = [S::splat(0.0); V];
    if t.delta_rule {
        for i in 0..t.key_dim {
            let k = *t.key.add(i);
            let (row, k) = (state.add(i * t.ld), S::splat(if CHANNELS { k * *t.keep.add(i) } else { k }));
            for (v, said) in said.iter_mut().enumerate() {
                *said = S::fma(k, load::<S, V>(row, v, mask), *said);
            }
        }
    }
    let (mut new, mut out) = (said, [S::splat(0.0); V]);
    for (v, new) in new.iter_mut().enumerate() {
        *new = S::mul(beta, S::fnma(keep, *new, load::<S, V>(t.value.add(c), v, mask)));
    }
    for i in 0..t.key_dim {
        let (row, k) = (state.add(i * t.ld), S::splat(*t.key.add(i)));
        let q = S::splat(*t.query.add(i));
        if CHANNELS {
            keep = S::splat(*t.keep.add(i));
        }
        for v in 0..V {
            let s = S::fma(k, new[v], S::mul(keep, load::<S, V>(row, v, mask)));
            store::<S, V>(row, v, mask, s);
            out[v] = S::fma(q, s, out[v]);
        }
    }
    for (v, out) in out.iter().enumerate() {
        store::<S, V>(t.out.add(c), v, mask, *out);
    }
}

#[inline(always)]
unsafe fn token_body<S: Lanes, const CHANNELS: bool>(t: Token) {
    let mut c = 0;
    while c < t.value_dim {
        let left = t.value_dim - c;
        if left >= 4 * S::N {
            columns::<S, 4, CHANNELS>(&t, c, 4 * S::N);
            c += 4 * S::N;
        } else {
            columns::<S, 1, CHANNELS>(&t, c, left.min(S::N));
            c += S::N;
        }
    }
}

dispatch! {
    /// Brings the state behind the token and writes its output.
    ///
    /// # Safety
    /// The token's rows and the state exist, and `keep` holds a number of each channel if `CHANNELS`; `state` and `out` overlap
    /// nothing else.
    pub(super) unsafe fn token = token_body [const CHANNELS: bool] [CHANNELS] (t: Token)
}
