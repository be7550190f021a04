//! The gradients of a chunk of a head, on the way back.

#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use super::channels;
use super::chunk::{CHUNK, Chunk, ChunkHead, Factors, Heads, PAIRS, Room, state_row};
use super::product::{Second, Target, lower, lower_tn, product, product_tn, scores, solve_tn, transposed};
use super::rows::{PairGrads, dots, pair_grads, scaled};
use crate::micro::LDP;
use crate::rows::{TileLayout, copy_rows};

/// Some columns of a gradient's rows.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) at: *mut f32,
    pub(super) ld: usize,
}

impl Part {
    /// From row `row` on, overwritten.
    fn target(self, row: usize) -> Target {
        Target { at: self.at.wrapping_add(row * self.ld), ld: self.ld, alpha: 1.0, add: false }
    }
}

/// Where the gradients of some heads go.
#[derive(Clone, Copy)]
pub(super) struct To {
    /// Of the heads' queries.
    pub(super) query: Part,
    /// Of the heads' keys.
    pub(super) key: Part,
    /// Of the values of all heads.
    pub(super) value: Part,
    pub(super) decay: *mut f32,
    pub(super) beta: *mut f32,
}

/// Working memory of a chunk's gradients, besides the way forward's.
#[derive(Clone, Copy)]
pub(super) struct GradRoom {
    pub(super) room: Room,
    /// Gradient of the output.
    pub(super) dy: *mut f32,
    /// Gradient of what the state gains, then of the system's right side.
    pub(super) d_new: *mut f32,
    /// A gradient of queries or keys through a state.
    pub(super) part: *mut f32,
    /// Sums over heads of gradients of pairs, next to each other: products of keys, of queries and keys. Of channels gradients
    /// of keys that ask.
    pub(super) sums: *mut f32,
    /// `new` as columns.
    pub(super) new_panels: *mut f32,
    /// A state as columns.
    pub(super) state_panels: *mut f32,
    /// The triangle of the system before `beta`, by rows of 64.
    pub(super) bare: *mut f32,
    /// Products of the rows of two states.
    pub(super) dots: *mut f32,
    /// Of channels gradients of keys.
    pub(super) of_keys: *mut f32,
}

impl GradRoom {
    fn d_keys(&self) -> *mut f32 {
        self.sums
    }

    fn d_queries(&self) -> *mut f32 {
        self.sums.wrapping_add(PAIRS)
    }
}

/// A head's gradients of a chunk, but for those of queries and keys through pairs where a head has one decay, which [`shared`]
/// makes of their sums.
/// `d_state` holds the gradient of the state behind it, taken for zeros unless `behind`, and then that of the state before
/// it, where that is more than zeros.
///
/// # Safety
/// `to` has the call's rows, of which nobody else has the head's part of this chunk; `dy` is `[tokens, heads * value_dim]`;
/// `state` is `[key_dim, value_dim]`, `new` `[m, value_dim]`, `d_state` by rows of [`state_row`].
pub(super) unsafe fn back(
    head: &ChunkHead<'_>,
    g: &GradRoom,
    state: Option<*const f32>,
    new: *const f32,
    d_state: *mut f32,
    behind: bool,
    dy: &[f32],
    to: &To,
) {
    let Chunk { heads, row, m, room: r } = head.chunk;
    let (s, isa, m, row) = (heads.shape(), heads.isa, *m, *row);
    let (dk, dv, ld) = (s.key_dim, s.value_dim, state_row(s));
    // SAFETY: the caller's rows, states and room.
    unsafe {
        head.load(true, g.bare);
        let at = heads.scalar(row, head.head) * dv;
        copy_rows(isa, m, dv, dy[at..].as_ptr(), s.heads * dv, g.dy, TileLayout::rows(LDP));

        // What the state gains, and the right side of its system.
        lower_tn(isa, m, dv, r.weights(), Second::rows(g.dy, LDP), Target::rows(g.d_new));
        if behind {
            let to = Target::rows(g.d_new).plus(1.0);
            product(isa, [m, dv, dk], r.keys_until, Second::rows(d_state, ld), to);
        }
        if s.delta_rule {
            solve_tn(isa, m, dv, r.system(), g.d_new);
        }

        // Pairs.
        let columns = transposed(isa, m, dv, new, dv, g.new_panels);
        let [d_system, d_weights] = r.d_pairs();
        scores(isa, m, dv, g.dy, columns, Target::rows(d_weights));
        if s.delta_rule {
            let to = Target { alpha: -1.0, ..Target::rows(d_system) };
            scores(isa, m, dv, g.d_new, columns, to);
        }

        // Values and beta.
        let (value, d_value) = (heads.value(row, head.head), to.value.target(row));
        let d_value = Target { at: d_value.at.add(head.head * dv), ..d_value };
        scaled(isa, m, dv, head.beta.as_ptr(), g.d_new, LDP, d_value.at, d_value.ld, false);
        let mut d_right = [0.0_f32; CHUNK];
        dots(isa, m, dv, g.d_new, LDP, value, s.width, d_right.as_mut_ptr());

        if behind {
            copy_rows(isa, m, dv, new, dv, r.new, TileLayout::rows(LDP));
        }
        let states = States { before: state, behind: behind.then_some(d_state.cast_const()) };
        match &head.factors {
            Some(factors) => back_by_head(head, factors, g, states, &d_right, to),
            None => back_by_channels(head, g, states, &d_right, to),
        }

        if state.is_some() {
            if behind {
                head.keep(d_state);
            }
            let to = Target { ld, add: behind, ..Target::rows(d_state) };
            product_tn(isa, [dk, dv, m], r.queries_since, Second::rows(g.dy, LDP), to);
            if s.delta_rule {
                let b = Second::rows(g.d_new, LDP);
                product_tn(isa, [dk, dv, m], r.keys_seen, b, to.plus(-1.0));
            }
        }
    }
}

/// The state before a chunk, `[key_dim, value_dim]`, and the gradient of the one behind it, by rows of [`state_row`]; none
/// where they are zeros.
#[derive(Clone, Copy)]
struct States {
    before: Option<*const f32>,
    behind: Option<*const f32>,
}

impl States {
    /// Products of their rows to [`GradRoom::dots`], where there are both.
    ///
    /// # Safety
    /// As [`back`].
    unsafe fn dots(self, heads: &Heads<'_>, g: &GradRoom) -> bool {
        let (Some(before), Some(behind)) = (self.before, self.behind) else { return false };
        let s = heads.shape();
        let (dk, dv) = (s.key_dim, s.value_dim);
        // SAFETY: the caller's.
        unsafe { dots(heads.isa, dk, dv, before, dv, behind, state_row(s), g.dots) };
        true
    }
}

/// [`back`] of queries, keys, decays and `beta`, where a head has one decay. `d_right` is what `beta` has of values.
///
/// # Safety
/// As [`back`], which was there for pairs.
unsafe fn back_by_head(
    head: &ChunkHead<'_>,
    f: &Factors,
    g: &GradRoom,
    states: States,
    d_right: &[f32; CHUNK],
    to: &To,
) {
    let Chunk { heads, row, m, room: r } = head.chunk;
    let (s, isa, m, row) = (heads.shape(), heads.isa, *m, *row);
    let (dk, dv, ld) = (s.key_dim, s.value_dim, state_row(s));
    let first = head.head == heads.first;
    let none = [0.0_f32; CHUNK];
    let behind = states.behind.is_some();
    // SAFETY: the caller's rows, states and room.
    unsafe {
        let [d_system, d_weights] = r.d_pairs();
        let [mut d_beta, mut by_row, mut by_column] = [none; 3];
        let pairs = PairGrads {
            decays: r.decays,
            bare: if s.delta_rule { g.bare } else { std::ptr::null() },
            system: r.system(),
            weights: r.weights(),
            d_system,
            d_weights,
            d_keys: g.d_keys(),
            d_queries: g.d_queries(),
            first,
            beta: head.beta.as_ptr(),
            d_beta: d_beta.as_mut_ptr(),
            by_row: by_row.as_mut_ptr(),
            by_column: by_column.as_mut_ptr(),
        };
        pair_grads(isa, m, pairs);

        // Queries and keys through states, and what they say of decays.
        let [mut query_dots, mut until_dots, mut seen_dots] = [none; 3];
        let (query, key, part) = (to.query.target(row), to.key.target(row), Target::rows(g.part));
        if let Some(d_state) = states.behind {
            let columns = transposed(isa, dk, dv, d_state, ld, g.state_panels);
            product(isa, [m, dk, dv], r.new, columns, part);
            dots(isa, m, dk, g.part, LDP, r.keys, LDP, until_dots.as_mut_ptr());
            scaled(isa, m, dk, f.until.as_ptr(), g.part, LDP, key.at, key.ld, !first);
        }
        if let Some(state) = states.before {
            let columns = transposed(isa, dk, dv, state, dv, g.state_panels);
            product(isa, [m, dk, dv], g.dy, columns, part);
            dots(isa, m, dk, g.part, LDP, r.queries, LDP, query_dots.as_mut_ptr());
            scaled(isa, m, dk, f.since.as_ptr(), g.part, LDP, query.at, query.ld, !first);
            if s.delta_rule {
                product(isa, [m, dk, dv], g.d_new, columns, part);
                dots(isa, m, dk, g.part, LDP, r.keys, LDP, seen_dots.as_mut_ptr());
                let minus_seen = f.seen.map(|seen| -seen);
                scaled(isa, m, dk, minus_seen.as_ptr(), g.part, LDP, key.at, key.ld, behind || !first);
            }
        }

        // The decay of the whole chunk.
        let mut last = 0.0_f64;
        if states.dots(heads, g) {
            let sum: f64 = (0..dk).map(|i| f64::from(*g.dots.add(i))).sum();
            last = f64::from(f.whole) * sum;
        }

        // A row's decay is in the sums of all rows from it on.
        let of = |w: f32, x: f32| f64::from(w) * f64::from(x);
        let mut sum = last + (0..m).map(|i| of(f.until[i], until_dots[i])).sum::<f64>();
        for i in (0..m).rev() {
            sum += f64::from(by_row[i]) - f64::from(by_column[i]) + of(f.since[i], query_dots[i])
                - of(f.seen[i], seen_dots[i])
                - of(f.until[i], until_dots[i]);
            let at = heads.scalar(row + i, head.head);
            *to.decay.add(at) = sum as f32;
            *to.beta.add(at) = d_right[i] - f.since[i] * seen_dots[i] + d_beta[i];
        }
    }
}

/// [`back_by_head`] where channels have decays, with what goes through pairs.
///
/// # Safety
/// As [`back_by_head`].
unsafe fn back_by_channels(
    head: &ChunkHead<'_>,
    g: &GradRoom,
    states: States,
    d_right: &[f32; CHUNK],
    to: &To,
) {
    let Chunk { heads, row, m, room: r } = head.chunk;
    let (s, isa, m, row) = (heads.shape(), heads.isa, *m, *row);
    let (dk, dv, ld) = (s.key_dim, s.value_dim, state_row(s));
    let mut d_beta = [0.0_f32; CHUNK];
    let rows = [g.part, g.sums, g.of_keys];
    // SAFETY: the caller's rows, states and room.
    unsafe {
        if let Some(state) = states.before {
            let columns = transposed(isa, dk, dv, state, dv, g.state_panels);
            product(isa, [m, dk, dv], g.dy, columns, Target::rows(rows[0]));
            if s.delta_rule {
                let to = Target { alpha: -1.0, ..Target::rows(rows[1]) };
                product(isa, [m, dk, dv], g.d_new, columns, to);
            }
        }
        if let Some(d_state) = states.behind {
            let columns = transposed(isa, dk, dv, d_state, ld, g.state_panels);
            product(isa, [m, dk, dv], r.new, columns, Target::rows(rows[2]));
        }
        states.dots(heads, g);
        let gradients = channels::Gradients {
            rows,
            before: states.before.is_some(),
            behind: states.behind.is_some(),
            states: g.dots,
            query: to.query.target(row).at,
            key: to.key.target(row).at,
            decay: to.decay.add(heads.scalar(row, head.head) * dk),
            d_beta: d_beta.as_mut_ptr(),
        };
        channels::gradients(head, &gradients);
        for i in 0..m {
            *to.beta.add(heads.scalar(row + i, head.head)) = d_right[i] + d_beta[i];
        }
    }
}

/// Gradients of a chunk's queries and keys through pairs; those through states are there.
///
/// # Safety
/// As [`back`], which was there for all heads.
pub(super) unsafe fn shared(chunk: &Chunk<'_>, g: &GradRoom, before: bool, behind: bool, to: &To) {
    let Chunk { heads, row, m, room: r } = chunk;
    let (s, isa, m) = (heads.shape(), heads.isa, *m);
    let d = s.key_dim;
    let (query, key) = (to.query.target(*row), to.key.target(*row));
    let (query, key) =
        (Target { add: before, ..query }, Target { add: behind || before && s.delta_rule, ..key });
    // SAFETY: the caller's.
    unsafe {
        let [keys, queries] = [r.keys, r.queries].map(|rows| Second::rows(rows, LDP));
        lower(isa, m, d, g.d_queries(), keys, query);
        lower_tn(isa, m, d, g.d_queries(), queries, key);
        if s.delta_rule {
            lower(isa, m, d, g.d_keys(), keys, key.plus(1.0));
            lower_tn(isa, m, d, g.d_keys(), keys, key.plus(1.0));
        }
    }
}
