//! Which part of a decoder each tensor-parallel rank has.

use std::ops::Range;
use std::sync::Arc;

use burnish_core::Registry;
use burnish_ops::{
    AnyTensor, OpsError, VocabShard, column_norms, row_norms, squared_column_norms, squared_row_norms,
};
use burnish_store::HostTensor;
use burnish_tp::{AdapterSum, AdapterSums, Gradient, HeadSplit, Part, Placement, Split, Style, Tp, TpPlan};

use crate::apart::runs_apart;
use crate::blueprint::{Blueprint, EMBED, HEAD};
use crate::folder::{append_rows, columns_of};
use crate::{Family, ModelError, Spec};

/// Transformers' plan of a family, by module; beside its words the norms inside column-parallel operations, whose
/// gradients are addends, and the vocabulary, which is divided too.
///
/// # Errors
/// None: the words are styles.
pub fn plan(family: Family) -> Result<TpPlan, ModelError> {
    let rules: &[(&str, &str)] = match family {
        // The same layers; q/k norms are only in Qwen3.
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => &[
            ("model.embed_tokens", "embedding_rowwise"),
            ("model.layers.*.input_layernorm", "replicated_with_grad_allreduce"),
            ("model.layers.*.self_attn.q_proj", "colwise"),
            ("model.layers.*.self_attn.k_proj", "colwise"),
            ("model.layers.*.self_attn.v_proj", "colwise"),
            ("model.layers.*.self_attn.q_norm", "replicated_with_grad_allreduce"),
            ("model.layers.*.self_attn.k_norm", "replicated_with_grad_allreduce"),
            ("model.layers.*.self_attn.o_proj", "rowwise"),
            ("model.layers.*.post_attention_layernorm", "replicated_with_grad_allreduce"),
            ("model.layers.*.mlp.gate_proj", "colwise"),
            ("model.layers.*.mlp.up_proj", "colwise"),
            ("model.layers.*.mlp.down_proj", "rowwise"),
            ("model.norm", "replicated"),
            ("lm_head", "colwise"),
        ],
        // Transformers gathers the packed outputs on every rank; here each has its rows of every block.
        Family::Phi3 => &[
            ("model.embed_tokens", "embedding_rowwise"),
            ("model.layers.*.input_layernorm", "replicated_with_grad_allreduce"),
            ("model.layers.*.self_attn.qkv_proj", "packed_colwise"),
            ("model.layers.*.self_attn.o_proj", "rowwise"),
            ("model.layers.*.post_attention_layernorm", "replicated_with_grad_allreduce"),
            ("model.layers.*.mlp.gate_up_proj", "packed_colwise"),
            ("model.layers.*.mlp.down_proj", "rowwise"),
            ("model.norm", "replicated"),
            ("lm_head", "colwise"),
        ],
    };
    let mut plan = TpPlan::new();
    for (pattern, style) in rules {
        plan = plan.with(*pattern, style.parse()?);
    }
    Ok(plan)
}

/// How a decoder's parameters lie over the ranks of the tensor-parallel axis. Made from global shapes: the same on every
/// rank.
#[derive(Clone, Debug)]
pub struct Parallel {
    ranks: usize,
    placements: Vec<Placement>,
    heads: HeadSplit,
    head_dim: usize,
    mlp: Split,
    vocab: Split,
    sums: AdapterSums,
}

impl Parallel {
    /// `sums` are those of adapters on the linears of blocks without magnitudes; all others are fused.
    pub(crate) fn new(
        blueprint: &mut Blueprint,
        ranks: usize,
        sums: AdapterSums,
    ) -> Result<Self, ModelError> {
        let spec = blueprint.spec.clone();
        let heads = HeadSplit::new(spec.heads, spec.kv_heads, ranks)?;
        let queries = |rank: usize| heads.of(rank).q.len();
        if spec.packed && heads.shared() && (1..ranks).any(|rank| queries(rank) != queries(0)) {
            let (heads, kv_heads) = (spec.heads, spec.kv_heads);
            return Err(ModelError::UnevenPacked { heads, kv_heads, ranks });
        }
        for (what, size) in [("intermediate_size", spec.intermediate), ("vocab_size", spec.vocab)] {
            if size < ranks {
                return Err(ModelError::TooManyRanks { what, size, ranks });
            }
        }
        let (mlp, vocab) = (Split::balanced(spec.intermediate, ranks)?, Split::balanced(spec.vocab, ranks)?);
        let shapes: Vec<Vec<usize>> = blueprint.registry.iter().map(|p| p.shape.clone()).collect();
        let mut placements: Vec<Option<Placement>> = vec![None; shapes.len()];
        let plan = plan(spec.family)?;
        let style_of = |module: &str| plan.style(module).unwrap_or(Style::Replicated);
        for (module, layer) in blueprint.layers_mut() {
            let style = style_of(&module);
            let split = split_of(&module, &spec, &heads, &mlp, &vocab)?;
            let embeds = module == EMBED;
            let (a, b) =
                if embeds { (Part::EmbeddingA, Part::EmbeddingB) } else { (Part::LoraA, Part::LoraB) };
            let mut parts = vec![(Some(layer.weight), Part::Weight), (layer.bias, Part::Bias)];
            if let Some((weight, bias)) = layer.saved {
                parts.extend([(Some(weight), Part::Weight), (bias, Part::Bias)]);
            }
            if let Some(low_rank) = &layer.low_rank {
                parts.extend([(Some(low_rank.a), a), (Some(low_rank.b), b)]);
                parts.extend([(low_rank.b_bias, Part::LoraBBias), (low_rank.magnitude, Part::Magnitude)]);
            }
            let sum = match style {
                Style::Colwise if module != HEAD => sums.colwise,
                Style::Rowwise => sums.rowwise,
                _ => AdapterSum::Fused,
            };
            let apart = layer.low_rank.as_ref().is_some_and(|l| runs_apart(sum, l.magnitude.is_some()));
            for (index, part) in parts {
                let Some(index) = index else { continue };
                let placement = Placement::of(style, part, &shapes[index], &split)?;
                let factor = matches!(part, Part::LoraA | Part::LoraB | Part::LoraBBias);
                placements[index] = Some(if apart && factor { placement.completed() } else { placement });
            }
        }
        for (module, norm) in blueprint.norms_mut() {
            let gradient = match style_of(&module) {
                Style::Replicated => Gradient::Complete,
                _ => Gradient::Partial,
            };
            for index in [Some(norm.weight), norm.saved].into_iter().flatten() {
                placements[index] = Some(Placement::replicated(&shapes[index], ranks, gradient));
            }
        }
        let registry = &blueprint.registry;
        for (index, parameter) in registry.iter().enumerate() {
            if let Some(target) = parameter.alias_of.as_ref().and_then(|name| registry.index_of(name)) {
                placements[index] = placements[target].clone();
            }
        }
        let placements = placements
            .into_iter()
            .zip(registry.iter())
            .map(|(placement, p)| {
                placement.ok_or_else(|| ModelError::UnknownParameter { name: p.name.clone() })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { ranks, placements, heads, head_dim: spec.head_dim, mlp, vocab, sums })
    }

    /// How the parameter at `index` lies.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn placement(&self, index: usize) -> &Placement {
        &self.placements[index]
    }

    /// How addends of adapters on the linears of blocks are summed.
    #[must_use]
    pub fn sums(&self) -> AdapterSums {
        self.sums
    }

    /// The ranks of the axis.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Rows of the vocabulary that the rank with most has.
    pub(crate) fn widest_vocab(&self) -> usize {
        (0..self.ranks).map(|rank| self.vocab.len(rank)).max().unwrap_or(0)
    }

    /// The registry with the shapes of what `rank` holds.
    #[must_use]
    pub fn local_registry(&self, registry: &Registry, rank: usize) -> Registry {
        let mut local = registry.clone();
        for (parameter, placement) in local.iter_mut().zip(&self.placements) {
            parameter.shape = placement.local_shape(rank);
            parameter.layout = placement.layout();
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
        let placement = &self.placements[index];
        let Some(split) = placement.split() else { return read(rows) };
        if placement.dim() != Some(0) {
            return Ok(columns_of(&read(rows)?, split.pieces(rank)));
        }
        match split.global(rank, &rows).as_slice() {
            [] => {
                let at = split.range(rank).map_or(0, |range| range.start);
                read(at..at)
            }
            [first, others @ ..] => {
                let mut tensor = read(first.clone())?;
                for range in others {
                    append_rows(&mut tensor, read(range.clone())?);
                }
                Ok(tensor)
            }
        }
    }

    /// The columns that `rank` holds of a parameter that is divided by columns, where they are one range.
    pub(crate) fn columns(&self, index: usize, rank: usize) -> Option<Range<usize>> {
        let placement = &self.placements[index];
        let split = placement.split().filter(|_| placement.dim() == Some(1))?;
        split.range(rank)
    }

    pub(crate) fn shard(&self, tp: Tp) -> Shard {
        let rank = tp.rank();
        let own = self.heads.of(rank);
        let rows: Vec<usize> = (0..self.ranks).map(|rank| self.vocab.len(rank)).collect();
        let ranks = tp.clone();
        let gather = move |own: &[f32]| {
            let counts = vec![own.len(); ranks.size()];
            match ranks.all_gather(own.to_vec(), &counts, HEAD) {
                Some(parts) => parts.concat().into_vec(),
                // The error is kept; what is computed until it is asked for does not matter.
                None => own.repeat(ranks.size()),
            }
        };
        let head = VocabShard::new(&rows, rank, Arc::new(gather)).ok().filter(|_| tp.size() > 1);
        let first = |split: &Split| split.range(rank).map_or(0, |range| range.start);
        Shard {
            heads: own.q.len(),
            kv_heads: own.kv.len(),
            vocab: self.vocab.clone(),
            first_o: first(&self.heads.q(self.head_dim)),
            first_down: first(&self.mlp),
            head,
            sums: self.sums,
            tp,
        }
    }
}

/// The split of a layer's divided features.
fn split_of(
    module: &str,
    spec: &Spec,
    heads: &HeadSplit,
    mlp: &Split,
    vocab: &Split,
) -> Result<Split, ModelError> {
    let (q, kv) = (heads.q(spec.head_dim), heads.kv(spec.head_dim));
    Ok(match module.rsplit('.').next().unwrap_or_default() {
        "q_proj" | "o_proj" => q,
        "k_proj" | "v_proj" => kv,
        "qkv_proj" => Split::packed(&[q, kv.clone(), kv])?,
        "gate_up_proj" => Split::packed(&[mlp.clone(), mlp.clone()])?,
        _ if module == EMBED || module == HEAD => vocab.clone(),
        _ => mlp.clone(),
    })
}

/// This rank's part of a decoder while it runs.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) tp: Tp,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) vocab: Split,
    /// The first columns of the inputs of row-parallel layers that this rank has.
    pub(crate) first_o: usize,
    pub(crate) first_down: usize,
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
            first_o: 0,
            first_down: 0,
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

    /// Whether there are others.
    pub(crate) fn divided(&self) -> bool {
        self.tp.size() > 1
    }

    /// Whether this rank adds what is to be added once (biases of row-parallel layers).
    pub(crate) fn first(&self) -> bool {
        self.tp.rank() == 0
    }
}
