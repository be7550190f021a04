//! What the ranks that share a decoder's layers move, before any is sent.

use burnish_ops::VocabShard;
use burnish_tp::{AdapterSum, Forecast};

use crate::apart::runs_apart;
use crate::blueprint::Blueprint;
use crate::layers::{Block, Layer};
use crate::spec::Output;
use crate::{ModelError, Parallel, Planned};

/// The size of a micro-batch in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSize {
    /// Tokens.
    pub tokens: usize,
    /// Of those, the ones that predict something: what goes through the head.
    pub targets: usize,
    /// Whether blocks run again in backward.
    pub recompute: bool,
}

/// The size of passes without gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreSize {
    /// Tokens.
    pub tokens: usize,
    /// Of those, the ones that predict something.
    pub targets: usize,
    /// Whether adapters are left out: the base alone.
    pub base: bool,
}

impl Planned<'_> {
    /// How the model's parameters would lie over `ranks` tensor-parallel ranks.
    ///
    /// # Errors
    /// If there are more ranks than heads.
    pub fn divided(&mut self, ranks: usize) -> Result<Parallel, ModelError> {
        Parallel::new(&mut self.blueprint, ranks, self.sums)
    }

    /// Whether an adapter stands on the linears of blocks that may run apart ([`Self::summing`]).
    #[must_use]
    pub fn adapts(&self) -> bool {
        let block = |b: &Block| b.qkv.iter().chain(&b.gate_up).chain([&b.o, &b.down]).any(adapted);
        self.blueprint.blocks.iter().any(block)
    }

    /// What forward and backward of `passes` micro-batches move over the ranks that share layers, to the element.
    ///
    /// # Panics
    /// If `parallel` is another model's.
    #[must_use]
    pub fn forecast(&self, parallel: &Parallel, size: &PassSize, passes: usize) -> Forecast {
        let mut forecast = Forecast::new(parallel.ranks());
        self.blueprint.forecast(parallel, size, passes, &mut forecast);
        forecast
    }

    /// As [`Self::forecast`], of passes without gradients.
    #[must_use]
    pub fn forecast_scores(&self, parallel: &Parallel, size: &ScoreSize, passes: usize) -> Forecast {
        let mut forecast = Forecast::new(parallel.ranks());
        self.blueprint.forecast_scores(parallel, size, passes, &mut forecast);
        forecast
    }
}

impl Blueprint {
    fn forecast_scores(&self, parallel: &Parallel, size: &ScoreSize, passes: usize, forecast: &mut Forecast) {
        let hidden = self.spec.hidden;
        let stream = size.tokens * hidden;
        let magnitude = |layer: &Layer| !size.base && magnitude(layer);
        let norms = |layer: &Layer, forecast: &mut Forecast| {
            if magnitude(layer) {
                forecast.summed(hidden, passes);
            }
        };
        norms(&self.embed, forecast);
        forecast.g(stream, passes);
        for row in self.blocks.iter().flat_map(|block| [&block.o, &block.down]) {
            norms(row, forecast);
            let width = self.width_apart(std::slice::from_ref(row), parallel.sums().rowwise);
            forecast.g(size.tokens * width, if width > 0 && !size.base { passes } else { 0 });
            forecast.g(stream, passes);
        }
        if self.spec.output == Output::Score {
            return;
        }
        let exchanges = if magnitude(&self.head) {
            1
        } else {
            VocabShard::exchanges(parallel.widest_vocab(), size.targets)
        };
        forecast.all_gather(VocabShard::VALUES * size.targets * passes, exchanges * passes);
    }

    /// Beside the collectives, which stand in [`run_block`](crate::decoder::run_block) and around it: this is their list.
    fn forecast(&self, parallel: &Parallel, size: &PassSize, passes: usize, forecast: &mut Forecast) {
        let hidden = self.spec.hidden;
        let stream = size.tokens * hidden;
        let forwards = if size.recompute { 2 * passes } else { passes };
        // Kept for the whole pass.
        let norms = |layer: &Layer, forecast: &mut Forecast| {
            if magnitude(layer) {
                forecast.summed(hidden, passes);
            }
        };
        norms(&self.embed, forecast);
        forecast.g(stream, passes);
        for block in &self.blocks {
            // Before q, k and v, and before gate and up.
            forecast.f(stream, 2 * passes);
            let sums = parallel.sums();
            for group in [&block.qkv, &block.gate_up] {
                let width = self.width_apart(group, sums.colwise);
                forecast.f(size.tokens * width, if width > 0 { passes } else { 0 });
            }
            for row in [&block.o, &block.down] {
                norms(row, forecast);
                let width = self.width_apart(std::slice::from_ref(row), sums.rowwise);
                forecast.g(size.tokens * width, if width > 0 { forwards } else { 0 });
                forecast.g(stream, forwards);
            }
        }
        if self.spec.output == Output::Score {
            return;
        }
        forecast.f(size.targets * hidden, passes);
        // A magnitude's gradient is made of whole statistics.
        let exchanges = if magnitude(&self.head) {
            1
        } else {
            VocabShard::exchanges(parallel.widest_vocab(), size.targets)
        };
        forecast.all_gather(VocabShard::VALUES * size.targets * passes, exchanges * passes);
    }

    /// The ranks of those adapters of a group of layers that run beside them, together.
    fn width_apart(&self, group: &[Layer], sum: AdapterSum) -> usize {
        let adapters = group.iter().filter_map(|layer| layer.low_rank.as_ref());
        let apart = adapters.filter(|l| runs_apart(sum, l.magnitude.is_some()));
        apart.map(|l| self.registry.at(l.a).shape[0]).sum()
    }
}

fn adapted(layer: &Layer) -> bool {
    layer.low_rank.as_ref().is_some_and(|l| l.magnitude.is_none())
}

fn magnitude(layer: &Layer) -> bool {
    layer.low_rank.as_ref().is_some_and(|l| l.magnitude.is_some())
}
