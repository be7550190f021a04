//! The generic decoder: embedding, blocks, final norm, head.
//!
//! Tokens of all sequences lie one after another; nothing is padded. A block is
//! `x + o(attention(qkv(norm(x))))`, then `x + down(swiglu(gate_up(norm(x))))`, in five fused operations.

pub(crate) mod activation_memory;
pub(crate) mod adapter;
pub(crate) mod block;
pub(crate) mod blueprint;
pub(crate) mod forward_context;
pub(crate) mod layers;
pub(crate) mod local_params;
pub(crate) mod logit_peaks;
pub(crate) mod lora_rank_reduce;
pub(crate) mod score;
pub(crate) mod tp_plan;

use std::ops::Range;
use std::sync::Arc;

use burnish_ops::{
    AnyTensor, AttentionShape, HeadOptions, Linear, LinearInput, OpsError, Rotary, Run, VocabShard,
    attention, attention_with_peaks, embedding, linears, rms_norm,
};

use crate::decoder::block::{OnTensors, run_block};
use crate::decoder::layers::{Block, BlockTensors, Layer, Norm};
use crate::decoder::tp_plan::Shard;
use crate::spec::Output;
use crate::spec::{EMBED, HEAD};
use crate::{ForwardContext, LogitPeaks, ModelError, Parameters, Spec};

/// A micro-batch of token sequences, flattened.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// Token ids of all sequences, one after another.
    pub ids: Arc<Vec<u32>>,
    /// Each token's position in its sequence.
    pub positions: Arc<Vec<u32>>,
    /// Where each sequence lies; attention stays inside.
    pub documents: Arc<Vec<Range<usize>>>,
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
            documents: Arc::new(documents),
            parents: Arc::default(),
            rows: Arc::new(rows),
        }
    }
}

/// A decoder-only language model.
pub struct Decoder {
    pub(crate) spec: Spec,
    pub(crate) parameters: Arc<dyn Parameters>,
    pub(crate) embed: Layer,
    pub(crate) blocks: Vec<Arc<Block>>,
    pub(crate) norm: Norm,
    pub(crate) head: Layer,
    pub(crate) shard: Shard,
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

    /// A pass over this model's parameters.
    #[must_use]
    pub fn pass(&self, mode: crate::Mode) -> ForwardContext {
        ForwardContext::new(self.parameters.clone(), mode, true)
    }

    /// Where passes may note the largest attention logit of each head ([`ForwardContext::with_logit_peaks`]): empty.
    #[must_use]
    pub fn logit_peaks(&self) -> Arc<LogitPeaks> {
        let first = self.shard.first_o / self.spec.head_dim;
        Arc::new(LogitPeaks::new(self.blocks.len(), self.spec.heads, first..first + self.shard.heads))
    }

    /// The residual stream after the last block, before the final norm: `[tokens, hidden]`.
    ///
    /// # Errors
    /// If an id is outside the vocabulary, or a tensor does not fit.
    pub fn hidden(&self, tokens: &Tokens, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        let assembly = pass.assembly(&tokens.rows);
        let mut x = self.embed_tokens(&tokens.ids, pass, &tokens.rows)?;
        if pass.training() && !x.is_tracked() {
            // Gradients of the blocks must flow even when the embedding is frozen.
            x = x.leaf();
        }
        let rotary = self.rotary(&tokens.positions);
        if let Some(peaks) = pass.logit_peaks() {
            peaks.check(self.blocks.len(), self.shard.heads)?;
        }
        for (layer, block) in self.blocks.iter().enumerate() {
            let indices = block.indices(pass.adapters());
            let (plan, how, rotary, documents) =
                (block.clone(), assembly.clone(), rotary.clone(), tokens.documents.clone());
            let (shard, peaks) = (self.shard.clone(), pass.logit_peaks().cloned());
            let (mut shape, eps) = (self.attention_shape(block.window), self.spec.norm_eps);
            shape.parents = tokens.parents.clone();
            let run: Run = Arc::new(move |inputs, weights| {
                let w = plan.assemble(weights, &how, eps, &shard)?;
                let run = OnTensors { shard: &shard, eps, linears };
                run_block(&run, &inputs[0], &w.layers(), &plan.name, |qkv| {
                    let (rotary, norm) = (Some(&rotary), w.head_norm.as_ref());
                    let Some(peaks) = &peaks else { return attention(qkv, &shape, &documents, rotary, norm) };
                    let (out, found) = attention_with_peaks(qkv, &shape, &documents, rotary, norm)?;
                    peaks.merge(layer, &found)?;
                    Ok(out)
                })
            });
            x = pass.block(&block.name, &x, indices, run)?;
        }
        Ok(x)
    }

    /// Embeddings `[tokens, hidden]` of `ids`.
    pub(crate) fn embed_tokens(
        &self,
        ids: &Arc<Vec<u32>>,
        pass: &ForwardContext,
        rows: &Arc<Vec<u64>>,
    ) -> Result<AnyTensor, ModelError> {
        let mut read = pass.read_all(&self.embed.indices(pass.adapters()))?.into_iter();
        let (table, low_rank) = self.embed.embedding(&mut read, &pass.assembly(rows), &self.shard)?;
        if !self.shard.divided() {
            return Ok(embedding(ids, &table, low_rank.as_ref())?);
        }
        let (tp, own) = (&self.shard.tp, self.shard.own_vocab());
        Ok(tp.embedding(ids, &table, low_rank.as_ref(), &own, self.spec.vocab, EMBED)?)
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
        block.assemble(&tensors, &pass.assembly(rows), self.spec.norm_eps, &self.shard)
    }

    /// The final norm, ready for the head.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn final_norm(&self, x: &AnyTensor, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        let x = rms_norm(x, &pass.read(self.norm.index(pass.adapters()))?, self.spec.norm_eps)?;
        // Each rank's rows of the head give an addend of the gradient; a score every rank computes whole.
        if self.spec.output == Output::Score { Ok(x) } else { Ok(self.shard.tp.copy_to_tp(&x, HEAD)?) }
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
        Ok(self.head.linear(&mut read, &pass.assembly(rows))?)
    }

    /// Which rows of the output projection [`Self::head`] gives, when the vocabulary is divided.
    #[must_use]
    pub fn vocab_shard(&self) -> Option<&VocabShard> {
        self.shard.head.as_ref()
    }

    /// How logits are made: this model's scale and cap, with `temperature`.
    #[must_use]
    pub fn head_options(&self, temperature: f32) -> HeadOptions {
        HeadOptions { temperature, ..HeadOptions::default() }
    }

    pub(crate) fn attention_shape(&self, window: Option<usize>) -> AttentionShape {
        AttentionShape {
            heads: self.shard.heads,
            kv_heads: self.shard.kv_heads,
            head_dim: self.spec.head_dim,
            scale: (self.spec.head_dim as f32).powf(-0.5),
            softcap: None,
            window,
            parents: Arc::default(),
        }
    }

    pub(crate) fn rotary(&self, positions: &Arc<Vec<u32>>) -> Rotary {
        let length = positions.iter().max().map_or(0, |&p| p as usize + 1);
        let rope = &self.spec.rope;
        Rotary::new(Arc::new(rope.table(length)), positions.clone(), rope.dim)
    }
}

/// [`linears`], or [`burnish_ops::linears_decode`].
pub(crate) type Linears = fn(&LinearInput, &[Linear], Option<&AnyTensor>) -> Result<AnyTensor, OpsError>;
