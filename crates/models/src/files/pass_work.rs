//! `PassWork`: what a GPU does in a decoder's passes, operation by operation, from sizes: the blueprint's layers by the costs
//! of [`burnish_ops::gpu::cost`].

use burnish_core::{Compute, Dtype, ExpertGate, FEW_PLACES, Parameter, Registry};
use burnish_ops::gpu::cost::{
    self, AdapterWork, AttentionSize, Cost, ExpertsSize, HeadSize, LinearAttentionSize, LinearSize,
    SelectiveScanSize,
};

use crate::decoder::blueprint::Blueprint;
use crate::decoder::layers::{Block, Latent, Layer, Place, Ssd};
use crate::spec::{BlockSizes, Output, Pairs, QkNorm};
use crate::{ModelPlan, Parallel};

/// What an operation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The lookup of tokens, and its gradient.
    Embedding,
    /// Norms of the stream, and sums of it with what blocks add.
    Norms,
    /// Products that make queries, keys and values.
    QueriesKeysValues,
    /// Softmax between two products, with norms and turns of heads.
    Attention,
    /// The product behind attention.
    AttentionOutput,
    /// Products before the activation.
    GateUp,
    /// What stands between the feed-forward's products.
    Activations,
    /// The product behind the activation.
    Down,
    /// A mixture's router and experts.
    Experts,
    /// Convolutions, delta rules and state spaces.
    Recurrences,
    /// Layers that stand nowhere else.
    OtherLayers,
    /// Products of adapters, and their sums with layers.
    Adapters,
    /// Weights in fewer bits, widened for products.
    Widening,
    /// Products with the head.
    Head,
    /// What is made of logits.
    Loss,
}

impl Operation {
    /// Its name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Norms => "norms, residual sums",
            Self::QueriesKeysValues => "q, k, v products",
            Self::Attention => "attention",
            Self::AttentionOutput => "o products",
            Self::GateUp => "gate, up products",
            Self::Activations => "activations",
            Self::Down => "down products",
            Self::Experts => "experts",
            Self::Recurrences => "recurrences",
            Self::OtherLayers => "other layers",
            Self::Adapters => "adapters",
            Self::Widening => "widened weights",
            Self::Head => "head products",
            Self::Loss => "loss of logits",
        }
    }
}

/// When in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Forward.
    Forward,
    /// A block's forward once more, in backward.
    Again,
    /// Backward.
    Backward,
}

/// In what products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operands {
    /// 16 bits.
    Half,
    /// fp32, which tensor cores multiply only where it may be rounded to bf16.
    Wide,
}

/// One operation's cost, so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is of.
    pub operation: Operation,
    /// When.
    pub phase: Phase,
    /// What its products multiply.
    pub operands: Operands,
    /// What is done once.
    pub cost: Cost,
    /// How often.
    pub times: u64,
}

/// The pieces of passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassWork {
    pieces: Vec<Piece>,
}

impl PassWork {
    /// Adds a piece; equal ones are counted together.
    pub fn add(&mut self, operation: Operation, phase: Phase, operands: Operands, cost: Cost, times: u64) {
        if cost == Cost::default() || times == 0 {
            return;
        }
        let same =
            |p: &&mut Piece| (p.operation, p.phase, p.operands, p.cost) == (operation, phase, operands, cost);
        match self.pieces.iter_mut().find(same) {
            Some(piece) => piece.times += times,
            None => self.pieces.push(Piece { operation, phase, operands, cost, times }),
        }
    }

    /// Adds all of another's, so often.
    pub fn merge(&mut self, other: &Self, times: u64) {
        for piece in &other.pieces {
            self.add(piece.operation, piece.phase, piece.operands, piece.cost, piece.times * times);
        }
    }

    /// Its pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// The sum of those that `wanted` holds for.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(&Piece) -> bool) -> Cost {
        self.pieces.iter().filter(|piece| wanted(piece)).map(|piece| piece.cost * piece.times).sum()
    }
}

/// Texts that are alike, as a pass reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texts {
    /// How many.
    pub texts: usize,
    /// New tokens of each.
    pub tokens: usize,
    /// Tokens before them, in a cache of keys and values.
    pub before: usize,
    /// Tokens of all texts that predict something.
    pub targets: usize,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// Forward and backward; with `recompute` each block keeps its input alone.
    Training {
        /// Whether blocks run again in backward.
        recompute: bool,
        /// Whether their attention does not.
        keeps_attention: bool,
        /// Whether the loss is the likelihood of targets, whose gradient is made where logits are.
        likelihood: bool,
    },
    /// Forward to log-probabilities, without a tape.
    Scoring {
        /// Whether adapters are left out.
        base: bool,
    },
    /// Forward to logits, over a cache.
    Decoding,
}

/// What the host, which says what rank has the experts of tokens, has from a device in a pass, and gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routed {
    /// Bytes of experts.
    pub to_host: u64,
    /// Bytes of those that a rank has.
    pub to_device: u64,
    /// Waits for the device.
    pub waits: u64,
}

impl ModelPlan<'_> {
    /// What the host hears and says of all routers in a pass over so many tokens: nothing where a rank has all experts.
    ///
    /// # Panics
    /// If `parallel` is another model's.
    #[must_use]
    pub fn routed(&self, parallel: &Parallel, tokens: u64, kind: PassKind) -> Routed {
        let Blueprint { spec, blocks, registry, .. } = &self.blueprint;
        let (local, sent) = (parallel.local_registry(registry, 0), parallel.column(0).is_some());
        let forwards = if matches!(kind, PassKind::Training { recompute: true, .. }) { 2 } else { 1 };
        let mut all = Routed::default();
        for (layer, block) in blocks.iter().enumerate() {
            let (Some(experts), Some(mixture)) = (spec.experts_of(layer), &block.mixture) else { continue };
            if sent || local.at(mixture.gate_up.parts.weight).shape[0] < experts.count {
                let chosen = 4 * tokens * experts.rule.per_token as u64 * forwards;
                all.to_host += chosen;
                all.to_device += chosen;
                all.waits += forwards;
            }
        }
        all
    }

    /// What the first rank of those that share layers computes in a pass.
    ///
    /// # Panics
    /// If `parallel` is another model's.
    #[must_use]
    pub fn work(&self, parallel: &Parallel, texts: Texts, kind: PassKind) -> PassWork {
        let before = if kind == (PassKind::Scoring { base: true }) { 0 } else { self.virtual_tokens() };
        let virtuals = if texts.before == 0 { before } else { 0 };
        let walk = Walk {
            blueprint: &self.blueprint,
            local: parallel.local_registry(&self.blueprint.registry, 0),
            ranks: parallel.ranks().max(1) as u64,
            exchanged: parallel.column(0).is_some(),
            adapters: kind != (PassKind::Scoring { base: true }),
            trains: matches!(kind, PassKind::Training { .. }),
            recompute: matches!(kind, PassKind::Training { recompute: true, .. }),
            keeps_attention: matches!(kind, PassKind::Training { keeps_attention: true, .. }),
            likelihood: matches!(kind, PassKind::Training { likelihood: true, .. }),
            decodes: kind == PassKind::Decoding,
            given: (texts.texts * texts.tokens) as u64,
            tokens: (texts.texts * (texts.tokens + virtuals)) as u64,
            texts: Texts { tokens: texts.tokens + virtuals, ..texts },
            work: PassWork::default(),
        };
        walk.run(before > 0)
    }
}

/// A walk through a decoder's layers.
struct Walk<'a> {
    blueprint: &'a Blueprint,
    local: Registry,
    ranks: u64,
    exchanged: bool,
    adapters: bool,
    trains: bool,
    recompute: bool,
    keeps_attention: bool,
    likelihood: bool,
    decodes: bool,
    /// Tokens that the embedding reads.
    given: u64,
    /// Tokens of blocks.
    tokens: u64,
    texts: Texts,
    work: PassWork,
}

impl Walk<'_> {
    fn run(mut self, virtual_tokens: bool) -> PassWork {
        let blueprint = self.blueprint;
        let spec = &blueprint.spec;
        let (h, stream) = (spec.hidden as u64, spec.passed_on() as u64);
        let embed = &blueprint.embed;
        let [vocab, width] = self.matrix(embed);
        let bytes = self.bytes(embed);
        self.add(Operation::Embedding, Phase::Forward, cost::embedding_forward(self.given, width, bytes));
        let mut tracked = virtual_tokens && self.trains || self.any_trains(embed);
        if self.trains && self.weight_trains(embed) {
            let gradient = cost::embedding_backward(self.given, vocab, width);
            self.add(Operation::Embedding, Phase::Backward, gradient);
        }
        if let Some(own) = &blueprint.per_layer {
            let [_, width] = self.matrix(&own.table);
            let lookup = cost::embedding_forward(self.given, width, self.bytes(&own.table));
            self.add(Operation::Embedding, Phase::Forward, lookup);
            self.linear(Operation::OtherLayers, &own.projection, self.tokens, false, &mut tracked.clone());
        }
        for layer in blueprint.projections.iter().flatten() {
            self.linear(Operation::OtherLayers, layer, self.tokens, false, &mut tracked);
        }
        for (at, block) in blueprint.blocks.iter().enumerate() {
            self.block(at, block, (h, stream), &mut tracked);
        }
        if let Some((_, layer)) = &blueprint.dense_head {
            let came = tracked;
            self.linear(Operation::OtherLayers, layer, self.tokens, came, &mut tracked);
        }
        self.head(h, tracked);
        self.work
    }

    /// A block: forward, forward again where that is asked for and something in it or before it trains, backward.
    fn block(&mut self, at: usize, block: &Block, (h, stream): (u64, u64), tracked: &mut bool) {
        let spec = &self.blueprint.spec;
        let before = self.work.clone();
        let norm_bytes = block.qkv.first().map_or(4, |layer| self.bytes(layer));
        let tokens = self.tokens;
        let norms = [
            block.attention_norm.is_some(),
            block.mlp_norm.is_some(),
            block.attention_post_norm.is_some(),
            block.mlp_post_norm.is_some(),
        ];
        let norm_trains = self.trains && spec.norm.has_weight() && self.norm_trains(block);
        let of_norms = norms.iter().filter(|there| **there).count() as u64;
        self.times(Operation::Norms, Phase::Forward, cost::norm_forward(tokens, h, norm_bytes), of_norms);
        let sums = 2 * stream / h.max(1);
        self.times(Operation::Norms, Phase::Forward, cost::added(tokens, h, norm_bytes), sums);
        let was_tracked = *tracked || norm_trains;
        *tracked = was_tracked;
        for layer in block.latent.iter().flat_map(|l| l.query.iter().map(|(q, _)| q).chain([&l.layer])) {
            self.linear(Operation::QueriesKeysValues, layer, tokens, was_tracked, tracked);
        }
        // Neighbours read one input: each wants its gradient if what came in is tracked.
        let came = *tracked;
        self.beside(Operation::QueriesKeysValues, &block.qkv, tokens, came, tracked);
        match &block.latent {
            Some(latent) => self.of_latents(at, latent, *tracked),
            None => self.gathered(Operation::QueriesKeysValues, &block.qkv, *tracked),
        }
        for layer in block.narrow.iter().flatten() {
            self.linear(Operation::QueriesKeysValues, layer, tokens, came, tracked);
        }
        self.mixer(at, block, *tracked);
        for layer in block.ssd.iter().flat_map(Ssd::layers) {
            self.linear(Operation::OtherLayers, layer, tokens, *tracked, tracked);
        }
        if let Some(o) = &block.o {
            self.linear(Operation::AttentionOutput, o, tokens, *tracked, tracked);
        }
        for layer in block.altup.iter().flat_map(|own| own.laurel.iter()) {
            self.linear(Operation::OtherLayers, layer, tokens, *tracked, tracked);
        }
        if let Some(mixture) = &block.mixture {
            self.linear(Operation::Experts, &mixture.router, tokens, *tracked, tracked);
            self.experts(at, [&mixture.gate_up, &mixture.down], tracked);
            if let Some(gate) = &mixture.shared_gate {
                self.linear(Operation::Experts, gate, tokens, *tracked, tracked);
            }
        }
        let came = *tracked;
        self.beside(Operation::GateUp, &block.up, tokens, came, tracked);
        self.gathered(Operation::GateUp, &block.up, *tracked);
        if let Some(down) = &block.down {
            let inner = self.matrix(down)[1];
            let gates = if spec.gated() { 2 } else { 1 };
            let bytes = block.up.first().map_or(4, |layer| self.bytes(layer));
            let forward = cost::activation_forward(tokens, inner, gates, bytes);
            self.add(Operation::Activations, Phase::Forward, forward);
            if *tracked && self.trains {
                let backward = cost::activation_backward(tokens, inner, gates, bytes);
                self.add(Operation::Activations, Phase::Backward, backward);
            }
            self.linear(Operation::Down, down, tokens, *tracked, tracked);
        }
        for layer in block.per_layer.iter().flat_map(|own| [&own.gate, &own.projection]) {
            self.linear(Operation::OtherLayers, layer, tokens, *tracked, tracked);
        }
        if *tracked && self.trains {
            let backward = cost::norm_backward(tokens, h, norm_trains);
            // The first norm's input has no gradient where nothing before it trains.
            let behind = if was_tracked { of_norms } else { of_norms.saturating_sub(1) };
            self.times(Operation::Norms, Phase::Backward, backward, behind);
            self.times(Operation::Norms, Phase::Backward, cost::residual(tokens, h), sums);
            if self.recompute {
                self.add(Operation::Norms, Phase::Backward, cost::seeded());
                self.again(&before);
            }
        }
    }

    /// What was added forward since `before`, once more.
    fn again(&mut self, before: &PassWork) {
        let forward = |work: &PassWork, piece: &Piece| {
            let same = |p: &&Piece| {
                (p.operation, p.phase, p.operands, p.cost)
                    == (piece.operation, Phase::Forward, piece.operands, piece.cost)
            };
            work.pieces().find(same).map_or(0, |p| p.times)
        };
        let runs = |p: &&Piece| !(self.keeps_attention && p.operation == Operation::Attention);
        let all = self.work.pieces().filter(|p| p.phase == Phase::Forward);
        let pieces: Vec<Piece> = all.filter(runs).copied().collect();
        for piece in pieces {
            let times = piece.times - forward(before, &piece);
            self.work.add(piece.operation, Phase::Again, piece.operands, piece.cost, times);
        }
    }

    /// Norms of latents, and the heads that are made of them.
    fn of_latents(&mut self, at: usize, latent: &Latent, tracked: bool) {
        let spec = &self.blueprint.spec;
        let Some(sizes) = spec.latent else { return };
        let heads = (spec.sizes(at).heads as u64).div_ceil(self.ranks);
        let elements = 3 * self.tokens * heads * spec.attended_dim() as u64;
        let bytes = self.bytes(&latent.layer);
        let [forward, backward] = cost::of_latents(elements, bytes, spec.pairs == Pairs::Neighbours);
        for rank in sizes.query_rank.into_iter().chain([sizes.rank]) {
            self.add(Operation::Norms, Phase::Forward, cost::norm_forward(self.tokens, rank as u64, bytes));
            if tracked && self.trains {
                let back = cost::norm_backward(self.tokens, rank as u64, true);
                // Layers read what forward made: it is not normed again.
                self.add(Operation::Norms, Phase::Backward, Cost { launches: back.launches - 1, ..back });
            }
        }
        self.add(Operation::QueriesKeysValues, Phase::Forward, forward);
        if tracked && self.trains {
            self.add(Operation::QueriesKeysValues, Phase::Backward, backward);
        }
    }

    /// Attention, or what stands in its place.
    fn mixer(&mut self, at: usize, block: &Block, tracked: bool) {
        let spec = &self.blueprint.spec;
        let BlockSizes { heads, kv_heads, head_dim, .. } = spec.sizes(at);
        let bytes = block.qkv.first().map_or(4, |layer| self.bytes(layer));
        let (tokens, ranks) = (self.tokens, self.ranks);
        let (texts, new) = (self.texts.texts as u64, self.texts.tokens as u64);
        let linear =
            |[key_heads, heads]: [u64; 2], [key_dim, value_dim]: [usize; 2], (delta_rule, by_channel)| {
                let [key_dim, value_dim] = [key_dim, value_dim].map(|n| n as u64);
                let of = LinearAttentionSize {
                    texts,
                    tokens: new,
                    key_heads,
                    heads,
                    key_dim,
                    value_dim,
                    delta_rule,
                    by_channel,
                    bytes,
                };
                [of.forward(), of.backward()]
            };
        let mut found = Vec::new();
        if let Some(delta) = spec.delta_of(at) {
            let heads = [delta.key_heads, delta.value_heads].map(|heads| (heads as u64).div_ceil(ranks));
            found.push(linear(heads, [delta.key_dim, delta.value_dim], (true, delta.by_channel.is_some())));
        } else if block.conv.is_some() {
            let width = (spec.hidden as u64).div_ceil(ranks);
            let taps = spec.conv.map_or(0, |conv| conv.taps as u64);
            let forward = Cost::moving(4 * tokens * width * 3, 4 * tokens * width, 2 + taps);
            found.push([forward, forward * 2]);
        } else if !block.own.no_attention {
            let attended = spec.attended_kv_heads(heads, kv_heads) as u64;
            let heads = (heads as u64).div_ceil(ranks);
            let size = AttentionSize {
                texts: self.texts.texts as u64,
                tokens: self.texts.tokens as u64,
                before: self.texts.before as u64,
                window: block.own.window.or(block.own.chunk).map(|window| window as u64),
                heads,
                kv_heads: attended.div_ceil(ranks),
                dim: (head_dim + spec.attended_dim() - spec.head_dim) as u64,
                value_dim: spec.sizes(at).head_dim.min(spec.value_dim().max(1)) as u64,
                normed: matches!(
                    spec.qk_norm,
                    Some(
                        QkNorm::PerHead
                            | QkNorm::PerHeadBare
                            | QkNorm::PerHeadAndValues
                            | QkNorm::PerHeadRotated
                            | QkNorm::PerHeadRotatedBare
                            | QkNorm::PerHeadLayer { .. }
                    )
                ),
                turns: block.own.rope.is_some(),
                bytes,
            };
            let operands = Self::operands(bytes);
            self.work.add(Operation::Attention, Phase::Forward, operands, size.forward(), 1);
            if tracked && self.trains {
                self.work.add(Operation::Attention, Phase::Backward, operands, size.backward(), 1);
            }
        }
        if let Some(ssd) = spec.ssd_of(at) {
            let bytes = block.ssd.as_ref().map_or(4, |own| self.bytes(&own.input));
            let scan = ssd.selective.map(|own| SelectiveScanSize {
                texts,
                tokens: new,
                channels: ssd.width() as u64,
                states: ssd.state as u64,
                normed: own.norm_eps.is_some(),
                bytes,
            });
            let of_heads = || {
                linear([ssd.groups, ssd.heads].map(|n| n as u64), [ssd.state, ssd.head_dim], (false, false))
            };
            found.push(scan.map_or_else(of_heads, |scan| [scan.forward(), scan.backward()]));
        }
        for [forward, backward] in found {
            self.add(Operation::Recurrences, Phase::Forward, forward);
            if tracked && self.trains {
                self.add(Operation::Recurrences, Phase::Backward, backward);
            }
        }
    }

    /// Both layers of a mixture's experts, between which all choices are as likely.
    fn experts(&mut self, at: usize, [up, down]: [&Layer; 2], tracked: &mut bool) {
        let Some(experts) = self.blueprint.spec.experts_of(at) else { return };
        let each = experts.rule.per_token as u64;
        let local = self.local.at(up.parts.weight).shape[0] as u64;
        let all = self.tokens * each;
        // Where tokens are sent to their experts, as many come as go.
        let rows = if self.exchanged { all } else { all * local / (experts.count as u64).max(1) };
        let gates = if matches!(experts.gate, ExpertGate::Plain(_)) { 1 } else { 2 };
        let few = self.decodes && rows <= FEW_PLACES as u64;
        let filled = if few { rows } else { cost::filled(local, rows) };
        // Where ranks have experts of their own the host counts the rows of each.
        let whole = !few && !self.exchanged && local == experts.count as u64;
        let there = if whole { cost::expert_rows(local, rows) } else { filled };
        let of = |layer: LinearSize| ExpertsSize { layer, experts: local, rows: there };
        for layer in [up, down] {
            let size = of(self.sized(layer, filled));
            let operands = Self::operands(size.layer.bytes);
            let (mut forward, mut launches) = (size.forward(), 1);
            if few {
                let all = size.layer.bytes * size.layer.input * size.layer.output;
                forward = size.of_few(self.resting(layer).map_or(all, |resting| resting / local.max(1)));
            } else {
                launches = self.widened(layer, Phase::Forward);
                if self.trains {
                    self.widened(layer, Phase::Backward);
                }
            }
            let mut add = |phase, cost: Cost| {
                // A launch for each of the matrices that are widened together.
                let cost = Cost { launches: launches * cost.launches, ..cost };
                self.work.add(Operation::Experts, phase, operands, cost, 1);
            };
            add(Phase::Forward, forward);
            if self.trains {
                if *tracked {
                    add(Phase::Backward, size.of_input());
                }
                if self.local.at(layer.parts.weight).trainable {
                    add(Phase::Backward, size.of_weight());
                }
            }
            self.adapter(layer, size.layer, *tracked, (local, true, 1));
            *tracked |= self.any_trains(layer);
        }
        let inner = self.sized(down, filled).input;
        let size = of(self.sized(up, filled));
        let between = (inner, gates);
        let moved = match few {
            true => size.moved_of_few(self.tokens, between),
            false => size.moved_forward(self.tokens, each, between),
        };
        self.add(Operation::Experts, Phase::Forward, moved);
        if *tracked && self.trains {
            let trains = [up, down].map(|layer| self.any_trains(layer));
            let backward = size.moved_backward(self.tokens, each, between, trains);
            self.add(Operation::Experts, Phase::Backward, backward);
        }
    }

    fn head(&mut self, h: u64, tracked: bool) {
        let spec = &self.blueprint.spec;
        let head = &self.blueprint.head;
        let targets =
            if self.trains || !self.decodes { self.texts.targets as u64 } else { self.texts.texts as u64 };
        let bytes = self.bytes(head);
        let (ends, trains) = (spec.ends as u64, self.trains);
        if spec.final_norm {
            self.add(Operation::Norms, Phase::Forward, cost::norm_forward(targets, ends, bytes));
            if trains && tracked {
                self.add(Operation::Norms, Phase::Backward, cost::norm_backward(targets, ends, false));
            }
        }
        // Rows that predict nothing are dropped, and their gradients are zeros.
        if targets < self.tokens {
            let (rows, all) = (4 * targets * h, 4 * self.tokens * h);
            self.add(Operation::Norms, Phase::Forward, Cost::moving(rows, rows, 1));
            if trains && tracked {
                self.add(Operation::Norms, Phase::Backward, Cost::moving(rows, rows + all, 2));
            }
        }
        let layer = self.sized(head, targets);
        let operands = Self::operands(bytes);
        if spec.output == Output::Score || self.decodes {
            self.work.add(Operation::Head, Phase::Forward, operands, layer.forward(), 1);
            if trains {
                self.work.add(
                    Operation::Head,
                    Phase::Backward,
                    operands,
                    layer.of_input() + layer.of_weight(),
                    1,
                );
            }
            return;
        }
        let of_table = trains && self.weight_trains(head);
        let size = HeadSize { layer, trains: of_table };
        let [products, rest] = size.forward();
        self.work.add(Operation::Head, Phase::Forward, operands, products, 1);
        self.add(Operation::Loss, Phase::Forward, rest);
        if trains && (tracked || of_table || self.any_trains(head)) {
            let [products, rest] = size.backward(tracked, !(self.likelihood && self.ranks == 1));
            self.work.add(Operation::Head, Phase::Backward, operands, products, 1);
            self.add(Operation::Loss, Phase::Backward, rest);
        }
        self.adapter(head, layer, tracked, (1, true, 1));
    }

    /// A layer over `tokens` rows; whether something before it trains says `came`, `tracked` also whether something of it does.
    fn linear(&mut self, operation: Operation, layer: &Layer, tokens: u64, came: bool, tracked: &mut bool) {
        self.beside(operation, std::slice::from_ref(layer), tokens, came, tracked);
        // What comes back to a layer alone is the gradient of a sum, which is wide.
        if self.trains && *tracked && self.bytes(layer) < 4 {
            let [width, _] = self.matrix(layer);
            self.add(operation, Phase::Backward, cost::rounded(tokens, width));
        }
    }

    /// Layers that read one input.
    fn beside(
        &mut self,
        operation: Operation,
        layers: &[Layer],
        tokens: u64,
        came: bool,
        tracked: &mut bool,
    ) {
        let has = |layer: &&Layer| layer.parts.lora.is_some();
        let (first, adapters) =
            (layers.iter().position(|layer| has(&layer)), layers.iter().filter(has).count());
        for (at, layer) in layers.iter().enumerate() {
            self.one_beside(operation, layer, (tokens, Some(at) == first, adapters as u64), came, tracked);
        }
    }

    fn one_beside(
        &mut self,
        operation: Operation,
        layer: &Layer,
        (tokens, first, adapters): (u64, bool, u64),
        came: bool,
        tracked: &mut bool,
    ) {
        let size = self.sized(layer, tokens);
        let operands = Self::operands(size.bytes);
        let forward = match self.resting(layer).and_then(|resting| size.by_codes(resting)) {
            Some(by_codes) => by_codes,
            None => {
                self.widened(layer, Phase::Forward);
                size.forward()
            }
        };
        self.work.add(operation, Phase::Forward, operands, forward, 1);
        if self.trains {
            if came {
                self.widened(layer, Phase::Backward);
                self.work.add(operation, Phase::Backward, operands, size.of_input(), 1);
            }
            if self.weight_trains(layer) {
                self.work.add(operation, Phase::Backward, operands, size.of_weight(), 1);
            }
        }
        self.adapter(layer, size, came, (1, first, adapters));
        *tracked |= self.any_trains(layer);
    }

    /// What an adapter adds to a layer: of a low rank two products; of another change the weight is made anew.
    fn adapter(
        &mut self,
        layer: &Layer,
        size: LinearSize,
        came: bool,
        (experts, first, beside): (u64, bool, u64),
    ) {
        if !self.adapters {
            return;
        }
        if let Some(lora) = &layer.parts.lora {
            let shape = &self.local.at(lora.a).shape;
            // Experts' factors lie one after another.
            let rank = (shape.first().copied().unwrap_or(0) as u64 / experts.max(1)).max(1);
            let bytes = if self.blueprint.compute == Compute::Bf16 { 2 } else { 4 };
            let apart = self.blueprint.invocation.is_some() || self.ranks > 1;
            let of = AdapterWork { rank, bytes, beside, first, apart };
            let (forward, backward) = (size.adapter_forward(&of), size.adapter_backward(&of, came));
            let operands = Self::operands(bytes);
            self.work.add(Operation::Adapters, Phase::Forward, operands, forward, 1);
            if self.trains {
                self.work.add(Operation::Adapters, Phase::Backward, operands, backward, 1);
            }
        } else if layer.change.is_some() {
            let elements = size.input * size.output;
            let anew = Cost::moving((size.bytes + 4) * elements, 4 * elements, 3);
            self.times(Operation::Adapters, Phase::Forward, anew, experts);
            if self.trains {
                self.times(Operation::Adapters, Phase::Backward, anew * 2, experts);
            }
        }
    }

    /// Outputs of neighbours, put together, and their gradients taken apart.
    fn gathered(&mut self, operation: Operation, layers: &[Layer], tracked: bool) {
        let width: u64 = layers.iter().map(|layer| self.matrix(layer)[0]).sum();
        let bytes = layers.first().map_or(4, |layer| self.bytes(layer));
        let cost = cost::side_by_side(self.tokens, width, bytes, layers.len() as u64);
        self.add(operation, Phase::Forward, cost);
        if tracked && self.trains {
            let input = layers.first().map_or(0, |layer| self.matrix(layer)[1]);
            let summed = cost::summed(self.tokens, input, layers.len() as u64);
            self.add(operation, Phase::Backward, cost + summed);
        }
    }

    /// Bytes of a weight in fewer bits.
    fn resting(&self, layer: &Layer) -> Option<u64> {
        let weight = self.local.at(layer.parts.weight);
        weight.quantization?;
        let rows = weight.shape.first().copied().unwrap_or(1);
        Some(weight.stored_bytes(rows, weight.elements() / rows.max(1)) as u64)
    }

    /// Widens a layer in fewer bits; the pieces in which it is.
    fn widened(&mut self, layer: &Layer, phase: Phase) -> u64 {
        let Some(resting) = self.resting(layer) else { return 1 };
        let weight = self.local.at(layer.parts.weight);
        // Of a stack some matrices together.
        let pieces = match weight.shape[..] {
            [count, rows, columns] => count.div_ceil(cost::widened_together(rows * columns)) as u64,
            _ => 1,
        };
        let (elements, bytes) = (weight.elements() as u64, weight.precision.store.bytes() as u64);
        self.add(Operation::Widening, phase, cost::widened(resting, elements, bytes, pieces));
        pieces
    }

    fn add(&mut self, operation: Operation, phase: Phase, cost: Cost) {
        self.times(operation, phase, cost, 1);
    }

    fn times(&mut self, operation: Operation, phase: Phase, cost: Cost, times: u64) {
        self.work.add(operation, phase, Operands::Wide, cost, times);
    }

    fn operands(bytes: u64) -> Operands {
        if bytes == 2 { Operands::Half } else { Operands::Wide }
    }

    /// A layer's weight.
    fn weight(&self, layer: &Layer) -> &Parameter {
        self.local.owner(self.local.at(layer.parts.weight))
    }

    /// Rows and columns of a layer's weight; of experts one's.
    fn matrix(&self, layer: &Layer) -> [u64; 2] {
        let shape = &self.weight(layer).shape;
        match shape[..] {
            [.., rows, columns] => [rows as u64, columns as u64],
            _ => [1, shape.iter().product::<usize>() as u64],
        }
    }

    fn sized(&self, layer: &Layer, tokens: u64) -> LinearSize {
        let [output, input] = self.matrix(layer);
        let turned = matches!(layer.place, Place::Embedding | Place::Positions);
        let (input, output) = if turned { (output, input) } else { (input, output) };
        LinearSize { tokens, input, output, bytes: self.bytes(layer) }
    }

    /// Bytes of an element of a layer's weight as products read it.
    fn bytes(&self, layer: &Layer) -> u64 {
        match self.weight(layer).precision.store {
            Dtype::Bf16 | Dtype::F16 => 2,
            _ => 4,
        }
    }

    fn weight_trains(&self, layer: &Layer) -> bool {
        self.weight(layer).trainable
    }

    fn any_trains(&self, layer: &Layer) -> bool {
        self.trains && layer.indices(self.adapters).into_iter().any(|index| self.local.at(index).trainable)
    }

    fn norm_trains(&self, block: &Block) -> bool {
        let norms = block.attention_norm.iter().chain(&block.mlp_norm);
        norms.filter_map(|norm| norm.parts.weight).any(|index| self.local.at(index).trainable)
    }
}
