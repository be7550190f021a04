//! A decoder's layers as parameter indices: what to read, in which order, and how to put it together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::random::Stream;
use burnish_core::{LinearPart, LinearParts};
use burnish_ops::{
    AnyTensor, Dropout, EmbeddingLowRank, HeadNorm, Linear, LowRank, Magnitude, OpsError, row_norms,
};

use crate::decoder::block::{BlockLayers, OnTensors};
use crate::decoder::lora_rank_reduce::runs_apart;
use crate::decoder::tp_plan::Shard;

/// Dropout of one training step: sites add their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutStep {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
}

/// How layers are assembled in a pass.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    /// Whether adapters (and `modules_to_save` copies) are active.
    pub(crate) adapters: bool,
    /// Dropout, with each token's counter.
    pub(crate) dropout: Option<(DropoutStep, Arc<Vec<u64>>)>,
    /// Norms of adapted weights (DoRA), for as long as the weights stand still.
    pub(crate) norms: Norms,
}

/// Norms of adapted weights by the index of their magnitude: made once per pass, which the weights do not outlive.
///
/// A pass scores or trains on one set of values: a decoding reuses the norms at every token, a recomputed block in its
/// backward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Norms(Arc<Mutex<BTreeMap<usize, AnyTensor>>>);

impl Norms {
    fn get(
        &self,
        magnitude: usize,
        make: impl FnOnce() -> Result<AnyTensor, OpsError>,
    ) -> Result<AnyTensor, OpsError> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(norm) = known().get(&magnitude) {
            return Ok(norm.clone());
        }
        let norm = make()?;
        known().insert(magnitude, norm.clone());
        Ok(norm)
    }
}

/// An adapter on a linear layer or embedding, beside its tensors.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    /// The module, by which randomness and collectives are named.
    pub(crate) site: String,
    pub(crate) scale: f32,
    pub(crate) dropout: f32,
}

/// A linear layer, or the embedding (which has no bias): where its tensors are in the registry.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) parts: LinearParts<usize>,
    /// `modules_to_save`: the trained copies that replace weight and bias while adapters are active.
    pub(crate) saved: Option<LinearParts<usize>>,
    /// How `parts.lora` is applied.
    pub(crate) adapter: Option<Adapter>,
}

/// From weight, A, B and scale to the norms that a magnitude divides by.
type NormsOf<'a> = dyn Fn(&AnyTensor, &AnyTensor, &AnyTensor, f32) -> Result<AnyTensor, OpsError> + 'a;

/// What magnitudes are divided by: a row of zeros (an unused token) has no direction, so it stays zero and its magnitude
/// does not train, where 0 / 0 would spread.
fn divisors(norms: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let norms = norms.rank::<1>()?;
    Ok(AnyTensor::new(norms.clone().mask_fill(norms.equal_elem(0.0), f32::INFINITY)))
}

impl Layer {
    /// Without an adapter.
    pub(crate) fn new(weight: usize, bias: Option<usize>) -> Self {
        Self { parts: LinearParts { weight, bias, lora: None }, saved: None, adapter: None }
    }

    /// The parameters that a pass reads.
    pub(crate) fn active(&self, adapters: bool) -> LinearParts<usize> {
        if !adapters {
            return self.parts.base();
        }
        LinearParts { lora: self.parts.lora, ..self.saved.unwrap_or(self.parts) }
    }

    /// [`Self::active`] in order.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        self.active(adapters).into_iter().map(|(_, index)| index).collect()
    }

    /// Every parameter, what copies replace too.
    pub(crate) fn all(&self) -> impl Iterator<Item = (LinearPart, usize)> + use<> {
        self.parts.into_iter().chain(self.saved.into_iter().flatten())
    }

    /// The index of DoRA's magnitude.
    pub(crate) fn magnitude(&self) -> Option<usize> {
        self.parts.lora.and_then(|lora| lora.magnitude)
    }

    /// The layer of the next `tensors`, which are those of [`Self::active`].
    pub(crate) fn linear(
        &self,
        tensors: &mut dyn Iterator<Item = AnyTensor>,
        how: &Assembly,
    ) -> Result<Linear, OpsError> {
        self.assemble(self.active(how.adapters).fill(tensors), how, &row_norms)
    }

    /// As [`Self::linear`], of a layer of whose columns a tensor-parallel rank has some, from `first` on.
    fn row_parallel(
        &self,
        tensors: LinearParts<AnyTensor>,
        how: &Assembly,
        shard: &Shard,
        first: usize,
    ) -> Result<Linear, OpsError> {
        let norms = |w: &AnyTensor, a: &AnyTensor, b: &AnyTensor, s| shard.row_norms(w, a, b, s, self.name());
        let mut linear = self.assemble(tensors, how, &norms)?;
        if let Some(low_rank) = &mut linear.low_rank {
            // The mask is that of the whole input.
            if let Some(dropout) = &mut low_rank.dropout {
                dropout.first_column = first as u32;
            }
            // What is summed over ranks is added by one of them.
            let summed = !runs_apart(shard.sums.rowwise, low_rank.magnitude.is_some());
            low_rank.b_bias = low_rank.b_bias.take().filter(|_| shard.first() || !summed);
        }
        linear.bias = linear.bias.filter(|_| shard.first());
        Ok(linear)
    }

    /// What its adapter's collectives are called.
    fn name(&self) -> &str {
        self.adapter.as_ref().map_or("", |adapter| &adapter.site)
    }

    /// The layer; `norms` are those that a magnitude divides by.
    fn assemble(
        &self,
        tensors: LinearParts<AnyTensor>,
        how: &Assembly,
        norms: &NormsOf<'_>,
    ) -> Result<Linear, OpsError> {
        let LinearParts { weight, bias, lora } = tensors;
        let (Some(lora), Some(adapter)) = (lora, &self.adapter) else {
            return Ok(Linear { weight, bias, low_rank: None });
        };
        let scale = adapter.scale;
        let magnitude = match (lora.magnitude, self.magnitude()) {
            (Some(value), Some(index)) => {
                let norm = how.norms.get(index, || divisors(&norms(&weight, &lora.a, &lora.b, scale)?))?;
                Some(Magnitude { value, norm })
            }
            _ => None,
        };
        let low_rank = Some(LowRank {
            a: lora.a,
            b: lora.b,
            b_bias: lora.b_bias,
            magnitude,
            scale,
            dropout: how.dropout.as_ref().filter(|_| adapter.dropout > 0.0).map(|(d, rows)| Dropout {
                key: Stream::new(d.seed, &adapter.site).at(d.step).dropout_key(),
                p: adapter.dropout,
                rows: rows.clone(),
                first_column: 0,
            }),
        });
        Ok(Linear { weight, bias, low_rank })
    }

    /// The embedding of `tensors`, which are those of [`Self::active`].
    pub(crate) fn embedding(
        &self,
        tensors: &mut dyn Iterator<Item = AnyTensor>,
        how: &Assembly,
        shard: &Shard,
    ) -> Result<(AnyTensor, Option<EmbeddingLowRank>), OpsError> {
        let norms =
            |w: &AnyTensor, a: &AnyTensor, b: &AnyTensor, s| shard.column_norms(w, a, b, s, self.name());
        let linear = self.assemble(self.active(how.adapters).fill(tensors), how, &norms)?;
        let low_rank = linear.low_rank.map(|l| EmbeddingLowRank {
            a: l.a,
            b: l.b,
            scale: l.scale,
            magnitude: l.magnitude,
        });
        Ok((linear.weight, low_rank))
    }
}

/// A norm's weight, with its `modules_to_save` copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: usize,
    pub(crate) saved: Option<usize>,
}

impl Norm {
    pub(crate) fn index(&self, adapters: bool) -> usize {
        self.saved.filter(|_| adapters).unwrap_or(self.weight)
    }
}

/// One transformer block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) name: String,
    pub(crate) input_norm: Norm,
    /// Queries, keys and values: three, or one that has all.
    pub(crate) qkv: Vec<Layer>,
    pub(crate) head_norms: Option<(Norm, Norm)>,
    pub(crate) o: Layer,
    pub(crate) post_norm: Norm,
    /// Gate and up: two, or one that has both.
    pub(crate) gate_up: Vec<Layer>,
    pub(crate) down: Layer,
    pub(crate) window: Option<usize>,
}

/// A block's tensors, ready to run.
pub(crate) struct BlockTensors {
    pub(crate) input_norm: AnyTensor,
    pub(crate) qkv: Vec<Linear>,
    pub(crate) head_norm: Option<HeadNorm>,
    pub(crate) o: Linear,
    pub(crate) post_norm: AnyTensor,
    pub(crate) gate_up: Vec<Linear>,
    pub(crate) down: Linear,
}

impl BlockTensors {
    /// The layers as a block runs them.
    pub(crate) fn layers<'a>(&'a self) -> BlockLayers<'a, OnTensors<'a>> {
        let Self { input_norm, qkv, o, post_norm, gate_up, down, .. } = self;
        BlockLayers { input_norm, qkv, o, post_norm, gate_up, down }
    }
}

/// One `T` for each tensor of a block.
struct BlockParts<T> {
    input_norm: T,
    qkv: Vec<LinearParts<T>>,
    head_norms: Option<(T, T)>,
    o: LinearParts<T>,
    post_norm: T,
    gate_up: Vec<LinearParts<T>>,
    down: LinearParts<T>,
}

impl<T> BlockParts<T> {
    /// The same block, made of these in the order in which they are read.
    fn map<U>(self, make: &mut dyn FnMut(T) -> U) -> BlockParts<U> {
        fn each<T, U>(parts: LinearParts<T>, make: &mut dyn FnMut(T) -> U) -> LinearParts<U> {
            parts.map(|_, t| make(t))
        }
        BlockParts {
            input_norm: make(self.input_norm),
            qkv: self.qkv.into_iter().map(|parts| each(parts, make)).collect(),
            head_norms: self.head_norms.map(|(q, k)| (make(q), make(k))),
            o: each(self.o, make),
            post_norm: make(self.post_norm),
            gate_up: self.gate_up.into_iter().map(|parts| each(parts, make)).collect(),
            down: each(self.down, make),
        }
    }
}

impl Block {
    /// The parameters that a pass reads.
    fn active(&self, adapters: bool) -> BlockParts<usize> {
        let of = |layers: &[Layer]| layers.iter().map(|layer| layer.active(adapters)).collect();
        BlockParts {
            input_norm: self.input_norm.index(adapters),
            qkv: of(&self.qkv),
            head_norms: self.head_norms.map(|(q, k)| (q.index(adapters), k.index(adapters))),
            o: self.o.active(adapters),
            post_norm: self.post_norm.index(adapters),
            gate_up: of(&self.gate_up),
            down: self.down.active(adapters),
        }
    }

    /// The parameter indices, in the order in which [`Self::assemble`] takes tensors.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let mut all = Vec::new();
        self.active(adapters).map(&mut |index| all.push(index));
        all
    }

    /// The block of `tensors`, one for each of [`Self::indices`].
    pub(crate) fn assemble(
        &self,
        tensors: &[AnyTensor],
        how: &Assembly,
        eps: f32,
        shard: &Shard,
    ) -> Result<BlockTensors, OpsError> {
        let mut tensors = tensors.iter().cloned();
        let parts = self
            .active(how.adapters)
            .map(&mut |_| tensors.next().expect("invariant: one tensor for each index of the block"));
        let side_by_side = |layers: &[Layer], parts: Vec<LinearParts<AnyTensor>>| {
            let linears = layers.iter().zip(parts);
            linears
                .map(|(layer, parts)| layer.assemble(parts, how, &row_norms))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(BlockTensors {
            input_norm: parts.input_norm,
            qkv: side_by_side(&self.qkv, parts.qkv)?,
            head_norm: parts.head_norms.map(|(q, k)| HeadNorm { q, k, eps }),
            o: self.o.row_parallel(parts.o, how, shard, shard.first_o)?,
            post_norm: parts.post_norm,
            gate_up: side_by_side(&self.gate_up, parts.gate_up)?,
            down: self.down.row_parallel(parts.down, how, shard, shard.first_down)?,
        })
    }
}
