//! The generic decoder: embedding, blocks, final norm, head.
//!
//! Tokens of all sequences lie one after another; nothing is padded. Llama's block is
//! `x + o(attention(qkv(norm(x))))`, then `x + down(swiglu(gate_up(norm(x))))`, in five fused operations; where other
//! families' norms stand and what their feed-forward reads says [`BlockLayout`](crate::BlockLayout).

pub(crate) mod activation_memory;
pub(crate) mod adapter;
pub(crate) mod block;
pub(crate) mod blueprint;
pub(crate) mod change;
pub(crate) mod chunks;
pub(crate) mod delta;
pub(crate) mod embedding_noise;
pub(crate) mod forward_context;
pub(crate) mod input_tap;
pub(crate) mod invocation;
pub(crate) mod latent;
pub(crate) mod layers;
pub(crate) mod local_params;
pub(crate) mod logit_peaks;
pub(crate) mod lora_rank_reduce;
pub(crate) mod mixed;
pub(crate) mod orthogonality;
pub(crate) mod prompt_encoder;
pub(crate) mod queries_keys;
pub(crate) mod rotaries;
pub(crate) mod score;
pub(crate) mod selective_scan;
pub(crate) mod ssd;
pub(crate) mod state_cache;
pub(crate) mod streams;
pub(crate) mod tp_plan;
pub(crate) mod virtual_tokens;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::activation::gelu;
use burn::tensor::{FloatDType, Tensor};
use burnish_core::{Compute, Dtype};
use burnish_ops::{
    AnyTensor, AttentionShape, ColumnNorm, Documents, HeadOptions, Linear, LinearInput, OpsError,
    RouterBalance, Run, VocabShard, attention, attention_with_peaks, embedding, held, linears, norm_columns,
    scaled_sum, select_rows, short_conv, split_columns,
};
use burnish_tp::Split;

use crate::decoder::block::{OnTensors, Walked, run_block};
use crate::decoder::blueprint::PerLayerTables;
use crate::decoder::chunks::Seen;
use crate::decoder::input_tap::BlockTap;
use crate::decoder::invocation::{Invocation, acting};
use crate::decoder::layers::{Block, BlockTensors, Layer, Norm};
use crate::decoder::mixed::Mixed;
use crate::decoder::queries_keys::{Factors, Orders, Turning};
use crate::decoder::rotaries::KeptRotations;
use crate::decoder::state_cache::Behind;
use crate::decoder::streams::StreamLayers;
use crate::decoder::tp_plan::Shard;
use crate::decoder::virtual_tokens::{Prompt, Virtual};
use crate::spec::names::PER_LAYER;
use crate::spec::{KeysValues, Output, PerLayerInputs};
use crate::{ForwardContext, LogitPeaks, ModelError, Parameters, Spec};

/// A micro-batch of token sequences, flattened.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// Token ids of all sequences, one after another.
    pub ids: Arc<Vec<u32>>,
    /// Each token's position in its sequence.
    pub positions: Arc<Vec<u32>>,
    /// Where each sequence lies; attention stays inside.
    pub documents: Documents,
    /// For each document the one that it continues, whose tokens it sees as well and whose positions it goes on from;
    /// empty where none does.
    pub parents: Arc<Vec<Option<usize>>>,
    /// Each token's counter in the step's global batch, for dropout.
    pub rows: Arc<Vec<u64>>,
}

impl Tokens {
    /// Sequences one after another, positions from 0.
    #[must_use]
    pub fn from_sequences<S: AsRef<[u32]>>(sequences: &[S]) -> Self {
        let (mut ids, mut positions, mut documents, mut rows) = (vec![], vec![], vec![], vec![]);
        for (row, sequence) in sequences.iter().enumerate() {
            let start = ids.len();
            ids.extend_from_slice(sequence.as_ref());
            positions.extend(0..sequence.as_ref().len() as u32);
            rows.extend((0..sequence.as_ref().len() as u64).map(|p| (row as u64) << 32 | p));
            documents.push(start..ids.len());
        }
        Self {
            ids: Arc::new(ids),
            positions: Arc::new(positions),
            documents: documents.into(),
            parents: Arc::default(),
            rows: Arc::new(rows),
        }
    }
}

impl Tokens {
    /// In how many texts each token is, where documents continue others: of those that continue its document.
    fn texts(&self) -> Option<Vec<f32>> {
        let mut of = vec![0.0_f32; self.documents.len()];
        self.parents.iter().flatten().for_each(|&parent| of[parent] += 1.0);
        if of.iter().all(|texts| *texts <= 1.0) {
            return None;
        }
        let mut texts = vec![0.0; self.positions.len()];
        for (document, of) in self.documents.iter().zip(of) {
            texts[document.clone()].fill(of.max(1.0));
        }
        Some(texts)
    }

    /// The length of the text that each document belongs to: the longest of those that continue one.
    fn lengths(&self) -> Vec<usize> {
        let root = |i: usize| self.parents.get(i).copied().flatten().unwrap_or(i);
        let mut longest = vec![0; self.documents.len()];
        for (i, document) in self.documents.iter().enumerate() {
            let own = document.clone().filter_map(|at| self.positions.get(at)).max();
            longest[root(i)] = longest[root(i)].max(own.map_or(0, |&p| p as usize + 1));
        }
        (0..self.documents.len()).map(|i| longest[root(i)]).collect()
    }
}

/// What blocks of the same sizes share.
pub(crate) struct BlockKind {
    /// The model's, with these sizes.
    pub(crate) spec: Arc<Spec>,
    /// What this rank has of such a block.
    pub(crate) shard: Shard,
    pub(crate) orders: Orders,
}

/// A decoder-only language model.
pub struct Decoder {
    pub(crate) spec: Arc<Spec>,
    pub(crate) parameters: Arc<dyn Parameters>,
    pub(crate) embed: Layer,
    pub(crate) prompt: Option<Prompt>,
    /// What the adapter waits for in a text.
    pub(crate) invocation: Option<Invocation>,
    /// Where sequences choose from several adapters.
    pub(crate) mixed: Option<Mixed>,
    pub(crate) embed_norm: Option<Norm>,
    pub(crate) positions: Option<Layer>,
    pub(crate) projections: Option<[Layer; 2]>,
    pub(crate) per_layer: Option<PerLayerTables>,
    pub(crate) streams: Option<StreamLayers>,
    pub(crate) blocks: Vec<Arc<Block>>,
    /// Per block what those of its sizes share.
    pub(crate) kinds: Vec<Arc<BlockKind>>,
    pub(crate) dense_head: Option<(Norm, Layer)>,
    pub(crate) norm: Norm,
    pub(crate) head: Layer,
    pub(crate) shard: Shard,
    /// What products multiply.
    pub(crate) compute: Compute,
    pub(crate) rotations: KeptRotations,
}

impl Decoder {
    /// What it is.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its parameters.
    #[must_use]
    pub fn parameters(&self) -> &Arc<dyn Parameters> {
        &self.parameters
    }

    /// A pass over this model's parameters; of the base, where there are [several adapters](Self::adapters).
    #[must_use]
    pub fn pass(&self, mode: crate::Mode) -> ForwardContext {
        ForwardContext::new(self.parameters.clone(), mode, self.mixed.is_none())
    }

    /// Where passes may note the largest attention logit of each head ([`ForwardContext::with_logit_peaks`]): empty.
    #[must_use]
    pub fn logit_peaks(&self) -> Arc<LogitPeaks> {
        let first = self.shard.first_head;
        Arc::new(LogitPeaks::new(self.blocks.len(), self.spec.heads, first..first + self.shard.heads))
    }

    /// Where a pass's routers may note their choices, and feel the auxiliary loss times `coefficient`
    /// ([`ForwardContext::with_router_balance`]); `None` of a model without experts.
    #[must_use]
    pub fn router_balance(&self, coefficient: f32) -> Option<Arc<RouterBalance>> {
        let experts = self.spec.experts.as_ref()?;
        Some(Arc::new(RouterBalance::new(self.blocks.len(), experts.count, coefficient)))
    }

    /// The residual stream after the last block, before the final norm: `[tokens, hidden]`; or what the head reads, where
    /// that is of another width.
    ///
    /// # Errors
    /// If an id is outside the vocabulary, or a tensor does not fit.
    pub fn hidden(&self, tokens: &Tokens, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        let count = self.virtual_tokens(pass);
        let among = (count > 0).then(|| Virtual::before(tokens, count, self.has_prefix()));
        let tokens = among.as_ref().map_or(tokens, |among| &among.tokens);
        // The base alone is laid out alike, so that the two differ in the adapter and not in the order of sums.
        let invoked = self.invocation.as_ref().map(|invocation| invocation.among(tokens));
        let own = invoked.as_ref().and_then(|invoked| invoked.apart.as_ref());
        let tokens = own.map_or(tokens, |own| &own.tokens);
        let assembly = pass.assembly(&tokens.rows, self.compute);
        if among.is_some() && pass.embedding_noise().is_some() {
            let (key, supported) = ("neftune_noise_alpha".to_owned(), "none with virtual tokens");
            return Err(ModelError::Unsupported { key, got: "given".to_owned(), supported });
        }
        let noisy = |x: AnyTensor| match pass.embedding_noise() {
            Some(noise) => noise.on(&x, tokens),
            None => Ok(x),
        };
        let given = among.as_ref().map(|among| among.given.as_slice());
        let x = self.embed_tokens(&tokens.ids, given, &tokens.positions, pass, &tokens.rows, &noisy)?;
        let prefix = self.prefix(given, tokens.positions.len(), pass)?;
        let x = self.embeddings_normed(x, pass)?;
        let given = self.per_layer_inputs(&tokens.ids, &x, pass, &tokens.rows, linears)?;
        let mut x = self.streams_of(x, pass, &tokens.rows, linears)?;
        if pass.training() && !x.is_tracked() {
            // Nothing below the blocks is trained: what reads the stream then makes no gradient of it. Ranks that share
            // layers make it all the same: they run what was planned for every rank.
            x = if self.shard.divided() { x.leaf() } else { x.untracked() };
        }
        let invoked = invoked.as_ref().filter(|_| pass.adapters());
        let device = x.plain().device();
        let acts = match invoked.and_then(|invoked| acting(&invoked.acts, &device)) {
            Some(acts) => Some(acts),
            None => self.acts_of_documents(tokens, pass, &device)?,
        };
        let rotaries = self.rotaries(tokens);
        let factors = Factors::new(&self.spec, &self.shard, &tokens.positions);
        if let Some(peaks) = pass.logit_peaks() {
            peaks.check(self.blocks.len(), self.shard.heads)?;
        }
        if let Some(balance) = pass.router_balance()
            && let Some(texts) = tokens.texts()
        {
            balance.count_texts(texts);
        }
        let mut lent = BTreeMap::new();
        let mut seen: BTreeMap<Option<usize>, Seen> = BTreeMap::new();
        for (layer, block) in self.blocks.iter().enumerate() {
            let indices = block.indices(pass.adapters());
            let chunk = block.own.chunk;
            let Seen { documents, parents } =
                seen.entry(chunk).or_insert_with(|| Seen::of(tokens, chunk)).clone();
            let kind = self.kinds[layer].clone();
            let turning = Turning::new(block.own, &rotaries, &kind.orders, &factors);
            let (plan, how, acts) = (block.clone(), assembly.clone(), acts.clone());
            let peaks = pass.logit_peaks().cloned();
            let mut shape = self.attention_shape(layer);
            shape.parents = parents;
            let balance = pass.router_balance().cloned();
            let tap = pass.input_tap().cloned();
            // Its inputs: the stream, what it is given beside that, keys and values of another block.
            let mut inputs = vec![x];
            inputs.extend(self.own_input(given.as_ref(), layer)?);
            let borrowed = match block.own.keys {
                KeysValues::Of(lender) => lent.get(&lender).cloned(),
                _ => None,
            };
            let borrows = borrowed.is_some();
            inputs.extend(borrowed);
            let prefix_at = inputs.len();
            inputs.extend(prefix.as_ref().map(|(keys, _)| keys.clone()));
            let prefix_rows = prefix.as_ref().map(|(_, rows)| rows.clone());
            let lends = self.spec.lends_keys(layer);
            let run: Run = Arc::new(move |inputs, weights| {
                let (spec, shard) = (&*kind.spec, &kind.shard);
                let w = plan.assemble(weights, &how, spec, shard)?;
                let balance = balance.as_ref().map(|balance| (balance, layer));
                let run = OnTensors {
                    shard,
                    spec,
                    linears,
                    turning: &turning,
                    decodes: false,
                    same_tokens: false,
                    given: spec.per_layer.and_then(|_| inputs.get(1)),
                    keys: inputs.last().filter(|_| borrows),
                    balance,
                    acts: acts.as_ref(),
                    tap: tap.clone().map(|tap| BlockTap::new(tap, &plan, &w)),
                };
                let mut keys = None;
                let attend = |qkv: &AnyTensor| {
                    if lends {
                        keys = Some(keys_values(qkv, &shape)?);
                    }
                    if let (Some(delta), Some((kernel, _))) = (&w.delta, w.kernel()) {
                        return delta::attend(qkv, kernel, delta, spec, &documents, &shape.parents);
                    }
                    if let Some((kernel, bias)) = w.kernel() {
                        return short_conv(qkv, kernel, bias, &documents, &shape.parents);
                    }
                    let mut norm = w.head_norm(spec);
                    let with_prefix = match &prefix_rows {
                        Some(rows) => {
                            norm = None;
                            let (keys, norms) = (&inputs[prefix_at], w.qk_norms.as_ref());
                            Some(rows.on(qkv, keys, layer, norms, (spec, shard))?)
                        }
                        None => None,
                    };
                    let qkv = with_prefix.as_ref().unwrap_or(qkv);
                    let (rotary, norm) = (turning.in_attention(spec), norm.as_ref());
                    let Some(peaks) = &peaks else {
                        return attention(qkv, &shape, &documents, rotary, norm, w.sinks.as_ref());
                    };
                    let sinks = w.sinks.as_ref();
                    let (out, found) = attention_with_peaks(qkv, &shape, &documents, rotary, norm, sinks)?;
                    peaks.merge(layer, &found)?;
                    Ok(out)
                };
                let walk = |walked: Walked<'_, AnyTensor>| {
                    let ssd = w.ssd.as_ref().expect("invariant: what is walked has a state space");
                    ssd::walk(walked, ssd, spec, &documents, Behind::Texts { parents: &shape.parents })
                };
                let x = run_block(&run, &inputs[0], &w.layers(), &plan.name, attend, walk)?;
                // A block gives one tensor: what it lends stands beside the stream.
                match keys {
                    Some(keys) => beside(&x, &keys),
                    None => Ok(x),
                }
            });
            x = pass.block(&block.name, &inputs, indices, run)?;
            if lends {
                let keys;
                (x, keys) = apart(&x, self.spec.passed_on())?;
                lent.insert(layer, keys);
            }
        }
        let x = self.of_streams(x, pass, &tokens.rows, linears)?;
        let x = self.projected(1, x, pass, &tokens.rows, linears)?;
        let x = self.densed(x, pass, &tokens.rows, linears)?;
        match among.as_ref().map(|among| &among.given).or(own.map(|own| &own.given)) {
            Some(given) => Ok(select_rows(&x, given)?),
            None => Ok(x),
        }
    }

    /// Embeddings `[positions, hidden]` of `ids` at `positions`; virtual tokens stand in the rows that are not `given`, and
    /// `noisy` changes what the embedding's module gives.
    pub(crate) fn embed_tokens(
        &self,
        ids: &Arc<Vec<u32>>,
        given: Option<&[usize]>,
        positions: &Arc<Vec<u32>>,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        noisy: &dyn Fn(AnyTensor) -> Result<AnyTensor, OpsError>,
    ) -> Result<AnyTensor, ModelError> {
        let names = &self.spec.names;
        if let Some((limit, key)) = self.spec.limit()
            && let Some(&p) = positions.iter().find(|&&p| p as usize >= limit)
        {
            return Err(ModelError::TooLong { got: p as usize + 1, key, limit });
        }
        let table = |layer: &Layer| -> Result<_, ModelError> {
            let mut read = pass.read_all(&layer.indices(pass.adapters()))?.into_iter();
            Ok(layer.embedding(&mut read, &pass.assembly(rows, self.compute), &self.shard, 0)?)
        };
        let split = &self.shard.embeddings;
        let mut x = self.looked_up((&self.embed, names.embed, split), ids, pass, rows)?;
        if self.projections.is_some() {
            x = self.projected(0, noisy(x)?, pass, rows, linears)?;
        }
        if let Some(given) = given {
            x = self.with_virtual(&x, (given, positions.len()), pass)?;
        }
        let noisy = |x| if self.projections.is_some() { Ok(x) } else { noisy(x) };
        let placed = match (&self.positions, self.spec.positions) {
            (Some(layer), Some(learned)) => {
                let rows: Vec<u32> = positions.iter().map(|p| p + learned.offset as u32).collect();
                let (weight, low_rank) = table(layer)?;
                Some(embedding(&Arc::new(rows), &weight, low_rank.as_ref())?)
            }
            _ if self.spec.sinusoids => Some(sinusoids(positions, self.spec.hidden, &x)),
            _ => None,
        };
        if placed.is_none() && self.spec.embedding_scale == 1.0 {
            return Ok(noisy(x)?);
        }
        Ok(noisy(scaled_sum(&x, self.spec.embedding_scale, placed.as_ref())?)?)
    }

    /// `x` through the layer between the embedding and the stream (0), or between the stream and the head (1), where there
    /// is one.
    pub(crate) fn projected(
        &self,
        at: usize,
        x: AnyTensor,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<AnyTensor, ModelError> {
        let Some(layer) = self.projections.as_ref().map(|both| &both[at]) else { return Ok(x) };
        let mut read = pass.read_all(&layer.indices(pass.adapters()))?.into_iter();
        let linear = layer.linear(&mut read, &pass.assembly(rows, self.compute), 0)?;
        Ok(linears(&LinearInput::Plain(x), &[linear], None)?)
    }

    /// `x` through the norm behind the blocks, the layer before the head's own norm and its activation, where there is one.
    pub(crate) fn densed(
        &self,
        x: AnyTensor,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<AnyTensor, ModelError> {
        let Some((norm, layer)) = &self.dense_head else { return Ok(x) };
        let how = pass.assembly(rows, self.compute);
        let all = [norm.indices(pass.adapters()), layer.indices(pass.adapters())].concat();
        let mut read = pass.read_all(&all)?.into_iter();
        let x = norm.read(&mut read, &how, self.spec.norm, &x.device())?.of(&x, &self.spec)?;
        let y = linears(&LinearInput::Plain(x), &[layer.linear(&mut read, &how, 0)?], None)?;
        Ok(AnyTensor::new(gelu(y.rank::<2>()?)))
    }

    /// Rows of a table, of which each rank has some as `split` says.
    fn looked_up(
        &self,
        (layer, name, split): (&Layer, &str, &Split),
        ids: &Arc<Vec<u32>>,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
    ) -> Result<AnyTensor, ModelError> {
        let mut read = pass.read_all(&layer.indices(pass.adapters()))?.into_iter();
        let how = pass.assembly(rows, self.compute);
        let own = split.range(self.shard.tp.rank()).unwrap_or_default();
        let (mut weight, mut low_rank) = layer.embedding(&mut read, &how, &self.shard, own.start)?;
        if let Some(row) = self.own_padding(&own).filter(|_| pass.training()) {
            weight = held(&weight, 0, row)?;
            if let Some(low_rank) = &mut low_rank {
                low_rank.a = held(&low_rank.a, 1, row)?;
                let rows = layer.change.as_ref().map_or(&[][..], |change| change.rows());
                let padding = self.spec.padding.map(|id| id as usize);
                if let Some(column) = rows.iter().position(|&id| Some(id) == padding) {
                    low_rank.b = held(&low_rank.b, 1, column)?;
                }
            }
        }
        Ok(if self.shard.divided() {
            self.shard.tp.embedding(ids, &weight, low_rank.as_ref(), &own, split.length(), name)?
        } else {
            embedding(ids, &weight, low_rank.as_ref())?
        })
    }

    /// What the blocks are given beside the stream, `[tokens, blocks * width]`, from tokens and their embeddings `x`.
    pub(crate) fn per_layer_inputs(
        &self,
        ids: &Arc<Vec<u32>>,
        x: &AnyTensor,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
        linears: Linears,
    ) -> Result<Option<AnyTensor>, ModelError> {
        let (Some(own), Some(PerLayerInputs { width, tokens })) = (&self.per_layer, self.spec.per_layer)
        else {
            return Ok(None);
        };
        let has = |&id: &u32| (id as usize) < tokens;
        let ids = match ids.iter().all(has) {
            true => ids.clone(),
            false => Arc::new(ids.iter().map(|&id| if has(&id) { id } else { 0 }).collect()),
        };
        let of_token =
            self.looked_up((&own.table, PER_LAYER[0], &self.shard.tokens_with_inputs), &ids, pass, rows)?;
        let [_, of_projection, of_norm] = own.indices(pass.adapters());
        let how = pass.assembly(rows, self.compute);
        let projection = own.projection.linear(&mut pass.read_all(&of_projection)?.into_iter(), &how, 0)?;
        let of_stream = linears(&LinearInput::Plain(x.clone()), &[projection], None)?;
        let norm =
            own.norm.read(&mut pass.read_all(&of_norm)?.into_iter(), &how, self.spec.norm, &x.device())?;
        // The mean of both, but for the root of two; the projection is divided by the root of the width of the stream,
        // which the norm takes away but for what is added to the mean square.
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let norm = ColumnNorm {
            first: 0,
            groups: self.blocks.len(),
            width,
            gamma: AnyTensor::new(norm.gamma.rank::<1>()? * half),
            beta: None,
        };
        let eps = self.spec.norm_eps * self.spec.hidden as f32;
        let of_stream = norm_columns(&of_stream, &[norm], false, eps, None)?;
        Ok(Some(scaled_sum(&of_token, (width as f32).sqrt() * half, Some(&of_stream))?))
    }

    /// What the block at `layer` is given of [`Self::per_layer_inputs`].
    pub(crate) fn own_input(
        &self,
        given: Option<&AnyTensor>,
        layer: usize,
    ) -> Result<Option<AnyTensor>, OpsError> {
        let (Some(given), Some(PerLayerInputs { width, .. })) = (given, self.spec.per_layer) else {
            return Ok(None);
        };
        Ok(Some(AnyTensor::new(given.rank::<2>()?.narrow(1, layer * width, width))))
    }

    /// Embeddings as the first block reads them.
    pub(crate) fn embeddings_normed(
        &self,
        x: AnyTensor,
        pass: &ForwardContext,
    ) -> Result<AnyTensor, ModelError> {
        let Some(norm) = &self.embed_norm else { return Ok(x) };
        let mut read = pass.read_all(&norm.indices(pass.adapters()))?.into_iter();
        let norm =
            norm.read(&mut read, &pass.assembly(&Arc::default(), self.compute), self.spec.norm, &x.device())?;
        Ok(norm.of(&x, &self.spec)?)
    }

    /// The row of this rank's part of a table, of which it has the rows `own`, that the lookup does not train.
    fn own_padding(&self, own: &Range<usize>) -> Option<usize> {
        let row = self.spec.padding? as usize;
        own.contains(&row).then(|| row - own.start)
    }

    /// The tensors of one block.
    pub(crate) fn block_tensors(
        &self,
        index: usize,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
    ) -> Result<BlockTensors, OpsError> {
        let block = &self.blocks[index];
        let tensors = pass.read_all(&block.indices(pass.adapters()))?;
        let kind = &self.kinds[index];
        block.assemble(&tensors, &pass.assembly(rows, self.compute), &kind.spec, &kind.shard)
    }

    /// The final norm, ready for the head.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn final_norm(&self, x: &AnyTensor, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        let mut read = pass.read_all(&self.norm.indices(pass.adapters()))?.into_iter();
        let norm = self.norm.read(
            &mut read,
            &pass.assembly(&Arc::default(), self.compute),
            self.spec.norm,
            &x.device(),
        )?;
        let x = if self.spec.final_norm { norm.of(x, &self.spec)? } else { x.clone() };
        // Each rank's rows of the head give an addend of the gradient; a score every rank computes whole.
        if self.spec.output == Output::Score {
            Ok(x)
        } else {
            Ok(self.shard.tp.copy_to_tp(&x, self.spec.names.head)?)
        }
    }

    /// The output projection to the vocabulary.
    ///
    /// # Errors
    /// If the model gives scores ([`Self::rewards`]), or its tensors cannot be put on the pass's tape.
    pub fn head(&self, pass: &ForwardContext, rows: &Arc<Vec<u64>>) -> Result<Linear, ModelError> {
        self.check_output(Output::Vocabulary)?;
        self.head_linear(pass, rows)
    }

    /// Whether the head gives `wanted`.
    pub(crate) fn check_output(&self, wanted: Output) -> Result<(), ModelError> {
        match (wanted, self.spec.output) {
            (Output::Vocabulary, Output::Score) => Err(ModelError::NoVocabulary),
            (Output::Score, Output::Vocabulary) => Err(ModelError::NoScore),
            _ => Ok(()),
        }
    }

    /// The layer on the last hidden states.
    pub(crate) fn head_linear(
        &self,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
    ) -> Result<Linear, ModelError> {
        let mut read = pass.read_all(&self.head.indices(pass.adapters()))?.into_iter();
        let first = self.shard.own_vocab().start;
        let assembly = pass.assembly(rows, self.compute);
        let mut linear = self.head.linear(&mut read, &assembly, first)?;
        if self.spec.unit_head {
            let unit = || unit_rows(&linear.weight);
            // Where it does not train, texts and tokens of a pass share it.
            linear.weight = match linear.weight.is_tracked() {
                true => unit()?,
                false => assembly.norms.get(self.head.parts.weight, unit)?,
            };
        }
        Ok(linear)
    }

    /// Which rows of the output projection [`Self::head`] gives, when the vocabulary is divided.
    #[must_use]
    pub fn vocab_shard(&self) -> Option<&VocabShard> {
        self.shard.head.as_ref()
    }

    /// How logits are made: this model's scale and cap, with `temperature`.
    #[must_use]
    pub fn head_options(&self, temperature: f32) -> HeadOptions {
        HeadOptions {
            temperature,
            softcap: self.spec.logit_softcap,
            logit_scale: self.spec.logit_scale,
            label_smoothing: 0.0,
        }
    }

    /// The attention of the block at `layer`.
    pub(crate) fn attention_shape(&self, layer: usize) -> AttentionShape {
        let (own, kind) = (self.spec.layers[layer], &self.kinds[layer]);
        AttentionShape {
            heads: kind.shard.heads,
            kv_heads: kind.spec.attended_kv_heads(kind.shard.heads, kind.shard.kv_heads),
            head_dim: kind.spec.attended_dim(),
            scale: self.spec.attention_scale / own.divisor.max(1) as f32,
            softcap: self.spec.attention_softcap,
            slopes: self.own_slopes(),
            window: own.window,
            parents: Arc::default(),
            compute: self.compute,
        }
    }

    /// The slopes of this rank's query heads.
    fn own_slopes(&self) -> Arc<Vec<f32>> {
        let slopes = self.spec.slopes.iter().skip(self.shard.first_head).take(self.shard.heads);
        Arc::new(slopes.copied().collect())
    }
}

/// The columns of keys and values of what attention takes.
pub(crate) fn keys_values(qkv: &AnyTensor, shape: &AttentionShape) -> Result<AnyTensor, OpsError> {
    let (queries, both) = (shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
    Ok(AnyTensor::new(qkv.rank::<2>()?.narrow(1, queries, both)))
}

/// Two matrices side by side.
fn beside(x: &AnyTensor, y: &AnyTensor) -> Result<AnyTensor, OpsError> {
    Ok(AnyTensor::new(Tensor::cat(vec![x.rank::<2>()?, y.rank::<2>()?], 1)))
}

/// The first `columns`, and the others.
fn apart(x: &AnyTensor, columns: usize) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let width = x.shape()[1];
    let pieces = split_columns(x, &[columns, width - columns])?;
    let [first, rest] = pieces.try_into().expect("invariant: a piece for each width");
    Ok((first, rest))
}

/// Sines, then cosines, of positions two further on: `[tokens, hidden]`, as tensor2tensor spaces them.
fn sinusoids(positions: &[u32], hidden: usize, like: &AnyTensor) -> AnyTensor {
    let half = hidden / 2;
    let step = 10_000f64.ln() / (half as f64 - 1.0);
    let mut rows = Vec::with_capacity(positions.len() * hidden);
    for position in positions {
        let angle = |i: usize| (position + 2) as f32 * (i as f64 * -step).exp() as f32;
        rows.extend((0..half).map(|i| angle(i).sin()));
        rows.extend((0..half).map(|i| angle(i).cos()));
        // An odd width ends with a zero.
        rows.extend((2 * half..hidden).map(|_| 0.0));
    }
    AnyTensor::from_elements(rows, &[positions.len(), hidden], &like.plain().device())
}

/// [`linears`], or [`burnish_ops::linears_decode`].
pub(crate) type Linears = fn(&LinearInput, &[Linear], Option<&AnyTensor>) -> Result<AnyTensor, OpsError>;

/// A matrix whose rows have length one.
fn unit_rows(weight: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let dtype = weight.dtype();
    let wide = match dtype {
        Some(Dtype::F32) | None => weight.rank::<2>()?,
        Some(_) => weight.rank::<2>()?.cast(FloatDType::F32),
    };
    let lengths = (wide.clone() * wide.clone()).sum_dim(1).sqrt().clamp_min(SHORTEST_ROW);
    let unit = wide / lengths;
    Ok(AnyTensor::new(match dtype {
        Some(Dtype::Bf16) => unit.cast(FloatDType::BF16),
        Some(Dtype::F16) => unit.cast(FloatDType::F16),
        _ => unit,
    }))
}

/// What shorter rows are divided by, as PyTorch's `normalize`.
const SHORTEST_ROW: f32 = 1e-12;
