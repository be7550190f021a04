//! Tensor-parallel traffic of a decoder's passes, predicted in elements per collective: [`run_block`] on sizes, and what
//! stands around the blocks.

use std::cell::RefCell;

use burnish_ops::{OpsError, VocabShard};
use burnish_peft::Change;
use burnish_tp::{AdapterSums, Split, TokenDispatcher, TrafficEstimate};

use crate::decoder::block::{BlockLayers, BlockRun, LatentLayers, SelectiveSteps, Walked, run_block};
use crate::decoder::blueprint::Blueprint;
use crate::decoder::change::LayerChange;
use crate::decoder::layers::{Alternating, Beside, Block, Layer, Norm, PerLayer, Place, SsdLayers};
use crate::spec::{Output, QkNorm};
use crate::{ExpertSharding, ModelError, ModelPlan, Parallel, Spec};

/// The size of a micro-batch in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSize {
    /// Tokens.
    pub tokens: usize,
    /// Of those, the ones that predict something: what goes through the head.
    pub targets: usize,
    /// Texts that they are of: virtual tokens stand before each.
    pub texts: usize,
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
    /// Texts that they are of: virtual tokens stand before each.
    pub texts: usize,
    /// Whether adapters are left out: the base alone.
    pub base: bool,
}

/// The size of passes over a cache of keys and values, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodingSize {
    passes: usize,
    tokens: usize,
    logits: usize,
    texts: usize,
}

impl DecodingSize {
    /// Another pass, over `tokens` tokens of which `logits` go through the head, and with which `texts` texts begin.
    pub fn add(&mut self, tokens: usize, logits: usize, texts: usize) {
        self.passes += 1;
        self.tokens += tokens;
        self.logits += logits;
        self.texts += texts;
    }
}

impl ModelPlan<'_> {
    /// How the model's parameters would lie over `ranks` tensor-parallel ranks.
    ///
    /// # Errors
    /// If there are more ranks than heads.
    pub fn divided(&mut self, ranks: usize) -> Result<Parallel, ModelError> {
        let exchanged = self.experts == ExpertSharding::Exchanged;
        self.divided_over(if exchanged { [1, ranks] } else { [ranks, 1] })
    }

    /// How they would lie over `groups` groups of `ranks` ranks that share layers, where groups have other experts.
    ///
    /// # Errors
    /// As [`Self::divided`]; if there are fewer experts than ranks.
    pub fn divided_over(&mut self, [ranks, groups]: [usize; 2]) -> Result<Parallel, ModelError> {
        Parallel::new(&mut self.blueprint, [ranks, groups], self.sums, self.experts)
    }

    /// Whether an adapter stands on the linears of blocks that may run apart ([`Self::summing`]).
    #[must_use]
    pub fn adapts(&self) -> bool {
        let block = |b: &Block| b.layers().any(adapted);
        self.blueprint.blocks.iter().any(block)
    }

    /// Virtual tokens before each text.
    #[must_use]
    pub fn virtual_tokens(&self) -> usize {
        self.plan().and_then(|plan| plan.prompt.as_ref()).map_or(0, |prompt| prompt.shape[0])
    }

    /// What forward and backward of `passes` micro-batches move over the ranks that share layers, to the element.
    ///
    /// # Panics
    /// If `parallel` is another model's.
    #[must_use]
    pub fn forecast(&self, parallel: &Parallel, size: &PassSize, passes: usize) -> TrafficEstimate {
        let walk = Walk {
            given: size.tokens * passes,
            tokens: (size.tokens + size.texts * self.virtual_tokens()) * passes,
            passes,
            norms: passes,
            forwards: if size.recompute { 2 } else { 1 },
            trains: true,
            adapters: true,
            head: Head::Targets(size.targets),
        };
        self.blueprint.walked(parallel, walk)
    }

    /// As [`Self::forecast`], of passes without gradients.
    #[must_use]
    pub fn forecast_scores(&self, parallel: &Parallel, size: &ScoreSize, passes: usize) -> TrafficEstimate {
        let before = if size.base { 0 } else { self.virtual_tokens() };
        let walk = Walk {
            given: size.tokens * passes,
            tokens: (size.tokens + size.texts * before) * passes,
            passes,
            norms: passes,
            forwards: 1,
            trains: false,
            adapters: !size.base,
            head: Head::Targets(size.targets),
        };
        self.blueprint.walked(parallel, walk)
    }

    /// As [`Self::forecast`], of what one call of [`Decoder::generate`](crate::Decoder::generate) runs.
    #[must_use]
    pub fn forecast_decoding(&self, parallel: &Parallel, size: &DecodingSize) -> TrafficEstimate {
        let walk = Walk {
            given: size.tokens,
            tokens: size.tokens + size.texts * self.virtual_tokens(),
            passes: size.passes,
            // Norms of adapted weights stay for the whole call.
            norms: 1,
            forwards: 1,
            trains: false,
            adapters: true,
            head: Head::Logits(size.logits),
        };
        self.blueprint.walked(parallel, walk)
    }
}

/// Walks through a decoder.
#[derive(Clone, Copy)]
struct Walk {
    /// Tokens of all passes that are given: what the embedding reads.
    given: usize,
    /// Tokens of all passes, virtual ones too.
    tokens: usize,
    passes: usize,
    /// How often norms of adapted weights (DoRA) are made: once for each pass's context.
    norms: usize,
    /// How often a block's forward runs in a pass.
    forwards: usize,
    /// Whether gradients flow back.
    trains: bool,
    /// Whether adapters are active.
    adapters: bool,
    head: Head,
}

/// What goes through the head.
#[derive(Clone, Copy)]
enum Head {
    /// Targets of each pass, of which ranks exchange what they found.
    Targets(usize),
    /// Rows of all passes, whose logits every rank gets.
    Logits(usize),
}

impl Blueprint {
    /// What the first rank moves.
    fn walked(&self, parallel: &Parallel, walk: Walk) -> TrafficEstimate {
        if let Some(owners) = parallel.column(0) {
            let shared = parallel.ranks() > 1;
            let mut estimate = self.exchanged(&owners, walk, shared);
            if shared {
                estimate.merge(&self.shared(parallel, walk));
            }
            return estimate;
        }
        self.shared(parallel, walk)
    }

    /// What ranks that share layers sum.
    fn shared(&self, parallel: &Parallel, walk: Walk) -> TrafficEstimate {
        let sizes = OnSizes {
            spec: &self.spec,
            walk,
            sums: parallel.sums(),
            ranks: parallel.ranks(),
            estimate: RefCell::new(TrafficEstimate::new(parallel.ranks())),
        };
        let passed_on = self.spec.passed_on();
        // The embedding's rows are divided: norms of its columns are summed, and what it gives is.
        sizes.norms(&self.linear_size(&self.embed, walk.adapters));
        sizes.estimate.borrow_mut().reduce_from_tp_in(walk.given * self.spec.ends, walk.passes);
        if let Some(own) = &self.per_layer {
            let table = self.linear_size(&own.table, walk.adapters);
            sizes.norms(&table);
            sizes.estimate.borrow_mut().reduce_from_tp_in(walk.given * table.out, walk.passes);
        }
        for block in &self.blocks {
            let size = |layer: &Layer| self.linear_size(layer, walk.adapters);
            for layer in block.layers() {
                self.pulled(parallel, layer, walk.passes * walk.forwards, &sizes);
            }
            let (o, down) = (block.o.as_ref().map(size), block.down.as_ref().map(size));
            o.iter().chain(&down).for_each(|row| sizes.norms(row));
            let mixture = block.mixture.as_ref();
            let shared_gate = mixture.and_then(|mixture| mixture.shared_gate.as_ref()).map(size);
            let (qkv, up): (Vec<_>, Vec<_>) =
                (block.qkv.iter().map(size).collect(), block.up.iter().map(size).collect());
            let latent = block
                .latent
                .as_ref()
                .map(|latent| (latent.query.as_ref().map(|(layer, _)| size(layer)), size(&latent.layer)));
            let narrow: Vec<_> = block.narrow.iter().map(|pair| pair.each_ref().map(size)).collect();
            let ssd = block.ssd.as_ref().map(|ssd| ssd.run().map(size, |_| ()));
            let per_layer = block.per_layer.as_ref().map(|own| (size(&own.gate), size(&own.projection)));
            let altup = block.altup.as_ref().map(|own| Alternating {
                router: size(&own.router),
                router_norm: (),
                prediction: size(&own.prediction),
                correction: size(&own.correction),
                scale: (),
                laurel: own.laurel.each_ref().map(size),
                laurel_norm: (),
            });
            let (norm, norms) = (|norm: &Option<Norm>| norm.map(|_| &()), ((), ()));
            let layers = BlockLayers {
                attention_norm: norm(&block.attention_norm),
                latent: latent.as_ref().map(|(query, layer)| LatentLayers {
                    query: query.as_ref().map(|query| (query, &())),
                    layer,
                    norm: &(),
                }),
                qkv: &qkv,
                narrow: &narrow,
                qk_norms: block.qk_norms.map(|_| &norms),
                convolves: block.conv.is_some(),
                o: o.as_ref(),
                ssd: ssd.as_ref().map(SsdLayers::each_ref),
                attention_post_norm: norm(&block.attention_post_norm),
                mlp_norm: norm(&block.mlp_norm),
                up: &up,
                curve: block.curve.map(|_| &()),
                down: down.as_ref(),
                mixture: mixture.map(|_| &()),
                beside: block.beside.map(|_| Beside { before: &(), behind: &(), behind_dense: &() }),
                shared_gate: shared_gate.as_ref(),
                mlp_post_norm: norm(&block.mlp_post_norm),
                per_layer: per_layer.as_ref().map(|(gate, projection)| PerLayer {
                    gate,
                    projection,
                    norm: &(),
                }),
                altup: altup.as_ref().map(|own| Alternating {
                    router: &own.router,
                    router_norm: &(),
                    prediction: &own.prediction,
                    correction: &own.correction,
                    scale: &(),
                    laurel: own.laurel.each_ref(),
                    laurel_norm: &(),
                }),
                cutoff: block.own.cutoff,
                scalar: block.scalar.map(|_| &()),
            };
            let walk = |walked: Walked<'_, usize>| match walked {
                Walked::Ssd(x) | Walked::Values(x) | Walked::Selective(SelectiveSteps { values: x, .. }) => {
                    Ok(*x)
                }
            };
            run_block(&sizes, &passed_on, &layers, &block.name, |qkv| Ok(*qkv), walk)
                .expect("invariant: nothing fails on sizes");
        }
        self.pulled(parallel, &self.head, walk.passes, &sizes);
        let mut estimate = sizes.estimate.into_inner();
        if self.spec.output == Output::Score {
            return estimate;
        }
        match walk.head {
            Head::Targets(targets) => {
                if walk.trains {
                    estimate.copy_to_tp(targets * self.spec.ends, walk.passes);
                }
                // A magnitude's gradient is made of whole statistics.
                let exchanges = if walk.adapters && self.head.scales_outputs() {
                    1
                } else {
                    VocabShard::exchanges(parallel.widest_vocab(), targets)
                };
                estimate.all_gather(VocabShard::VALUES * targets * walk.passes, exchanges * walk.passes);
            }
            Head::Logits(rows) => estimate.gather_columns(rows * self.spec.vocab, walk.passes),
        }
        estimate
    }

    /// What a rank sends to experts of the others in its column: at even routing ([`TokenDispatcher::even_rows`]); while text
    /// is generated, which all ranks do together, outputs are summed, with those of layers where ranks share them.
    fn exchanged(&self, owners: &Split, walk: Walk, shared: bool) -> TrafficEstimate {
        let mut estimate = TrafficEstimate::new(owners.ranks());
        let each = self.spec.experts.map_or(0, |experts| experts.rule.per_token);
        let hidden = self.spec.hidden;
        let rows = TokenDispatcher::even_rows(walk.tokens, each, owners).round() as u64;
        let trains = |index: usize| walk.trains && self.registry.at(index).trainable;
        // Whether gradients of tokens are wanted: something before them trains.
        let mut tracked = self.embed.all().any(|(_, index)| trains(index));
        for block in &self.blocks {
            let of_experts = |layer: &&Layer| matches!(layer.place, Place::ExpertsUp | Place::ExpertsDown);
            let experts: Vec<usize> =
                block.layers().filter(of_experts).flat_map(Layer::all).map(|(_, index)| index).collect();
            tracked |=
                block.indices(true).into_iter().any(|index| trains(index) && !experts.contains(&index));
            let own = experts.into_iter().any(trains);
            if block.mixture.is_some() {
                if let Head::Logits(_) = walk.head {
                    if !shared {
                        estimate.reduce_from_tp_in(walk.tokens * hidden, walk.passes);
                    }
                } else {
                    let calls = walk.passes * walk.forwards;
                    let sent = rows * walk.forwards as u64;
                    estimate.route_tokens(sent, each, calls);
                    for features in [hidden, each, hidden] {
                        estimate.send_tokens(sent, features, calls);
                    }
                    if tracked {
                        for features in [hidden, each] {
                            estimate.send_tokens(rows, features, walk.passes);
                        }
                    }
                    if tracked || own {
                        estimate.send_tokens(rows, hidden, walk.passes);
                    }
                }
            }
            tracked |= own;
        }
        estimate
    }

    /// What the pull towards orthogonal factors sums of a layer that is made ready so often (AdaLoRA).
    fn pulled(&self, parallel: &Parallel, layer: &Layer, times: usize, sizes: &OnSizes<'_>) {
        let singular =
            |change: &&std::sync::Arc<LayerChange>| matches!(change.change, Change::Singular { .. });
        let Some(change) = layer.change.as_ref().filter(singular).filter(|_| sizes.walk.trains) else {
            return;
        };
        for &index in &change.indices[..2] {
            if parallel.layout(index).dim().is_some() {
                let rank = self.registry.at(change.indices[2]).shape[0];
                sizes.estimate.borrow_mut().summed(rank * rank, times);
            }
        }
    }

    fn linear_size(&self, layer: &Layer, adapters: bool) -> LinearSize {
        let shape = |index: usize| &self.registry.at(index).shape;
        let lora = layer.parts.lora.filter(|_| adapters);
        LinearSize {
            // The embedding's features are its columns.
            out: shape(layer.parts.weight)[usize::from(layer.place == Place::Embedding)],
            rank: lora.map(|lora| shape(lora.a)[0]),
            magnitude: lora.is_some_and(|lora| lora.magnitude.is_some()),
        }
    }
}

/// A linear layer's sizes.
struct LinearSize {
    /// Output features.
    out: usize,
    /// Its adapter's rank.
    rank: Option<usize>,
    /// Whether that has a magnitude.
    magnitude: bool,
}

/// A block on sizes: an activation is its number of features, and collectives are counted.
struct OnSizes<'a> {
    spec: &'a Spec,
    walk: Walk,
    sums: AdapterSums,
    ranks: usize,
    estimate: RefCell<TrafficEstimate>,
}

impl OnSizes<'_> {
    /// The norms of a layer of whose columns each rank has some, where it has a magnitude.
    fn norms(&self, layer: &LinearSize) {
        if layer.magnitude {
            self.estimate.borrow_mut().summed(layer.out, self.walk.norms);
        }
    }

    /// A sum in forward.
    fn summed_forward(&self, features: usize) {
        let (elements, calls) = (self.walk.tokens * features, self.walk.passes);
        self.estimate
            .borrow_mut()
            .reduce_from_tp_in(elements * self.walk.forwards, calls * self.walk.forwards);
    }
}

impl BlockRun for OnSizes<'_> {
    type X = usize;
    type Norm = ();
    type Input = usize;
    type Linear = LinearSize;
    type Curve = ();
    type Mixture = ();
    type Scalar = ();

    fn experts(&self, features: &usize, _routed: &usize, (): &(), what: &str) -> Result<usize, OpsError> {
        let each = self.spec.experts.map_or(0, |experts| experts.rule.per_token);
        self.copy_to_tp(features, what)?;
        self.copy_to_tp(&each, what)?;
        self.reduce_from_tp(features, what)
    }

    fn gated_by(&self, features: &usize, _gate: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn divided(&self) -> bool {
        self.ranks > 1
    }

    fn sums(&self) -> AdapterSums {
        self.sums
    }

    fn adapter(&self, layer: &LinearSize) -> Option<bool> {
        layer.rank.map(|_| layer.magnitude)
    }

    fn plain(&self, features: usize) -> usize {
        features
    }

    fn normed(&self, features: usize, (): ()) -> usize {
        features
    }

    fn spec(&self) -> &Spec {
        self.spec
    }

    fn activated(&self, features: usize, _curve: Option<&()>) -> Result<usize, OpsError> {
        Ok(if self.spec.gated() { features / 2 } else { features })
    }

    fn queries_keys_values(
        &self,
        features: usize,
        norms: Option<&((), ())>,
        what: &str,
    ) -> Result<usize, OpsError> {
        if norms.is_some() && self.spec.qk_norm == Some(QkNorm::WholeWidth) {
            // Two sums of squares per token.
            self.copy_to_tp(&self.reduce_from_tp(&2, what)?, what)?;
        }
        Ok(features)
    }

    fn latent_normed(&self, features: &usize, (): &()) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn latent_and_turned(&self, features: &usize) -> Result<(usize, usize), OpsError> {
        let rank = self.spec.latent.map_or(0, |latent| latent.rank);
        Ok((rank, features - rank))
    }

    fn side_by_side(&self, all: &[usize]) -> Result<usize, OpsError> {
        Ok(all.iter().sum())
    }

    fn values_and_gates(&self, x: &usize) -> Result<[usize; 2], OpsError> {
        Ok([*x; 2])
    }

    fn steps_and_directions(&self, x: &usize, _norms: Option<[&(); 3]>) -> Result<[usize; 3], OpsError> {
        Ok([*x; 3])
    }

    fn latent_heads(&self, q: &usize, kv: &usize, turned: &usize) -> Result<usize, OpsError> {
        Ok(q + kv + turned)
    }

    fn queries_and_gates(&self, features: usize) -> Result<(usize, usize), OpsError> {
        Ok((features, features))
    }

    fn gated_each(&self, features: &usize, _gates: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn values_of(&self, features: usize) -> Result<usize, OpsError> {
        Ok(features)
    }

    fn gates_given(&self, features: usize) -> Result<usize, OpsError> {
        Ok(features)
    }

    fn scaled(&self, features: &usize, (): &()) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn active_stream(&self, _features: &usize) -> Result<usize, OpsError> {
        Ok(self.spec.hidden)
    }

    fn tanh(&self, features: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn predicted(&self, features: &usize, _coefficients: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn corrected(&self, features: &usize, _made: &usize, _coefficients: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn added_to_others(&self, features: &usize, _y: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn scaled_columns(&self, features: &usize, (): &()) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn joined(&self, features: &usize, _y: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn cut_off(&self, features: usize, _deviations: f32, what: &str) -> Result<usize, OpsError> {
        // A token's mean, then its deviation.
        for _ in 0..2 {
            self.copy_to_tp(&self.reduce_from_tp(&1, what)?, what)?;
        }
        Ok(features)
    }

    fn scaled_gates(&self, features: usize, _factor: f32) -> Result<usize, OpsError> {
        Ok(features)
    }

    fn norm(&self, features: &usize, (): &()) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn scaled_sum(&self, features: &usize, _factor: f32, _residual: &usize) -> Result<usize, OpsError> {
        Ok(*features)
    }

    fn linears(
        &self,
        _input: &usize,
        layers: &[LinearSize],
        _bare: bool,
        _residual: Option<&usize>,
    ) -> Result<usize, OpsError> {
        Ok(layers.iter().map(|layer| layer.out).sum())
    }

    fn lora_down(&self, _input: &usize, layers: &[LinearSize]) -> Result<usize, OpsError> {
        Ok(layers.iter().filter_map(|layer| layer.rank).sum())
    }

    fn lora_up(
        &self,
        _h: &usize,
        layers: &[LinearSize],
        _residual: Option<&usize>,
    ) -> Result<usize, OpsError> {
        Ok(layers.iter().map(|layer| layer.out).sum())
    }

    fn copy_to_tp(&self, features: &usize, _what: &str) -> Result<usize, OpsError> {
        // Its sum is backward's, which runs once.
        if self.walk.trains {
            self.estimate.borrow_mut().copy_to_tp_in(self.walk.tokens * features, self.walk.passes);
        }
        Ok(*features)
    }

    fn grad_on_rank0(&self, (): &()) -> Result<(), OpsError> {
        Ok(())
    }

    fn reduce_from_tp(&self, features: &usize, _what: &str) -> Result<usize, OpsError> {
        self.summed_forward(*features);
        Ok(*features)
    }

    fn reduce_from_tp_add(&self, features: &usize, _add: &usize, _what: &str) -> Result<usize, OpsError> {
        self.summed_forward(*features);
        Ok(*features)
    }
}

fn adapted(layer: &Layer) -> bool {
    layer.adapter.is_some() && layer.magnitude().is_none()
}
