//! The scan backward.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::shape::{SelectiveScan, Sizes};
use super::vector::{Channels, WIDEST};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::tasks;

/// Tokens of a chunk, whose states are made again from the one before it: what a vector's have of 16 numbers stays in the
/// first-level cache.
const CHUNK: usize = 16;
/// Elements of a task that adds up what others summed.
const SUMS: usize = 4096;

/// Gradients of [`selective_scan_forward`](super::selective_scan_forward).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectiveScanGrad {
    /// `[tokens, channels]`; zeros in rows of no document, as in all that are of tokens.
    pub x: Vec<f32>,
    /// `[tokens, channels]`.
    pub steps: Vec<f32>,
    /// `[channels, states]`.
    pub log_rates: Vec<f32>,
    /// `[tokens, states]`.
    pub b: Vec<f32>,
    /// `[tokens, states]`.
    pub c: Vec<f32>,
    /// `[channels]`.
    pub skip: Vec<f32>,
}

/// Gradients from `dy` `[tokens, channels]`, of texts that begin with zeros or what `parents` say.
///
/// The result does not depend on the number of threads. A task goes forward again over all documents with some channels,
/// keeps the state before each chunk of tokens, then goes backward; sums over its channels are added to the others' at the
/// end.
///
/// # Panics
/// If lengths or documents disagree.
#[must_use]
pub fn selective_scan_backward(call: &SelectiveScan<'_>, dy: &[f32]) -> SelectiveScanGrad {
    let (sizes, isa) = (call.check(), isa());
    let Sizes { tokens, channels, states } = sizes;
    assert_eq!(dy.len(), tokens * channels, "selective scan: `dy` is [tokens, channels]");
    let mut grad = SelectiveScanGrad {
        x: vec![0.0; tokens * channels],
        steps: vec![0.0; tokens * channels],
        log_rates: vec![0.0; channels * states],
        b: vec![0.0; tokens * states],
        c: vec![0.0; tokens * states],
        skip: vec![0.0; channels],
    };
    let (each, count) = (sizes.each(), sizes.tasks());
    let (places, kept) = call.places();
    let chunks: usize = call.documents.iter().map(|rows| rows.len().div_ceil(CHUNK)).sum();
    // Of each task those of b, then those of c.
    let mut sums = vec![0.0; count * 2 * tokens * states];
    let to = [&mut grad.x, &mut grad.steps, &mut grad.log_rates, &mut grad.skip, &mut sums];
    let [x, steps, log_rates, skip, all] = to.map(|v| Ptr(v.as_mut_ptr()));
    tasks(count, |task| {
        let (first, size) = (task * each, states * WIDEST);
        let memory = Pooled::passing((kept + chunks) * size);
        scratch(Room::states() * size + CHUNK * WIDEST, |room| {
            // SAFETY: lengths were compared; a task has its channels of every row and its sums to itself, and room for a
            // state at each place and before each chunk.
            unsafe {
                let to = To {
                    x: x.at(0),
                    steps: steps.at(0),
                    log_rates: log_rates.at(0),
                    skip: skip.at(0),
                    b: all.at(task * 2 * tokens * states),
                    c: all.at((task * 2 + 1) * tokens * states),
                };
                let n = each.min(channels - first);
                walk(isa, call, sizes, &places, first, n, dy, room, kept, memory.ptr().0, &to);
            }
        });
    });
    let [b, c] = [&mut grad.b, &mut grad.c].map(|v| Ptr(v.as_mut_ptr()));
    let elements = tokens * states;
    tasks(elements.div_ceil(SUMS), |part| {
        for i in part * SUMS..elements.min((part + 1) * SUMS) {
            // SAFETY: the sums were made for all elements of every task; an element is this task's.
            unsafe {
                for task in 0..count {
                    *b.at(i) += *all.at(task * 2 * elements + i);
                    *c.at(i) += *all.at((task * 2 + 1) * elements + i);
                }
            }
        }
    });
    grad
}

/// Where gradients go: of all tokens and channels, those of `b` and `c` as a task's sums.
#[derive(Clone, Copy)]
struct To {
    x: *mut f32,
    steps: *mut f32,
    log_rates: *mut f32,
    skip: *mut f32,
    b: *mut f32,
    c: *mut f32,
}

/// Working memory of a vector of channels: states, but for `dt`.
#[derive(Clone, Copy)]
struct Room {
    rates: *mut f32,
    /// On the way forward the state, on the way back its gradient.
    state: *mut f32,
    /// The gradient of the rates, of a chunk and of those behind it.
    of_rates: *mut f32,
    of_chunk: *mut f32,
    /// What a chunk's tokens keep of the state.
    keeps: *mut f32,
    /// The states before a chunk's tokens, and the one behind it.
    before: *mut f32,
    /// The steps of a chunk's tokens, behind the softplus: vectors.
    dt: *mut f32,
}

impl Room {
    const fn states() -> usize {
        4 + CHUNK + CHUNK + 1
    }

    unsafe fn new(at: *mut f32, size: usize) -> Self {
        Self {
            rates: at,
            state: at.add(size),
            of_rates: at.add(2 * size),
            of_chunk: at.add(3 * size),
            keeps: at.add(4 * size),
            before: at.add((4 + CHUNK) * size),
            dt: at.add(Self::states() * size),
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn walk_body<S: Lanes>(
    call: &SelectiveScan<'_>,
    sizes: Sizes,
    places: &[Option<usize>],
    first: usize,
    n: usize,
    dy: &[f32],
    room: *mut f32,
    kept: usize,
    memory: *mut f32,
    to: &To,
) {
    let size = sizes.states * S::N;
    let (room, records) = (Room::new(room, size), memory.add(kept * size));
    let mut at = first;
    while at < first + n {
        let count = (first + n - at).min(S::N);
        let v = Channels::<S>::new(call, sizes, at, count, room.rates);
        let mut record = 0;
        for (document, rows) in call.documents.iter().enumerate() {
            let place = *places.get_unchecked(document);
            match call.parent(document).and_then(|parent| *places.get_unchecked(parent)) {
                Some(place) => std::ptr::copy_nonoverlapping(memory.add(place * size), room.state, size),
                None => std::ptr::write_bytes(room.state, 0, size),
            }
            let mut row = rows.start;
            while row < rows.end {
                std::ptr::copy_nonoverlapping(room.state, records.add(record * size), size);
                record += 1;
                let end = rows.end.min(row + CHUNK);
                if end < rows.end || place.is_some() {
                    while row < end {
                        let token = v.token(row);
                        v.step::<false>(row, &token, room.state, room.state, std::ptr::null_mut());
                        row += 1;
                    }
                }
                row = end;
            }
            if let Some(place) = place {
                std::ptr::copy_nonoverlapping(room.state, memory.add(place * size), size);
            }
        }
        // From here on states are gradients of states, and places gather those of what documents leave.
        std::ptr::write_bytes(memory, 0, kept * size);
        std::ptr::write_bytes(room.of_rates, 0, size);
        let mut of_skip = S::splat(0.0);
        for (document, rows) in call.documents.iter().enumerate().rev() {
            match *places.get_unchecked(document) {
                Some(place) => std::ptr::copy_nonoverlapping(memory.add(place * size), room.state, size),
                None => std::ptr::write_bytes(room.state, 0, size),
            }
            for chunk in (0..rows.len().div_ceil(CHUNK)).rev() {
                record -= 1;
                let row = rows.start + chunk * CHUNK;
                let m = CHUNK.min(rows.end - row);
                of_skip = S::add(of_skip, back(&v, &room, records.add(record * size), row, m, dy, to));
            }
            if let Some(place) = call.parent(document).and_then(|parent| *places.get_unchecked(parent)) {
                let parent = memory.add(place * size);
                for i in (0..size).step_by(S::N) {
                    S::store(parent.add(i), S::add(S::load(parent.add(i)), S::load(room.state.add(i))));
                }
            }
        }
        S::store_m(v.mask, to.skip.add(at), of_skip);
        for lane in 0..count {
            for i in 0..sizes.states {
                // A rate is minus the exponential of its logarithm, and so is its derivative.
                let of_rate = *room.of_rates.add(i * S::N + lane) * *room.rates.add(i * S::N + lane);
                *to.log_rates.add((at + lane) * sizes.states + i) = of_rate;
            }
        }
        at += S::N;
    }
}

/// The gradients of a chunk of `m` tokens from `row` on, whose state before it is at `record`; what `skip` gets of it.
///
/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn back<S: Lanes>(
    v: &Channels<'_, S>,
    room: &Room,
    record: *const f32,
    row: usize,
    m: usize,
    dy: &[f32],
    to: &To,
) -> S::V {
    let (size, states) = (v.state(), v.sizes.states);
    std::ptr::copy_nonoverlapping(record, room.before, size);
    for i in 0..m {
        let (token, before) = (v.token(row + i), room.before.add(i * size));
        S::store(room.dt.add(i * S::N), token.dt);
        v.step::<true>(row + i, &token, before, before.add(size), room.keeps.add(i * size));
    }
    std::ptr::write_bytes(room.of_chunk, 0, size);
    let (skip, mut of_skip) = (S::load_m(v.mask, v.call.skip.as_ptr().add(v.first)), S::splat(0.0));
    for i in (0..m).rev() {
        let (at, numbers) = (v.at(row + i), (row + i) * states);
        let x = S::load_m(v.mask, v.call.x.as_ptr().add(at));
        let steps = S::load_m(v.mask, v.call.steps.as_ptr().add(at));
        let dy = S::load_m(v.mask, dy.as_ptr().add(at));
        let dt = S::load(room.dt.add(i * S::N));
        let of = OfToken {
            b: v.call.b.as_ptr().add(numbers),
            c: v.call.c.as_ptr().add(numbers),
            keeps: room.keeps.add(i * size),
            before: room.before.add(i * size),
            of_b: to.b.add(numbers),
            of_c: to.c.add(numbers),
            dy,
            dt,
            learned: S::mul(dt, x),
        };
        let mut sums = [S::splat(0.0); 2];
        let mut number = 0;
        while number + 4 <= states {
            back_numbers::<S, 4>(v, room, &of, number, &mut sums);
            number += 4;
        }
        while number < states {
            back_numbers::<S, 1>(v, room, &of, number, &mut sums);
            number += 1;
        }
        let [learned, kept] = sums;
        let of_dt = S::fma(learned, x, kept);
        S::store_m(v.mask, to.steps.add(at), S::mul(of_dt, S::sigmoid(steps)));
        S::store_m(v.mask, to.x.add(at), S::fma(learned, dt, S::mul(dy, skip)));
        of_skip = S::fma(dy, x, of_skip);
    }
    for i in (0..size).step_by(S::N) {
        let all = S::add(S::load(room.of_rates.add(i)), S::load(room.of_chunk.add(i)));
        S::store(room.of_rates.add(i), all);
    }
    of_skip
}

/// What the gradients of a token's numbers are made of.
#[derive(Clone, Copy)]
struct OfToken<S: Lanes> {
    b: *const f32,
    c: *const f32,
    keeps: *const f32,
    before: *const f32,
    of_b: *mut f32,
    of_c: *mut f32,
    dy: S::V,
    dt: S::V,
    /// `dt x`.
    learned: S::V,
}

/// The gradients of `K` numbers of the state (1 or 4): brings the gradient of the state before the token, adds to those of
/// `b`, `c` and the rates, and to `sums`, the gradients of what is learned and, of `dt`, what is kept.
///
/// # Safety
/// As [`walk`]; the numbers are there.
#[inline(always)]
unsafe fn back_numbers<S: Lanes, const K: usize>(
    v: &Channels<'_, S>,
    room: &Room,
    of: &OfToken<S>,
    number: usize,
    sums: &mut [S::V; 2],
) {
    let (mut of_b, mut of_c) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
    for k in 0..K {
        let (n, at) = (number + k, (number + k) * S::N);
        let state = room.state.add(at);
        let behind = S::load(of.before.add(v.state() + at));
        let g = S::fma(S::splat(*of.c.add(n)), of.dy, S::load(state));
        of_c[k] = S::mul(of.dy, behind);
        of_b[k] = S::mul(g, of.learned);
        sums[0] = S::fma(g, S::splat(*of.b.add(n)), sums[0]);
        let kept = S::mul(g, S::load(of.keeps.add(at)));
        S::store(state, kept);
        let forgotten = S::mul(kept, S::load(of.before.add(at)));
        sums[1] = S::fma(forgotten, S::load(v.rates.add(at)), sums[1]);
        let of_rate = room.of_chunk.add(at);
        S::store(of_rate, S::fma(forgotten, of.dt, S::load(of_rate)));
    }
    let [of_b, of_c] = if K == 4 {
        [S::sums(of_b), S::sums(of_c)]
    } else {
        [[S::sum(of_b[0]), 0.0, 0.0, 0.0], [S::sum(of_c[0]), 0.0, 0.0, 0.0]]
    };
    for k in 0..K {
        *of.of_b.add(number + k) += of_b[k];
        *of.of_c.add(number + k) += of_c[k];
    }
}

dispatch! {
    /// # Safety
    /// `call` was checked; channels `first..first + n` are there, and nobody else has them in the gradients, nor the sums of
    /// `to`; `dy` is `[tokens, channels]`, `room` has [`Room::states`] states and the vectors behind them, `memory` a
    /// state for each of the `kept` places and for each chunk.
    unsafe fn walk = walk_body [] [] (
        call: &SelectiveScan<'_>, sizes: Sizes, places: &[Option<usize>], first: usize, n: usize, dy: &[f32],
        room: *mut f32, kept: usize, memory: *mut f32, to: &To
    )
}
