//! `Roofline`: the time of a step on a GPU by its name, operation by operation: of products at a share of its peak, or of bytes
//! at a share of its bandwidth, whichever is longer, and of launches.

mod passes;
mod reach;
mod table;

use burnish_comm::{Op, Traffic};
use burnish_core::Compute;
use burnish_device::{Gpu, GpuFigures};
use burnish_models::{Operands, Operation, Phase, Piece};
use burnish_ops::gpu::cost::Cost;

pub(crate) use passes::{Decoding, Passes};

/// What a line's time is mostly of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Products.
    Products,
    /// Bytes of the GPU's memory.
    Bandwidth,
    /// Launches.
    Launches,
    /// The link between GPUs.
    Link,
    /// The link to the host, and waits for it.
    Host,
}

impl Bound {
    /// Its word in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Bandwidth => "bandwidth",
            Self::Launches => "launches",
            Self::Link => "link",
            Self::Host => "host",
        }
    }
}

/// One line: a kind of operation of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RooflineLine {
    /// What it is of.
    pub name: &'static str,
    /// Seconds of its products by the best kernels there are, where nothing else takes time.
    products: f64,
    /// Operations, bytes and launches of one rank in a step. Bytes of collectives and of the host are those that it sends or
    /// gets.
    pub cost: Cost,
    /// Seconds by what takes them, in the order of [`Bound`].
    parts: [f64; 5],
}

impl RooflineLine {
    /// Seconds of a step.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.parts.iter().sum()
    }

    /// What most of them are of.
    #[must_use]
    pub fn bound(&self) -> Bound {
        const ALL: [Bound; 5] =
            [Bound::Products, Bound::Bandwidth, Bound::Launches, Bound::Link, Bound::Host];
        let most = (0..ALL.len()).max_by(|&a, &b| self.parts[a].total_cmp(&self.parts[b]));
        ALL[most.unwrap_or(0)]
    }
}

/// The time of a step, predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The GPU of every rank.
    pub gpu: Gpu,
    /// What a step's tokens are called, and how many all ranks have of them together.
    pub tokens: (&'static str, u64),
    /// Ranks.
    pub ranks: usize,
    /// The lines, in the order of a step.
    pub lines: Vec<RooflineLine>,
    /// Bytes of a rank at most, on the device.
    pub memory: u64,
}

impl Roofline {
    /// Seconds of a step.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.lines.iter().map(RooflineLine::seconds).sum()
    }

    /// Seconds of products alone: what no kernels that move less, and no fewer launches, go below.
    #[must_use]
    pub fn products_seconds(&self) -> f64 {
        self.lines.iter().map(|line| line.products).sum()
    }

    /// Tokens of all ranks in a second.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.1 as f64 / self.seconds().max(f64::MIN_POSITIVE)
    }

    /// Operations of products, bytes and launches of a rank.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.lines.iter().map(|line| line.cost).sum()
    }

    /// The share of the peak of bf16 that all products together come to.
    #[must_use]
    pub fn share_of_peak(&self) -> f64 {
        self.cost().flops as f64 / self.seconds().max(f64::MIN_POSITIVE) / self.gpu.figures().bf16
    }
}

/// Lines by name, as pieces come.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    gpu: GpuFigures,
    /// What is reached of products of 16 bits.
    products: f64,
    /// And of attention's.
    attention: f64,
    /// Operations a second of products of fp32, as bf16 where they may be rounded, and what is reached of them.
    wide: (f64, f64),
    lines: Vec<RooflineLine>,
}

impl Lines {
    /// Of products that multiply as `compute` lets them.
    pub(crate) fn new(gpu: Gpu, compute: Compute) -> Self {
        let (gpu, products, attention) = (gpu.figures(), reach::products(gpu), reach::attention(gpu));
        let wide = match compute {
            Compute::Bf16 => (gpu.bf16, products),
            Compute::Fp32 => (gpu.fp32, reach::UNITS),
        };
        Self { gpu, products, attention, wide, lines: Vec::new() }
    }

    fn put(&mut self, name: &'static str, cost: Cost, parts: [f64; 5]) -> &mut RooflineLine {
        let line = match self.lines.iter().position(|line| line.name == name) {
            Some(at) => &mut self.lines[at],
            None => {
                self.lines.push(RooflineLine { name, products: 0.0, cost: Cost::default(), parts: [0.0; 5] });
                self.lines.last_mut().expect("invariant: one was pushed")
            }
        };
        line.cost += cost;
        line.parts.iter_mut().zip(parts).for_each(|(all, more)| *all += more);
        line
    }

    /// Kernels, `times` times, that products of `operands` are part of.
    fn kernels(&mut self, name: &'static str, cost: Cost, times: u64, operands: Operands, attends: bool) {
        let (peak, reached) = match operands {
            Operands::Half => (self.gpu.bf16, self.products),
            Operands::Wide => self.wide,
        };
        let [reached, best] = if attends { [self.attention; 2] } else { [reached, reach::BEST_PRODUCTS] };
        let [alone, least] = [reached, best].map(|share| cost.flops as f64 / (peak * share));
        let bytes = cost.bytes() as f64 / (self.gpu.bandwidth * reach::BANDWIDTH);
        let (products, bytes) = if alone > bytes { (alone, 0.0) } else { (0.0, bytes) };
        let of = |seconds: f64| seconds * times as f64;
        let launches = cost.launches as f64 * reach::LAUNCH;
        self.put(name, cost * times, [of(products), of(bytes), of(launches), 0.0, 0.0]).products += of(least);
    }

    /// A piece of a pass with gradients, `times` times: under its operation's name, or of what runs again.
    fn piece(&mut self, piece: &Piece, times: u64) {
        let name = if piece.phase == Phase::Again { "recomputed blocks" } else { piece.operation.name() };
        self.under(name, piece, times);
    }

    /// A piece under another name.
    fn under(&mut self, name: &'static str, piece: &Piece, times: u64) {
        let attends = piece.operation == Operation::Attention;
        self.kernels(name, piece.cost, piece.times * times, piece.operands, attends);
    }

    /// Collectives among so many ranks, as if nothing ran beside them.
    pub(crate) fn collectives(&mut self, name: &'static str, traffic: &Traffic, ranks: usize) {
        if ranks < 2 {
            return;
        }
        let others = (ranks - 1) as f64 / ranks as f64;
        for (key, row) in traffic.rows() {
            // What a rank sends of a logical element in a ring.
            let sent = match key.op {
                Op::AllReduce => 2.0 * others,
                Op::ReduceScatter | Op::AllGather | Op::AllToAll => others,
                Op::Broadcast | Op::Gather | Op::Send | Op::Recv | Op::Barrier => 1.0,
            };
            let bytes = sent * (row.elements * key.dtype.bytes() as u64) as f64;
            let seconds = bytes / (self.gpu.link * reach::LINK) + row.calls as f64 * reach::COLLECTIVE;
            let cost = Cost::moving(bytes as u64, bytes as u64, row.calls);
            self.put(name, cost, [0.0, 0.0, 0.0, seconds, 0.0]);
        }
    }

    /// Copies from and to the host, in bytes, and waits of the host for the device.
    pub(crate) fn host(&mut self, to_host: u64, to_device: u64, waits: u64) {
        let seconds = (to_host + to_device) as f64 / self.gpu.host + waits as f64 * reach::WAIT;
        let cost = Cost::moving(to_host, to_device, 0);
        self.put("copies to and from the host", cost, [0.0, 0.0, 0.0, 0.0, seconds]);
    }

    /// What is moved without products, so often.
    pub(crate) fn moving(&mut self, name: &'static str, cost: Cost, times: u64) {
        self.kernels(name, cost, times, Operands::Wide, false);
    }

    /// What stands around collectives of weights and gradients.
    pub(crate) fn packing(&mut self, cost: Cost) {
        self.moving("weights and gradients, put together", cost, 1);
    }

    /// An optimizer's kernels; products of Newton-Schulz among them are in fp32.
    pub(crate) fn optimizer(&mut self, cost: Cost) {
        let products = Cost { flops: cost.flops, ..Cost::default() };
        self.kernels("optimizer", products, 1, Operands::Wide, false);
        self.kernels("optimizer", Cost { flops: 0, ..cost }, 1, Operands::Wide, false);
    }

    /// The lines that something is in.
    pub(crate) fn finish(self) -> Vec<RooflineLine> {
        let some = |line: &RooflineLine| line.cost != Cost::default() || line.seconds() > 0.0;
        self.lines.into_iter().filter(some).collect()
    }
}
