//! A decoder's layers as parameter indices: what to read, in which order, and how to put it together.

use std::sync::Arc;

use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, Dropout, EmbeddingLowRank, HeadNorm, Linear, LowRank};

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
}

/// An adapter on a linear layer or embedding.
#[derive(Clone, Debug)]
pub(crate) struct LowRankLayer {
    pub(crate) site: String,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) b_bias: Option<usize>,
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
        }
        all
    }

    pub(crate) fn linear(&self, next: &mut dyn FnMut() -> AnyTensor, how: &Assembly) -> Linear {
        let weight = next();
        let bias = match self.saved {
            Some((_, bias)) if how.adapters => bias.map(|_| next()),
            _ => self.bias.map(|_| next()),
        };
        let low_rank = self.low_rank.as_ref().filter(|_| how.adapters).map(|l| LowRank {
            a: next(),
            b: next(),
            b_bias: l.b_bias.map(|_| next()),
            scale: l.scale,
            dropout: how.dropout.as_ref().filter(|_| l.dropout > 0.0).map(|(d, rows)| Dropout {
                key: Stream::new(d.seed, &l.site).at(d.step).dropout_key(),
                p: l.dropout,
                rows: rows.clone(),
                first_column: 0,
            }),
        });
        Linear { weight, bias, low_rank }
    }

    pub(crate) fn embedding(
        &self,
        next: &mut dyn FnMut() -> AnyTensor,
        how: &Assembly,
    ) -> (AnyTensor, Option<EmbeddingLowRank>) {
        let linear = self.linear(next, how);
        (linear.weight, linear.low_rank.map(|l| EmbeddingLowRank { a: l.a, b: l.b, scale: l.scale }))
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
    pub(crate) q: Layer,
    pub(crate) k: Layer,
    pub(crate) v: Layer,
    pub(crate) head_norms: Option<(Norm, Norm)>,
    pub(crate) o: Layer,
    pub(crate) post_norm: Norm,
    pub(crate) gate: Layer,
    pub(crate) up: Layer,
    pub(crate) down: Layer,
    pub(crate) window: Option<usize>,
}

/// A block's tensors, ready to run.
pub(crate) struct BlockTensors {
    pub(crate) input_norm: AnyTensor,
    pub(crate) qkv: [Linear; 3],
    pub(crate) head_norm: Option<HeadNorm>,
    pub(crate) o: Linear,
    pub(crate) post_norm: AnyTensor,
    pub(crate) gate_up: [Linear; 2],
    pub(crate) down: Linear,
}

impl Block {
    /// The parameter indices, in the order in which [`Self::assemble`] takes tensors.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let mut all = vec![self.input_norm.index(adapters)];
        for layer in [&self.q, &self.k, &self.v] {
            all.extend(layer.indices(adapters));
        }
        if let Some((q, k)) = &self.head_norms {
            all.extend([q.index(adapters), k.index(adapters)]);
        }
        all.extend(self.o.indices(adapters));
        all.push(self.post_norm.index(adapters));
        for layer in [&self.gate, &self.up, &self.down] {
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
    ) -> BlockTensors {
        let mut tensors = tensors.iter().cloned();
        let mut next = || tensors.next().expect("invariant: `indices` and `assemble` agree");
        let mut all = BlockTensors {
            input_norm: next(),
            qkv: [
                self.q.linear(&mut next, how),
                self.k.linear(&mut next, how),
                self.v.linear(&mut next, how),
            ],
            head_norm: self.head_norms.map(|_| HeadNorm { q: next(), k: next(), eps }),
            o: self.o.linear(&mut next, how),
            post_norm: next(),
            gate_up: [self.gate.linear(&mut next, how), self.up.linear(&mut next, how)],
            down: self.down.linear(&mut next, how),
        };
        // A row-parallel layer sees some columns of its input: the mask is that of the whole.
        for (layer, first) in [(&mut all.o, shard.first_o), (&mut all.down, shard.first_down)] {
            if let Some(dropout) = layer.low_rank.as_mut().and_then(|l| l.dropout.as_mut()) {
                dropout.first_column = first as u32;
            }
        }
        if !shard.first() {
            // What is summed over ranks is added by one of them.
            for layer in [&mut all.o, &mut all.down] {
                layer.bias = None;
                if let Some(low_rank) = &mut layer.low_rank {
                    low_rank.b_bias = None;
                }
            }
        }
        all
    }
}
