//! Linear attention backward.

use super::chunk::{
    CHUNK, Chunk, Heads, Room, chunks, cut, load_state, runs, state_len, state_row, store_state, total, whole,
};
use super::chunk_gradients::{GradRoom, Part, To, back, shared};
use super::rows::scaled;
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

/// A chunk on the way forward.
#[derive(Clone, Copy)]
struct Record {
    member: usize,
    row: usize,
    m: usize,
    /// Whether the state before it is more than zeros.
    before: bool,
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
