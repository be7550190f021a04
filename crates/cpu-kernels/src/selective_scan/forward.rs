//! The scan forward.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::shape::{SelectiveScan, Sizes};
use super::vector::{Channels, WIDEST};
use crate::scratch::{Ptr, scratch};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::few_tasks;

/// Multiplications of an exponential and a step.
const WORK: usize = 8;

/// Output `[tokens, channels]`; rows of no document are zeros.
///
/// `states` is where generation keeps them, `[documents, states, channels]`: on entry the state before each document's
/// first row, afterwards the one behind its last. Without, documents begin with zeros or what `parents` say. The result
/// does not depend on the number of threads.
///
/// ```
/// use burnish_cpu_kernels::{SelectiveScan, selective_scan_forward};
///
/// // With steps of 20 and a rate of 1 all but 2e-9 of a state is forgotten.
/// let call = SelectiveScan { x: &[1.0, 2.0], steps: &[20.0, 20.0], log_rates: &[0.0], b: &[0.1, 0.1], c: &[1.0, 1.0],
///     skip: &[0.5], documents: &[0..2], parents: &[] };
/// let y = selective_scan_forward(&call, None);
/// assert!((y[0] - 2.5).abs() < 1e-5 && (y[1] - 5.0).abs() < 1e-5);
/// ```
///
/// # Panics
/// If lengths or documents disagree, or there are both `states` and parents.
#[must_use]
pub fn selective_scan_forward(call: &SelectiveScan<'_>, states: Option<&mut [f32]>) -> Vec<f32> {
    let (sizes, isa) = (call.check(), isa());
    if let Some(states) = &states {
        assert!(
            call.parents.iter().all(Option::is_none),
            "selective scan: documents continue others and kept states, expected one of both"
        );
        assert!(
            states.len() == call.documents.len() * sizes.states * sizes.channels,
            "selective scan: states of {} elements, expected {} documents of {} numbers of {} channels",
            states.len(),
            call.documents.len(),
            sizes.states,
            sizes.channels
        );
    }
    let mut y = vec![0.0; sizes.tokens * sizes.channels];
    let to = Ptr(y.as_mut_ptr());
    let held = states.map(|states| Ptr(states.as_mut_ptr()));
    let (places, count) = call.places();
    let each = sizes.each();
    few_tasks(sizes.tasks(), WORK * sizes.tokens * sizes.channels * sizes.states, |task| {
        let (first, state) = (task * each, sizes.states * WIDEST);
        scratch((2 + count) * state, |room| {
            let held = held.map_or(std::ptr::null_mut(), |held| held.0);
            let n = each.min(sizes.channels - first);
            // SAFETY: lengths were compared; a task has its channels of every row and state to itself, and room for two
            // states of a vector and one for each place.
            unsafe { walk(isa, call, sizes, &places, first, n, held, room, to.at(0)) };
        });
    });
    y
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn walk_body<S: Lanes>(
    call: &SelectiveScan<'_>,
    sizes: Sizes,
    places: &[Option<usize>],
    first: usize,
    n: usize,
    held: *mut f32,
    room: *mut f32,
    y: *mut f32,
) {
    let size = sizes.states * S::N;
    let (state, kept) = (room.add(size), room.add(2 * size));
    let mut at = first;
    while at < first + n {
        let v = Channels::<S>::new(call, sizes, at, (first + n - at).min(S::N), room);
        let skip = S::load_m(v.mask, call.skip.as_ptr().add(at));
        for (document, rows) in call.documents.iter().enumerate() {
            let held =
                if held.is_null() { held } else { held.add(document * sizes.states * sizes.channels + at) };
            match call.parent(document).and_then(|parent| *places.get_unchecked(parent)) {
                Some(place) => std::ptr::copy_nonoverlapping(kept.add(place * size), state, size),
                None if held.is_null() => std::ptr::write_bytes(state, 0, size),
                None => {
                    for i in 0..sizes.states {
                        S::store(state.add(i * S::N), S::load_m(v.mask, held.add(i * sizes.channels)));
                    }
                }
            }
            for row in rows.clone() {
                let token = v.token(row);
                let read = v.step::<false>(row, &token, state, state, std::ptr::null_mut());
                S::store_m(v.mask, y.add(v.at(row)), S::fma(skip, token.x, read));
            }
            if let Some(place) = *places.get_unchecked(document) {
                std::ptr::copy_nonoverlapping(state, kept.add(place * size), size);
            }
            if !held.is_null() {
                for i in 0..sizes.states {
                    S::store_m(v.mask, held.add(i * sizes.channels), S::load(state.add(i * S::N)));
                }
            }
        }
        at += S::N;
    }
}

dispatch! {
    /// # Safety
    /// `call` was checked; channels `first..first + n` are there, and nobody else has them in `y` `[tokens, channels]` and
    /// `held` `[documents, states, channels]` (or null); `room` has two states and one for each of `places`.
    unsafe fn walk = walk_body [] [] (
        call: &SelectiveScan<'_>, sizes: Sizes, places: &[Option<usize>], first: usize, n: usize, held: *mut f32,
        room: *mut f32, y: *mut f32
    )
}
