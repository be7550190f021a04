//! A chunk of a head whose channels have decays of their own: keys and queries with what is kept around them, and their pairs.
//!
//! Pairs of rows of one block are made one by one. Those of two blocks are products of matrices: of the later rows with what
//! is kept from their block's beginning, and the earlier ones with what is kept up to there.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::channel_rows::{
    BlockPairs, ChannelGrads, Decayed, block_columns, block_pairs, channel_grads, column_dots, decayed,
    times_row,
};
use super::chunk::{CHUNK, ChunkHead};
use super::product::{STEP, Second, Target, product, product_tn};
use super::rows::{dots, scaled};
use super::shape::{Decays, LinearAttentionShape};
use crate::micro::{KC, LDP};

/// Working memory of a chunk, by rows of [`LDP`] where nothing else is said.
#[derive(Clone, Copy)]
pub(super) struct ChannelRoom {
    /// What each row keeps of each channel.
    kept: *mut f32,
    /// Queries times what is kept from their block's beginning to them.
    queries_in: *mut f32,
    /// Keys times `beta` and the same.
    keys_in: *mut f32,
    /// Keys times what is kept from them to the end of their block, or of a later one.
    keys_on: *mut f32,
    /// What each block keeps, by rows of `key_dim`.
    blocks: *mut f32,
    /// What the chunk keeps.
    pub(super) whole: *mut f32,
}

impl ChannelRoom {
    /// The matrices' floats; none where heads have one decay.
    pub(super) fn sizes(shape: &LinearAttentionShape<'_>) -> [usize; 6] {
        let (rows, d) = (CHUNK * LDP, shape.key_dim);
        match shape.decays {
            Decays::OfHeads => [0; 6],
            Decays::OfChannels => [rows, rows, rows, rows, CHUNK / STEP * d, d],
        }
    }

    /// From pointers to [`ChannelRoom::sizes`] floats.
    pub(super) fn new([kept, queries_in, keys_in, keys_on, blocks, whole]: [*mut f32; 6]) -> Self {
        Self { kept, queries_in, keys_in, keys_on, blocks, whole }
    }
}

/// The first row of each block of `m` rows, and how many.
fn blocks(m: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator {
    (0..m).step_by(STEP).map(move |first| (first, (m - first).min(STEP)))
}

/// Scales keys, and where they are wanted queries, and makes the system and the weights of the output.
///
/// # Safety
/// The room is this head's from now on; it has the chunk's keys, and where they are wanted its queries.
pub(super) unsafe fn load(head: &ChunkHead<'_>, queries: bool) {
    let (chunk, r) = (head.chunk, &head.chunk.room);
    let (s, isa, m, own) = (chunk.heads.shape(), chunk.heads.isa, chunk.m, &chunk.room.channels);
    let (d, none) = (s.key_dim, std::ptr::null_mut::<f32>());
    let wanted = if queries { r.queries } else { none };
    let rows = Decayed {
        m,
        d,
        decay: chunk.heads.decays(chunk.row, head.head),
        ld: s.heads * d,
        beta: head.beta.as_ptr(),
        keys: r.keys,
        queries: wanted,
        kept: own.kept,
        queries_in: own.queries_in,
        queries_since: r.queries_since,
        keys_in: own.keys_in,
        keys_seen: r.keys_seen,
        keys_on: own.keys_on,
        keys_until: r.keys_until,
        blocks: own.blocks,
        whole: own.whole,
    };
    decayed(isa, rows);
    for (first, rows) in blocks(m) {
        if first > 0 {
            let before = first - STEP;
            let passed = own.blocks.add(before / STEP * d);
            scaled(isa, d, before, passed, r.key_panels, CHUNK, r.key_panels, CHUNK, false);
            block_columns(isa, d, own.keys_on.add(before * LDP), r.key_panels.add(before));
            let (columns, at) = (Second::rows(r.key_panels, CHUNK), first * LDP);
            if queries {
                let to = Target::rows(r.weights().add(at));
                product(isa, [rows, first, d], own.queries_in.add(at), columns, to);
            }
            if s.delta_rule {
                let to = Target::rows(r.system().add(at));
                product(isa, [rows, first, d], own.keys_in.add(at), columns, to);
            }
        }
        let pairs = BlockPairs {
            first,
            rows,
            d,
            beta: head.beta.as_ptr(),
            kept: own.kept,
            keys: r.keys,
            queries: wanted,
            system: r.system(),
            weights: r.weights(),
        };
        block_pairs(isa, pairs);
    }
}

/// What a head's gradients of a chunk are made of, and where they go.
pub(super) struct Gradients {
    /// Working memory by rows of [`LDP`]. Where there is a state before the chunk, what the gradients of the output make of it,
    /// and where the one behind has a gradient, what the new values make of that: of queries, of keys that ask what is known
    /// (the system's right side, negated), and of keys.
    pub(super) rows: [*mut f32; 3],
    /// Whether there are the first two, and the last.
    pub(super) before: bool,
    pub(super) behind: bool,
    /// Of each channel, the product of the rows of the state before and the gradient of the one behind, where there are both.
    pub(super) states: *const f32,
    /// The first rows of the results.
    pub(super) query: *mut f32,
    pub(super) key: *mut f32,
    pub(super) decay: *mut f32,
    /// Of `beta`, what is not its values'.
    pub(super) d_beta: *mut f32,
}

/// Gradients of a head's queries, keys and decays of a chunk.
///
/// # Safety
/// After [`load`] with queries; the gradients of pairs are in the room, the rest is as [`Gradients`] says.
pub(super) unsafe fn gradients(head: &ChunkHead<'_>, g: &Gradients) {
    let (chunk, r) = (head.chunk, &head.chunk.room);
    let (s, isa, m, own) = (chunk.heads.shape(), chunk.heads.isa, chunk.m, &chunk.room.channels);
    let d = s.key_dim;
    let [d_system, d_weights] = r.d_pairs();
    let [d_queries, d_asked, d_keys] = g.rows;
    let passed = |first: usize| own.blocks.wrapping_add(first / STEP * d);
    let mut end = [0.0_f32; KC];

    if g.behind {
        column_dots(isa, m, d, r.keys_until, d_keys, end.as_mut_ptr());
    }
    for (there, rows) in [(g.before, d_queries), (g.before, d_asked), (g.behind, d_keys)] {
        (0..if there { 0 } else { m }).for_each(|i| std::ptr::write_bytes(rows.add(i * LDP), 0, d));
    }
    if g.before && g.behind {
        (0..d).for_each(|c| end[c] += *own.whole.add(c) * *g.states.add(c));
    }

    // Through other blocks: from one block's beginning to the next, and back from one's end to that of the one before.
    for (first, rows) in blocks(m).skip(1) {
        let (before, at) = (first - STEP, first * LDP);
        times_row(isa, before, d, passed(before), own.keys_on);
        if g.before {
            times_row(isa, m - first, d, passed(before), d_queries.add(at));
            if s.delta_rule {
                times_row(isa, m - first, d, passed(before), d_asked.add(at));
            }
        }
        let (sizes, keys) = ([rows, d, first], Second::rows(own.keys_on, LDP));
        product(isa, sizes, d_weights.add(at), keys, Target::rows(d_queries.add(at)).plus(1.0));
        if s.delta_rule {
            product(isa, sizes, d_system.add(at), keys, Target::rows(d_asked.add(at)).plus(1.0));
        }
    }
    for (first, rows) in blocks(m).skip(1).rev() {
        let (sizes, at, to) = ([first, d, rows], first * LDP, Target::rows(d_keys).plus(1.0));
        times_row(isa, first, d, passed(first), d_keys);
        product_tn(isa, sizes, d_weights.add(at), Second::rows(own.queries_in.add(at), LDP), to);
        if s.delta_rule {
            product_tn(isa, sizes, d_system.add(at), Second::rows(own.keys_in.add(at), LDP), to);
        }
    }

    let rows = ChannelGrads {
        m,
        d,
        beta: head.beta.as_ptr(),
        kept: own.kept,
        keys: r.keys,
        queries: r.queries,
        d_weights,
        d_system,
        d_queries,
        d_asked,
        d_keys,
        end: end.as_ptr(),
        query: g.query,
        key: g.key,
        ld: s.width,
        decay: g.decay,
        decay_ld: s.heads * d,
    };
    if s.delta_rule {
        channel_grads::<true>(isa, rows);
        dots(isa, m, d, d_asked, LDP, r.keys, LDP, g.d_beta);
    } else {
        channel_grads::<false>(isa, rows);
    }
}
