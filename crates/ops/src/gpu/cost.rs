//! `Cost`: operations, bytes and launches of the bodies here, from sizes. A plan's prediction is made of these, so whoever
//! changes a body changes its entry.
//!
//! Operations are those of products, two for each pair of factors. Bytes are those of the tensors that kernels read and write,
//! each once for each kernel that does. Small products are cut into parts that another launch adds, and what lies where Burn's
//! operations cannot look at it is copied first, both by shapes: launches are near, and nearest where products fill a device.
//! Products of 16-bit factors, norms, gates, heads, attention, rows of logits, lookups and AdamW are kernels of burnish's own
//! (`burnish-gpu-kernels`).

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

use super::head;

/// Queries, and keys, of a tile of attention.
const TILE: u64 = burnish_core::FLASH_TILE as u64;

/// Rows that an expert's are filled up to a multiple of.
const GROUP_ROWS: u64 = burnish_core::GROUP_ROWS as u64;

/// Bytes of an f32: stream, softmax, statistics and gradients.
const WIDE: u64 = 4;

/// Kernels around the products of an adapter in f32 on a layer in 16 bits, in forward and in backward: the layer's input in both
/// dtypes, its output put beside its neighbours', casts. As the interpreter's driver counts them on `examples/base`.
const AROUND_ADAPTER: [u64; 2] = [5, 2];

/// The same of an adapter that acts on some tokens, beside the layer.
const AROUND_APART: [u64; 2] = [8, 14];

/// What kernels do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations of products.
    pub flops: u64,
    /// Bytes that they read.
    pub read: u64,
    /// Bytes that they write.
    pub written: u64,
    /// How many are launched.
    pub launches: u64,
}

impl Cost {
    /// `launches` kernels without products.
    #[must_use]
    pub const fn moving(read: u64, written: u64, launches: u64) -> Self {
        Self { flops: 0, read, written, launches }
    }

    /// Bytes that they move.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            read: self.read + other.read,
            written: self.written + other.written,
            launches: self.launches + other.launches,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Cost {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self {
            flops: self.flops * times,
            read: self.read * times,
            written: self.written * times,
            launches: self.launches * times,
        }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// A linear layer: tokens, widths, and bytes of an element of the weight, in which its products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSize {
    /// Rows of the input.
    pub tokens: u64,
    /// Input features.
    pub input: u64,
    /// Output features.
    pub output: u64,
    /// Bytes of an element.
    pub bytes: u64,
}

/// An adapter of low rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterWork {
    /// Its rank.
    pub rank: u64,
    /// Bytes of an element of its products' factors.
    pub bytes: u64,
    /// Adapters of the layers that read this input.
    pub beside: u64,
    /// Whether it is the first of them.
    pub first: bool,
    /// Whether it acts on some tokens alone, beside its layer.
    pub apart: bool,
}

impl AdapterWork {
    /// Whether it is in f32 and so is its layer, whose kernel then computes its last product.
    fn is_within(&self, layer: &LinearSize) -> bool {
        self.bytes == WIDE && layer.bytes == WIDE && !self.apart
    }

    /// Whether those of this input are multiplied together.
    fn together(&self, tokens: u64) -> bool {
        let [rows, columns] = burnish_core::ADAPTERS_TOGETHER.map(|n| n as u64);
        self.bytes < WIDE && tokens >= rows && self.beside * self.rank <= columns
    }
}

/// One product `[m, k] x [k, n]` whose elements take so many bytes, the result's `out`.
fn product([m, k, n]: [u64; 3], bytes: u64, out: u64) -> Cost {
    Cost { flops: 2 * m * k * n, read: bytes * (m * k + k * n), written: out * m * n, launches: 1 }
}

impl LinearSize {
    /// `x W^T`.
    #[must_use]
    pub fn forward(&self) -> Cost {
        product([self.tokens, self.input, self.output], self.bytes, self.bytes)
    }

    /// The same of a few rows by the codes of a weight in `resting` bytes; `None` of more, for which it is widened.
    #[must_use]
    pub fn by_codes(&self, resting: u64) -> Option<Cost> {
        let Cost { read, .. } = self.forward();
        let few = self.tokens <= burnish_core::FEW_ROWS as u64;
        few.then(|| Cost { read: read - self.bytes * self.input * self.output + resting, ..self.forward() })
    }

    /// The input's gradient `dy W`, in f32.
    #[must_use]
    pub fn of_input(&self) -> Cost {
        product([self.tokens, self.output, self.input], self.bytes, WIDE)
    }

    /// The weight's gradient `dy^T x`, in f32.
    #[must_use]
    pub fn of_weight(&self) -> Cost {
        product([self.output, self.tokens, self.input], self.bytes, WIDE)
    }

    /// What an adapter adds. In f32 beside a layer in 16 bits two products, and the sum with the layer's; in the layer's own dtype
    /// one, that in 16 bits those of the layers beside it share, and another in the layer's own kernel.
    #[must_use]
    pub fn adapter_forward(&self, of: &AdapterWork) -> Cost {
        let Self { tokens, input, output, .. } = *self;
        let AdapterWork { rank, bytes, first, apart, .. } = *of;
        if of.is_within(self) {
            return product([tokens, input, rank], WIDE, WIDE) + self.beside([tokens, rank, output]);
        }
        if bytes == WIDE || apart {
            let around = if apart { AROUND_APART[0] } else { AROUND_ADAPTER[0] };
            return product([tokens, input, rank], WIDE, WIDE)
                + product([tokens, rank, output], WIDE, WIDE)
                + Cost::moving(2 * WIDE * tokens * output, WIDE * tokens * output, around);
        }
        let factors = Cost::moving((WIDE + bytes) * rank * (input + output), 0, u64::from(first));
        let low = self.shared(product([tokens, input, rank], bytes, bytes), of);
        low + self.beside([tokens, rank, output]) + factors
    }

    /// A product that reads the input with those of the layers beside it, where it is not the first of them.
    fn shared(&self, cost: Cost, of: &AdapterWork) -> Cost {
        match of.first || !of.together(self.tokens) {
            true => cost,
            false => Cost { read: cost.read - self.bytes * self.tokens * self.input, launches: 0, ..cost },
        }
    }

    /// A product that another one's kernel computes as well.
    fn beside(&self, [m, k, n]: [u64; 3]) -> Cost {
        Cost { flops: 2 * m * k * n, read: self.bytes * (m * k + k * n), written: 0, launches: 0 }
    }

    /// Its backward: the gradients of both factors, and with `tracked` the input's.
    #[must_use]
    pub fn adapter_backward(&self, of: &AdapterWork, tracked: bool) -> Cost {
        let Self { tokens, input, output, .. } = *self;
        let AdapterWork { rank, bytes, first, apart, .. } = *of;
        if bytes == WIDE || apart {
            let alone = product([tokens, rank, input], WIDE, WIDE)
                + Cost::moving(2 * WIDE * tokens * input, WIDE * tokens * input, 0);
            let (of_input, around) = match (apart, of.is_within(self)) {
                (true, _) => (alone, AROUND_APART[1]),
                (_, true) => (self.beside([tokens, rank, input]), 0),
                _ => (alone, AROUND_ADAPTER[1]),
            };
            return Cost::moving(WIDE * tokens * output, WIDE * tokens * output, around)
                + product([output, tokens, rank], WIDE, WIDE)
                + product([tokens, output, rank], WIDE, WIDE)
                + product([rank, tokens, input], WIDE, WIDE)
                + if tracked { of_input } else { Cost::default() };
        }
        let of_input = if tracked { self.beside([tokens, rank, input]) } else { Cost::default() };
        let all = product([output, tokens, rank], bytes, WIDE)
            + product([tokens, output, rank], bytes, bytes)
            + self.shared(product([rank, tokens, input], bytes, WIDE), of)
            + of_input;
        // Those of one input together, and the parts of their factors' gradients, which are added.
        let launches = match (of.together(tokens), first) {
            (false, _) => all.launches,
            (true, first) => 4 * u64::from(first),
        };
        Cost { launches, ..all }
    }
}

/// A layer of all experts, each with rows of its own: one launch a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsSize {
    /// The rows that are multiplied, as [`filled`] has them, and one expert's widths.
    pub layer: LinearSize,
    /// Experts.
    pub experts: u64,
    /// Rows that there are, multiplied or not.
    pub rows: u64,
}

/// Rows that grouped products multiply where `places` go to `experts` as it comes: the last ones of each are filled up.
#[must_use]
pub fn filled(experts: u64, places: u64) -> u64 {
    let used = experts.min(places);
    GROUP_ROWS * used.max((places + used * GROUP_ROWS / 2) / GROUP_ROWS)
}

/// Rows that there are for `places` where the host does not know their experts.
#[must_use]
pub fn expert_rows(experts: u64, places: u64) -> u64 {
    burnish_core::expert_tiles(experts as usize, places as usize) as u64 * GROUP_ROWS
}

impl ExpertsSize {
    fn by_rows(&self, [k, n]: [u64; 2]) -> Cost {
        let LinearSize { tokens, bytes, .. } = self.layer;
        let read = bytes * (tokens * k + self.experts.min(self.rows) * k * n);
        Cost { flops: 2 * tokens * k * n, read, written: bytes * tokens * n, launches: 1 }
    }

    /// Each of a few rows by its own expert's matrix, one of them in `resting` bytes.
    #[must_use]
    pub fn of_few(&self, resting: u64) -> Cost {
        let LinearSize { input, output, bytes, .. } = self.layer;
        let read = self.rows * (bytes * input + resting);
        Cost { flops: 2 * self.rows * input * output, read, written: bytes * self.rows * output, launches: 1 }
    }

    /// Beside the products of both layers over a few tokens: the choice, rows in the dtype of products, what stands between the layers with so
    /// many `gates`, and rows that are weighed and added.
    #[must_use]
    pub fn moved_of_few(&self, tokens: u64, (inner, gates): (u64, u64)) -> Cost {
        let (LinearSize { input, bytes, .. }, rows) = (self.layer, self.rows);
        let read = WIDE * tokens * (self.experts + input) + bytes * rows * (gates * inner + input);
        Cost::moving(read, bytes * (tokens * input + rows * inner) + WIDE * tokens * input, 4)
    }

    /// Rows by the weights.
    #[must_use]
    pub fn forward(&self) -> Cost {
        self.by_rows([self.layer.input, self.layer.output])
    }

    /// The inputs' gradients.
    #[must_use]
    pub fn of_input(&self) -> Cost {
        self.by_rows([self.layer.output, self.layer.input])
    }

    /// The weights' gradients, in f32.
    #[must_use]
    pub fn of_weight(&self) -> Cost {
        let one = self.layer.of_weight();
        Cost { written: self.experts * one.written, ..one }
    }

    /// Beside the products of both layers, this the first, over `tokens` with `each` of the experts: the choice, where rows lie, rows
    /// that are gathered, what stands between the layers with so many `gates`, and rows that are weighed and added.
    #[must_use]
    pub fn moved_forward(&self, tokens: u64, each: u64, (inner, gates): (u64, u64)) -> Cost {
        let (LinearSize { input, bytes, .. }, rows) = (self.layer, self.rows);
        let chosen = WIDE * tokens * each;
        let read = (WIDE + bytes) * tokens * each * input
            + WIDE * tokens * self.experts
            + bytes * gates * rows * inner;
        let written = bytes * rows * (input + inner) + WIDE * tokens * input + 5 * chosen;
        // The choice of tokens in the dtype of products, one launch or two of where rows lie, rows there, between the layers and back.
        Cost::moving(read, written, 6 + u64::from(tokens * each > 512))
    }

    /// The same backward: inputs, where the first layer `trains`, and upstream gradients gathered, what stands between the layers, and
    /// the gradients of inputs, weights and logits.
    #[must_use]
    pub fn moved_backward(
        &self,
        tokens: u64,
        each: u64,
        (inner, gates): (u64, u64),
        trains: [bool; 2],
    ) -> Cost {
        let (LinearSize { input, bytes, .. }, rows) = (self.layer, self.rows);
        let [first, second] = trains.map(u64::from);
        let read = (bytes + WIDE * (1 + first)) * tokens * each * input
            + bytes * (gates + 1) * rows * inner
            + 2 * WIDE * tokens * self.experts;
        let written = bytes * rows * (input * (1 + first) + (gates + second) * inner)
            + WIDE * (tokens * input + tokens * self.experts);
        // Two casts and the sum with the router's among them.
        Cost::moving(read, written, 8 + first)
    }
}

/// What the loss that balances so many `experts` reads of `layers` routers' choices, `each` of them for each of `tokens`, and what
/// is made of it.
#[must_use]
pub fn balanced(layers: u64, experts: u64, tokens: u64, each: u64) -> Cost {
    Cost::moving(WIDE * layers * tokens * (experts + each), WIDE * layers * experts, 4 * layers + 12)
}

/// A norm of `rows` rows of `width`, whose result is written in `bytes` an element.
#[must_use]
pub fn norm_forward(rows: u64, width: u64, bytes: u64) -> Cost {
    Cost::moving(WIDE * rows * width, bytes * rows * width, 1)
}

/// Its backward: the norm once more for the layers' own gradients, then its input's gradient, and with `trains` the sum over
/// rows behind that.
#[must_use]
pub fn norm_backward(rows: u64, width: u64, trains: bool) -> Cost {
    let of_gamma = if trains { Cost::moving(0, WIDE * width, 1) } else { Cost::default() };
    Cost::moving(3 * WIDE * rows * width, 2 * WIDE * rows * width, 2) + of_gamma
}

/// The gradient that a block adds to the stream's: read both, write the sum.
#[must_use]
pub fn residual(tokens: u64, width: u64) -> Cost {
    Cost::moving(2 * WIDE * tokens * width, WIDE * tokens * width, 1)
}

/// The gradient of the stream, rounded for products of 16 bits.
#[must_use]
pub fn rounded(tokens: u64, width: u64) -> Cost {
    Cost::moving(WIDE * tokens * width, 2 * tokens * width, 1)
}

/// What a product that adds to the stream moves beside what a product does whose elements take so many bytes.
#[must_use]
pub fn added(tokens: u64, width: u64, bytes: u64) -> Cost {
    Cost::moving(WIDE * tokens * width, (WIDE - bytes) * tokens * width, 0)
}

/// What the gradient of an input that several layers read moves more: each but the first adds to it.
#[must_use]
pub fn summed(tokens: u64, width: u64, layers: u64) -> Cost {
    Cost::moving(WIDE * tokens * width * layers.saturating_sub(1), 0, 0)
}

/// Columns of several layers on one input, side by side in one tensor: products of 16-bit factors are written there.
#[must_use]
pub fn side_by_side(tokens: u64, width: u64, bytes: u64, layers: u64) -> Cost {
    if layers < 2 || bytes < WIDE {
        Cost::default()
    } else {
        Cost::moving(bytes * tokens * width, bytes * tokens * width, layers + 1)
    }
}

/// An activation of `inner` elements a token that reads `gates` for each: one, or a gate and what it multiplies.
#[must_use]
pub fn activation_forward(tokens: u64, inner: u64, gates: u64, bytes: u64) -> Cost {
    Cost::moving(gates * bytes * tokens * inner, bytes * tokens * inner, 1)
}

/// Its backward: the values again for the layer behind it, then all gradients at once, from one in the dtype of the values.
#[must_use]
pub fn activation_backward(tokens: u64, inner: u64, gates: u64, bytes: u64) -> Cost {
    let elements = tokens * inner;
    Cost::moving((2 * gates + 1) * bytes * elements, (1 + gates) * bytes * elements, 2)
}

/// Attention of texts that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSize {
    /// Texts beside each other.
    pub texts: u64,
    /// New tokens of each.
    pub tokens: u64,
    /// Tokens before them whose keys and values are kept.
    pub before: u64,
    /// Most keys that a token sees.
    pub window: Option<u64>,
    /// Query heads.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Elements of a head of queries and keys.
    pub dim: u64,
    /// Elements of a head of values.
    pub value_dim: u64,
    /// Whether queries and keys are normed by heads.
    pub normed: bool,
    /// Whether they turn.
    pub turns: bool,
    /// Bytes of an element of queries, keys and values.
    pub bytes: u64,
}

impl AttentionSize {
    /// Pairs of queries and keys of one head that the texts' tokens see.
    #[must_use]
    pub fn seen(&self) -> u64 {
        let of = |query: u64| {
            let all = self.before + query + 1;
            self.window.map_or(all, |window| all.min(window))
        };
        self.texts * (0..self.tokens).map(of).sum::<u64>()
    }

    /// Pairs that are computed: those of tiles in which a query sees a key.
    #[must_use]
    pub fn computed(&self) -> u64 {
        if self.before > 0 {
            return self.seen();
        }
        let rows = self.texts * self.tokens;
        let mut pairs = 0;
        for start in (0..rows).step_by(TILE as usize) {
            let end = rows.min(start + TILE);
            let text = start / self.tokens.max(1) * self.tokens;
            let from = self.window.map_or(text, |window| text.max((start + 1).saturating_sub(window)));
            pairs += (end - start) * (end - from / TILE * TILE);
        }
        pairs
    }

    /// Elements of queries and keys, and of values, of all tokens.
    fn elements(&self) -> [u64; 2] {
        let tokens = self.texts * self.tokens;
        [tokens * (self.heads + self.kv_heads) * self.dim, tokens * self.kv_heads * self.value_dim]
    }

    /// Norms and turns of heads, from queries, keys and values as layers give them; without either attention reads those.
    fn placed(&self, read: u64, written: u64) -> Cost {
        let [turned, values] = self.elements();
        if self.normed || self.turns {
            Cost::moving(read * (turned + values), written * (turned + values), 1)
        } else {
            Cost::default()
        }
    }

    /// Heads' norms and turns, then two products with a softmax between them, of which no score is in memory.
    #[must_use]
    pub fn forward(&self) -> Cost {
        let out = self.texts * self.tokens * self.heads * self.value_dim;
        let attended = Cost {
            flops: 2 * self.heads * self.computed() * (self.dim + self.value_dim),
            read: self.keys_read(),
            written: self.bytes * out,
            launches: 1,
        };
        // Over a cache: what is new is written into its pages, and parts of the keys are put together.
        let [_, values] = self.elements();
        let kept = Cost::moving(2 * self.bytes * values, 2 * self.bytes * values, 2);
        let kept = if self.before > 0 { kept } else { Cost::default() };
        self.placed(self.bytes, self.bytes) + attended + kept
    }

    /// Bytes of queries, and of the keys and values that each tile of queries sees.
    fn keys_read(&self) -> u64 {
        let queries = self.texts * self.tokens * self.heads * self.dim;
        let keys = if self.before > 0 {
            self.texts * (self.before + self.tokens) * self.kv_heads
        } else {
            self.computed() / TILE.min(self.texts * self.tokens).max(1) * self.heads
        };
        self.bytes * (queries + keys * (self.dim + self.value_dim))
    }

    /// Scores again, twice: a pass for the gradient of queries and one for those of keys and values, seven products; before
    /// them the heads once more and each row's sum of output times gradient, behind them the heads' norms and turns.
    #[must_use]
    pub fn backward(&self) -> Cost {
        let pairs = self.heads * self.computed();
        let [turned, values] = self.elements();
        let out = self.texts * self.tokens * self.heads * self.value_dim;
        let passes = Cost {
            flops: 2 * pairs * (4 * self.dim + 3 * self.value_dim),
            read: 2 * self.keys_read(),
            written: WIDE * (turned + values),
            launches: 2,
        };
        let rows = Cost::moving(2 * self.bytes * out, 0, 1);
        self.placed(self.bytes, self.bytes) + rows + passes + self.placed(self.bytes + WIDE, self.bytes)
    }
}

/// Columns of values that a cube of linear attention has.
const SLICE: u64 = 32;

/// Kernels around those of linear attention, forward and backward: columns of the layer's output put apart and together, the numbers of
/// heads, parameters in f32. As the interpreter's driver counts them.
const AROUND_LINEAR_ATTENTION: [u64; 2] = [8, 17];

/// The same where channels have decays: what narrow layers give beside it too, and Burn's kernels of decays, betas and gates. As the
/// interpreter's driver counts them on Kimi Linear's, a model of two such layers less a model of one; forward by what recompute adds.
const AROUND_CHANNELS: [u64; 2] = [22, 58];

/// Tokens of a chunk whose channels have decays.
const CHANNEL_CHUNK: u64 = 16;

/// Kernels that make queries, keys and values of latents, and of what attention gave the values, forward and backward: slices, what is put
/// side by side, copies. As the interpreter's driver counts them, as [`AROUND_CHANNELS`]: the first on GLM-5's, where neighbours turn
/// together and are put in halves, the second on Kimi Linear's, where nothing turns and queries have no latent.
const AROUND_LATENTS: [[u64; 2]; 2] = [[24, 39], [22, 34]];

/// Heads of so many elements of all tokens that are made of latents, forward and backward: slices, heads of one width, all side by side.
#[must_use]
pub fn of_latents(elements: u64, bytes: u64, neighbours: bool) -> [Cost; 2] {
    let around = AROUND_LATENTS[usize::from(!neighbours)];
    around.map(|launches| Cost::moving(3 * bytes * elements, 3 * bytes * elements, launches))
}

/// Linear attention of texts that are alike, with the convolution before it and the gates behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionSize {
    /// Texts beside each other.
    pub texts: u64,
    /// New tokens of each.
    pub tokens: u64,
    /// Heads of queries and keys.
    pub key_heads: u64,
    /// Heads of values.
    pub heads: u64,
    /// Elements of a query or key.
    pub key_dim: u64,
    /// Elements of a value.
    pub value_dim: u64,
    /// Whether a token learns only what the state does not say already.
    pub delta_rule: bool,
    /// Whether each channel of a key has a decay of its own, which walks read in records.
    pub by_channel: bool,
    /// Bytes of an element of what layers give and read.
    pub bytes: u64,
}

impl LinearAttentionSize {
    /// Tokens of chunks, those that only fill them up among them.
    fn computed(&self) -> u64 {
        let chunk = self.chunk();
        self.texts * self.tokens.div_ceil(chunk) * chunk
    }

    fn chunk(&self) -> u64 {
        if self.by_channel { CHANNEL_CHUNK } else { burnish_core::LINEAR_ATTENTION_CHUNK as u64 }
    }

    /// The records of chunks whose channels have decays, of two products of all pairs over keys, and the walk that reads them.
    fn recorded(&self) -> Cost {
        if !self.by_channel {
            return Cost::default();
        }
        let (chunk, [_, over_keys, ..]) = (self.chunk(), self.products());
        let chunks = self.computed() / chunk * self.heads;
        let records = WIDE * chunks * (chunk * (3 * self.key_dim + 2 * chunk + 1) + self.key_dim);
        let read = WIDE * self.texts * self.tokens * self.heads * (3 * self.key_dim + 1);
        Cost {
            flops: 2 * self.computed() * self.heads * over_keys,
            read: read + records,
            written: records,
            launches: 1,
        }
    }

    /// Beside the gate: the norm of heads, which is no part of its kernel where channels have decays, and what Burn's kernels do with decays.
    fn beside(&self, phase: usize) -> Cost {
        let around = Cost::moving(0, 0, AROUND_LINEAR_ATTENTION[phase]);
        if !self.by_channel {
            return around;
        }
        let rows = self.texts * self.tokens * self.heads;
        let norm = match phase {
            0 => norm_forward(rows, self.value_dim, WIDE),
            _ => norm_backward(rows, self.value_dim, true),
        };
        let decays = WIDE * rows * self.key_dim;
        // The norm's input is made once: its backward has two launches.
        Cost { launches: 1 + phase as u64, ..norm }
            + Cost::moving(2 * decays, 2 * decays, AROUND_CHANNELS[phase])
    }

    /// Columns that are convolved.
    fn channels(&self) -> u64 {
        2 * self.key_heads * self.key_dim + self.heads * self.value_dim
    }

    /// Slices of values, and operations for each token and head: of a product of all pairs of a chunk over keys, of one over values, and of one
    /// with a state.
    fn products(&self) -> [u64; 4] {
        let (slices, pairs) = (self.value_dim.div_ceil(SLICE), 2 * self.chunk());
        [slices, pairs * self.key_dim, pairs * slices * SLICE, 2 * self.key_dim * slices * SLICE]
    }

    /// A walk over the texts, with `keys` products of pairs over keys for each slice, `values` over values and `states` with states.
    fn walk(&self, [keys, values, states]: [u64; 3]) -> Cost {
        let [slices, over_keys, over_values, with_states] = self.products();
        let tokens = self.texts * self.tokens;
        let of_token = keys * slices * over_keys + values * over_values + states * with_states;
        Cost {
            flops: self.computed() * self.heads * of_token,
            read: WIDE * tokens * self.heads * (2 * slices * self.key_dim + self.value_dim),
            written: WIDE * tokens * self.heads * self.value_dim,
            launches: 1,
        }
    }

    /// The convolution, the walk and the gates.
    #[must_use]
    pub fn forward(&self) -> Cost {
        let (tokens, rule) = (self.texts * self.tokens, u64::from(self.delta_rule));
        let (channels, values) = (tokens * self.channels(), tokens * self.heads * self.value_dim);
        let apart = Cost::moving(self.bytes * (channels + values), self.bytes * (channels + values), 0);
        let convolved = Cost::moving(self.bytes * channels, WIDE * channels, 1);
        let gated = Cost::moving((WIDE + self.bytes) * values, self.bytes * values, 1);
        let walk = self.recorded() + self.walk([1 + rule, 1, 2 + rule]);
        apart + convolved + walk + gated + self.beside(0)
    }

    /// The walk again for its states, and back for their gradients; then all chunks at once.
    #[must_use]
    pub fn backward(&self) -> Cost {
        let (tokens, rule) = (self.texts * self.tokens, u64::from(self.delta_rule));
        let (channels, values) = (tokens * self.channels(), tokens * self.heads * self.value_dim);
        let [_, over_keys, over_values, with_states] = self.products();
        let chunks = self.computed() / self.chunk();
        let states = WIDE * chunks * self.heads * self.key_dim * self.value_dim;
        let again = self.walk([rule, 0, 1 + rule]) + Cost::moving(0, states, 0);
        let back = self.walk([1 + rule, 1, 2 + rule]) + Cost::moving(WIDE * values, states, 0);
        let of_token = (3 + 2 * rule) * over_keys + (1 + rule) * over_values + (2 + rule) * with_states;
        let of_chunks = Cost {
            flops: self.computed() * self.heads * of_token,
            read: 2 * states + WIDE * (channels + 4 * values),
            written: WIDE * channels,
            launches: 1,
        };
        let gated = Cost::moving((WIDE + 2 * self.bytes) * values, (WIDE + self.bytes) * values, 1);
        let convolved = Cost::moving((self.bytes + 2 * WIDE) * channels, (WIDE + self.bytes) * channels, 2);
        let together =
            Cost::moving(2 * self.bytes * (channels + values), 2 * self.bytes * (channels + values), 0);
        self.recorded() + again + back + of_chunks + gated + convolved + together + self.beside(1)
    }
}

/// Kernels around those of a selective scan, forward and backward: what layers give put apart and together, copies of it in a row, sums of
/// gradients. More where steps and directions are normed, and in 16 bits. As the interpreter's driver counts them.
const AROUND_SCAN: [[u64; 2]; 3] = [[8, 26], [4, 4], [6, 5]];

/// The selective scan of texts that are alike, with the convolution before it and the gates behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveScanSize {
    /// Texts beside each other.
    pub texts: u64,
    /// New tokens of each.
    pub tokens: u64,
    /// Channels.
    pub channels: u64,
    /// Numbers of a channel's state.
    pub states: u64,
    /// Whether steps and directions are normed.
    pub normed: bool,
    /// Bytes of an element of what layers give and read.
    pub bytes: u64,
}

/// Tokens of a chunk of a selective scan, and channels that share what tokens say to all.
const SCANNED: [u64; 2] = [16, 32];

impl SelectiveScanSize {
    /// A walk over the texts: `wide` tensors of channels and `narrow` ones of numbers of states are read, `products` made of each number
    /// of a state.
    fn walk(&self, wide: u64, narrow: u64, products: u64) -> Cost {
        let tokens = self.texts * self.tokens;
        let blocks = self.channels.div_ceil(SCANNED[1]);
        Cost {
            flops: 2 * products * tokens * self.channels * self.states,
            read: WIDE * tokens * (wide * self.channels + narrow * blocks * self.states),
            written: 0,
            launches: 1,
        }
    }

    fn around(&self, phase: usize) -> Cost {
        let there = [true, self.normed, self.bytes < WIDE];
        let launches =
            AROUND_SCAN.iter().zip(there).filter(|(_, there)| *there).map(|(of, _)| of[phase]).sum();
        Cost::moving(0, 0, launches)
    }

    /// The convolution, one walk and the gates.
    #[must_use]
    pub fn forward(&self) -> Cost {
        let all = self.texts * self.tokens * self.channels;
        let apart = Cost::moving(2 * self.bytes * all, 2 * self.bytes * all, 2);
        let convolved = Cost::moving(self.bytes * all, WIDE * all, 1);
        let gated = Cost::moving((WIDE + self.bytes) * all, self.bytes * all, 1);
        let walked = self.walk(2, 2, 4) + Cost::moving(0, WIDE * all, 0);
        apart + convolved + walked + gated + self.around(0)
    }

    /// The walk again for its states, and back for their gradients; then all chunks at once, and four sums.
    #[must_use]
    pub fn backward(&self) -> Cost {
        let (tokens, chunks) = (self.texts * self.tokens, self.texts * self.tokens.div_ceil(SCANNED[0]));
        let states = WIDE * chunks * self.channels * self.states;
        let wide = WIDE * tokens * self.channels;
        // Of each block of channels.
        let narrow = 2 * WIDE * tokens * self.channels.div_ceil(SCANNED[1]) * self.states;
        let again = self.walk(2, 1, 3) + Cost::moving(0, states, 0);
        let back = self.walk(2, 1, 3) + Cost::moving(0, states, 0);
        let of_chunks = self.walk(4, 2, 12) + Cost::moving(2 * states, 2 * wide + states + narrow, 0);
        let of_layer = self.bytes * tokens * self.channels;
        let gated = Cost::moving(wide + 2 * of_layer, wide + of_layer, 1);
        let convolved = Cost::moving(of_layer + 2 * wide, wide + of_layer, 2);
        let together = Cost::moving(2 * of_layer, 2 * of_layer, 1);
        let sums = Cost::moving(states + narrow, 0, 4);
        again + back + of_chunks + sums + gated + convolved + together + self.around(1)
    }
}

/// The head over `targets` tokens: the layer, whose bytes are those of its products, chunk by chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSize {
    /// The layer; its tokens are those that predict something.
    pub layer: LinearSize,
    /// Whether the gradient of its weight is made.
    pub trains: bool,
}

impl HeadSize {
    /// Rows of a chunk.
    fn rows(&self) -> u64 {
        let LinearSize { tokens, input, output, .. } = self.layer;
        let most = head::chunk([output as usize, input as usize], self.trains);
        head::even(tokens as usize, most) as u64
    }

    fn chunks(&self) -> u64 {
        self.layer.tokens.div_ceil(self.rows()).max(1)
    }

    /// Bytes of a chunk's logits, which its gradient takes the place of.
    #[must_use]
    pub fn logits_bytes(&self) -> u64 {
        self.rows() * self.layer.output * self.layer.bytes
    }

    /// What the chunks behind the first add to a product: each reads the whole table.
    fn again(&self) -> Cost {
        let LinearSize { input, output, bytes, .. } = self.layer;
        let more = self.chunks() - 1;
        Cost::moving(more * bytes * input * output, 0, more)
    }

    /// The products of a pass over the chunks, of hidden states that are rounded where factors have 16 bits.
    fn logits(&self) -> Cost {
        let LinearSize { tokens, input, bytes, .. } = self.layer;
        let moved = Cost::moving(WIDE * tokens * input, bytes * tokens * input, self.chunks());
        let rounded = if bytes < WIDE { moved } else { Cost::default() };
        self.layer.forward() + self.again() + rounded
    }

    /// Logits, and of each token its maximum, sums and its target's own.
    #[must_use]
    pub fn forward(&self) -> [Cost; 2] {
        let logits = self.layer.tokens * self.layer.output;
        let statistics = Cost::moving(self.layer.bytes * logits, 0, 2 * self.chunks());
        [self.logits(), statistics]
    }

    /// The gradient of logits, and the products with it: of the input where something before it trains (`tracked`), and of the
    /// table where that trains; of logits that are made `again`, or at once of those of the likelihood ([`crate::head_nll`]).
    #[must_use]
    pub fn backward(&self, tracked: bool, again: bool) -> [Cost; 2] {
        let LinearSize { input, output, bytes, tokens } = self.layer;
        let trains = self.trains;
        let logits = tokens * output;
        // Gradients of the chunks' rows are put one below the other.
        let below = joined(tokens * input, WIDE, self.chunks());
        let of_input = if tracked { self.layer.of_input() + self.again() + below } else { Cost::default() };
        let of_table = if trains {
            // Each chunk adds to what those before it gave.
            let sums = (self.chunks() - 1) * input * output;
            self.layer.of_weight() + Cost::moving(WIDE * sums, WIDE * sums, self.chunks() - 1)
        } else {
            Cost::default()
        };
        let slopes = Cost::moving(bytes * logits, bytes * logits, self.chunks());
        if again {
            return [self.logits() + of_input + of_table, slopes];
        }
        // Of a chunk the sum's logarithm, and of all tokens the likelihood; backward multiplies gradients by the loss's.
        let small = Cost::moving(0, 0, 2 * self.chunks() + 5 + u64::from(tracked) + u64::from(trains));
        let scaled = u64::from(tracked) * tokens * input + u64::from(trains) * input * output;
        [of_input + of_table, slopes + small + Cost::moving(WIDE * scaled, WIDE * scaled, 0)]
    }
}

/// Rows of a table `[vocab, width]` by token.
#[must_use]
pub fn embedding_forward(tokens: u64, width: u64, bytes: u64) -> Cost {
    Cost::moving(bytes * tokens * width, WIDE * tokens * width, 1)
}

/// The gradient of a table: of each row the sum over its tokens.
#[must_use]
pub fn embedding_backward(tokens: u64, vocab: u64, width: u64) -> Cost {
    Cost::moving(WIDE * tokens * width, WIDE * vocab * width, 1)
}

/// What a step does with each trained tensor beside its update: gradients of micro-batches are added up, the norm is summed; its
/// launches are among those of [`updates`].
#[must_use]
pub fn gradient(elements: u64, micro_batches: u64) -> Cost {
    let added = Cost::moving(2 * WIDE * elements, WIDE * elements, 0) * micro_batches.saturating_sub(1);
    added + Cost::moving(WIDE * elements, 0, 0)
}

/// Parameters that are updated in a launch, and tensors that are added, put together or whose squares are summed in one.
const UPDATED: u64 = 4;
const SUMMED: u64 = 8;

/// Launches that add so many parameters' gradients over micro-batches, sum their squares and update them.
#[must_use]
pub fn updates(parameters: u64, micro_batches: u64) -> Cost {
    let summed = parameters.div_ceil(SUMMED) * micro_batches.max(1);
    Cost::moving(0, 0, parameters.div_ceil(UPDATED) + summed)
}

/// Pieces of so many elements of `bytes` that are put together into one tensor.
#[must_use]
pub fn joined(elements: u64, bytes: u64, pieces: u64) -> Cost {
    if pieces < 2 {
        return Cost::default();
    }
    Cost::moving(bytes * elements, bytes * elements, pieces.div_ceil(SUMMED))
}

/// What autodiff fills for a block that runs again: the seed of its backward, and that of its tape.
#[must_use]
pub fn seeded() -> Cost {
    Cost::moving(0, WIDE, 2)
}

/// An update of `elements` that reads and writes a master and `slots` bytes of state, and writes the stored weight; its launch is
/// one of [`updates`].
#[must_use]
pub fn update(elements: u64, slots: u64, stored: u64) -> Cost {
    let launches = u64::from(stored > 0);
    Cost::moving(2 * WIDE * elements + slots, WIDE * elements + slots + stored, launches)
}

/// Matrices of a stack of so many elements each that are widened together.
#[must_use]
pub fn widened_together(each: usize) -> usize {
    matrices_of(crate::WIDENED_TOGETHER, each)
}

/// Matrices of so many elements each that have `most` together, or one.
pub(crate) fn matrices_of(most: usize, each: usize) -> usize {
    (most / each.max(1)).max(1)
}

/// `pieces` of a weight in `resting` bytes, each widened by itself to elements of `bytes` for products.
#[must_use]
pub fn widened(resting: u64, elements: u64, bytes: u64, pieces: u64) -> Cost {
    Cost::moving(resting, bytes * elements, pieces)
}

/// Bytes of a token's statistics that the head brings to the host.
pub const STATISTICS: u64 = WIDE * crate::VocabShard::VALUES as u64;

/// Bytes of a row's logits that come to the host where a token is drawn of all of them: blocks' sums, and one block.
#[must_use]
pub const fn drawn(vocab: u64) -> u64 {
    /// Logits of a block and numbers of its sums, as `burnish_gpu_kernels` has them, which is not there in every build.
    const BLOCK: u64 = 1024;
    const NUMBERS: u64 = 3;
    WIDE * (NUMBERS * vocab.div_ceil(BLOCK) + BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: AttentionSize = AttentionSize {
        texts: 2,
        tokens: 1024,
        before: 0,
        window: None,
        heads: 4,
        kv_heads: 2,
        dim: 64,
        value_dim: 64,
        normed: false,
        turns: true,
        bytes: 2,
    };

    #[test]
    fn tiles_compute_what_their_last_query_sees() {
        assert_eq!(SIZE.seen(), 2 * 1024 * 1025 / 2);
        // Sixteen tiles of each text, against 64, 128, ... 1024 keys.
        assert_eq!(SIZE.computed(), 2 * 64 * 64 * (16 * 17 / 2));
        let narrow = AttentionSize { window: Some(256), ..SIZE };
        assert_eq!(narrow.seen(), 2 * (256 * 257 / 2 + 768 * 256));
        assert!(narrow.computed() < SIZE.computed());
        let cached = AttentionSize { tokens: 1, before: 99, ..SIZE };
        assert_eq!((cached.seen(), cached.computed()), (200, 200));
    }

    #[test]
    fn attention_s_backward_is_seven_products_of_forward_s_two() {
        let [forward, backward] = [SIZE.forward(), SIZE.backward()];
        assert_eq!(forward.flops, 4 * SIZE.heads * SIZE.computed() * 64);
        assert_eq!(2 * backward.flops, 7 * forward.flops);
        assert_eq!((forward.launches, backward.launches), (2, 5));
    }

    #[test]
    fn a_linear_layer_counts_two_operations_a_pair() {
        let layer = LinearSize { tokens: 7, input: 5, output: 3, bytes: 2 };
        assert_eq!(layer.forward().flops, 2 * 7 * 5 * 3);
        assert_eq!(layer.of_input().flops, 2 * 7 * 5 * 3);
        assert_eq!(layer.of_weight().flops, 2 * 7 * 5 * 3);
        assert_eq!(layer.forward().bytes(), 2 * (7 * 5 + 5 * 3 + 7 * 3));
        for (bytes, apart) in [(2, false), (4, false), (4, true)] {
            let of = AdapterWork { rank: 2, bytes, beside: 1, first: true, apart };
            assert_eq!(layer.adapter_forward(&of).flops, 2 * 7 * 2 * (5 + 3));
            assert_eq!(layer.adapter_backward(&of, true).flops, 2 * 7 * 2 * 2 * (5 + 3));
            assert_eq!(layer.adapter_backward(&of, false).flops, 2 * 7 * 2 * (5 + 2 * 3));
        }
    }
}
