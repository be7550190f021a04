//! A vector of channels: its rates, and a token's step.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::shape::{SelectiveScan, Sizes};
use crate::simd::Lanes;

/// Lanes of the widest vector.
pub(super) const WIDEST: usize = 16;
/// Rows ahead of which channels are asked for: their lines lie too far apart for the processor to see it.
const AHEAD: usize = 4;

/// Neighbouring channels. States are `[states]` vectors of them.
#[derive(Clone, Copy)]
pub(super) struct Channels<'a, S: Lanes> {
    pub(super) call: &'a SelectiveScan<'a>,
    pub(super) sizes: Sizes,
    /// The first one.
    pub(super) first: usize,
    /// Which lanes are channels; the others compute with zeros.
    pub(super) mask: S::M,
    /// How fast each number of the states is forgotten, below zero: `[states]` vectors.
    pub(super) rates: *mut f32,
}

/// A token's part in channels.
#[derive(Clone, Copy)]
pub(super) struct Token<S: Lanes> {
    pub(super) x: S::V,
    /// The softplus of its steps.
    pub(super) dt: S::V,
}

/// `ln(1 + e^v)`, which beyond 20 is `v` to the last bit.
#[inline(always)]
unsafe fn softplus<S: Lanes>(v: S::V) -> S::V {
    let zero = S::splat(0.0);
    // ln(1 + e) = 2 artanh(s) with s = e / (2 + e), at most 1/3: the terms left out are below 3e-9 of it.
    let e = S::exp(S::min(v, S::sub(zero, v)));
    let s = S::div(e, S::add(S::splat(2.0), e));
    let square = S::mul(s, s);
    let mut sum = S::splat(1.0 / 15.0);
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = S::fma(sum, square, S::splat(1.0 / odd));
    }
    S::fma(S::add(s, s), sum, S::max(v, zero))
}

impl<'a, S: Lanes> Channels<'a, S> {
    /// `count` channels from `first` on; `rates` has room for `[states]` vectors.
    ///
    /// # Safety
    /// The call was checked, `count` is 1 to `S::N`, and the channels are there.
    #[inline(always)]
    pub(super) unsafe fn new(
        call: &'a SelectiveScan<'a>,
        sizes: Sizes,
        first: usize,
        count: usize,
        rates: *mut f32,
    ) -> Self {
        for n in 0..sizes.states {
            let rate = rates.add(n * S::N);
            for lane in 0..S::N {
                let at = (first + lane.min(count - 1)) * sizes.states + n;
                *rate.add(lane) = *call.log_rates.get_unchecked(at);
            }
            S::store(rate, S::sub(S::splat(0.0), S::exp(S::load(rate))));
        }
        Self { call, sizes, first, mask: S::mask(count), rates }
    }

    /// Floats of a state.
    #[inline(always)]
    pub(super) fn state(&self) -> usize {
        self.sizes.states * S::N
    }

    /// Where the channels of a row of `[tokens, channels]` are.
    #[inline(always)]
    pub(super) fn at(&self, row: usize) -> usize {
        row * self.sizes.channels + self.first
    }

    /// # Safety
    /// The row is one of the call's.
    #[inline(always)]
    pub(super) unsafe fn token(&self, row: usize) -> Token<S> {
        let at = self.at(row);
        for p in [self.call.x.as_ptr(), self.call.steps.as_ptr()] {
            S::prefetch(p.wrapping_add(at + AHEAD * self.sizes.channels));
        }
        let x = S::load_m(self.mask, self.call.x.as_ptr().add(at));
        let steps = S::load_m(self.mask, self.call.steps.as_ptr().add(at));
        Token { x, dt: softplus::<S>(steps) }
    }

    /// Brings the state behind a row from the one before it (`from` may be `to`), writes what is kept of each number to
    /// `kept` where it is `KEPT`, and gives what is read of the state.
    ///
    /// # Safety
    /// The row is one of the call's; `from`, `to` and (where it is written) `kept` are states.
    #[inline(always)]
    pub(super) unsafe fn step<const KEPT: bool>(
        &self,
        row: usize,
        token: &Token<S>,
        from: *const f32,
        to: *mut f32,
        kept: *mut f32,
    ) -> S::V {
        let states = self.sizes.states;
        let (b, c) = (self.call.b.as_ptr().add(row * states), self.call.c.as_ptr().add(row * states));
        let (learned, mut read) = (S::mul(token.dt, token.x), S::splat(0.0));
        for n in 0..states {
            let at = n * S::N;
            let keep = S::exp(S::mul(token.dt, S::load(self.rates.add(at))));
            let h = S::fma(keep, S::load(from.add(at)), S::mul(S::splat(*b.add(n)), learned));
            if KEPT {
                S::store(kept.add(at), keep);
            }
            S::store(to.add(at), h);
            read = S::fma(S::splat(*c.add(n)), h, read);
        }
        read
    }
}
