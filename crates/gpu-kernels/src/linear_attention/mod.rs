//! Linear attention with decay, and by the gated delta rule (Yang et al., arXiv:2412.06464), of texts in one row of packed
//! tokens: of each head a state `[key_dim, value_dim]` that forgets, and learns from each token.
//!
//! Texts are walked chunk by chunk, one cube for each head and slice of 32 values; within a chunk tokens see each other directly, and what
//! the delta rule makes them learn is the solution of a triangular system. Arithmetic is f32, and sums have a fixed order.

mod backward;
mod channel_gradients;
mod channels;
mod decayed;
mod forward;
mod gradients;
mod records;
mod tile;

use std::ops::Range;

use burnish_core::LINEAR_ATTENTION_CHUNK;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::text_plan::{Level, TextPlan};
pub use channels::{ChannelLinearAttention, ChannelLinearAttentionGradients, ChannelLinearAttentionOperands};
use tile::{BESIDE, FOURS, SIDE, SLICE, SLICE_PITCH, UNITS};

/// Elements of a key or a value at most.
pub const STATE_DIM: usize = 256;

/// What linear attention looks like, in rows of `width` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, those of one key head one after another.
    pub heads: usize,
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// The first column of queries, keys and values.
    pub columns: [usize; 3],
    /// Columns of a row.
    pub width: usize,
    /// Whether a token learns only what the state does not say already.
    pub delta_rule: bool,
}

/// What the compiler knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    key_dim: usize,
    value_dim: usize,
    /// Tokens of a chunk.
    chunk: usize,
    /// Heads of values of a key head.
    each: usize,
    delta: bool,
    /// Channels have decays: what walks read of them, queries and keys is in records.
    channels: bool,
    /// Texts go on from a state.
    begins: bool,
    /// Which its caller holds.
    held: bool,
    /// Some leave one.
    leaves: bool,
    /// The state before each chunk and what tokens learned are kept.
    keeps: bool,
    /// The output is made.
    gives: bool,
}

impl Form {
    /// Fours of a key.
    fn fours(self) -> usize {
        self.key_dim.div_ceil(4)
    }

    /// Fours from one key to the next.
    fn pitch(self) -> usize {
        self.fours() | 1
    }

    /// Rows of a chunk that a unit has.
    fn turns(self) -> usize {
        self.chunk.div_ceil(SIDE)
    }

    /// Fours of a state's rows that a unit has.
    fn parts(self) -> usize {
        self.fours().div_ceil(SIDE)
    }

    /// Numbers of a slice by columns, in which a system is solved; one stands for them where none is.
    fn columns(self) -> usize {
        if self.delta { self.chunk * SLICE } else { 1 }
    }

    /// Bytes of shared memory of the kernel that takes most.
    fn bytes(self) -> usize {
        let keys = 2 * self.chunk * self.pitch() * 16;
        let (square, slice) = (self.chunk * (self.chunk + 1) * 4, self.chunk * SLICE_PITCH * 16);
        let walk = 4 * self.fours() * FOURS * 16 + 2 * slice + 2 * square + 4 * self.columns();
        let sums = gradients::SUMS * self.chunk * BESIDE * 4 + UNITS * 4;
        let gradients = 3 * slice + 2 * SLICE * SLICE_PITCH * 16 + 3 * square + sums;
        let all = keys + walk.max(gradients) + 8 * self.chunk * 4;
        if self.channels { (keys + walk + 8 * self.chunk * 4).max(self.channel_bytes()) } else { all }
    }
}

/// Numbers of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Numbers {
    /// Where the words of this launch begin: of its texts, or of chunks.
    order: usize,
    /// Where those of texts that continue another begin.
    children: usize,
    /// Chunks of all texts.
    chunks: usize,
    /// Elements of all tokens' heads.
    of_heads: usize,
    heads: usize,
    width: usize,
    q: usize,
    k: usize,
    v: usize,
}

/// Linear attention of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttention {
    shape: LinearAttentionShape,
    chunk: usize,
    /// Whether weights are records of channels.
    channels: bool,
}

/// What linear attention reads.
#[derive(Clone, Debug)]
pub struct LinearAttentionOperands {
    /// `[tokens, width]`, f32.
    pub qkv: Buffer,
    /// The logarithm of what each token keeps of the state, at most 0, then how much of each is learned: `[2, tokens, heads]`, f32.
    pub weights: Buffer,
    /// The plan's words.
    pub words: Buffer,
}

/// Gradients, f32.
#[derive(Clone, Debug)]
pub struct LinearAttentionGradients {
    /// `[tokens, width]`; zeros in rows of no text; anything in columns that nothing reads.
    pub qkv: Buffer,
    /// `[2, tokens, heads]`.
    pub weights: Buffer,
}

impl LinearAttention {
    /// `None` where there is no kernel: heads of more than [`STATE_DIM`] elements, and devices of small cubes.
    #[must_use]
    pub fn new(client: &Client, shape: LinearAttentionShape) -> Option<Self> {
        Self::of_chunks(client, shape, false, &[LINEAR_ATTENTION_CHUNK, 16, 8])
    }

    /// That of the longest of these chunks that the device has the shared memory for.
    fn of_chunks(
        client: &Client,
        shape: LinearAttentionShape,
        channels: bool,
        chunks: &[usize],
    ) -> Option<Self> {
        let hardware = &client.properties().hardware;
        let small = shape.key_dim <= STATE_DIM && shape.value_dim <= STATE_DIM;
        if !small || (hardware.max_units_per_cube as usize) < UNITS {
            return None;
        }
        let mut all = chunks.iter().map(|&chunk| Self { shape, chunk, channels });
        all.find(|this| this.form().bytes() <= hardware.max_shared_memory_size)
    }

    fn form(&self) -> Form {
        let LinearAttentionShape { key_dim, value_dim, key_heads, heads, delta_rule, .. } = self.shape;
        Form {
            key_dim,
            value_dim,
            chunk: self.chunk,
            each: heads / key_heads,
            delta: delta_rule,
            channels: self.channels,
            begins: false,
            held: false,
            leaves: false,
            keeps: false,
            gives: false,
        }
    }

    /// Tokens of a chunk, of which plans are made.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    fn numbers(&self, plan: &TextPlan, o: &LinearAttentionOperands, order: usize) -> NumbersLaunch {
        let LinearAttentionShape { heads, width, columns: [q, k, v], .. } = self.shape;
        NumbersLaunch::new(order, plan.of_children, plan.chunks, o.weights.len / 2, heads, width, q, k, v)
    }

    /// A cube for each text of a level, head and slice.
    fn cubes(&self, level: &Range<usize>) -> CubeCount {
        let slices = self.shape.value_dim.div_ceil(SLICE);
        CubeCount::Static(level.len() as u32, self.shape.heads as u32, slices as u32)
    }

    fn state(&self) -> usize {
        self.shape.heads * self.shape.key_dim * self.shape.value_dim
    }

    /// `[tokens, heads * value_dim]`; zeros in rows of no text.
    ///
    /// A launch for each level of texts that continue others. About `6 key_dim value_dim + 4 C key_dim` flops for each token and head, in
    /// chunks of C tokens (32, of long keys or little shared memory fewer), of which products of keys are made by each slice of 32 values
    /// again; queries and keys are read once by each slice.
    ///
    /// # Panics
    /// If buffers are not of these shapes.
    #[must_use]
    pub fn forward(&self, client: &Client, plan: &TextPlan, o: &LinearAttentionOperands) -> Buffer {
        assert!(!plan.held, "invariant: a plan of texts from their beginnings");
        self.gives(client, plan, o, None, &self.states(client, plan.left()))
    }

    /// [`LinearAttention::forward`] of texts that go on from `held` states, `[texts, heads, key_dim, value_dim]`, and those behind them.
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is not of held states.
    #[must_use]
    pub fn forward_held(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &LinearAttentionOperands,
        held: &Buffer,
    ) -> [Buffer; 2] {
        assert!(plan.held && held.len == plan.texts * self.state(), "invariant: a state for each text");
        let behind = self.states(client, plan.texts);
        [self.gives(client, plan, o, Some(held), &behind), behind]
    }

    fn gives(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &LinearAttentionOperands,
        held: Option<&Buffer>,
        left: &Buffer,
    ) -> Buffer {
        let tokens = o.qkv.len / self.shape.width;
        let out = Buffer::cleared(client, tokens * self.shape.heads * self.shape.value_dim, !plan.whole);
        self.walk(client, plan, o, (held, left), Walk::Gives(&out));
        out
    }

    /// Memory for so many states; a number where there are none, which a kernel's argument has to have.
    fn states(&self, client: &Client, count: usize) -> Buffer {
        Buffer::empty(client, (count * self.state()).max(1), FloatType::F32)
    }

    fn walk(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &LinearAttentionOperands,
        (held, left): (Option<&Buffer>, &Buffer),
        walk: Walk<'_>,
    ) {
        assert_eq!(plan.chunk, self.chunk, "invariant: a plan of this attention");
        let none = Buffer::empty(client, 1, FloatType::F32);
        let (out, [states, learned]) = match walk {
            Walk::Gives(out) => (out, [&none, &none]),
            Walk::Keeps(kept) => (&none, kept),
        };
        for Level { texts, begins, leaves } in plan.walks() {
            let form = Form {
                begins,
                held: plan.held,
                leaves,
                keeps: matches!(walk, Walk::Keeps(_)),
                gives: matches!(walk, Walk::Gives(_)),
                ..self.form()
            };
            // SAFETY: the kernel reads and writes rows of the plan's texts, and states of them, for which there is room.
            unsafe {
                forward::walk::launch_unchecked(
                    client,
                    self.cubes(&texts),
                    CubeDim::new_1d(UNITS as u32),
                    address(&[&o.qkv, &o.weights, out, states, left]),
                    o.qkv.arg(1),
                    o.weights.arg(1),
                    o.words.arg(1),
                    held.unwrap_or(&none).arg(1),
                    left.arg(1),
                    out.arg(1),
                    states.arg(1),
                    learned.arg(1),
                    self.numbers(plan, o, texts.start),
                    form,
                );
            }
        }
    }

    /// What both walks leave for the gradients of chunks.
    fn walked(&self, client: &Client, plan: &TextPlan, o: &LinearAttentionOperands, dy: &Buffer) -> Walked {
        let rows = o.qkv.len / self.shape.width * self.shape.heads * self.shape.value_dim;
        let [states, of_states] = [(); 2].map(|()| self.states(client, plan.chunks));
        let [learned, of_learned] = [(); 2].map(|()| Buffer::empty(client, rows.max(1), FloatType::F32));
        let [left, of_left] = [(); 2].map(|()| self.states(client, plan.left()));
        self.walk(client, plan, o, (None, &left), Walk::Keeps([&states, &learned]));
        self.walk_back(client, plan, o, dy, [&of_left, &of_states, &of_learned]);
        Walked { states, learned, of_states, of_learned }
    }

    /// Writes the gradients of the states that texts go on from and of those behind chunks, and of what tokens learn.
    fn walk_back(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &LinearAttentionOperands,
        dy: &Buffer,
        [of_left, of_states, of_learned]: [&Buffer; 3],
    ) {
        for Level { texts, begins, leaves } in plan.walks().rev() {
            let form = Form { begins, leaves, ..self.form() };
            // SAFETY: as in `walk`.
            unsafe {
                backward::walk_back::launch_unchecked(
                    client,
                    self.cubes(&texts),
                    CubeDim::new_1d(UNITS as u32),
                    address(&[&o.qkv, &o.weights, dy, of_states, of_left]),
                    o.qkv.arg(1),
                    o.weights.arg(1),
                    o.words.arg(1),
                    dy.arg(1),
                    of_left.arg(1),
                    of_states.arg(1),
                    of_learned.arg(1),
                    self.numbers(plan, o, texts.start),
                    form,
                );
            }
        }
    }

    /// Gradients from that of the output, `[tokens, heads * value_dim]`, f32.
    ///
    /// Two walks over the texts, forward for the states (without the output) and back for their gradients, then all chunks at once: a
    /// launch for each level, twice, and one. In memory meanwhile: the state before each chunk and its gradient,
    /// `2 key_dim value_dim heads` for every chunk, and what tokens learned, twice as much as the output.
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is of held states.
    #[must_use]
    pub fn backward(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &LinearAttentionOperands,
        dy: &Buffer,
    ) -> LinearAttentionGradients {
        assert!(!plan.held, "invariant: held states have no gradient");
        let LinearAttentionShape { heads, width, key_heads, .. } = self.shape;
        let tokens = o.qkv.len / width;
        let Walked { states, learned, of_states, of_learned } = self.walked(client, plan, o, dy);
        let [qkv, weights] =
            [tokens * width, 2 * tokens * heads].map(|len| Buffer::cleared(client, len, !plan.whole));
        if plan.chunks > 0 {
            // SAFETY: as in `walk`; a chunk's rows are its cubes' own.
            unsafe {
                gradients::of_chunks::launch_unchecked(
                    client,
                    CubeCount::Static(plan.chunks as u32, key_heads as u32, 1),
                    CubeDim::new_1d(UNITS as u32),
                    address(&[&o.qkv, dy, &of_states]),
                    o.qkv.arg(1),
                    o.weights.arg(1),
                    o.words.arg(1),
                    dy.arg(1),
                    states.arg(1),
                    learned.arg(1),
                    of_states.arg(1),
                    of_learned.arg(1),
                    qkv.arg(1),
                    weights.arg(1),
                    self.numbers(plan, o, plan.of_chunks),
                    self.form(),
                );
            }
        }
        LinearAttentionGradients { qkv, weights }
    }
}

/// What walks leave: of each chunk the state before it and the gradient of the one behind; of each token what it learned, and
/// the gradient of that.
struct Walked {
    states: Buffer,
    learned: Buffer,
    of_states: Buffer,
    of_learned: Buffer,
}

/// What a walk from texts' beginnings is for.
#[derive(Clone, Copy)]
enum Walk<'a> {
    /// The output.
    Gives(&'a Buffer),
    /// The state before each chunk, and what tokens learned.
    Keeps([&'a Buffer; 2]),
}
