//! Flash attention (Dao, arXiv:2307.08691) over one row of packed tokens: no score is ever in memory.
//!
//! Causal, within documents or windows, with grouped heads, a cap, linear biases and sinks. Softmax and sums are in f32.
//! Backward makes probabilities again from the log-sum-exp: one pass over tiles of queries, one over tiles of keys, each
//! of which sums what it holds in a fixed order. bf16 is multiplied by tensor cores where the device has them, everything
//! else by units.

mod backward;
mod backward_cores;
mod backward_warpgroups;
mod boxes;
mod cores;
mod forward;
mod forward_cores;
mod forward_warpgroups;
mod keys_warpgroups;
mod pages;
mod plan;
mod queries_warpgroups;
mod ring;
mod score;
mod seen;
mod softmax;
mod tile;
mod walk;

pub(crate) use cores::power_of_two;

use std::ops::Range;

use burnish_core::FLASH_HEAD;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::{mma, wgmma};
use backward_warpgroups::Layout;
use cores::Tiles;
use plan::{Ranges, TileRows};
use ring::Ring;
use score::{Form, NumbersLaunch, RowsLaunch};
use tile::{SIDE, TILE, UNITS};

pub use pages::{NOWHERE, PAGE, PagedRow, PagedRows, attend_pages, copy_pages, duplicate_pages, write_pages};
pub use plan::FlashPlan;

/// What attention looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the products of queries and keys.
    pub scale: f32,
    /// `c * tanh(score / c)`.
    pub softcap: Option<f32>,
}

/// Heads of tokens in a buffer, distances in its elements. A head's elements lie one behind the other.
#[derive(Clone, Debug)]
pub struct HeadRows {
    /// Where they are.
    pub buffer: Buffer,
    /// The first token's first head.
    pub first: usize,
    /// From token to token.
    pub token: usize,
    /// From head to head.
    pub head: usize,
}

/// What attention reads.
#[derive(Clone, Debug)]
pub struct FlashOperands {
    /// Queries.
    pub q: HeadRows,
    /// Keys.
    pub k: HeadRows,
    /// Values, in the same dtype.
    pub v: HeadRows,
    /// `[heads]`, f32: `slope * (j - i)` is added to query `i`'s capped score of key `j`.
    pub slopes: Option<Buffer>,
    /// `[heads]`, f32: a score of no key.
    pub sinks: Option<Buffer>,
    /// The plan's words.
    pub words: Buffer,
}

/// What attention gives.
#[derive(Clone, Debug)]
pub struct FlashOutput {
    /// `[tokens, heads, head_dim]`, in the operands' dtype; zeros for tokens that see nothing.
    pub out: Buffer,
    /// The logarithm of the sum of exponentials of each row's scores, `[heads, tokens]`, f32.
    pub sums: Buffer,
}

/// Gradients, f32.
#[derive(Clone, Debug)]
pub struct FlashGradients {
    /// `[heads, tokens, head_dim]`.
    pub q: Buffer,
    /// `[kv_heads, tokens, head_dim]`.
    pub k: Buffer,
    /// As the keys'.
    pub v: Buffer,
    /// `[heads]`, where there are sinks.
    pub sinks: Option<Buffer>,
}

/// Attention of one shape by the kernels that suit a device.
#[derive(Clone, Copy, Debug)]
pub struct FlashAttention {
    shape: FlashShape,
    dtype: FloatType,
    cores: Option<Cores>,
}

/// Tiles of the kernels on tensor cores.
#[derive(Clone, Copy, Debug)]
struct Cores {
    forward: Tiles,
    queries: Tiles,
    keys: Tiles,
    warpgroups: Option<Warpgroups>,
    /// Tiles of the forward pass by `wgmma`.
    ring: Option<Ring>,
}

/// Tiles of the kernels by `wgmma`, of as many rows, and how many tiles of others are in shared memory.
#[derive(Clone, Copy, Debug)]
struct Warpgroups {
    queries: Layout,
    keys: Layout,
}

impl Warpgroups {
    /// Planes of two warpgroups.
    const BOTH: usize = 2 * wgmma::PLANES;

    /// `None` where the device does not multiply so, or a head's rows are no whole lines.
    fn new(client: &Client, head_dim: usize) -> Option<Self> {
        let of = |others: usize, stages: usize, ahead: bool| {
            let tiles = Tiles { planes: Self::BOTH, strips: 1, others, kept: false };
            Layout { tiles, stages, ahead }
        };
        let (queries, keys) = match head_dim {
            64 => (of(8, 4, false), of(8, 4, false)),
            128 => (of(8, 2, false), of(4, 4, true)),
            _ => return None,
        };
        let of_queries = queries_warpgroups::bytes(queries, head_dim);
        let of_keys = keys_warpgroups::bytes(keys, head_dim);
        wgmma::multiplies(client, of_queries.max(of_keys)).then_some(Self { queries, keys })
    }
}

impl Cores {
    /// `None` where the device does not multiply these, or a head's rows do not lie in vectors.
    fn new(client: &Client, head_dim: usize, dtype: FloatType) -> Option<Self> {
        let properties = client.properties();
        if !head_dim.is_multiple_of(8) || !mma::multiplies(client, dtype) || !properties.features.copy_async {
            return None;
        }
        let most = properties.hardware.max_shared_memory_size;
        let first = |all: &[[usize; 3]], bytes: fn(Tiles, usize) -> usize| {
            let all =
                all.iter().map(|&[planes, strips, others]| Tiles { planes, strips, others, kept: false });
            all.into_iter().find(|&tiles| bytes(tiles, head_dim) <= most)
        };
        let narrow = [[4, 1, 2], [4, 1, 1], [2, 1, 1], [1, 1, 1]];
        let or_narrow =
            |wide: &[[usize; 3]]| if head_dim <= 128 { [wide, &narrow].concat() } else { narrow.to_vec() };
        let warpgroups = Warpgroups::new(client, head_dim);
        let ring = Ring::new(head_dim).filter(|ring| wgmma::multiplies(client, ring.bytes(head_dim)));
        // Both kinds of kernels use a plan.
        let (of_queries, of_keys): (&[_], &[_]) =
            if warpgroups.is_some() { (&[[4, 2, 2]], &[[8, 1, 4]]) } else { (&[[4, 2, 2]], &[[4, 1, 4]]) };
        let of_forward = match ring {
            Some(_) if head_dim > 128 => vec![[8, 1, 2]],
            _ => or_narrow(&[[4, 2, 4], [4, 2, 2]]),
        };
        let forward = first(&of_forward, cores::forward_bytes)?;
        Some(Self {
            forward,
            queries: first(&or_narrow(of_queries), cores::backward_bytes)?,
            keys: first(&or_narrow(of_keys), cores::backward_bytes)?,
            warpgroups,
            ring: ring.filter(|ring| ring.tiles.rows() == forward.rows()),
        })
    }
}

impl HeadRows {
    fn arg(&self, size: usize) -> BufferArg {
        self.buffer.arg(size)
    }

    fn rows(&self, size: usize) -> RowsLaunch {
        let Self { first, token, head, .. } = *self;
        assert!(
            [first, token, head].iter().all(|n| n.is_multiple_of(size)),
            "invariant: heads lie in vectors"
        );
        RowsLaunch::new(first / size, token / size, head / size)
    }
}

impl FlashAttention {
    /// `None` where there is no kernel: heads of more than 256 elements, and devices whose cubes are smaller than WebGPU's
    /// least.
    #[must_use]
    pub fn new(client: &Client, shape: FlashShape, dtype: FloatType) -> Option<Self> {
        let hardware = &client.properties().hardware;
        let fits = shape.head_dim <= FLASH_HEAD
            && hardware.max_units_per_cube as usize >= UNITS
            && hardware.max_shared_memory_size >= tile::bytes(shape.head_dim);
        fits.then(|| Self { shape, dtype, cores: Cores::new(client, shape.head_dim, dtype) })
    }

    /// What tokens see of each other: of each the first key that it sees, which is after the token where it sees none, and the
    /// keys that it sees before those; the latter are no ranges at all where no token has any.
    ///
    /// # Panics
    /// If there are ranges, but not one for each token.
    #[must_use]
    pub fn plan(&self, low: &[usize], before: &[Range<usize>]) -> FlashPlan {
        FlashPlan::new(low, before, self.rows())
    }

    /// Whether it can use a plan that another attention made: their tiles have as many rows.
    #[must_use]
    pub fn takes(&self, plan: &FlashPlan) -> bool {
        plan.rows == self.rows()
    }

    fn rows(&self) -> TileRows {
        self.cores.map_or(TileRows { forward: TILE, queries: TILE, keys: TILE }, |c| TileRows {
            forward: c.forward.rows(),
            queries: c.queries.rows(),
            keys: c.keys.rows(),
        })
    }

    fn form(&self, plan: &FlashPlan, o: &FlashOperands) -> Form {
        Form {
            head_dim: self.shape.head_dim,
            group: self.shape.heads / self.shape.kv_heads,
            softcap: self.shape.softcap.is_some(),
            slopes: o.slopes.is_some(),
            sinks: o.sinks.is_some(),
            before: plan.before,
        }
    }

    fn numbers(&self, plan: &FlashPlan, ranges: Ranges) -> NumbersLaunch {
        let softcap = self.shape.softcap.unwrap_or(0.0);
        NumbersLaunch::new(plan.tokens, self.shape.scale, softcap, ranges.at, ranges.tiles)
    }

    /// The output and the log-sum-exp of every row.
    ///
    /// One launch, a cube for each head and tile of queries, or for each multiprocessor. `4 head_dim` flops for each pair of a
    /// head that is visible or in a tile with one that is; queries are read once, keys and values once for each tile of queries
    /// that sees them.
    ///
    /// # Panics
    /// If buffers are not of these shapes and this dtype.
    #[must_use]
    pub fn forward(&self, client: &Client, plan: &FlashPlan, o: &FlashOperands) -> FlashOutput {
        let FlashShape { heads, head_dim, .. } = self.shape;
        let n = plan.tokens;
        let out = Buffer::empty(client, n * heads * head_dim, self.dtype);
        let sums = Buffer::empty(client, n * heads, FloatType::F32);
        if n == 0 {
            return FlashOutput { out, sums };
        }
        let none = &o.words;
        let (slopes, sinks) = (o.slopes.as_ref().unwrap_or(none), o.sinks.as_ref().unwrap_or(none));
        let address = address(&[&o.q.buffer, &o.k.buffer, &o.v.buffer, &out]);
        let (form, numbers) = (self.form(plan, o), self.numbers(plan, plan.forward));
        let boxed = [&o.q, &o.k, &o.v].iter().all(|rows| rows.has_boxes());
        if let Some(ring) = self.cores.and_then(|cores| cores.ring).filter(|_| boxed) {
            let kv_heads = self.shape.kv_heads;
            let ring = ring.of(form);
            let keys = ring.tiles.other_rows();
            let items = heads * plan.forward.tiles;
            let most = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(u32::MAX);
            let cubes = items.min(most as usize);
            // SAFETY: as below; boxes are of the heads' rows.
            unsafe {
                forward_warpgroups::attend_by_warpgroups::launch_unchecked(
                    client,
                    CubeCount::Static(cubes as u32, 1, 1),
                    CubeDim::new_1d(ring.tiles.units() as u32),
                    address,
                    o.q.boxes([heads, n, head_dim], ring.tiles.rows()),
                    o.k.boxes([kv_heads, n, head_dim], keys),
                    o.v.boxes([kv_heads, n, head_dim], keys),
                    o.words.arg(1),
                    slopes.arg(1),
                    sinks.arg(1),
                    out.arg(8),
                    sums.arg(1),
                    numbers,
                    heads,
                    form,
                    ring,
                    self.dtype,
                    self.dtype.elem(),
                );
            }
            return FlashOutput { out, sums };
        }
        // SAFETY: the kernels read what the plan's words name, of tokens that there are, and heads that `HeadRows` says.
        unsafe {
            match self.cores {
                Some(Cores { forward: tiles, .. }) => forward_cores::attend_by_cores::launch_unchecked(
                    client,
                    CubeCount::Static(heads as u32, plan.forward.tiles as u32, 1),
                    CubeDim::new_1d(tiles.units() as u32),
                    address,
                    o.q.arg(8),
                    o.k.arg(8),
                    o.v.arg(8),
                    o.words.arg(1),
                    slopes.arg(1),
                    sinks.arg(1),
                    out.arg(2),
                    sums.arg(1),
                    o.q.rows(8),
                    o.k.rows(8),
                    o.v.rows(8),
                    numbers,
                    form,
                    tiles,
                    self.dtype.elem(),
                ),
                None => forward::attend::launch_unchecked(
                    client,
                    CubeCount::Static(plan.forward.tiles as u32, heads as u32, 1),
                    CubeDim::new_1d(UNITS as u32),
                    address,
                    o.q.arg(1),
                    o.k.arg(1),
                    o.v.arg(1),
                    o.words.arg(1),
                    slopes.arg(1),
                    sinks.arg(1),
                    out.arg(1),
                    sums.arg(1),
                    o.q.rows(1),
                    o.k.rows(1),
                    o.v.rows(1),
                    numbers,
                    form,
                    self.dtype.elem(),
                ),
            }
        }
        FlashOutput { out, sums }
    }

    /// Gradients from that of the output, `[tokens, heads, head_dim]` in the operands' dtype.
    ///
    /// Three launches, four with sinks: the sums of each output row times its gradient; the gradient of queries, `6 head_dim`
    /// flops for each pair, and of keys and values, `8 head_dim`. Beside the gradients `[heads, tokens]` in f32 is written.
    ///
    /// # Panics
    /// If buffers are not of these shapes and this dtype.
    #[must_use]
    pub fn backward(
        &self,
        client: &Client,
        plan: &FlashPlan,
        o: &FlashOperands,
        made: &FlashOutput,
        upstream: &Buffer,
    ) -> FlashGradients {
        let FlashShape { heads, kv_heads, head_dim, .. } = self.shape;
        let n = plan.tokens;
        assert_eq!(upstream.dtype, self.dtype, "invariant: the output's gradient has the output's dtype");
        let by_head = |heads: usize| Buffer::empty(client, n * heads * head_dim, FloatType::F32);
        let (q, k, v) = (by_head(heads), by_head(kv_heads), by_head(kv_heads));
        let sinks = o.sinks.as_ref().map(|_| Buffer::empty(client, heads, FloatType::F32));
        if n == 0 {
            return FlashGradients { q, k, v, sinks };
        }
        let rows = Buffer::empty(client, n * heads, FloatType::F32);
        let units = CubeDim::new_1d(UNITS as u32);
        // Sixteen bytes at most.
        let sizes = [8, 4, 2].into_iter().filter(|size| size * self.dtype.bytes() <= 16);
        let size = sizes.into_iter().find(|size| head_dim.is_multiple_of(*size)).unwrap_or(1);
        let address = address(&[&o.q.buffer, &o.k.buffer, &o.v.buffer, &q]);
        let operands = self.dtype.elem();
        // SAFETY: as in `forward`.
        unsafe {
            backward::row_sums::launch_unchecked(
                client,
                crate::row::cubes(client, (n * heads).div_ceil(SIDE)),
                units,
                address,
                size,
                made.out.arg(size),
                upstream.arg(size),
                rows.arg(1),
                n,
                heads,
                head_dim,
                operands,
            );
            if let (Some(gradient), Some(sinks)) = (&sinks, &o.sinks) {
                let count = CubeCount::Static(heads as u32, 1, 1);
                backward::of_sinks::launch_unchecked(
                    client,
                    count,
                    units,
                    address,
                    sinks.arg(1),
                    made.sums.arg(1),
                    rows.arg(1),
                    gradient.arg(1),
                    n,
                );
            }
        }
        let slopes = o.slopes.as_ref().unwrap_or(&o.words);
        let form = self.form(plan, o);
        let to = |size: usize| RowsLaunch::new(0, head_dim / size, n * head_dim / size);
        let tiles = |ranges: Ranges, heads: usize| CubeCount::Static(ranges.tiles as u32, heads as u32, 1);
        let by_cores = |ranges: Ranges, heads: usize, parts: usize| {
            CubeCount::Static(heads as u32, ranges.tiles as u32, parts as u32)
        };
        let of_out = HeadRows { buffer: upstream.clone(), first: 0, token: heads * head_dim, head: head_dim };
        let boxed = [&o.q, &o.k, &o.v, &of_out].iter().all(|rows| rows.has_boxes());
        // SAFETY: as in `forward`.
        unsafe {
            match self.cores {
                Some(Cores { queries, keys, warpgroups, .. }) => {
                    let warpgroups = warpgroups.filter(|_| boxed);
                    if let Some(Warpgroups { queries: layout, .. }) = warpgroups {
                        let own = |rows: &HeadRows| rows.boxes([heads, n, head_dim], layout.tiles.rows());
                        let other =
                            |rows: &HeadRows| rows.boxes([kv_heads, n, head_dim], layout.tiles.other_rows());
                        queries_warpgroups::of_queries_by_warpgroups::launch_unchecked(
                            client,
                            by_cores(plan.queries, heads, 1),
                            CubeDim::new_1d(layout.units() as u32),
                            address,
                            own(&o.q),
                            other(&o.k),
                            other(&o.v),
                            own(&of_out),
                            o.words.arg(1),
                            slopes.arg(1),
                            made.sums.arg(1),
                            rows.arg(1),
                            q.arg(2),
                            to(2),
                            self.numbers(plan, plan.queries),
                            form,
                            layout,
                            self.dtype,
                            operands,
                        );
                    } else {
                        backward_cores::of_queries_by_cores::launch_unchecked(
                            client,
                            by_cores(plan.queries, heads, 1),
                            CubeDim::new_1d(queries.units() as u32),
                            address,
                            o.q.arg(8),
                            o.k.arg(8),
                            o.v.arg(8),
                            upstream.arg(8),
                            o.words.arg(1),
                            slopes.arg(1),
                            made.sums.arg(1),
                            rows.arg(1),
                            q.arg(2),
                            o.q.rows(8),
                            o.k.rows(8),
                            o.v.rows(8),
                            to(2),
                            self.numbers(plan, plan.queries),
                            form,
                            queries,
                            operands,
                        );
                    }
                    if let Some(Warpgroups { keys: layout, .. }) = warpgroups {
                        // Other forms have no registers for products begun ahead.
                        let layout = Layout { ahead: layout.ahead && form.scaled(), ..layout };
                        let own = |rows: &HeadRows| rows.boxes([kv_heads, n, head_dim], layout.tiles.rows());
                        let other =
                            |rows: &HeadRows| rows.boxes([heads, n, head_dim], layout.tiles.other_rows());
                        keys_warpgroups::of_keys_by_warpgroups::launch_unchecked(
                            client,
                            by_cores(plan.keys, kv_heads, 1),
                            CubeDim::new_1d(layout.units() as u32),
                            address,
                            other(&o.q),
                            own(&o.k),
                            own(&o.v),
                            other(&of_out),
                            o.words.arg(1),
                            slopes.arg(1),
                            made.sums.arg(1),
                            rows.arg(1),
                            k.arg(2),
                            v.arg(2),
                            to(2),
                            self.numbers(plan, plan.keys),
                            form,
                            layout,
                            self.dtype,
                            operands,
                        );
                    } else {
                        backward_cores::of_keys_by_cores::launch_unchecked(
                            client,
                            by_cores(plan.keys, kv_heads, cores::parts(head_dim)),
                            CubeDim::new_1d(keys.units() as u32),
                            address,
                            o.q.arg(8),
                            o.k.arg(8),
                            o.v.arg(8),
                            upstream.arg(8),
                            o.words.arg(1),
                            slopes.arg(1),
                            made.sums.arg(1),
                            rows.arg(1),
                            k.arg(2),
                            v.arg(2),
                            o.q.rows(8),
                            o.k.rows(8),
                            o.v.rows(8),
                            to(2),
                            self.numbers(plan, plan.keys),
                            form,
                            keys,
                            operands,
                        );
                    }
                }
                None => {
                    backward::of_queries::launch_unchecked(
                        client,
                        tiles(plan.queries, heads),
                        units,
                        address,
                        o.q.arg(1),
                        o.k.arg(1),
                        o.v.arg(1),
                        upstream.arg(1),
                        o.words.arg(1),
                        slopes.arg(1),
                        made.sums.arg(1),
                        rows.arg(1),
                        q.arg(1),
                        o.q.rows(1),
                        o.k.rows(1),
                        o.v.rows(1),
                        to(1),
                        self.numbers(plan, plan.queries),
                        form,
                        operands,
                    );
                    backward::of_keys::launch_unchecked(
                        client,
                        tiles(plan.keys, kv_heads),
                        units,
                        address,
                        o.q.arg(1),
                        o.k.arg(1),
                        o.v.arg(1),
                        upstream.arg(1),
                        o.words.arg(1),
                        slopes.arg(1),
                        made.sums.arg(1),
                        rows.arg(1),
                        k.arg(1),
                        v.arg(1),
                        o.q.rows(1),
                        o.k.rows(1),
                        o.v.rows(1),
                        to(1),
                        self.numbers(plan, plan.keys),
                        form,
                        operands,
                    );
                }
            }
        }
        FlashGradients { q, k, v, sinks }
    }
}
