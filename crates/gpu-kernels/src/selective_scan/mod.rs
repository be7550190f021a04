//! The selective scan of Mamba-1 (Gu and Dao, arXiv:2312.00752), of texts in one row of packed tokens: of each channel a state of
//! some numbers that forgets, and learns from each token.
//!
//! A cube walks a text with 32 neighbouring channels, a unit with some numbers of one channel's state. Backward walks again for
//! the states before chunks and back for the gradients behind them; then all chunks are computed at once. Arithmetic is f32,
//! and sums have a fixed order.

mod chunks;
mod tile;
mod walk;

use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::sums;
use crate::text_plan::{Level, TextPlan};
use tile::{CHUNK, LANES, PARTS, PITCH};

/// What the compiler knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Numbers of a channel's state.
    states: usize,
    /// Texts go on from a state.
    begins: bool,
    /// Which its caller holds.
    held: bool,
    /// Some leave one.
    leaves: bool,
    /// The state before each chunk is kept.
    keeps: bool,
    /// The output is made.
    gives: bool,
}

impl Form {
    /// Numbers of a unit.
    fn each(self) -> usize {
        self.states.div_ceil(PARTS)
    }

    /// Units of a channel.
    fn parts(self) -> usize {
        self.states.div_ceil(self.each())
    }

    fn units(self) -> usize {
        self.parts() * LANES
    }

    /// Numbers of all units of a channel: the last ones may be of nobody, and are zeros.
    fn padded(self) -> usize {
        self.parts() * self.each()
    }

    /// Bytes of shared memory of the kernel that takes most.
    fn bytes(self) -> usize {
        4 * (2 * CHUNK * self.padded() + 2 * CHUNK * LANES + self.parts() * CHUNK * PITCH)
    }
}

/// A selective scan of so many channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveScan {
    channels: usize,
    states: usize,
}

/// What a selective scan reads, in f32.
#[derive(Clone, Debug)]
pub struct SelectiveScanOperands {
    /// What channels hear, `[tokens, channels]`.
    pub x: Buffer,
    /// How far each token steps, before its softplus: `[tokens, channels]`.
    pub steps: Buffer,
    /// The logarithm of how fast each number of a state is forgotten, `[channels, states]`.
    pub log_rates: Buffer,
    /// What of a token enters each number of the states, `[tokens, states]`.
    pub b: Buffer,
    /// What of each number of the states is read, `[tokens, states]`.
    pub c: Buffer,
    /// What of `x` is added to the output, `[channels]`.
    pub skip: Buffer,
    /// The plan's words.
    pub words: Buffer,
}

/// Gradients, in f32; zeros in rows of no text.
#[derive(Clone, Debug)]
pub struct SelectiveScanGradients {
    /// `[tokens, channels]`.
    pub x: Buffer,
    /// `[tokens, channels]`.
    pub steps: Buffer,
    /// `[states, channels]`, the other way round than the rates.
    pub log_rates: Buffer,
    /// `[tokens, states]`.
    pub b: Buffer,
    /// `[tokens, states]`.
    pub c: Buffer,
    /// `[channels]`.
    pub skip: Buffer,
}

impl SelectiveScan {
    /// Tokens of a chunk, of which plans are made.
    pub const CHUNK: usize = CHUNK;

    /// `None` where there is no kernel: on devices of small cubes or little shared memory.
    #[must_use]
    pub fn new(client: &Client, channels: usize, states: usize) -> Option<Self> {
        let this = Self { channels, states };
        let hardware = &client.properties().hardware;
        let fits = channels > 0
            && states > 0
            && this.form().units() <= hardware.max_units_per_cube as usize
            && this.form().bytes() <= hardware.max_shared_memory_size;
        fits.then_some(this)
    }

    fn form(&self) -> Form {
        let states = self.states;
        Form { states, begins: false, held: false, leaves: false, keeps: false, gives: false }
    }

    /// Numbers of the states of a text.
    fn state(&self) -> usize {
        self.states * self.channels
    }

    fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }

    fn check(&self, o: &SelectiveScanOperands, plan: &TextPlan) -> usize {
        let tokens = o.x.len / self.channels;
        assert_eq!(plan.chunk, CHUNK, "invariant: a plan of this scan");
        assert!(
            o.x.len == tokens * self.channels && o.steps.len == o.x.len,
            "invariant: x and steps are [tokens, channels]"
        );
        assert!(
            o.b.len == tokens * self.states && o.c.len == o.b.len,
            "invariant: b and c are [tokens, states]"
        );
        assert!(
            o.log_rates.len == self.state() && o.skip.len == self.channels,
            "invariant: rates are [channels, states], skip is [channels]"
        );
        tokens
    }

    /// `[tokens, channels]`; zeros in rows of no text.
    ///
    /// A launch for each level of texts that continue others. `8 states` flops and `states` exponentials for each token and
    /// channel; `x` and `steps` come from memory once, `b` and `c` once for each 32 channels.
    ///
    /// # Panics
    /// If buffers are not of these shapes.
    #[must_use]
    pub fn forward(&self, client: &Client, plan: &TextPlan, o: &SelectiveScanOperands) -> Buffer {
        assert!(!plan.held, "invariant: a plan of texts from their beginnings");
        self.gives(client, plan, o, None, &self.state_memory(client, plan.left()))
    }

    /// [`SelectiveScan::forward`] of texts that go on from `held` states, `[texts, states, channels]`, and those behind them.
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is not of held states.
    #[must_use]
    pub fn forward_held(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &SelectiveScanOperands,
        held: &Buffer,
    ) -> [Buffer; 2] {
        assert!(plan.held && held.len == plan.texts * self.state(), "invariant: a state for each text");
        let behind = self.state_memory(client, plan.texts);
        [self.gives(client, plan, o, Some(held), &behind), behind]
    }

    fn gives(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &SelectiveScanOperands,
        held: Option<&Buffer>,
        left: &Buffer,
    ) -> Buffer {
        let tokens = self.check(o, plan);
        let y = Buffer::cleared(client, tokens * self.channels, !plan.whole);
        let none = Buffer::empty(client, 1, FloatType::F32);
        self.walk(client, plan, o, (held, left), [&y, &none], true);
        y
    }

    /// Memory for so many states; a number where there are none, which a kernel's argument has to have.
    fn state_memory(&self, client: &Client, count: usize) -> Buffer {
        Buffer::empty(client, (count * self.state()).max(1), FloatType::F32)
    }

    /// A cube for each text of a level and 32 channels.
    fn cubes(&self, texts: usize) -> CubeCount {
        CubeCount::Static(texts as u32, self.blocks() as u32, 1)
    }

    /// Writes the output where it `gives`, else the state before each chunk.
    fn walk(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &SelectiveScanOperands,
        (held, left): (Option<&Buffer>, &Buffer),
        [y, states]: [&Buffer; 2],
        gives: bool,
    ) {
        let none = Buffer::empty(client, 1, FloatType::F32);
        for Level { texts, begins, leaves } in plan.walks() {
            let form = Form { begins, held: plan.held, leaves, keeps: !gives, gives, ..self.form() };
            // SAFETY: the kernel reads and writes rows of the plan's texts, and states of them, for which there is room.
            unsafe {
                walk::scan::launch_unchecked(
                    client,
                    self.cubes(texts.len()),
                    CubeDim::new_1d(form.units() as u32),
                    address(&[&o.x, states, left]),
                    o.x.arg(1),
                    o.steps.arg(1),
                    o.log_rates.arg(1),
                    o.b.arg(1),
                    o.c.arg(1),
                    o.skip.arg(1),
                    o.words.arg(1),
                    held.unwrap_or(&none).arg(1),
                    left.arg(1),
                    y.arg(1),
                    states.arg(1),
                    texts.start,
                    self.channels,
                    form,
                );
            }
        }
    }

    /// Gradients from that of the output, `[tokens, channels]`, f32.
    ///
    /// Two walks over the texts and all chunks at once: a launch for each level, twice, and one, and sums. In memory meanwhile:
    /// the state before each chunk of 16 tokens and the gradient behind it, `2 states channels` for every chunk, and of each 32
    /// channels the gradients of `b` and `c`.
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is of held states.
    #[must_use]
    pub fn backward(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &SelectiveScanOperands,
        dy: &Buffer,
    ) -> SelectiveScanGradients {
        assert!(!plan.held, "invariant: held states have no gradient");
        let (tokens, channels) = (self.check(o, plan), self.channels);
        assert_eq!(dy.len, tokens * channels, "invariant: dy is [tokens, channels]");
        let (wide, narrow) = (tokens * channels, tokens * self.states);
        let [x, steps] = [(); 2].map(|()| Buffer::cleared(client, wide, !plan.whole));
        if plan.chunks == 0 {
            let [b, c] = [(); 2].map(|()| Buffer::cleared(client, narrow, true));
            let [log_rates, skip] = [self.state(), channels].map(|n| Buffer::cleared(client, n, true));
            return SelectiveScanGradients { x, steps, log_rates, b, c, skip };
        }
        let [states, of_states] = [(); 2].map(|()| self.state_memory(client, plan.chunks));
        let [left, of_left] = [(); 2].map(|()| self.state_memory(client, plan.left()));
        let none = Buffer::empty(client, 1, FloatType::F32);
        self.walk(client, plan, o, (None, &left), [&none, &states], false);
        for Level { texts, begins, leaves } in plan.walks().rev() {
            let form = Form { begins, leaves, ..self.form() };
            // SAFETY: as in `walk`.
            unsafe {
                walk::scan_back::launch_unchecked(
                    client,
                    self.cubes(texts.len()),
                    CubeDim::new_1d(form.units() as u32),
                    address(&[dy, &of_states, &of_left]),
                    o.steps.arg(1),
                    o.log_rates.arg(1),
                    o.c.arg(1),
                    o.words.arg(1),
                    dy.arg(1),
                    of_left.arg(1),
                    of_states.arg(1),
                    texts.start,
                    plan.of_children,
                    channels,
                    form,
                );
            }
        }
        // Of each 32 channels.
        let [b, c] = [(); 2].map(|()| Buffer::cleared(client, self.blocks() * narrow, !plan.whole));
        let skip = Buffer::empty(client, plan.chunks * channels, FloatType::F32);
        // SAFETY: as in `walk`; a chunk's rows are its cubes' own, and so are its states, which become the gradients of rates.
        unsafe {
            chunks::scan_chunks::launch_unchecked(
                client,
                self.cubes(plan.chunks),
                CubeDim::new_1d(self.form().units() as u32),
                address(&[dy, &states, &b]),
                o.x.arg(1),
                o.steps.arg(1),
                o.log_rates.arg(1),
                o.b.arg(1),
                o.c.arg(1),
                o.skip.arg(1),
                o.words.arg(1),
                dy.arg(1),
                of_states.arg(1),
                states.arg(1),
                x.arg(1),
                steps.arg(1),
                b.arg(1),
                c.arg(1),
                skip.arg(1),
                plan.of_chunks,
                tokens,
                channels,
                self.form(),
            );
        }
        SelectiveScanGradients {
            x,
            steps,
            log_rates: sums::over_rows(client, &states, self.state()),
            b: sums::over_rows(client, &b, narrow),
            c: sums::over_rows(client, &c, narrow),
            skip: sums::over_rows(client, &skip, channels),
        }
    }
}
