//! A chunk of a head: what training and generation share.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::channels::{self, ChannelRoom};
use super::product::{Second, Target, product, product_tn, scores, solve, transposed};
use super::rows::{decays, scale, scaled, weighted};
use super::shape::{Decays, LinearAttention, LinearAttentionShape};
use crate::micro::{LDP, NR};
use crate::rows::{TileLayout, copy_rows};
use crate::simd::Isa;
use std::ops::Range;

/// Rows of a chunk.
pub(super) const CHUNK: usize = 64;

/// Chunks of a document.
pub(super) fn chunks(rows: &Range<usize>) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let end = rows.end;
    rows.clone().step_by(CHUNK).map(move |row| (row, (end - row).min(CHUNK)))
}

/// Heads of a call that share a head of keys.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub(super) isa: Isa,
    pub(super) call: &'a LinearAttention<'a>,
    pub(super) key_head: usize,
    /// The first, and how many.
    pub(super) first: usize,
    pub(super) count: usize,
}

impl<'a> Heads<'a> {
    /// Part `run` of the `runs` that the heads of a head of keys are divided into.
    pub(super) fn of_run(
        isa: Isa,
        call: &'a LinearAttention<'a>,
        key_head: usize,
        run: usize,
        runs: usize,
    ) -> Self {
        let group = call.shape.group();
        let (from, to) = (run * group / runs, (run + 1) * group / runs);
        Self { isa, call, key_head, first: key_head * group + from, count: to - from }
    }

    pub(super) fn shape(&self) -> &'a LinearAttentionShape<'a> {
        &self.call.shape
    }

    pub(super) fn heads(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    fn at(&self, row: usize, part: usize, column: usize) -> *const f32 {
        let s = self.shape();
        self.call.qkv[row * s.width + s.columns[part] + column..].as_ptr()
    }

    /// The query of a row.
    pub(super) fn query(&self, row: usize) -> *const f32 {
        self.at(row, 0, self.key_head * self.shape().key_dim)
    }

    /// The key of a row.
    pub(super) fn key(&self, row: usize) -> *const f32 {
        self.at(row, 1, self.key_head * self.shape().key_dim)
    }

    /// The value of a row.
    pub(super) fn value(&self, row: usize, head: usize) -> *const f32 {
        self.at(row, 2, head * self.shape().value_dim)
    }

    /// The decays of a row's channels.
    pub(super) fn decays(&self, row: usize, head: usize) -> *const f32 {
        self.call.decay[self.scalar(row, head) * self.shape().key_dim..].as_ptr()
    }

    /// Where a row's decay and beta lie.
    pub(super) fn scalar(&self, row: usize, head: usize) -> usize {
        row * self.shape().heads + head
    }
}

/// What multiplies the rows of a chunk, where a head has one decay.
pub(super) struct Factors {
    /// Sums of decays up to and with each row, in two parts.
    high: [f32; CHUNK],
    low: [f32; CHUNK],
    /// What each row sees of the state before the chunk.
    pub(super) since: [f32; CHUNK],
    /// What the state behind the chunk keeps of each row.
    pub(super) until: [f32; CHUNK],
    /// `beta * since`.
    pub(super) seen: [f32; CHUNK],
    /// What the state behind the chunk keeps of the one before.
    pub(super) whole: f32,
}

impl Factors {
    fn new(heads: &Heads<'_>, head: usize, row: usize, m: usize, beta: &[f32; CHUNK]) -> Self {
        let none = [0.0; CHUNK];
        let (mut high, mut low, mut since, mut until) = (none, none, none, none);
        let (mut seen, mut sums, mut sum) = (none, [0.0; CHUNK], 0.0_f64);
        for i in 0..m {
            let at = heads.scalar(row + i, head);
            // What is below has vanished as well, and sums stay finite.
            sum += f64::from(if heads.call.decay[at] < LEAST { LEAST } else { heads.call.decay[at] });
            (sums[i], high[i]) = (sum, sum as f32);
            low[i] = (sum - f64::from(high[i])) as f32;
            since[i] = sum.exp() as f32;
            seen[i] = beta[i] * since[i];
        }
        for i in 0..m {
            until[i] = (sum - sums[i]).exp() as f32;
        }
        Self { high, low, since, until, seen, whole: sum.exp() as f32 }
    }
}

/// `e^-1000` is zero.
const LEAST: f32 = -1000.0;

/// Where the matrices of pairs lie: so many columns from each other.
pub(super) const PAIRS: usize = CHUNK;

/// Working memory of a chunk: matrices by rows of [`LDP`], where nothing else is said.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) keys: *mut f32,
    pub(super) queries: *mut f32,
    /// Keys times [`Factors::seen`], or the same of channels, as the next two.
    pub(super) keys_seen: *mut f32,
    /// Keys times [`Factors::until`].
    pub(super) keys_until: *mut f32,
    /// Queries times [`Factors::since`].
    pub(super) queries_since: *mut f32,
    /// What the state gains: its rows to the keys.
    pub(super) new: *mut f32,
    /// Matrices of pairs, next to each other: the system's, the weights of the output, the gradients of both.
    pub(super) pairs: *mut f32,
    /// Keys as columns, in panels.
    pub(super) key_panels: *mut f32,
    /// Products of keys, by rows of 64, as the next two.
    key_products: *mut f32,
    /// Products of queries and keys.
    query_products: *mut f32,
    /// Decays between pairs.
    pub(super) decays: *mut f32,
    /// What there is where channels have decays.
    pub(super) channels: ChannelRoom,
}

impl Room {
    /// Floats of a chunk's rows.
    pub(super) const ROWS: usize = CHUNK * LDP;

    /// The matrices' floats.
    pub(super) fn sizes(shape: &LinearAttentionShape<'_>) -> [usize; 17] {
        let (r, pairs, panels) = (Self::ROWS, CHUNK * CHUNK, CHUNK * shape.key_dim.next_multiple_of(16));
        let [a, b, c, d, e, f] = ChannelRoom::sizes(shape);
        [r, r, r, r, r, r, r, panels, pairs, pairs, pairs, a, b, c, d, e, f]
    }

    /// From pointers to [`Room::sizes`] floats.
    pub(super) fn new(parts: [*mut f32; 17]) -> Self {
        let [keys, queries, keys_seen, keys_until, queries_since, new, pairs, rest @ ..] = parts;
        let [key_panels, key_products, query_products, decays, channels @ ..] = rest;
        Self {
            keys,
            queries,
            keys_seen,
            keys_until,
            queries_since,
            new,
            pairs,
            key_panels,
            key_products,
            query_products,
            decays,
            channels: ChannelRoom::new(channels),
        }
    }

    /// The triangle of the system that `new` solves.
    pub(super) fn system(&self) -> *mut f32 {
        self.pairs
    }

    /// What the output of each row takes of each row's `new`.
    pub(super) fn weights(&self) -> *mut f32 {
        self.pairs.wrapping_add(PAIRS)
    }

    /// The gradients of both.
    pub(super) fn d_pairs(&self) -> [*mut f32; 2] {
        [2, 3].map(|i| self.pairs.wrapping_add(i * PAIRS))
    }
}

/// `m` rows from `row` on: what all heads share.
pub(super) struct Chunk<'a> {
    pub(super) heads: Heads<'a>,
    pub(super) row: usize,
    pub(super) m: usize,
    pub(super) room: Room,
}

impl<'a> Chunk<'a> {
    /// Brings the keys, and where they are wanted the queries, and makes the products of pairs.
    ///
    /// # Safety
    /// The rows exist, and the room is there and only this chunk's from now on.
    pub(super) unsafe fn load(heads: Heads<'a>, row: usize, m: usize, room: Room, queries: bool) -> Self {
        let (s, isa, rows) = (heads.shape(), heads.isa, TileLayout::rows(LDP));
        let d = s.key_dim;
        copy_rows(isa, m, d, heads.key(row), s.width, room.keys, rows);
        let of_channels = s.decays == Decays::OfChannels;
        if of_channels && queries {
            copy_rows(isa, m, d, heads.query(row), s.width, room.queries, rows);
        }
        if !of_channels && (queries || s.delta_rule) {
            let columns = transposed(isa, m, d, room.keys, LDP, room.key_panels);
            let to = |at| Target { ld: CHUNK, ..Target::rows(at) };
            if s.delta_rule {
                scores(isa, m, d, room.keys, columns, to(room.key_products));
            }
            if queries {
                copy_rows(isa, m, d, heads.query(row), s.width, room.queries, rows);
                scores(isa, m, d, room.queries, columns, to(room.query_products));
            }
        }
        Self { heads, row, m, room }
    }

    /// One of the heads.
    pub(super) fn head(&self, head: usize) -> ChunkHead<'_> {
        let (heads, mut beta) = (&self.heads, [0.0; CHUNK]);
        for (i, beta) in beta.iter_mut().enumerate().take(self.m) {
            *beta = heads.call.beta[heads.scalar(self.row + i, head)];
        }
        let factors = match heads.shape().decays {
            Decays::OfHeads => Some(Factors::new(heads, head, self.row, self.m, &beta)),
            Decays::OfChannels => None,
        };
        ChunkHead { chunk: self, head, beta, factors }
    }
}

/// A chunk as one head sees it.
pub(super) struct ChunkHead<'a> {
    pub(super) chunk: &'a Chunk<'a>,
    pub(super) head: usize,
    pub(super) beta: [f32; CHUNK],
    /// None where channels have decays.
    pub(super) factors: Option<Factors>,
}

impl ChunkHead<'_> {
    /// Scales keys, and where they are wanted queries, and makes of the products of pairs the system (also before `beta`
    /// unless `bare` is null, by rows of 64) and the weights of the output.
    ///
    /// # Safety
    /// The room is this head's from now on.
    pub(super) unsafe fn load(&self, queries: bool, bare: *mut f32) {
        let Chunk { heads, m, room: r, .. } = self.chunk;
        let (s, isa, m) = (heads.shape(), heads.isa, *m);
        let (d, beta) = (s.key_dim, self.beta.as_ptr());
        let Some(f) = &self.factors else { return channels::load(self, queries) };
        scaled(isa, m, d, f.until.as_ptr(), r.keys, LDP, r.keys_until, LDP, false);
        if queries || s.delta_rule {
            decays(isa, m, f.high.as_ptr(), f.low.as_ptr(), r.decays);
        }
        if s.delta_rule {
            scaled(isa, m, d, f.seen.as_ptr(), r.keys, LDP, r.keys_seen, LDP, false);
            weighted::<true>(isa, m, r.key_products, r.decays, beta, r.system(), bare);
        }
        if queries {
            scaled(isa, m, d, f.since.as_ptr(), r.queries, LDP, r.queries_since, LDP, false);
            weighted::<false>(isa, m, r.query_products, r.decays, beta, r.weights(), std::ptr::null_mut());
        }
    }

    /// What the state gains. `state` is the one before the chunk, none where that is zeros.
    ///
    /// # Safety
    /// After [`Self::load`]; the state is `[key_dim, value_dim]` by rows of [`state_row`].
    pub(super) unsafe fn learn(&self, state: Option<*mut f32>) {
        let Chunk { heads, row, m, room: r } = self.chunk;
        let (s, isa) = (heads.shape(), heads.isa);
        let n = s.value_dim;
        let value = heads.value(*row, self.head);
        scaled(isa, *m, n, self.beta.as_ptr(), value, s.width, r.new, LDP, false);
        if s.delta_rule {
            if let Some(state) = state {
                let to = Target::rows(r.new).plus(-1.0);
                product(isa, [*m, n, s.key_dim], r.keys_seen, Second::rows(state, state_row(s)), to);
            }
            solve(isa, *m, n, r.system(), r.new);
        }
    }

    /// Makes the state behind the chunk of the one before, which is taken for zeros unless `before`.
    ///
    /// # Safety
    /// As [`Self::learn`], which came before.
    pub(super) unsafe fn carry(&self, state: *mut f32, before: bool) {
        let Chunk { heads, m, room: r, .. } = self.chunk;
        let (s, isa) = (heads.shape(), heads.isa);
        let (sizes, ld) = ([s.key_dim, s.value_dim, *m], state_row(s));
        let to = Target { ld, add: before, ..Target::rows(state) };
        if before {
            self.keep(state);
        }
        product_tn(isa, sizes, r.keys_until, Second::rows(r.new, LDP), to);
    }

    /// Multiplies a state, or a gradient of one, with what the chunk keeps.
    ///
    /// # Safety
    /// After [`Self::load`]; the state is `[key_dim, value_dim]` by rows of [`state_row`].
    pub(super) unsafe fn keep(&self, state: *mut f32) {
        let Chunk { heads, room, .. } = self.chunk;
        let (s, isa, ld) = (heads.shape(), heads.isa, state_row(heads.shape()));
        match &self.factors {
            Some(f) => scale(isa, s.key_dim, s.value_dim, f.whole, state, ld),
            None => scaled(isa, s.key_dim, s.value_dim, room.channels.whole, state, ld, state, ld, false),
        }
    }
}

/// From a row of a state in work to the next: an odd number of cache lines.
pub(super) fn state_row(shape: &LinearAttentionShape<'_>) -> usize {
    whole(shape.value_dim) + 16
}

/// Floats of a state in work.
pub(super) fn state_len(shape: &LinearAttentionShape<'_>) -> usize {
    shape.key_dim * state_row(shape)
}

/// Brings a stored state to work.
///
/// # Safety
/// Both exist.
pub(super) unsafe fn load_state(heads: &Heads<'_>, from: *const f32, state: *mut f32) {
    let (s, to) = (heads.shape(), TileLayout::rows(state_row(heads.shape())));
    copy_rows(heads.isa, s.key_dim, s.value_dim, from, s.value_dim, state, to);
}

/// Stores a state.
///
/// # Safety
/// Both exist.
pub(super) unsafe fn store_state(heads: &Heads<'_>, state: *const f32, to: *mut f32) {
    let s = heads.shape();
    let rows = TileLayout::rows(s.value_dim);
    copy_rows(heads.isa, s.key_dim, s.value_dim, state, state_row(s), to, rows);
}

/// Most heads of a task: what they share costs each little then, and their states stay in a cache.
const MOST_HEADS: usize = 8;

/// Runs that heads sharing one of keys are divided into for `tasks` tasks of all `units` (documents and heads of keys).
pub(super) fn runs(shape: &LinearAttentionShape<'_>, units: usize, tasks: usize) -> usize {
    let group = shape.group();
    tasks.div_ceil(units.max(1)).max(group.div_ceil(MOST_HEADS)).min(group)
}

/// Cuts `at` into parts of these sizes, each from a cache line on.
pub(super) fn cut<const N: usize>(at: &mut *mut f32, sizes: [usize; N]) -> [*mut f32; N] {
    sizes.map(|size| {
        let part = *at;
        *at = at.wrapping_add(size.next_multiple_of(16));
        part
    })
}

/// Floats that [`cut`] needs.
pub(super) fn total(sizes: &[usize]) -> usize {
    sizes.iter().map(|size| size.next_multiple_of(16)).sum()
}

/// Rounded up to whole panels.
pub(super) fn whole(columns: usize) -> usize {
    columns.next_multiple_of(NR)
}
