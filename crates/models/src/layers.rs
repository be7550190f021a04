//! A decoder's layers as parameter indices: what to read, in which order, and how to put it together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::random::Stream;
use burnish_ops::{
    AnyTensor, Dropout, EmbeddingLowRank, HeadNorm, Linear, LowRank, Magnitude, OpsError, row_norms,
};

use crate::apart::runs_apart;
use crate::parallel::Shard;

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

/// An adapter on a linear layer or embedding.
#[derive(Clone, Debug)]
pub(crate) struct LowRankLayer {
    pub(crate) site: String,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) b_bias: Option<usize>,
    /// DoRA's magnitude.
    pub(crate) magnitude: Option<usize>,
    pub(crate) scale: f32,
    pub(crate) dropout: f32,
}

/// A linear layer, or the embedding (which has no bias).
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
    /// `modules_to_save`: the trained copies that replace weight and bias while adapters are active.
    pub(crate) saved: Option<(usize, Option<usize>)>,
    pub(crate) low_rank: Option<LowRankLayer>,
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
    /// The parameter indices, in the order in which [`Self::linear`] takes tensors.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let (weight, bias) = match self.saved {
            Some(saved) if adapters => saved,
            _ => (self.weight, self.bias),
        };
        let mut all = vec![weight];
        all.extend(bias);
        if let Some(l) = self.low_rank.as_ref().filter(|_| adapters) {
            all.extend([l.a, l.b]);
            all.extend(l.b_bias);
            all.extend(l.magnitude);
        }
        all
    }

    pub(crate) fn linear(
        &self,
        next: &mut dyn FnMut() -> AnyTensor,
        how: &Assembly,
    ) -> Result<Linear, OpsError> {
        self.assemble(next, how, &row_norms)
    }

    /// As [`Self::linear`], of a layer of whose columns a tensor-parallel rank has some, from `first` on.
    fn row_parallel(
        &self,
        next: &mut dyn FnMut() -> AnyTensor,
        how: &Assembly,
        shard: &Shard,
        first: usize,
    ) -> Result<Linear, OpsError> {
        let norms = |w: &AnyTensor, a: &AnyTensor, b: &AnyTensor, s| shard.row_norms(w, a, b, s, self.name());
        let mut linear = self.assemble(next, how, &norms)?;
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
        self.low_rank.as_ref().map_or("", |l| &l.site)
    }

    /// The layer; `norms` are those that a magnitude divides by.
    fn assemble(
        &self,
        next: &mut dyn FnMut() -> AnyTensor,
        how: &Assembly,
        norms: &NormsOf<'_>,
    ) -> Result<Linear, OpsError> {
        let weight = next();
        let bias = match self.saved {
            Some((_, bias)) if how.adapters => bias.map(|_| next()),
            _ => self.bias.map(|_| next()),
        };
        let Some(l) = self.low_rank.as_ref().filter(|_| how.adapters) else {
            return Ok(Linear { weight, bias, low_rank: None });
        };
        let (a, b, b_bias) = (next(), next(), l.b_bias.map(|_| next()));
        let magnitude = match l.magnitude {
            Some(index) => {
                let value = next();
                let norm = how.norms.get(index, || divisors(&norms(&weight, &a, &b, l.scale)?))?;
                Some(Magnitude { value, norm })
            }
            None => None,
        };
        let low_rank = Some(LowRank {
            a,
            b,
            b_bias,
            magnitude,
            scale: l.scale,
            dropout: how.dropout.as_ref().filter(|_| l.dropout > 0.0).map(|(d, rows)| Dropout {
                key: Stream::new(d.seed, &l.site).at(d.step).dropout_key(),
                p: l.dropout,
                rows: rows.clone(),
                first_column: 0,
            }),
        });
        Ok(Linear { weight, bias, low_rank })
    }

    pub(crate) fn embedding(
        &self,
        next: &mut dyn FnMut() -> AnyTensor,
        how: &Assembly,
        shard: &Shard,
    ) -> Result<(AnyTensor, Option<EmbeddingLowRank>), OpsError> {
        let norms =
            |w: &AnyTensor, a: &AnyTensor, b: &AnyTensor, s| shard.column_norms(w, a, b, s, self.name());
        let linear = self.assemble(next, how, &norms)?;
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

impl Block {
    /// The parameter indices, in the order in which [`Self::assemble`] takes tensors.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let mut all = vec![self.input_norm.index(adapters)];
        for layer in &self.qkv {
            all.extend(layer.indices(adapters));
        }
        if let Some((q, k)) = &self.head_norms {
            all.extend([q.index(adapters), k.index(adapters)]);
        }
        all.extend(self.o.indices(adapters));
        all.push(self.post_norm.index(adapters));
        for layer in self.gate_up.iter().chain([&self.down]) {
            all.extend(layer.indices(adapters));
        }
        all
    }

    pub(crate) fn assemble(
        &self,
        tensors: &[AnyTensor],
        how: &Assembly,
        eps: f32,
        shard: &Shard,
    ) -> Result<BlockTensors, OpsError> {
        let mut tensors = tensors.iter().cloned();
        let mut next = || tensors.next().expect("invariant: `indices` and `assemble` agree");
        let side_by_side = |layers: &[Layer], next: &mut dyn FnMut() -> AnyTensor| {
            layers.iter().map(|layer| layer.linear(next, how)).collect::<Result<Vec<_>, _>>()
        };
        Ok(BlockTensors {
            input_norm: next(),
            qkv: side_by_side(&self.qkv, &mut next)?,
            head_norm: self.head_norms.map(|_| HeadNorm { q: next(), k: next(), eps }),
            o: self.o.row_parallel(&mut next, how, shard, shard.first_o)?,
            post_norm: next(),
            gate_up: side_by_side(&self.gate_up, &mut next)?,
            down: self.down.row_parallel(&mut next, how, shard, shard.first_down)?,
        })
    }
}
