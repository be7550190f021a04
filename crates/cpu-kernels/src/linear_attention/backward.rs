//! Linear attention backward.

use super::channels;
use super::chunk::{
    CHUNK, Chunk, ChunkHead, Factors, Heads, PAIRS, Room, chunks, cut, load_state, runs, state_len,
    state_row, store_state, total, whole,
};
use super::product::{Second, Target, lower, lower_tn, product, product_tn, scores, solve_tn, transposed};
use super::rows::{PairGrads, dots, pair_grads, scaled};
use super::shape::{Decays, Family, LinearAttention};
use crate::micro::{KC, LDP};
use crate::rows::{TileLayout, copy_rows};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::isa;
use crate::tasks::tasks;

/// Gradients of [`linear_attention_forward`](super::linear_attention_forward).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinearAttentionGrad {
    /// `[tokens, width]`; zeros in columns that nothing reads and rows of no document.
    pub qkv: Vec<f32>,
    /// As the decays.
    pub decay: Vec<f32>,
    /// `[tokens, heads]`.
    pub beta: Vec<f32>,
}

/// Tasks wanted where heads share keys.
const TASKS: usize = 16;
/// Floats (256 MiB) that the gradients of shared keys and queries may take beyond the first sharer's.
const SHARED: usize = 64 << 20;
/// Rows of a task that adds such gradients.
const ROWS: usize = 64;

/// Gradients from `dy` `[tokens, heads * value_dim]`, of texts that begin with zeros or what `parents` say.
///
/// The result does not depend on the number of threads. One task per head, or heads that share keys, and documents that
/// continue each other goes forward again and keeps the states between chunks, then goes backward. Where the heads that
/// share keys are divided among tasks, the sums of the tasks are added at the end.
///
/// # Panics
/// If lengths, heads or documents disagree, or queries, keys and values share columns.
#[must_use]
pub fn linear_attention_backward(call: &LinearAttention<'_>, dy: &[f32]) -> LinearAttentionGrad {
    let (tokens, isa, s) = (call.check(), isa(), &call.shape);
    assert_eq!(
        dy.len(),
        tokens * s.heads * s.value_dim,
        "linear attention: `dy` is [tokens, heads * value_dim]"
    );
    let mut columns: Vec<_> = s.columns.into_iter().zip(s.lengths()).collect();
    columns.sort_unstable();
    assert!(
        columns.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
        "linear attention: queries, keys and values share columns, expected some for each"
    );
    let mut grad = LinearAttentionGrad {
        qkv: vec![0.0; call.qkv.len()],
        decay: vec![0.0; call.decay.len()],
        beta: vec![0.0; call.beta.len()],
    };
    let families = s.families();
    // Sums over heads go by runs, which depend on shapes alone.
    let width = 2 * s.lengths()[0];
    let fit = 1 + SHARED / (width * tokens).max(1);
    let runs = runs(s, families.len() * s.key_heads, TASKS).min(fit);
    let each = s.key_heads * runs;
    let mut shared = vec![0.0; (runs - 1) * tokens * width];
    let [qkv, decay, beta, others] =
        [&mut grad.qkv, &mut grad.decay, &mut grad.beta, &mut shared].map(|v| Ptr(v.as_mut_ptr()));
    tasks(families.len() * each, |task| {
        let (family, key_head, run) = (&families[task / each], task % each / runs, task % runs);
        let heads = Heads::of_run(isa, call, key_head, run, runs);
        // SAFETY: lengths were compared; a task has the columns of its heads, and of their keys those of its run, to itself
        // in the rows of its documents.
        unsafe {
            let own = s.columns.map(|first| qkv.at(first));
            let [query, key] = if run == 0 {
                [own[0], own[1]].map(|at| Part { at: at.wrapping_add(key_head * s.key_dim), ld: s.width })
            } else {
                let at = (run - 1) * tokens * width + key_head * 2 * s.key_dim;
                [at, at + s.key_dim].map(|at| Part { at: others.at(at), ld: width })
            };
            let value = Part { at: own[2], ld: s.width };
            let to = To { query, key, value, decay: decay.at(0), beta: beta.at(0) };
            walk(&heads, family, dy, &to);
        }
    });
    if runs > 1 {
        // SAFETY: rows are disjoint between tasks; all have the columns.
        tasks(tokens.div_ceil(ROWS), |task| unsafe {
            let (row, ones) = (task * ROWS, [1.0; ROWS]);
            let m = ROWS.min(tokens - row);
            for run in 0..runs - 1 {
                let from = others.at((run * tokens + row) * width);
                for key_head in 0..s.key_heads {
                    for part in 0..2 {
                        let x = from.add((2 * key_head + part) * s.key_dim);
                        let y = qkv.at(row * s.width + s.columns[part] + key_head * s.key_dim);
                        scaled(isa, m, s.key_dim, ones.as_ptr(), x, width, y, s.width, true);
                    }
                }
            }
        });
    }
    grad
}

/// Some columns of a gradient's rows.
#[derive(Clone, Copy)]
struct Part {
    at: *mut f32,
    ld: usize,
}

impl Part {
    /// From row `row` on, overwritten.
    fn target(self, row: usize) -> Target {
        Target { at: self.at.wrapping_add(row * self.ld), ld: self.ld, alpha: 1.0, add: false }
    }
}

/// Where the gradients of some heads go.
#[derive(Clone, Copy)]
struct To {
    /// Of the heads' queries.
    query: Part,
    /// Of the heads' keys.
    key: Part,
    /// Of the values of all heads.
    value: Part,
    decay: *mut f32,
    beta: *mut f32,
}

/// A chunk on the way forward.
#[derive(Clone, Copy)]
struct Record {
    member: usize,
    row: usize,
    m: usize,
    /// Whether the state before it is more than zeros.
    before: bool,
}

/// Working memory of a chunk's gradients, besides the way forward's.
#[derive(Clone, Copy)]
struct GradRoom {
    room: Room,
    /// Gradient of the output.
    dy: *mut f32,
    /// Gradient of what the state gains, then of the system's right side.
    d_new: *mut f32,
    /// A gradient of queries or keys through a state.
    part: *mut f32,
    /// Sums over heads of gradients of pairs, next to each other: products of keys, of queries and keys. Of channels gradients
    /// of keys that ask.
    sums: *mut f32,
    /// `new` as columns.
    new_panels: *mut f32,
    /// A state as columns.
    state_panels: *mut f32,
    /// The triangle of the system before `beta`, by rows of 64.
    bare: *mut f32,
    /// Products of the rows of two states.
    dots: *mut f32,
    /// Of channels gradients of keys.
    of_keys: *mut f32,
}

impl GradRoom {
    fn d_keys(&self) -> *mut f32 {
        self.sums
    }

    fn d_queries(&self) -> *mut f32 {
        self.sums.wrapping_add(PAIRS)
    }
}

/// Gradients of some heads of documents that continue each other.
///
/// # Safety
/// `to` has the call's rows, of which nobody else has the heads' part of these documents; `dy` is
/// `[tokens, heads * value_dim]`.
unsafe fn walk(heads: &Heads<'_>, family: &Family, dy: &[f32], to: &To) {
    let (s, isa) = (heads.shape(), heads.isa);
    let (n, size) = (heads.count, s.key_dim * s.value_dim);
    let rows = Room::ROWS;
    let (new_panels, state_panels) = (CHUNK * s.value_dim, whole(s.key_dim) * s.value_dim);
    let of_keys = if s.decays == Decays::OfChannels { rows } else { 0 };
    let own = [
        n * state_len(s),
        rows,
        rows,
        rows,
        rows,
        new_panels,
        state_panels,
        CHUNK * CHUNK,
        s.key_dim,
        of_keys,
    ];
    // A head's state before a chunk, and what it gains there.
    let kept = size + CHUNK * s.value_dim;
    let count = family.members.iter().map(|member| chunks(&member.rows).count()).sum::<usize>();
    let mut records: Vec<Record> = Vec::with_capacity(count);
    let memory = Pooled::passing(n * (count * kept + family.places * size));
    scratch(total(&own) + total(&Room::sizes(s)), |mut at| {
        let [work, dy_rows, d_new, part, sums, new_panels, state_panels, bare, dots, of_keys] =
            cut(&mut at, own);
        let room = Room::new(cut(&mut at, Room::sizes(s)));
        let room =
            GradRoom { room, dy: dy_rows, d_new, part, sums, new_panels, state_panels, bare, dots, of_keys };
        let memory = memory.ptr().0;
        let places = memory.wrapping_add(n * count * kept);
        let place = |place: usize, i: usize| places.wrapping_add((place * n + i) * size);
        let record = |record: usize, i: usize| memory.wrapping_add((record * n + i) * kept);
        let state = |i: usize| work.wrapping_add(i * state_len(s));
        // SAFETY: the memory has room for all chunks and places; places are written before they are read, as parents come
        // first on the way forward and last on the way back. The rest is the caller's.
        unsafe {
            for (number, member) in family.members.iter().enumerate() {
                let mut before = member.parent.is_some();
                if let Some(from) = member.parent {
                    (0..n).for_each(|i| load_state(heads, place(from, i), state(i)));
                }
                for (row, m) in chunks(&member.rows) {
                    let chunk = Chunk::load(*heads, row, m, room.room, false);
                    for (i, head) in heads.heads().enumerate() {
                        let (head, state, to) = (chunk.head(head), state(i), record(records.len(), i));
                        if before {
                            store_state(heads, state, to);
                        }
                        head.load(false, std::ptr::null_mut());
                        head.learn(before.then_some(state));
                        let new = room.room.new.cast_const();
                        let place = TileLayout::rows(s.value_dim);
                        copy_rows(isa, m, s.value_dim, new, LDP, to.add(size), place);
                        if row + m < member.rows.end || member.kept.is_some() {
                            head.carry(state, before);
                        }
                    }
                    records.push(Record { member: number, row, m, before });
                    before = true;
                }
                for (i, leave) in member.kept.iter().flat_map(|&to| (0..n).map(move |i| (i, place(to, i)))) {
                    if before {
                        store_state(heads, state(i), leave);
                    } else {
                        std::ptr::write_bytes(leave, 0, size);
                    }
                }
            }
            // From here on states are gradients of states, and places gather those of what documents leave.
            std::ptr::write_bytes(places, 0, n * family.places * size);
            for (number, member) in family.members.iter().enumerate().rev() {
                let mut behind = member.kept.is_some();
                if let Some(from) = member.kept {
                    (0..n).for_each(|i| load_state(heads, place(from, i), state(i)));
                }
                while let Some(Record { row, m, before, .. }) = records.pop_if(|r| r.member == number) {
                    let chunk = Chunk::load(*heads, row, m, room.room, true);
                    for (i, head) in heads.heads().enumerate() {
                        let from = record(records.len(), i).cast_const();
                        let before = before.then_some(from);
                        back(&chunk.head(head), &room, before, from.add(size), state(i), behind, dy, to);
                    }
                    if s.decays == Decays::OfHeads {
                        shared(&chunk, &room, before, behind, to);
                    }
                    behind = true;
                }
                if let (Some(parent), true) = (member.parent, behind) {
                    let (ones, d) = ([1.0; KC], s.value_dim);
                    for i in 0..n {
                        let to = place(parent, i);
                        scaled(isa, s.key_dim, d, ones.as_ptr(), state(i), state_row(s), to, d, true);
                    }
                }
            }
        }
    });
}

/// A head's gradients of a chunk, but for those of queries and keys through pairs where a head has one decay, which [`shared`]
/// makes of their sums.
/// `d_state` holds the gradient of the state behind it, taken for zeros unless `behind`, and then that of the state before
/// it, where that is more than zeros.
///
/// # Safety
/// As [`walk`]; `state` is `[key_dim, value_dim]`, `new` `[m, value_dim]`, `d_state` by rows of [`state_row`].
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn back(
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
/// As [`walk`]; [`back`] was there for all heads.
unsafe fn shared(chunk: &Chunk<'_>, g: &GradRoom, before: bool, behind: bool, to: &To) {
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
