//! The tensor-parallel plan of a decoder: styles by place, layouts of its parameters, a rank's part of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burnish_core::layout::TP;
use burnish_core::{ExpertGate, Layout, LinearPart, Region, Registry};
use burnish_ops::{
    AnyTensor, OpsError, VocabShard, column_norms, row_norms, squared_column_norms, squared_row_norms,
};
use burnish_tp::comm::Group;
use burnish_tp::{AdapterSum, AdapterSums, Gradient, HeadSplit, Split, Style, Tp, TpLayout};
use burnish_weight_files::HostTensor;

use crate::decoder::blueprint::{Blueprint, alias};
use crate::decoder::change::lies_as;
use crate::decoder::layers::{Block, NormPlace, Place};
use crate::decoder::lora_rank_reduce::runs_apart;
use crate::decoder::virtual_tokens::Prompt;
use crate::spec::GatedDelta;
use crate::spec::names::QkvNames;
use crate::{ModelError, Spec};

/// How ranks share a layer: Transformers' styles, but for the vocabulary, which is divided too, and packed outputs, which
/// Transformers gathers on every rank; here each has its rows of every block.
fn style(place: Place) -> Style {
    match place {
        Place::Embedding => Style::EmbeddingRowwise,
        Place::Queries
        | Place::KeysValues
        | Place::Values
        | Place::HeadGates
        | Place::LatentUp
        | Place::QkvPerGroup
        | Place::DeltaQkv
        | Place::DeltaKeys
        | Place::DeltaValues
        | Place::DeltaHeads
        | Place::DeltaGroups
        | Place::DeltaGroupHeads
        | Place::Inner
        | Place::Head => Style::Colwise,
        Place::Qkv | Place::GateUp | Place::ConvIn => Style::PackedColwise,
        Place::Output | Place::Down | Place::ConvOut | Place::DeltaOut => Style::Rowwise,
        Place::ExpertsUp => Style::PackedColwise,
        Place::ExpertsDown => Style::Rowwise,
        Place::Positions
        | Place::PerLayer
        | Place::Score
        | Place::Router
        | Place::SharedGate
        | Place::Latent => Style::Replicated,
    }
}

/// How the ranks of [`ModelPlan::over`](crate::ModelPlan::over) have a mixture's experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertSharding {
    /// A part of every one, as of every other layer.
    #[default]
    Parts,
    /// Some whole ones, beside a part of every other layer: Transformers' `enable_expert_parallel`. All ranks have the same
    /// tokens.
    Whole,
    /// Some whole ones, beside all of every other layer. Ranks have tokens of their own, which are sent to their experts and
    /// back ([`TokenDispatcher`](burnish_tp::TokenDispatcher)): DeepSpeed's `ep_size`. With tensor parallelism beside it
    /// ([`ModelPlan::over_axes`](crate::ModelPlan::over_axes)) ranks that share layers have the same tokens, and each sends
    /// those with experts in its column.
    Exchanged,
}

/// A rank among those that have one model between them.
#[derive(Clone, Debug)]
pub struct ModelAxes {
    /// All of them; those that share layers lie beside each other.
    pub all: Tp,
    /// Those that share each layer with it, on the same tokens.
    pub tp: Tp,
    /// Those that have its part of layers and other experts, on tokens of their own.
    pub ep: Option<Tp>,
}

impl ModelAxes {
    /// Of ranks along one axis.
    pub(crate) fn of(ranks: &Tp, sharding: ExpertSharding) -> Self {
        let all = ranks.clone();
        match sharding {
            ExpertSharding::Exchanged => {
                Self { tp: all.along(&Group::alone()), ep: Some(ranks.clone()), all }
            }
            _ => Self { tp: ranks.clone(), ep: None, all },
        }
    }

    /// Ranks that share layers, and groups of those.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.tp.size(), self.ep.as_ref().map_or(1, Tp::size)]
    }
}

/// How a decoder's parameters lie over the ranks of the tensor-parallel axis. Made from global shapes: the same on every
/// rank.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// Ranks that share each layer.
    ranks: usize,
    /// How parameters lie over those.
    layouts: Vec<TpLayout>,
    /// A shared expert's width.
    shared: Option<Split>,
    vocab: Split,
    /// Tokens that have an embedding.
    embeddings: Split,
    /// Tokens that have inputs of blocks.
    tokens_with_inputs: Split,
    /// The channels of convolutions.
    channels: Split,
    /// Experts, where these ranks have whole ones.
    experts: Option<Split>,
    /// Groups of these ranks that have other experts, if there are.
    exchange: Option<Exchange>,
    sums: AdapterSums,
    /// The head's name.
    head: &'static str,
}

/// Groups of ranks between which tokens are sent to their experts.
#[derive(Clone, Debug)]
struct Exchange {
    groups: usize,
    /// The experts of all ranks.
    experts: Split,
    /// How parameters lie over all ranks.
    layouts: Vec<Layout>,
    /// Whether they are of experts.
    of_experts: Vec<bool>,
}

impl Parallel {
    /// `sums` are those of adapters on the linears of blocks without magnitudes; all others are fused.
    pub(crate) fn new(
        blueprint: &mut Blueprint,
        [ranks, groups]: [usize; 2],
        sums: AdapterSums,
        sharding: ExpertSharding,
    ) -> Result<Self, ModelError> {
        if sharding == ExpertSharding::Exchanged {
            // A part of every expert, or some of them: their layouts come after.
            let shared = Self::new(blueprint, [ranks, 1], sums, ExpertSharding::Whole)?;
            return shared.exchanging(blueprint, groups);
        }
        let whole_experts = sharding == ExpertSharding::Whole;
        let spec = blueprint.spec.clone();
        let heads = HeadSplit::new(spec.heads, spec.kv_heads, ranks)?;
        let queries = |rank: usize| heads.of(rank).q.len();
        // What ranks share of a group's matrix they would hold in different places.
        let grouped = matches!(spec.names.qkv, QkvNames::PerGroup(_));
        let uneven = (1..ranks).any(|rank| queries(rank) != queries(0));
        if spec.packed() && heads.shared() && (uneven || grouped) {
            let (heads, kv_heads) = (spec.heads, spec.kv_heads);
            return Err(ModelError::UnevenPacked { heads, kv_heads, ranks });
        }
        let quarter = spec.heads / 4;
        if matches!(spec.names.qkv, QkvNames::Quarters(_))
            && (0..ranks).any(|rank| queries(rank) % quarter != 0)
        {
            return Err(ModelError::Quartered { ranks });
        }
        let of_expert = spec.experts.map(|experts| match whole_experts {
            true => ("the number of experts", experts.count),
            false => ("an expert's width", experts.intermediate),
        });
        let shared = spec.experts.and_then(|experts| experts.shared);
        let of_delta = spec.delta.map(|delta| ("linear_num_key_heads", delta.key_heads));
        let of_shared = shared.map(|shared| ("shared_expert_intermediate_size", shared.intermediate));
        let widths = [("intermediate_size", spec.intermediate), ("vocab_size", spec.vocab)];
        for (what, size) in widths.into_iter().chain(of_expert).chain(of_shared).chain(of_delta) {
            if size < ranks {
                return Err(ModelError::TooManyRanks { what, size, ranks });
            }
        }
        let (mlp, vocab) = (Split::balanced(spec.intermediate, ranks)?, Split::balanced(spec.vocab, ranks)?);
        // Of blocks whose sizes are their own, by their layers' weights.
        let mut own_sizes = BTreeMap::new();
        for block in &blueprint.blocks {
            if let Some(sizes) = block.own.sizes {
                let own = (spec.with_sizes(sizes), HeadSplit::new(sizes.heads, sizes.kv_heads, ranks)?);
                let own = Arc::new(own);
                own_sizes.extend(block.layers().map(|layer| (layer.parts.weight, own.clone())));
            }
        }
        let channels = Split::balanced(spec.hidden, ranks)?;
        let experts = spec.experts.filter(|_| whole_experts);
        let experts = experts.map(|experts| Split::balanced(experts.count, ranks)).transpose()?;
        let shapes: Vec<Vec<usize>> = blueprint.registry.iter().map(|p| p.shape.clone()).collect();
        let names: Vec<String> = blueprint.registry.iter().map(|p| p.name.clone()).collect();
        let mut layouts: Vec<Option<TpLayout>> = vec![None; shapes.len()];
        let trained = |&&index: &&usize| blueprint.registry.at(index).trainable;
        let shared_and_trained: Vec<usize> = blueprint.shared.iter().filter(trained).copied().collect();
        let turned = spec.names.experts.adapters_turned;
        let reads = spec.experts.map_or(2, |experts| experts.gate.reads(1));
        for (_, layer) in blueprint.layers_mut() {
            let style = style(layer.place);
            let shape = &shapes[layer.parts.weight];
            let mlp = match layer.place {
                // Blocks differ: a shared expert's width is not that of other feed-forwards.
                Place::Inner => &Split::balanced(shape[0], ranks)?,
                Place::GateUp => &Split::balanced(shape[0] / 2, ranks)?,
                Place::Down => &Split::balanced(shape[1], ranks)?,
                Place::ExpertsUp => &Split::balanced(shape[1] / reads, ranks)?,
                Place::ExpertsDown => &Split::balanced(shape[2], ranks)?,
                _ => &mlp,
            };
            // Not every token has inputs of blocks.
            let vocab = match layer.place {
                Place::Embedding => &Split::balanced(shape[0], ranks)?,
                _ => &vocab,
            };
            let own = own_sizes.get(&layer.parts.weight).map(|own| (&own.0, &own.1));
            let (own, heads) = own.unwrap_or((&spec, &heads));
            let split = match (&spec.delta, layer.place) {
                (
                    Some(sizes),
                    place @ (Place::DeltaQkv
                    | Place::DeltaKeys
                    | Place::DeltaValues
                    | Place::DeltaHeads
                    | Place::DeltaGroups
                    | Place::DeltaGroupHeads
                    | Place::DeltaOut),
                ) => delta_split(place, sizes, ranks)?,
                _ => split_of(layer.place, own, heads, [mlp, vocab, &channels])?,
            };
            let sum = match style {
                Style::Colwise if layer.place != Place::Head => sums.colwise,
                // Those of experts run inside them.
                Style::Rowwise if layer.place != Place::ExpertsDown => sums.rowwise,
                _ => AdapterSum::Fused,
            };
            let apart = layer.adapter.is_some() && runs_apart(sum, layer.magnitude().is_some());
            let turned_factors = layer.adapter.as_ref().is_some_and(|adapter| adapter.turned);
            for (part, index) in layer.all() {
                if turned_factors && part.is_lora() {
                    // They lie as the embedding's, whose they are.
                    continue;
                }
                let of_experts =
                    experts.as_ref().filter(|_| matches!(layer.place, Place::ExpertsUp | Place::ExpertsDown));
                let layout = match (layer.place, part) {
                    _ if let Some(experts) = of_experts => {
                        whole_experts_layout(part, &shapes[index], experts)?
                    }
                    (Place::ExpertsUp, LinearPart::Weight) => {
                        TpLayout::sharded(&shapes[index], 1, split.clone())?
                    }
                    (Place::ExpertsUp, LinearPart::Bias) => {
                        TpLayout::sharded(&shapes[index], 1, split.clone())?
                    }
                    (Place::ExpertsDown, LinearPart::Weight) => {
                        TpLayout::sharded(&shapes[index], 2, split.clone())?
                    }
                    // A reads outputs, B gives inputs.
                    (Place::ExpertsUp, LinearPart::LoraA) if turned => {
                        TpLayout::sharded(&shapes[index], 1, split.clone())?
                    }
                    (Place::ExpertsDown, LinearPart::LoraB) if turned => {
                        TpLayout::sharded(&shapes[index], 0, split.clone())?
                    }
                    (Place::ExpertsUp | Place::ExpertsDown, LinearPart::LoraA | LinearPart::LoraB)
                        if turned =>
                    {
                        TpLayout::replicated(&shapes[index], ranks, Gradient::Partial)
                    }
                    _ => TpLayout::of(style, part, &shapes[index], &split)?,
                };
                layouts[index] = Some(if apart && part.is_lora() { layout.completed() } else { layout });
            }
            if let Some(change) = layer.change.as_ref().filter(|_| style == Style::Rowwise)
                && !change.keeps_columns(&split)
            {
                return Err(ModelError::Undivided { name: names[change.indices[0]].clone() });
            }
            let shared = |index: &usize| shared_and_trained.contains(index);
            if style == Style::Replicated && layer.change.iter().flat_map(|c| &c.indices).any(shared) {
                // Whole gradients of this layer would be added to addends of others.
                return Err(ModelError::Undivided { name: names[layer.parts.weight].clone() });
            }
            for (&index, follows) in layer.change.iter().flat_map(|c| c.indices.iter().zip(&c.follows)) {
                let shape = &shapes[index];
                layouts[index] = Some(match lies_as(*follows) {
                    Some(part) => TpLayout::of(style, part, shape, &split)?,
                    None => {
                        // Of a layer that every rank runs whole each has the whole gradient.
                        let whole = style == Style::Replicated;
                        let gradient = if whole { Gradient::Complete } else { Gradient::Partial };
                        TpLayout::replicated(shape, ranks, gradient)
                    }
                });
            }
        }
        if let Some(Prompt { indices, keys, .. }) = &blueprint.prompt {
            // Of keys and values each rank reads its heads'; an encoder gives addends of what is given addends.
            let gradient = if *keys { Gradient::Partial } else { Gradient::Complete };
            for &index in indices {
                layouts[index] = Some(TpLayout::replicated(&shapes[index], ranks, gradient));
            }
        }
        for (_, norm) in blueprint.norms_mut() {
            for index in norm.all() {
                let shape = &shapes[index];
                layouts[index] = Some(match norm.place {
                    NormPlace::Divided => TpLayout::replicated(shape, ranks, Gradient::Partial),
                    NormPlace::Stream => TpLayout::replicated(shape, ranks, Gradient::Complete),
                    NormPlace::Queries => TpLayout::sharded(shape, 0, heads.q(spec.head_dim))?,
                    NormPlace::Keys => TpLayout::sharded(shape, 0, heads.kv(spec.head_dim))?,
                    NormPlace::QueryHeads => TpLayout::sharded(shape, 0, heads.q(1))?,
                    NormPlace::KeyHeads => TpLayout::sharded(shape, 0, heads.kv(1))?,
                });
            }
        }
        for block in &blueprint.blocks {
            let Some(index) = block.sinks else { continue };
            let own = block.qkv.first().and_then(|layer| own_sizes.get(&layer.parts.weight));
            let heads = own.map_or(&heads, |own| &own.1);
            layouts[index] = Some(TpLayout::sharded(&shapes[index], 0, heads.q(1))?);
        }
        let scales = |block: &Block| block.mixture.as_ref().and_then(|mixture| mixture.scales);
        let of_routers = blueprint.blocks.iter().filter_map(scales).flatten();
        let of_streams = blueprint.blocks.iter().filter_map(|block| Some(block.altup.as_ref()?.scale));
        let scalars = blueprint.blocks.iter().filter_map(|block| block.scalar);
        for index in scalars.chain(of_routers).chain(of_streams) {
            layouts[index] = Some(TpLayout::replicated(&shapes[index], ranks, Gradient::Complete));
        }
        // Each rank's features give an addend.
        for (p, n) in blueprint.blocks.iter().filter_map(|block| block.curve) {
            for index in [p, n] {
                layouts[index] = Some(TpLayout::replicated(&shapes[index], ranks, Gradient::Partial));
            }
        }
        for (parts, delta) in
            blueprint.blocks.iter().filter_map(|block| Some((block.conv.as_ref()?, block.delta.as_ref())))
        {
            if let (Some(delta), Some(sizes), Some(weight)) = (delta, &spec.delta, parts.weight) {
                let places = match delta.kernels.is_empty() {
                    true => &[Place::DeltaQkv][..],
                    false => &[Place::DeltaKeys, Place::DeltaKeys, Place::DeltaValues],
                };
                for (index, place) in std::iter::once(weight).chain(delta.kernels.iter().copied()).zip(places)
                {
                    let split = delta_split(*place, sizes, ranks)?;
                    layouts[index] = Some(TpLayout::sharded(&shapes[index], 0, split)?);
                }
                let of_bias = sizes.by_channel.map_or(Place::DeltaHeads, |_| Place::DeltaKeys);
                let along = if shapes[delta.log_rate].len() == 1 { 0 } else { 2 };
                for (index, place, along) in
                    [(delta.bias, of_bias, 0), (delta.log_rate, Place::DeltaHeads, along)]
                {
                    let split = delta_split(place, sizes, ranks)?;
                    layouts[index] = Some(TpLayout::sharded(&shapes[index], along, split)?);
                }
                continue;
            }
            for index in parts.weight.into_iter().chain(parts.bias) {
                layouts[index] = Some(TpLayout::sharded(&shapes[index], 0, channels.clone())?);
            }
        }
        // State spaces are whole.
        for ssd in blueprint.blocks.iter().filter_map(|block| block.ssd.as_ref()) {
            let numbers = [ssd.kernel, ssd.log_rate, ssd.skip];
            for index in numbers.into_iter().chain(ssd.bias).chain(ssd.kernel_bias) {
                layouts[index] = Some(TpLayout::replicated(&shapes[index], ranks, Gradient::Complete));
            }
        }
        let layouts = of_all(layouts, &blueprint.registry)?;
        let shared = shared.map(|shared| Split::balanced(shared.intermediate, ranks)).transpose()?;
        let embeddings = Split::balanced(spec.embeddings, ranks)?;
        let tokens_with_inputs =
            Split::balanced(spec.per_layer.map_or(spec.vocab, |given| given.tokens), ranks)?;
        let head = spec.names.head;
        Ok(Self {
            ranks,
            layouts,
            shared,
            vocab,
            embeddings,
            tokens_with_inputs,
            channels,
            experts,
            exchange: None,
            sums,
            head,
        })
    }

    /// The same over `groups` groups of these ranks, all of which have some experts of every mixture.
    fn exchanging(self, blueprint: &mut Blueprint, groups: usize) -> Result<Self, ModelError> {
        let (ranks, all) = (self.ranks, self.ranks * groups);
        let Some(mixture) = blueprint.spec.experts else {
            return Err(ModelError::NoExperts { ranks: groups });
        };
        if mixture.count < all {
            return Err(ModelError::TooFewExperts { experts: mixture.count, ranks: all });
        }
        let experts = Split::balanced(mixture.count, all)?;
        let mut of_experts = vec![None; self.layouts.len()];
        let shapes: Vec<Vec<usize>> = blueprint.registry.iter().map(|p| p.shape.clone()).collect();
        for (_, layer) in blueprint.layers_mut() {
            if matches!(layer.place, Place::ExpertsUp | Place::ExpertsDown) {
                for (part, index) in layer.all() {
                    of_experts[index] = Some(whole_experts_layout(part, &shapes[index], &experts)?);
                }
            }
        }
        let layouts = of_experts.iter().zip(&self.layouts).map(|(of_experts, shared)| {
            if let Some(own) = of_experts {
                return Ok(own.layout().clone());
            }
            let layout = shared.layout();
            match layout.split().filter(|_| ranks > 1) {
                None => Ok(Layout::replicated(layout.shape(), TP, all)),
                Some((dim, split)) => {
                    let pieces = (0..all).map(|rank| split.pieces(rank % ranks).to_vec());
                    Layout::sharded(layout.shape(), TP, dim, Split::of(split.length(), pieces))
                }
            }
        });
        let layouts = layouts.collect::<Result<_, _>>()?;
        let of_experts = of_experts.iter().map(Option::is_some).collect();
        Ok(Self { exchange: Some(Exchange { groups, experts, layouts, of_experts }), ..self })
    }

    /// How the parameter at `index` lies.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn layout(&self, index: usize) -> &Layout {
        match &self.exchange {
            Some(exchange) => &exchange.layouts[index],
            None => self.layouts[index].layout(),
        }
    }

    /// The same over the ranks that share layers, with what a rank's gradient of it is there.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn tp_layout(&self, index: usize) -> &TpLayout {
        &self.layouts[index]
    }

    /// How addends of adapters on the linears of blocks are summed.
    #[must_use]
    pub fn sums(&self) -> AdapterSums {
        self.sums
    }

    /// The ranks that share each layer.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How the gradients of what `rank` has of a parameter lie over the groups that have other tokens, if there are several:
    /// each has an addend. Experts belong to one of them, which has the whole gradient.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn over_groups(&self, index: usize, rank: usize) -> Option<TpLayout> {
        let Exchange { groups, layouts, of_experts, .. } = self.exchange.as_ref()?;
        let held = || layouts[index].local_shape(rank);
        (!of_experts[index]).then(|| TpLayout::replicated(&held(), *groups, Gradient::Partial))
    }

    /// Whether the parameter at `index` is of experts of this rank alone, whose gradient no other has a part of.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn is_of_exchanged_experts(&self, index: usize) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.of_experts[index])
    }

    /// Of the ranks in the column of `rank`, which have its part of layers: the experts that each has, where tokens are sent
    /// to those.
    pub(crate) fn column(&self, rank: usize) -> Option<Split> {
        let Exchange { groups, experts, .. } = self.exchange.as_ref()?;
        let own = |group: usize| experts.pieces(group * self.ranks + rank % self.ranks).to_vec();
        Some(Split::of(experts.length(), (0..*groups).map(own)))
    }

    /// Rows of the vocabulary that the rank with most has.
    pub(crate) fn widest_vocab(&self) -> usize {
        (0..self.ranks).map(|rank| self.vocab.len(rank)).max().unwrap_or(0)
    }

    /// The registry with the shapes of what `rank` holds.
    #[must_use]
    pub fn local_registry(&self, registry: &Registry, rank: usize) -> Registry {
        let mut local = registry.clone();
        for (index, parameter) in local.iter_mut().enumerate() {
            parameter.shape = self.layout(index).local_shape(rank);
            parameter.layout = Some(self.layout(index).clone());
        }
        local
    }

    /// Rows (along dim 0) of what `rank` holds of a parameter, from rows of the whole.
    ///
    /// # Errors
    /// Whatever `read` returns.
    pub fn read<E>(
        &self,
        index: usize,
        rank: usize,
        rows: Range<usize>,
        read: impl Fn(Range<usize>) -> Result<HostTensor, E>,
    ) -> Result<HostTensor, E> {
        read_region(&self.layout(index).region(rank).along(0, &[rows]), read)
    }

    /// What this rank has of a model, or of the blocks, of this spec.
    pub(crate) fn shard(&self, axes: &ModelAxes, spec: &Spec) -> Shard {
        let tp = axes.tp.clone();
        let rank = tp.rank();
        let place = axes.all.rank();
        let experts = self.exchange.as_ref().map(|exchange| &exchange.experts).or(self.experts.as_ref());
        let own_experts = experts.and_then(|split| split.range(place));
        let exchange = axes.ep.as_ref().zip(self.column(place));
        let expert_ranks =
            exchange.map(|(ep, owners)| ExpertRanks { ep: ep.clone(), all: axes.all.clone(), owners });
        let heads = HeadSplit::new(spec.heads, spec.kv_heads, self.ranks)
            .expect("invariant: the heads of every block were divided when the plan was made");
        let mlp = Split::balanced(spec.intermediate, self.ranks)
            .expect("invariant: the widths of every block were divided when the plan was made");
        let own = heads.of(rank);
        let rows: Vec<usize> = (0..self.ranks).map(|rank| self.vocab.len(rank)).collect();
        let (ranks, name) = (tp.clone(), self.head);
        let gather = move |own: &[f32]| {
            let counts = vec![own.len(); ranks.size()];
            match ranks.all_gather(own.to_vec(), &counts, name) {
                Some(parts) => parts.concat().into_vec(),
                // The error is kept; what is computed until it is asked for does not matter.
                None => own.repeat(ranks.size()),
            }
        };
        let head = VocabShard::new(&rows, rank, Arc::new(gather)).ok().filter(|_| tp.size() > 1);
        let first = |split: &Split| split.range(rank).map_or(0, |range| range.start);
        let having = |head: usize| (0..self.ranks).filter(|&r| heads.of(r).kv.contains(&head)).count();
        let shares = own.kv.clone().flat_map(|head| vec![1.0 / having(head) as f32; spec.head_dim]);
        Shard {
            key_shares: Arc::new(shares.collect()),
            heads: own.q.len(),
            kv_heads: own.kv.len(),
            vocab: self.vocab.clone(),
            embeddings: self.embeddings.clone(),
            tokens_with_inputs: self.tokens_with_inputs.clone(),
            first_head: own.q.start,
            first_o: first(&heads.q(spec.value_dim())),
            first_down: first(&mlp),
            first_shared: self.shared.as_ref().map_or(0, first),
            first_channel: first(&self.channels),
            own_experts,
            expert_ranks,
            first_delta: spec.delta.as_ref().map_or(0, |sizes| {
                delta_split(Place::DeltaOut, sizes, self.ranks).map_or(0, |split| first(&split))
            }),
            head,
            sums: self.sums,
            tp,
        }
    }
}

/// A layout for every parameter: what stands for another lies as that one.
fn of_all(mut layouts: Vec<Option<TpLayout>>, registry: &Registry) -> Result<Vec<TpLayout>, ModelError> {
    for (index, parameter) in registry.iter().enumerate() {
        if let Some(target) = alias(registry, parameter) {
            layouts[index] = layouts[target].clone();
        }
    }
    let known = layouts.into_iter().zip(registry.iter());
    known
        .map(|(layout, p)| layout.ok_or_else(|| ModelError::UnknownParameter { name: p.name.clone() }))
        .collect()
}

/// How a parameter of all experts lies over ranks that have some of them whole.
fn whole_experts_layout(part: LinearPart, shape: &[usize], experts: &Split) -> Result<TpLayout, ModelError> {
    let count = experts.length().max(1);
    Ok(match part {
        // An expert's rows one after another.
        LinearPart::LoraA => TpLayout::sharded(shape, 0, experts.scaled(shape[0] / count))?,
        // The columns of each rank of the factors by expert.
        LinearPart::LoraB => {
            TpLayout::sharded(shape, 1, Split::packed(&vec![experts.clone(); shape[1] / count])?)?
        }
        _ => TpLayout::sharded(shape, 0, experts.clone())?,
    })
}

/// A region of a parameter, from rows (along dim 0) of the whole that `read` gives.
fn read_region<E>(
    region: &Region,
    read: impl Fn(Range<usize>) -> Result<HostTensor, E>,
) -> Result<HostTensor, E> {
    let shape = region.local_shape();
    if region.is_empty() {
        return Ok(HostTensor { shape, bytes: Vec::new(), ..read(0..0)? });
    }
    let mut pieces = region.ranges(0).iter().map(|rows| {
        let whole = read(rows.clone())?;
        let part = Region::rows(region.shape(), rows.clone()).locate(region);
        Ok(if part.is_whole() { whole } else { whole.region(&part) })
    });
    let mut tensor = pieces.next().expect("invariant: it has rows")?;
    for more in pieces {
        tensor.append_rows(more?);
    }
    Ok(tensor)
}

/// The split of what a gated delta rule reads or gives: each rank has some heads of keys with the values of each.
fn delta_split(place: Place, sizes: &GatedDelta, ranks: usize) -> Result<Split, ModelError> {
    let heads = Split::balanced(sizes.key_heads, ranks)?;
    let (k, each) = (sizes.key_dim, sizes.each());
    let v = each * sizes.value_dim;
    Ok(match place {
        Place::DeltaQkv => Split::packed(&[heads.scaled(k), heads.scaled(k), heads.scaled(v)])?,
        Place::DeltaKeys => heads.scaled(k),
        Place::DeltaHeads => heads.scaled(each),
        Place::DeltaGroups => heads.scaled(2 * k + 2 * v),
        Place::DeltaGroupHeads => heads.scaled(2 * each),
        _ => heads.scaled(v),
    })
}

/// The split of a layer's divided features.
fn split_of(
    place: Place,
    spec: &Spec,
    heads: &HeadSplit,
    [mlp, vocab, channels]: [&Split; 3],
) -> Result<Split, ModelError> {
    let (q, kv) = (heads.q(spec.query_dim()), heads.kv(spec.head_dim));
    let gate = spec.experts.map(|experts| experts.gate);
    Ok(match place {
        Place::Queries => q,
        Place::Output => heads.q(spec.value_dim()),
        Place::LatentUp => heads.q(spec.latent.map_or(0, |latent| latent.still + latent.value)),
        // Gates and ups by turns.
        Place::ExpertsUp if matches!(gate, Some(ExpertGate::Clamped { .. })) => mlp.scaled(2),
        Place::ExpertsUp if matches!(gate, Some(ExpertGate::Plain(_))) => mlp.clone(),
        Place::KeysValues => kv,
        Place::Values => heads.kv(spec.value_dim()),
        Place::HeadGates => heads.q(spec.gates_apart().unwrap_or(0)),
        Place::Qkv => Split::packed(&[q, kv.clone(), kv])?,
        Place::QkvPerGroup => kv.scaled(spec.heads / spec.kv_heads + 2),
        Place::GateUp | Place::ExpertsUp => Split::packed(&[mlp.clone(), mlp.clone()])?,
        Place::ConvIn => Split::packed(&[channels.clone(), channels.clone(), channels.clone()])?,
        Place::ConvOut => channels.clone(),
        Place::Embedding | Place::Head => vocab.clone(),
        _ => mlp.clone(),
    })
}

/// The ranks that have experts of tokens that are not theirs.
#[derive(Clone)]
pub(crate) struct ExpertRanks {
    /// Those in this rank's column.
    pub(crate) ep: Tp,
    /// All that have experts.
    pub(crate) all: Tp,
    /// Which of them those of the column have.
    pub(crate) owners: Split,
}

/// This rank's part of a decoder while it runs.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) tp: Tp,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) vocab: Split,
    /// Rows of the embedding.
    pub(crate) embeddings: Split,
    /// Rows of the table of blocks' inputs.
    pub(crate) tokens_with_inputs: Split,
    /// Per column of this rank's keys, one over the ranks that have it.
    pub(crate) key_shares: Arc<Vec<f32>>,
    /// The first query head.
    pub(crate) first_head: usize,
    /// The first columns of the inputs of row-parallel layers that this rank has.
    pub(crate) first_o: usize,
    pub(crate) first_down: usize,
    pub(crate) first_shared: usize,
    pub(crate) first_channel: usize,
    /// The experts that this rank has, where ranks have whole ones.
    pub(crate) own_experts: Option<Range<usize>>,
    /// Where tokens are sent to their experts.
    pub(crate) expert_ranks: Option<ExpertRanks>,
    pub(crate) first_delta: usize,
    /// How the head's ranks exchange what they found, when there are several.
    pub(crate) head: Option<VocabShard>,
    /// Which adapters run beside their layers.
    pub(crate) sums: AdapterSums,
}

impl Shard {
    /// All of it.
    pub(crate) fn whole(spec: &Spec) -> Self {
        Self {
            tp: Tp::alone(),
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            vocab: Split::whole(spec.vocab),
            embeddings: Split::whole(spec.embeddings),
            tokens_with_inputs: Split::whole(spec.per_layer.map_or(spec.vocab, |given| given.tokens)),
            key_shares: Arc::new(vec![1.0; spec.kv_heads * spec.head_dim]),
            first_head: 0,
            first_o: 0,
            first_down: 0,
            first_shared: 0,
            first_channel: 0,
            own_experts: None,
            expert_ranks: None,
            first_delta: 0,
            head: None,
            sums: AdapterSums::default(),
        }
    }

    /// The rows of the vocabulary that this rank has.
    pub(crate) fn own_vocab(&self) -> Range<usize> {
        self.vocab.range(self.tp.rank()).unwrap_or_default()
    }

    /// `|W + s B A|` of each row of a layer of whose columns each rank has some (DoRA). One all-reduce of `[out]`; the
    /// same bits on every rank.
    pub(crate) fn row_norms(
        &self,
        weight: &AnyTensor,
        a: &AnyTensor,
        b: &AnyTensor,
        scale: f32,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        if !self.divided() {
            return row_norms(weight, a, b, scale);
        }
        self.roots_of_sums(&squared_row_norms(weight, a, b, scale)?, what)
    }

    /// `|W + s (B A)^T|` of each column of an embedding of whose rows each rank has some (DoRA). As
    /// [`Self::row_norms`].
    pub(crate) fn column_norms(
        &self,
        weight: &AnyTensor,
        a: &AnyTensor,
        b: &AnyTensor,
        scale: f32,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        if !self.divided() {
            return column_norms(weight, a, b, scale);
        }
        self.roots_of_sums(&squared_column_norms(weight, a, b, scale)?, what)
    }

    fn roots_of_sums(&self, squares: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        let sums = self.tp.summed(squares, &format!("{what}: squared norms"));
        Ok(AnyTensor::new(sums.rank::<1>()?.sqrt()))
    }

    /// Whether ranks wait for each other inside a block.
    pub(crate) fn meets(&self) -> bool {
        self.divided() || self.expert_ranks.is_some()
    }

    /// Whether others share its layers.
    pub(crate) fn divided(&self) -> bool {
        self.tp.size() > 1
    }

    /// Whether this rank adds what is to be added once (biases of row-parallel layers).
    pub(crate) fn first(&self) -> bool {
        self.tp.rank() == 0
    }
}
