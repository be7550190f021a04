//! A decoder's layers as parameter indices: what to read, in which order, and how to put it together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use burnish_core::random::Stream;
use burnish_core::{Compute, LinearPart, LinearParts, LoraParts, RouterRule};
use burnish_ops::{
    AnyTensor, Dropout, EmbeddingLowRank, ExpertLayer, ExpertLowRank, Experts, HeadNorm, Linear, LowRank,
    Magnitude, OpsError, WIDENED_TOGETHER, layer_norm, rms_norm, row_norms,
};
use burnish_peft::Change;

use crate::decoder::block::{BlockLayers, LatentLayers, OnTensors};
use crate::decoder::change::LayerChange;
use crate::decoder::lora_rank_reduce::runs_apart;
use crate::decoder::orthogonality::Vectors;
use crate::decoder::tp_plan::Shard;
use crate::spec::names::Names;
use crate::spec::{ExpertsSpec, LayerSpec, NormKind, QkNorm};
use crate::{Orthogonality, Spec};

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
    /// What products multiply.
    pub(crate) compute: Compute,
    /// What pulls on AdaLoRA's factors.
    pub(crate) orthogonality: Option<Arc<Orthogonality>>,
}

impl Assembly {
    /// The parameters of a change, with a pull on AdaLoRA's factors where there is one.
    fn pulled(&self, change: &LayerChange, parts: Vec<AnyTensor>) -> Result<Vec<AnyTensor>, OpsError> {
        let (Some(own), Change::Singular { .. }) = (&self.orthogonality, &change.change) else {
            return Ok(parts);
        };
        let mut parts = parts;
        for (at, vectors) in [Vectors::Rows, Vectors::Columns].into_iter().enumerate() {
            parts[at] = own.on(change.indices[at], &parts[at], vectors)?;
        }
        Ok(parts)
    }

    /// Dropout of what an adapter reads, with probability `p`.
    fn dropout_of(&self, site: &str, p: f32) -> Option<Dropout> {
        self.dropout.as_ref().filter(|_| p > 0.0).map(|(step, rows)| Dropout {
            key: Stream::new(step.seed, site).at(step.step).dropout_key(),
            p,
            rows: rows.clone(),
            first_column: 0,
        })
    }
}

/// Norms of adapted weights by the index of their magnitude, and of a head's rows by that of its weight: made once per pass, which the weights do not outlive.
///
/// A pass scores or trains on one set of values: a decoding reuses the norms at every token, a recomputed block in its
/// backward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Norms(Arc<Mutex<BTreeMap<usize, AnyTensor>>>);

impl Norms {
    pub(crate) fn get(
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
    /// Whether the factors are those of the embedding that the head stays (`ensure_weight_tying`): each the other's, turned.
    pub(crate) turned: bool,
}

/// What a layer is in its block: which of its features ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Embedding,
    /// A table of positions.
    Positions,
    /// Of what a block is given beside the stream, between the stream and its ends, or of a state space: whole on every rank.
    PerLayer,
    Queries,
    KeysValues,
    /// Values in a layer of their own.
    Values,
    /// Gates of what attention gives.
    HeadGates,
    /// What makes a latent, whole on every rank.
    Latent,
    /// Keys and values of a latent.
    LatentUp,
    /// All queries, keys and values, one after another.
    Qkv,
    /// Of each key head its queries, key and value.
    QkvPerGroup,
    Output,
    /// Gate, up, or what stands before the activation without a gate.
    Inner,
    /// Gate, then up.
    GateUp,
    Down,
    /// What a gated delta rule reads: queries, keys and values one after another.
    DeltaQkv,
    /// Its queries, or its keys.
    DeltaKeys,
    /// Its gates, or its values.
    DeltaValues,
    /// A number for each head of its values.
    DeltaHeads,
    /// Of each head of keys its query, key, values and gates.
    DeltaGroups,
    /// Of each head of keys two numbers for each of its values.
    DeltaGroupHeads,
    /// Its output.
    DeltaOut,
    /// What a short convolution reads: gate before, gate after, input.
    ConvIn,
    /// Its output.
    ConvOut,
    /// What gives each expert a logit.
    Router,
    /// Gate and up of all experts.
    ExpertsUp,
    /// The second layers of all experts.
    ExpertsDown,
    /// What makes the number that multiplies a shared expert's output.
    SharedGate,
    Head,
    Score,
}

/// One `T` for each tensor of a layer: those of a linear layer, and the parameters of another method that change it.
#[derive(Clone, Debug)]
pub(crate) struct LayerParts<T> {
    pub(crate) linear: LinearParts<T>,
    pub(crate) change: Vec<T>,
}

impl<T> LayerParts<T> {
    /// The same parts, made of these, in order.
    fn map<U>(self, mut make: impl FnMut(T) -> U) -> LayerParts<U> {
        LayerParts {
            linear: self.linear.map(|_, t| make(t)),
            change: self.change.into_iter().map(make).collect(),
        }
    }
}

/// A linear layer, or the embedding (which has no bias): where its tensors are in the registry.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) place: Place,
    pub(crate) parts: LinearParts<usize>,
    /// `modules_to_save`: the trained copies that replace weight and bias while adapters are active.
    pub(crate) saved: Option<LinearParts<usize>>,
    /// How `parts.lora` is applied.
    pub(crate) adapter: Option<Adapter>,
    /// What another method makes of it, beside no factors.
    pub(crate) change: Option<Arc<LayerChange>>,
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
    pub(crate) fn new(place: Place, weight: usize, bias: Option<usize>) -> Self {
        Self {
            place,
            parts: LinearParts { weight, bias, lora: None },
            saved: None,
            adapter: None,
            change: None,
        }
    }

    /// The parameters that a pass reads.
    pub(crate) fn active(&self, adapters: bool) -> LayerParts<usize> {
        if !adapters {
            return LayerParts { linear: self.parts.base(), change: Vec::new() };
        }
        let linear = LinearParts { lora: self.parts.lora, ..self.saved.unwrap_or(self.parts) };
        LayerParts { linear, change: self.change.iter().flat_map(|c| c.indices.iter().copied()).collect() }
    }

    /// [`Self::active`] in order.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let LayerParts { linear, change } = self.active(adapters);
        linear.into_iter().map(|(_, index)| index).chain(change).collect()
    }

    /// Every parameter, what copies replace too.
    pub(crate) fn all(&self) -> impl Iterator<Item = (LinearPart, usize)> + use<> {
        self.parts.into_iter().chain(self.saved.into_iter().flatten())
    }

    /// The index of DoRA's magnitude.
    pub(crate) fn magnitude(&self) -> Option<usize> {
        self.parts.lora.and_then(|lora| lora.magnitude)
    }

    /// Whether outputs are multiplied by what trains.
    pub(crate) fn scales_outputs(&self) -> bool {
        self.magnitude().is_some() || self.change.as_ref().is_some_and(|change| change.scales_outputs())
    }

    /// The layer of the next `tensors`, which are those of [`Self::active`], of whose rows the first is `first`.
    pub(crate) fn linear(
        &self,
        tensors: &mut dyn Iterator<Item = AnyTensor>,
        how: &Assembly,
        first: usize,
    ) -> Result<Linear, OpsError> {
        self.assemble_from(self.next(tensors, how), how, &row_norms, first)
    }

    /// The next `tensors`, which are those of [`Self::active`].
    fn next(&self, tensors: &mut dyn Iterator<Item = AnyTensor>, how: &Assembly) -> LayerParts<AnyTensor> {
        self.active(how.adapters)
            .map(|_| tensors.next().expect("invariant: one tensor for each index of the layer"))
    }

    /// As [`Self::linear`], of a layer of whose columns a tensor-parallel rank has some, from `first` on.
    fn row_parallel(
        &self,
        tensors: LayerParts<AnyTensor>,
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
        tensors: LayerParts<AnyTensor>,
        how: &Assembly,
        norms: &NormsOf<'_>,
    ) -> Result<Linear, OpsError> {
        self.assemble_from(tensors, how, norms, 0)
    }

    /// As [`Self::assemble`], of a layer of whose rows the first is `first`.
    fn assemble_from(
        &self,
        tensors: LayerParts<AnyTensor>,
        how: &Assembly,
        norms: &NormsOf<'_>,
        first: usize,
    ) -> Result<Linear, OpsError> {
        let LinearParts { weight, bias, lora } = tensors.linear;
        if let Some(change) = self.change.as_ref().filter(|_| !tensors.change.is_empty()) {
            let layer = Linear { weight, bias, low_rank: None, compute: how.compute };
            let mut linear = change.apply(layer, &how.pulled(change, tensors.change)?, first)?;
            if let Some(low_rank) = &mut linear.low_rank {
                low_rank.dropout = how.dropout_of(&change.site, change.dropout);
            }
            return Ok(linear);
        }
        let (Some(lora), Some(adapter)) = (lora, &self.adapter) else {
            return Ok(Linear { weight, bias, low_rank: None, compute: how.compute });
        };
        let scale = adapter.scale;
        let lora = if adapter.turned {
            let turned = |x: &AnyTensor| Ok::<_, OpsError>(AnyTensor::new(x.rank::<2>()?.transpose()));
            LoraParts { a: turned(&lora.b)?, b: turned(&lora.a)?, ..lora }
        } else {
            lora
        };
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
            dropout: how.dropout_of(&adapter.site, adapter.dropout),
        });
        Ok(Linear { weight, bias, low_rank, compute: how.compute })
    }

    /// The embedding of `tensors`, which are those of [`Self::active`], of whose rows the first is `first`.
    pub(crate) fn embedding(
        &self,
        tensors: &mut dyn Iterator<Item = AnyTensor>,
        how: &Assembly,
        shard: &Shard,
        first: usize,
    ) -> Result<(AnyTensor, Option<EmbeddingLowRank>), OpsError> {
        let norms =
            |w: &AnyTensor, a: &AnyTensor, b: &AnyTensor, s| shard.column_norms(w, a, b, s, self.name());
        let tensors = self.next(tensors, how);
        if let Some(change) = self.change.as_ref().filter(|_| !tensors.change.is_empty()) {
            return change.embedding(tensors.linear.weight, &tensors.change, first);
        }
        let linear = self.assemble(tensors, how, &norms)?;
        let low_rank = linear.low_rank.map(|l| EmbeddingLowRank {
            a: l.a,
            b: l.b,
            scale: l.scale,
            magnitude: l.magnitude,
        });
        Ok((linear.weight, low_rank))
    }
}

/// The tensors of a norm.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NormParts<T> {
    pub(crate) weight: Option<T>,
    pub(crate) bias: Option<T>,
}

impl<T> NormParts<T> {
    fn map<U>(self, mut make: impl FnMut(T) -> U) -> NormParts<U> {
        NormParts { weight: self.weight.map(&mut make), bias: self.bias.map(make) }
    }
}

/// Where a norm stands, which says what ranks have of it and of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormPlace {
    /// Before layers whose outputs are divided, or inside divided attention: its gradient is an addend.
    Divided,
    /// On the whole stream.
    Stream,
    /// Of all queries together.
    Queries,
    /// Of all keys together.
    Keys,
    /// Of each query head, with weights of its own.
    QueryHeads,
    /// Of each key head, with weights of its own.
    KeyHeads,
}

/// A block's sinks.
pub(crate) const SINKS: &str = "self_attn.sinks";

/// What makes the latents of queries, and of keys and values with the keys' turned part; each one's norm.
pub(crate) const LATENT_LAYERS: [&str; 2] = ["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"];
pub(crate) const LATENT_NORMS: [&str; 2] = ["self_attn.q_a_layernorm", "self_attn.kv_a_layernorm"];

/// Of experts beside a feed-forward the norms before and behind them, and behind the feed-forward.
pub(crate) const BESIDE_NORMS: [&str; 3] =
    ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1"];

/// What their router's normed input is multiplied by, and the weight of each expert.
pub(crate) const ROUTER_SCALES: [&str; 2] = ["router.scale", "router.per_expert_scale"];

/// The two numbers of a block's xIELU.
pub(crate) const CURVE: [&str; 2] = ["mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"];

/// Of a block that is given inputs beside the stream: a gate, the layer behind it, the norm of what that gives.
pub(crate) const PER_LAYER_GATE: &str = "per_layer_input_gate";
pub(crate) const PER_LAYER_PROJECTION: &str = "per_layer_projection";
pub(crate) const PER_LAYER_NORM: &str = "post_per_layer_input_norm";

/// The number that multiplies a block's output.
pub(crate) const SCALAR: &str = "layer_scalar";

/// A norm: where its tensors are in the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) place: NormPlace,
    pub(crate) width: usize,
    pub(crate) parts: NormParts<usize>,
    /// `modules_to_save`: the trained copies that replace them while adapters are active.
    pub(crate) saved: Option<NormParts<usize>>,
    /// What it does, where it is not what the stream's norms do.
    pub(crate) kind: Option<NormKind>,
    /// Added to its mean square, where it is not what theirs have.
    pub(crate) eps: Option<f32>,
}

impl Norm {
    /// The parameters that a pass reads.
    pub(crate) fn active(&self, adapters: bool) -> NormParts<usize> {
        self.saved.filter(|_| adapters).unwrap_or(self.parts)
    }

    /// [`Self::active`] in order.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let NormParts { weight, bias } = self.active(adapters);
        weight.into_iter().chain(bias).collect()
    }

    /// Every parameter, what copies replace too.
    pub(crate) fn all(&self) -> impl Iterator<Item = usize> + use<> {
        let NormParts { weight, bias } = self.parts;
        let saved = self.saved.unwrap_or_default();
        [weight, bias, saved.weight, saved.bias].into_iter().flatten()
    }

    /// The norm of the next `tensors`, which are those of [`Self::active`].
    pub(crate) fn read(
        &self,
        tensors: &mut dyn Iterator<Item = AnyTensor>,
        how: &Assembly,
        kind: NormKind,
        device: &Device,
    ) -> Result<NormTensors, OpsError> {
        let parts = self
            .active(how.adapters)
            .map(|_| tensors.next().expect("invariant: one tensor for each index of the norm"));
        self.ready(parts, kind, device)
    }

    /// The norm as operations take it.
    fn ready(
        &self,
        parts: NormParts<AnyTensor>,
        kind: NormKind,
        device: &Device,
    ) -> Result<NormTensors, OpsError> {
        let kind = self.kind.unwrap_or(kind);
        let gamma = match parts.weight {
            Some(weight) if kind.is_plus_one() => AnyTensor::new(weight.rank::<1>()? + 1.0),
            Some(weight) => weight,
            None => AnyTensor::from_elements(vec![1.0_f32; self.width], &[self.width], device),
        };
        Ok(NormTensors { gamma, beta: parts.bias, eps: self.eps })
    }
}

/// A norm, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct NormTensors {
    pub(crate) gamma: AnyTensor,
    pub(crate) beta: Option<AnyTensor>,
    /// See [`Norm::eps`].
    pub(crate) eps: Option<f32>,
}

impl NormTensors {
    /// The norm of a stream of this spec.
    pub(crate) fn of(&self, x: &AnyTensor, spec: &Spec) -> Result<AnyTensor, OpsError> {
        let eps = self.eps.unwrap_or(spec.norm_eps);
        if spec.norm.is_layer() {
            return layer_norm(x, &self.gamma, self.beta.as_ref(), eps);
        }
        rms_norm(x, &self.gamma, eps)
    }
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    pub(crate) router: Layer,
    /// `[experts, 2 * inner, hidden]`.
    pub(crate) gate_up: Layer,
    /// `[experts, hidden, inner]`.
    pub(crate) down: Layer,
    pub(crate) shared_gate: Option<Layer>,
    /// What the router's normed input is multiplied by `[hidden]`, and the weight of each expert `[experts]`.
    pub(crate) scales: Option<[usize; 2]>,
}

impl Mixture {
    fn layers(&self) -> impl Iterator<Item = &Layer> {
        [&self.router, &self.gate_up, &self.down].into_iter().chain(&self.shared_gate)
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        [&mut self.router, &mut self.gate_up, &mut self.down].into_iter().chain(&mut self.shared_gate)
    }

    /// The mixture of these tensors.
    fn assemble(
        &self,
        MixtureParts { layers: parts, scales }: MixtureParts<AnyTensor>,
        how: &Assembly,
        (spec, turned): (&ExpertsSpec, bool),
        shard: &Shard,
    ) -> Result<MixtureTensors, OpsError> {
        let mut linears =
            self.layers().zip(parts).map(|(layer, parts)| layer.assemble(parts, how, &row_norms));
        let mut next = || linears.next().expect("invariant: one set of tensors for each layer").map(Some);
        let layer = |linear: Option<Linear>| {
            let Linear { weight, bias, low_rank, .. } = linear.expect("invariant: every mixture has it");
            let low_rank = match low_rank {
                Some(low) if turned => Some(turned_factors(&low, spec.count)?),
                low => low.map(|low| ExpertLowRank { a: low.a, b: low.b, scale: low.scale }),
            };
            Ok::<_, OpsError>(ExpertLayer { weight, bias, low_rank })
        };
        let mut router = next()?.map(|router| Linear { compute: Compute::Fp32, ..router });
        let correction = router.as_mut().filter(|_| spec.corrected).and_then(|router| router.bias.take());
        // Of two rows the first is text's.
        let correction = match correction {
            Some(rows) if rows.shape().len() == 2 => {
                let rows = rows.rank::<2>()?;
                Some(AnyTensor::new(rows.narrow(0, 0, 1).reshape([spec.count])))
            }
            own => own,
        };
        let (gate_up, mut down) = (layer(next()?)?, layer(next()?)?);
        // What is summed over ranks is added by one of them.
        down.bias = down.bias.filter(|_| shard.first() || shard.own_experts.is_some());
        let shared_gate = if self.shared_gate.is_some() { next()? } else { None };
        Ok(MixtureTensors {
            router: router.expect("invariant: every mixture has it"),
            experts: Experts {
                gate_up,
                down,
                gate: spec.gate,
                compute: how.compute,
                widened_together: WIDENED_TOGETHER,
            },
            rule: spec.rule,
            weighs_inputs: spec.weighs_inputs,
            correction,
            shared_gate,
            scales: match scales {
                Some([gamma, of_experts]) => {
                    let gamma = gamma.rank::<1>()?;
                    let root = (gamma.dims()[0] as f32).powf(-0.5);
                    Some([AnyTensor::new(gamma * root), of_experts])
                }
                None => None,
            },
        })
    }
}

/// The factors of experts whose adapters are of their matrices turned ([`ModuleKind::ExpertsTurned`]): each in the other's
/// place.
///
/// [`ModuleKind::ExpertsTurned`]: burnish_peft::ModuleKind::ExpertsTurned
///
/// # Shapes
/// - low.a: `[experts * r, out]`, low.b: `[in, r * experts]`
fn turned_factors(low: &LowRank, experts: usize) -> Result<ExpertLowRank, OpsError> {
    let (a, b) = (low.a.rank::<2>()?, low.b.rank::<2>()?);
    let ([rows, out], [input, _]) = (a.dims(), b.dims());
    let rank = rows / experts;
    let of_a = b.reshape([input, rank, experts]).permute([2, 1, 0]).reshape([rows, input]);
    let of_b = a.reshape([experts, rank, out]).permute([2, 1, 0]).reshape([out, rows]);
    Ok(ExpertLowRank { a: AnyTensor::new(of_a), b: AnyTensor::new(of_b), scale: low.scale })
}

/// One `T` for each tensor of a mixture of experts.
struct MixtureParts<T> {
    layers: Vec<LayerParts<T>>,
    scales: Option<[T; 2]>,
}

/// A mixture of experts, ready to run.
pub(crate) struct MixtureTensors {
    pub(crate) router: Linear,
    pub(crate) experts: Experts,
    pub(crate) rule: RouterRule,
    pub(crate) weighs_inputs: bool,
    /// `[experts]`.
    pub(crate) correction: Option<AnyTensor>,
    pub(crate) shared_gate: Option<Linear>,
    /// The weights of the router's own norm, and what weights of experts are multiplied by.
    pub(crate) scales: Option<[AnyTensor; 2]>,
}

/// One `N` for each norm around experts that stand beside a feed-forward (Gemma 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<N> {
    /// Of what the experts read.
    pub(crate) before: N,
    /// Of what they give.
    pub(crate) behind: N,
    /// Of what the feed-forward gives.
    pub(crate) behind_dense: N,
}

impl<N> Beside<N> {
    fn map<M>(self, mut make: impl FnMut(N) -> M) -> Beside<M> {
        Beside { before: make(self.before), behind: make(self.behind), behind_dense: make(self.behind_dense) }
    }
}

/// What makes the latents of a block's attention.
#[derive(Clone, Debug)]
pub(crate) struct Latent {
    /// Of queries, where they have one.
    pub(crate) query: Option<(Layer, Norm)>,
    pub(crate) layer: Layer,
    pub(crate) norm: Norm,
}

impl Latent {
    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.query.iter().map(|(layer, _)| layer).chain([&self.layer])
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        self.query.iter_mut().map(|(layer, _)| layer).chain([&mut self.layer])
    }

    fn active(&self, adapters: bool) -> LatentParts<usize> {
        let query = self.query.as_ref();
        LatentParts {
            query: query.map(|(layer, norm)| (layer.active(adapters), norm.active(adapters))),
            layer: self.layer.active(adapters),
            norm: self.norm.active(adapters),
        }
    }

    fn assemble(
        &self,
        parts: LatentParts<AnyTensor>,
        how: &Assembly,
        device: &Device,
    ) -> Result<LatentTensors, OpsError> {
        let layer = |layer: &Layer, parts| layer.assemble(parts, how, &row_norms);
        let query = match (&self.query, parts.query) {
            (Some((of, norm)), Some((parts, norm_parts))) => {
                Some((layer(of, parts)?, norm.ready(norm_parts, NormKind::Rms, device)?))
            }
            _ => None,
        };
        let norm = self.norm.ready(parts.norm, NormKind::Rms, device)?;
        Ok(LatentTensors { query, layer: layer(&self.layer, parts.layer)?, norm })
    }
}

/// One `T` for each tensor of a [`Latent`].
struct LatentParts<T> {
    query: Option<(LayerParts<T>, NormParts<T>)>,
    layer: LayerParts<T>,
    norm: NormParts<T>,
}

/// What makes latents, ready to run.
pub(crate) struct LatentTensors {
    pub(crate) query: Option<(Linear, NormTensors)>,
    pub(crate) layer: Linear,
    pub(crate) norm: NormTensors,
}

/// What makes use of what a block is given beside the stream, or one `T` for each of these.
#[derive(Clone, Debug)]
pub(crate) struct PerLayer<L, N> {
    pub(crate) gate: L,
    pub(crate) projection: L,
    pub(crate) norm: N,
}

/// What a block makes of streams beside each other, or one `T` for each of these.
#[derive(Clone, Debug)]
pub(crate) struct Alternating<L, N, S> {
    /// What a stream says of how streams mix, and the norm before that.
    pub(crate) router: L,
    pub(crate) router_norm: N,
    /// Of that what predicts streams, and what corrects them.
    pub(crate) prediction: L,
    pub(crate) correction: L,
    /// What multiplies the corrected stream before the block's own input comes in.
    pub(crate) scale: S,
    /// The narrow layers beside attention and the norm behind them.
    pub(crate) laurel: [L; 2],
    pub(crate) laurel_norm: N,
}

impl<L, N, S> Alternating<L, N, S> {
    fn layers(&self) -> impl Iterator<Item = &L> {
        [&self.router, &self.prediction, &self.correction].into_iter().chain(&self.laurel)
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut L> {
        [&mut self.router, &mut self.prediction, &mut self.correction].into_iter().chain(&mut self.laurel)
    }

    /// The same of references.
    pub(crate) fn each_ref(&self) -> Alternating<&L, &N, &S> {
        let [left, right] = &self.laurel;
        Alternating {
            router: &self.router,
            router_norm: &self.router_norm,
            prediction: &self.prediction,
            correction: &self.correction,
            scale: &self.scale,
            laurel: [left, right],
            laurel_norm: &self.laurel_norm,
        }
    }
}

/// Of streams beside each other what mixes them, and the norm before that; what multiplies the corrected one; Laurel.
pub(crate) const ALTUP_LAYERS: [&str; 3] =
    ["altup.modality_router", "altup.prediction_coefs", "altup.correction_coefs"];
pub(crate) const ALTUP_NORM: &str = "altup.router_norm";
pub(crate) const ALTUP_SCALE: &str = "altup.correct_output_scale";
pub(crate) const LAUREL: [&str; 2] = ["laurel.linear_left", "laurel.linear_right"];
pub(crate) const LAUREL_NORM: &str = "laurel.post_laurel_norm";

/// What a gated delta rule has beside its layers and its convolution, or one `T` for each of these.
#[derive(Clone, Debug)]
pub(crate) struct Delta<T, N> {
    /// The convolutions of keys and of values, where they have their own: the block's is that of queries then.
    pub(crate) kernels: Vec<T>,
    /// Added to what heads forget by.
    pub(crate) bias: T,
    /// The logarithm of how fast they do.
    pub(crate) log_rate: T,
    /// The norm of each head's output.
    pub(crate) norm: N,
}

/// A state space in a block, or of `L`, `T` and `N` for its layers, its numbers and its norm.
#[derive(Clone, Debug)]
pub(crate) struct Ssd<L, T, N> {
    pub(crate) input: L,
    /// `[channels, 1, taps]`.
    pub(crate) kernel: T,
    pub(crate) kernel_bias: Option<T>,
    /// Added to what heads make their steps of.
    pub(crate) bias: Option<T>,
    /// The logarithm of how fast they forget.
    pub(crate) log_rate: T,
    /// What of a head's value passes by.
    pub(crate) skip: T,
    pub(crate) norm: Option<N>,
    pub(crate) selective: Option<Selective<L, N>>,
    pub(crate) output: L,
}

/// Of Mamba's state space what makes steps and directions, or of `L` and `N` for its layers and norms.
#[derive(Clone, Debug)]
pub(crate) struct Selective<L, N> {
    /// Makes what steps are made of, and directions in and out.
    pub(crate) read: L,
    /// Makes steps.
    pub(crate) steps: L,
    /// Of what steps are made of, and of directions in and out.
    pub(crate) norms: Option<[N; 3]>,
}

impl<L, N> Selective<L, N> {
    fn map<M, O>(self, mut layer: impl FnMut(L) -> M, norm: impl FnMut(N) -> O) -> Selective<M, O> {
        let (read, steps) = (layer(self.read), layer(self.steps));
        Selective { read, steps, norms: self.norms.map(|norms| norms.map(norm)) }
    }

    /// The same of references.
    pub(crate) fn each_ref(&self) -> Selective<&L, &N> {
        let Self { read, steps, norms } = self;
        Selective { read, steps, norms: norms.as_ref().map(<[N; 3]>::each_ref) }
    }
}

impl<L, T, N> Ssd<L, T, N> {
    /// Its layers, in the order in which they are read.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &L> {
        let selective = self.selective.iter().flat_map(|own| [&own.read, &own.steps]);
        std::iter::once(&self.input).chain(selective).chain(std::iter::once(&self.output))
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut L> {
        let selective = self.selective.iter_mut().flat_map(|own| [&mut own.read, &mut own.steps]);
        std::iter::once(&mut self.input).chain(selective).chain(std::iter::once(&mut self.output))
    }

    /// The layers that a block runs.
    pub(crate) fn run(&self) -> SsdLayers<&L, &N> {
        SsdLayers {
            input: &self.input,
            selective: self.selective.as_ref().map(Selective::each_ref),
            output: &self.output,
        }
    }
}

/// Of a state space the layers that a block runs.
#[derive(Clone, Debug)]
pub(crate) struct SsdLayers<L, N> {
    pub(crate) input: L,
    pub(crate) selective: Option<Selective<L, N>>,
    pub(crate) output: L,
}

impl<L, N> SsdLayers<L, N> {
    /// The same of what is made of each layer and each norm.
    pub(crate) fn map<M, O>(self, layer: impl Fn(L) -> M, norm: impl Fn(N) -> O) -> SsdLayers<M, O> {
        let selective = self.selective.map(|own| own.map(&layer, norm));
        SsdLayers { input: layer(self.input), selective, output: layer(self.output) }
    }

    /// The same of references.
    pub(crate) fn each_ref(&self) -> SsdLayers<&L, &N> {
        let Self { input, selective, output } = self;
        SsdLayers { input, selective: selective.as_ref().map(Selective::each_ref), output }
    }
}

impl Selective<Layer, Norm> {
    fn assemble(
        &self,
        parts: Selective<LayerParts<AnyTensor>, NormParts<AnyTensor>>,
        how: &Assembly,
        device: &Device,
    ) -> Result<Selective<Linear, NormTensors>, OpsError> {
        let norms = match (&self.norms, parts.norms) {
            (Some([of_steps, of_in, of_out]), Some([steps, within, out])) => {
                let ready = |norm: &Norm, parts| norm.ready(parts, NormKind::Rms, device);
                Some([ready(of_steps, steps)?, ready(of_in, within)?, ready(of_out, out)?])
            }
            _ => None,
        };
        Ok(Selective {
            read: self.read.assemble(parts.read, how, &row_norms)?,
            steps: self.steps.assemble(parts.steps, how, &row_norms)?,
            norms,
        })
    }
}

/// One transformer block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) name: String,
    /// What its parameters have in place of its name, where it shares them with another block.
    pub(crate) shared_as: Option<String>,
    pub(crate) attention_norm: Option<Norm>,
    /// What makes latents; `qkv` then makes queries, and keys with values.
    pub(crate) latent: Option<Latent>,
    /// Queries, keys and values: three, or one that has all.
    pub(crate) qkv: Vec<Layer>,
    /// Narrow layers, with the wide ones behind them: of gates, and of what channels forget by, where each does by itself.
    pub(crate) narrow: Vec<[Layer; 2]>,
    pub(crate) qk_norms: Option<(Norm, Norm)>,
    /// A logit for each query head.
    pub(crate) sinks: Option<usize>,
    /// The kernel of a short convolution, which then stands in place of attention: `qkv` is what it reads.
    pub(crate) conv: Option<NormParts<usize>>,
    /// A gated delta rule, which then stands behind that convolution.
    pub(crate) delta: Option<Delta<usize, Norm>>,
    /// None without attention.
    pub(crate) o: Option<Layer>,
    /// A state space beside attention, or in its place.
    pub(crate) ssd: Option<Ssd<Layer, usize, Norm>>,
    pub(crate) attention_post_norm: Option<Norm>,
    pub(crate) mlp_norm: Option<Norm>,
    /// Gate and up: two, or one that has both, or one without a gate; of a mixture those of its shared expert, if any.
    pub(crate) up: Vec<Layer>,
    /// The numbers of xIELU.
    pub(crate) curve: Option<(usize, usize)>,
    pub(crate) down: Option<Layer>,
    /// A mixture of experts.
    pub(crate) mixture: Option<Mixture>,
    /// Where it stands beside the feed-forward.
    pub(crate) beside: Option<Beside<Norm>>,
    pub(crate) mlp_post_norm: Option<Norm>,
    pub(crate) per_layer: Option<PerLayer<Layer, Norm>>,
    pub(crate) altup: Option<Alternating<Layer, Norm, usize>>,
    /// What multiplies its output.
    pub(crate) scalar: Option<usize>,
    pub(crate) own: LayerSpec,
}

/// A block's tensors, ready to run.
pub(crate) struct BlockTensors {
    pub(crate) attention_norm: Option<NormTensors>,
    pub(crate) latent: Option<LatentTensors>,
    pub(crate) qkv: Vec<Linear>,
    pub(crate) narrow: Vec<[Linear; 2]>,
    pub(crate) qk_norms: Option<(NormTensors, NormTensors)>,
    pub(crate) sinks: Option<AnyTensor>,
    pub(crate) conv: Option<NormParts<AnyTensor>>,
    pub(crate) delta: Option<Delta<AnyTensor, NormTensors>>,
    pub(crate) o: Option<Linear>,
    pub(crate) ssd: Option<Ssd<Linear, AnyTensor, NormTensors>>,
    pub(crate) attention_post_norm: Option<NormTensors>,
    pub(crate) mlp_norm: Option<NormTensors>,
    pub(crate) up: Vec<Linear>,
    pub(crate) curve: Option<(AnyTensor, AnyTensor)>,
    pub(crate) down: Option<Linear>,
    pub(crate) mixture: Option<MixtureTensors>,
    pub(crate) beside: Option<Beside<NormTensors>>,
    pub(crate) mlp_post_norm: Option<NormTensors>,
    pub(crate) per_layer: Option<PerLayer<Linear, NormTensors>>,
    pub(crate) altup: Option<Alternating<Linear, NormTensors, AnyTensor>>,
    pub(crate) cutoff: Option<f32>,
    pub(crate) scalar: Option<AnyTensor>,
}

impl BlockTensors {
    /// The layers as a block runs them.
    pub(crate) fn layers<'a>(&'a self) -> BlockLayers<'a, OnTensors<'a>> {
        BlockLayers {
            attention_norm: self.attention_norm.as_ref(),
            latent: self.latent.as_ref().map(|latent| LatentLayers {
                query: latent.query.as_ref().map(|(layer, norm)| (layer, norm)),
                layer: &latent.layer,
                norm: &latent.norm,
            }),
            qkv: &self.qkv,
            narrow: &self.narrow,
            qk_norms: self.qk_norms.as_ref(),
            convolves: self.conv.is_some(),
            o: self.o.as_ref(),
            ssd: self.ssd.as_ref().map(Ssd::run),
            attention_post_norm: self.attention_post_norm.as_ref(),
            mlp_norm: self.mlp_norm.as_ref(),
            up: &self.up,
            curve: self.curve.as_ref(),
            down: self.down.as_ref(),
            mixture: self.mixture.as_ref(),
            beside: self.beside.as_ref().map(|norms| Beside {
                before: &norms.before,
                behind: &norms.behind,
                behind_dense: &norms.behind_dense,
            }),
            shared_gate: self.mixture.as_ref().and_then(|mixture| mixture.shared_gate.as_ref()),
            mlp_post_norm: self.mlp_post_norm.as_ref(),
            per_layer: self.per_layer.as_ref().map(|own| PerLayer {
                gate: &own.gate,
                projection: &own.projection,
                norm: &own.norm,
            }),
            altup: self.altup.as_ref().map(Alternating::each_ref),
            cutoff: self.cutoff,
            scalar: self.scalar.as_ref(),
        }
    }

    /// The kernel and bias of a convolution that stands in place of attention.
    pub(crate) fn kernel(&self) -> Option<(&AnyTensor, Option<&AnyTensor>)> {
        let NormParts { weight, bias } = self.conv.as_ref()?;
        Some((weight.as_ref()?, bias.as_ref()))
    }

    /// The norms of each head that attention takes before its rotation.
    pub(crate) fn head_norm(&self, spec: &Spec) -> Option<HeadNorm> {
        let there = matches!(spec.qk_norm, Some(QkNorm::PerHead | QkNorm::PerHeadBare));
        let (q, k) = self.qk_norms.as_ref().filter(|_| there)?;
        Some(HeadNorm { q: q.gamma.clone(), k: k.gamma.clone(), eps: spec.norm_eps })
    }
}

/// One `T` for each tensor of a block.
struct BlockParts<T> {
    attention_norm: Option<NormParts<T>>,
    latent: Option<LatentParts<T>>,
    qkv: Vec<LayerParts<T>>,
    narrow: Vec<[LayerParts<T>; 2]>,
    qk_norms: Option<(NormParts<T>, NormParts<T>)>,
    sinks: Option<T>,
    conv: Option<NormParts<T>>,
    delta: Option<Delta<T, NormParts<T>>>,
    o: Option<LayerParts<T>>,
    ssd: Option<Ssd<LayerParts<T>, T, NormParts<T>>>,
    attention_post_norm: Option<NormParts<T>>,
    mlp_norm: Option<NormParts<T>>,
    up: Vec<LayerParts<T>>,
    curve: Option<(T, T)>,
    down: Option<LayerParts<T>>,
    mixture: Option<MixtureParts<T>>,
    beside: Option<Beside<NormParts<T>>>,
    mlp_post_norm: Option<NormParts<T>>,
    per_layer: Option<PerLayer<LayerParts<T>, NormParts<T>>>,
    altup: Option<Alternating<LayerParts<T>, NormParts<T>, T>>,
    scalar: Option<T>,
}

impl<T> BlockParts<T> {
    /// The same block, made of these in the order in which they are read.
    fn map<U>(self, make: &mut dyn FnMut(T) -> U) -> BlockParts<U> {
        fn each<T, U>(parts: LayerParts<T>, make: &mut dyn FnMut(T) -> U) -> LayerParts<U> {
            parts.map(make)
        }
        fn norm<T, U>(parts: Option<NormParts<T>>, make: &mut dyn FnMut(T) -> U) -> Option<NormParts<U>> {
            parts.map(|parts| parts.map(make))
        }
        BlockParts {
            attention_norm: norm(self.attention_norm, make),
            latent: self.latent.map(|latent| LatentParts {
                query: latent.query.map(|(parts, norm)| (each(parts, make), norm.map(&mut *make))),
                layer: each(latent.layer, make),
                norm: latent.norm.map(&mut *make),
            }),
            qkv: self.qkv.into_iter().map(|parts| each(parts, make)).collect(),
            narrow: self.narrow.into_iter().map(|pair| pair.map(|parts| each(parts, make))).collect(),
            qk_norms: self.qk_norms.map(|(q, k)| (q.map(&mut *make), k.map(&mut *make))),
            sinks: self.sinks.map(&mut *make),
            conv: norm(self.conv, make),
            delta: self.delta.map(|delta| Delta {
                kernels: delta.kernels.into_iter().map(&mut *make).collect(),
                bias: make(delta.bias),
                log_rate: make(delta.log_rate),
                norm: delta.norm.map(&mut *make),
            }),
            o: self.o.map(|o| each(o, make)),
            ssd: self.ssd.map(|ssd| Ssd {
                input: each(ssd.input, make),
                kernel: make(ssd.kernel),
                kernel_bias: ssd.kernel_bias.map(&mut *make),
                bias: ssd.bias.map(&mut *make),
                log_rate: make(ssd.log_rate),
                skip: make(ssd.skip),
                norm: norm(ssd.norm, make),
                selective: ssd.selective.map(|own| Selective {
                    read: each(own.read, make),
                    steps: each(own.steps, make),
                    norms: own.norms.map(|norms| norms.map(|parts| parts.map(&mut *make))),
                }),
                output: each(ssd.output, make),
            }),
            attention_post_norm: norm(self.attention_post_norm, make),
            mlp_norm: norm(self.mlp_norm, make),
            up: self.up.into_iter().map(|parts| each(parts, make)).collect(),
            curve: self.curve.map(|(p, n)| (make(p), make(n))),
            down: self.down.map(|parts| each(parts, make)),
            mixture: self.mixture.map(|mixture| MixtureParts {
                layers: mixture.layers.into_iter().map(|parts| each(parts, make)).collect(),
                scales: mixture.scales.map(|both| both.map(&mut *make)),
            }),
            beside: self.beside.map(|norms| norms.map(|parts| parts.map(&mut *make))),
            mlp_post_norm: norm(self.mlp_post_norm, make),
            per_layer: self.per_layer.map(|own| PerLayer {
                gate: each(own.gate, make),
                projection: each(own.projection, make),
                norm: own.norm.map(&mut *make),
            }),
            altup: self.altup.map(|own| Alternating {
                router: each(own.router, make),
                router_norm: own.router_norm.map(&mut *make),
                prediction: each(own.prediction, make),
                correction: each(own.correction, make),
                scale: make(own.scale),
                laurel: own.laurel.map(|parts| each(parts, make)),
                laurel_norm: own.laurel_norm.map(&mut *make),
            }),
            scalar: self.scalar.map(make),
        }
    }
}

impl Block {
    /// The parameters that a pass reads.
    fn active(&self, adapters: bool) -> BlockParts<usize> {
        let of = |layers: &[Layer]| layers.iter().map(|layer| layer.active(adapters)).collect();
        let norm = |norm: &Option<Norm>| norm.map(|norm| norm.active(adapters));
        BlockParts {
            attention_norm: norm(&self.attention_norm),
            latent: self.latent.as_ref().map(|latent| latent.active(adapters)),
            qkv: of(&self.qkv),
            narrow: self
                .narrow
                .iter()
                .map(|pair| pair.each_ref().map(|layer| layer.active(adapters)))
                .collect(),
            qk_norms: self.qk_norms.map(|(q, k)| (q.active(adapters), k.active(adapters))),
            sinks: self.sinks,
            conv: self.conv,
            delta: self.delta.as_ref().map(|delta| Delta {
                kernels: delta.kernels.clone(),
                bias: delta.bias,
                log_rate: delta.log_rate,
                norm: delta.norm.active(adapters),
            }),
            o: self.o.as_ref().map(|o| o.active(adapters)),
            ssd: self.ssd.as_ref().map(|ssd| Ssd {
                input: ssd.input.active(adapters),
                kernel: ssd.kernel,
                kernel_bias: ssd.kernel_bias,
                bias: ssd.bias,
                log_rate: ssd.log_rate,
                skip: ssd.skip,
                norm: norm(&ssd.norm),
                selective: ssd.selective.as_ref().map(|own| {
                    own.each_ref().map(|layer| layer.active(adapters), |norm| norm.active(adapters))
                }),
                output: ssd.output.active(adapters),
            }),
            attention_post_norm: norm(&self.attention_post_norm),
            mlp_norm: norm(&self.mlp_norm),
            up: of(&self.up),
            curve: self.curve,
            down: self.down.as_ref().map(|down| down.active(adapters)),
            mixture: self.mixture.as_ref().map(|m| MixtureParts {
                layers: m.layers().map(|layer| layer.active(adapters)).collect(),
                scales: m.scales,
            }),
            beside: self.beside.map(|norms| norms.map(|norm| norm.active(adapters))),
            mlp_post_norm: norm(&self.mlp_post_norm),
            per_layer: self.per_layer.as_ref().map(|own| PerLayer {
                gate: own.gate.active(adapters),
                projection: own.projection.active(adapters),
                norm: own.norm.active(adapters),
            }),
            altup: self.altup.as_ref().map(|own| Alternating {
                router: own.router.active(adapters),
                router_norm: own.router_norm.active(adapters),
                prediction: own.prediction.active(adapters),
                correction: own.correction.active(adapters),
                scale: own.scale,
                laurel: own.laurel.each_ref().map(|layer| layer.active(adapters)),
                laurel_norm: own.laurel_norm.active(adapters),
            }),
            scalar: self.scalar,
        }
    }

    /// The parameter indices, in the order in which [`Self::assemble`] takes tensors.
    pub(crate) fn indices(&self, adapters: bool) -> Vec<usize> {
        let mut all = Vec::new();
        self.active(adapters).map(&mut |index| all.push(index));
        all
    }

    /// Every norm with the module's name in the block.
    pub(crate) fn norms_mut(&mut self, names: &Names) -> Vec<(&'static str, &mut Norm)> {
        let mut all = Vec::new();
        all.extend(self.attention_norm.as_mut().map(|norm| (names.attention_norm, norm)));
        if let Some(latent) = &mut self.latent {
            all.extend(latent.query.as_mut().map(|(_, norm)| (LATENT_NORMS[0], norm)));
            all.push((LATENT_NORMS[1], &mut latent.norm));
        }
        all.extend(self.delta.as_mut().map(|delta| (names.delta.norm(), &mut delta.norm)));
        if let Some(ssd) = &mut self.ssd {
            all.extend(ssd.norm.as_mut().map(|norm| (names.ssd.norm, norm)));
            let selective = ssd.selective.as_mut().and_then(|own| own.norms.as_mut());
            all.extend(selective.into_iter().flat_map(|norms| names.ssd.selective.1.into_iter().zip(norms)));
        }
        if let Some((q, k)) = &mut self.qk_norms {
            all.extend([(names.qk_norms[0], q), (names.qk_norms[1], k)]);
        }
        all.extend(self.attention_post_norm.as_mut().map(|norm| (names.attention_post_norm, norm)));
        all.extend(self.mlp_norm.as_mut().map(|norm| (names.mlp_norm, norm)));
        if let Some(Beside { before, behind, behind_dense }) = &mut self.beside {
            all.extend(BESIDE_NORMS.into_iter().zip([before, behind, behind_dense]));
        }
        all.extend(self.mlp_post_norm.as_mut().map(|norm| (names.mlp_post_norm, norm)));
        all.extend(self.per_layer.as_mut().map(|own| (PER_LAYER_NORM, &mut own.norm)));
        if let Some(own) = &mut self.altup {
            all.extend([(ALTUP_NORM, &mut own.router_norm), (LAUREL_NORM, &mut own.laurel_norm)]);
        }
        all
    }

    /// Every linear layer.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Layer> {
        let mixture = self.mixture.iter().flat_map(Mixture::layers);
        let latent = self.latent.iter().flat_map(Latent::layers);
        let per_layer = self.per_layer.iter().flat_map(|own| [&own.gate, &own.projection]);
        let ssd = self.ssd.iter().flat_map(Ssd::layers);
        let usual = latent
            .chain(&self.qkv)
            .chain(self.narrow.iter().flatten())
            .chain(&self.o)
            .chain(ssd)
            .chain(&self.up)
            .chain(&self.down);
        usual.chain(mixture).chain(per_layer).chain(self.altup.iter().flat_map(Alternating::layers))
    }

    /// Every linear layer.
    pub(crate) fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        let mixture = self.mixture.iter_mut().flat_map(Mixture::layers_mut);
        let (o, up, down) = (&mut self.o, &mut self.up, &mut self.down);
        let latent = self.latent.iter_mut().flat_map(Latent::layers_mut);
        let per_layer = self.per_layer.iter_mut().flat_map(|own| [&mut own.gate, &mut own.projection]);
        let altup = self.altup.iter_mut().flat_map(Alternating::layers_mut);
        let ssd = self.ssd.iter_mut().flat_map(Ssd::layers_mut);
        let usual = latent
            .chain(&mut self.qkv)
            .chain(self.narrow.iter_mut().flatten())
            .chain(o)
            .chain(ssd)
            .chain(up)
            .chain(down);
        usual.chain(mixture).chain(per_layer).chain(altup)
    }

    /// The block of `tensors`, one for each of [`Self::indices`].
    pub(crate) fn assemble(
        &self,
        tensors: &[AnyTensor],
        how: &Assembly,
        spec: &Spec,
        shard: &Shard,
    ) -> Result<BlockTensors, OpsError> {
        let device = tensors.first().map_or_else(Device::default, AnyTensor::device);
        let mut tensors = tensors.iter().cloned();
        let parts = self
            .active(how.adapters)
            .map(&mut |_| tensors.next().expect("invariant: one tensor for each index of the block"));
        let side_by_side = |layers: &[Layer], parts: Vec<LayerParts<AnyTensor>>| {
            let linears = layers.iter().zip(parts);
            linears
                .map(|(layer, parts)| layer.assemble(parts, how, &row_norms))
                .collect::<Result<Vec<_>, _>>()
        };
        let ready = |norm: &Option<Norm>, parts: Option<NormParts<AnyTensor>>| {
            norm.zip(parts).map(|(norm, parts)| norm.ready(parts, spec.norm, &device)).transpose()
        };
        // Of queries and keys only one more than the weight is the stream's.
        let kind = if spec.norm.is_plus_one() { NormKind::RmsPlusOne } else { NormKind::Rms };
        let qk_norms = match (self.qk_norms, parts.qk_norms) {
            (Some((q, k)), Some((of_q, of_k))) => {
                Some((q.ready(of_q, kind, &device)?, k.ready(of_k, kind, &device)?))
            }
            _ => None,
        };
        let of_shared = self.mixture.is_some() && self.beside.is_none();
        let first_down = if of_shared { shard.first_shared } else { shard.first_down };
        Ok(BlockTensors {
            attention_norm: ready(&self.attention_norm, parts.attention_norm)?,
            latent: match (&self.latent, parts.latent) {
                (Some(latent), Some(parts)) => Some(latent.assemble(parts, how, &device)?),
                _ => None,
            },
            qkv: side_by_side(&self.qkv, parts.qkv)?,
            narrow: {
                let pairs = self.narrow.iter().zip(parts.narrow);
                let ready = |(pair, parts): (&[Layer; 2], [LayerParts<AnyTensor>; 2])| {
                    let ([first, second], [of_first, of_second]) = (pair, parts);
                    Ok([
                        first.assemble(of_first, how, &row_norms)?,
                        second.assemble(of_second, how, &row_norms)?,
                    ])
                };
                pairs.map(ready).collect::<Result<_, OpsError>>()?
            },
            qk_norms,
            sinks: parts.sinks,
            conv: match (parts.conv, &parts.delta) {
                (Some(NormParts { weight: Some(first), bias }), Some(delta)) if !delta.kernels.is_empty() => {
                    let all = std::iter::once(&first).chain(&delta.kernels);
                    let all = all.map(AnyTensor::rank::<3>).collect::<Result<Vec<_>, _>>()?;
                    Some(NormParts { weight: Some(AnyTensor::new(Tensor::cat(all, 0))), bias })
                }
                (conv, _) => conv,
            },
            delta: match (&self.delta, parts.delta) {
                (Some(delta), Some(parts)) => Some(Delta {
                    kernels: Vec::new(),
                    bias: parts.bias,
                    log_rate: parts.log_rate,
                    norm: delta.norm.ready(parts.norm, NormKind::Rms, &device)?,
                }),
                _ => None,
            },
            o: match (&self.o, parts.o) {
                (Some(o), Some(parts)) => {
                    let first = match (&self.delta, &self.conv) {
                        (Some(_), _) => shard.first_delta,
                        (None, Some(_)) => shard.first_channel,
                        (None, None) => shard.first_o,
                    };
                    Some(o.row_parallel(parts, how, shard, first)?)
                }
                _ => None,
            },
            ssd: match (&self.ssd, parts.ssd) {
                (Some(ssd), Some(parts)) => Some(Ssd {
                    input: ssd.input.assemble(parts.input, how, &row_norms)?,
                    kernel: parts.kernel,
                    kernel_bias: parts.kernel_bias,
                    bias: parts.bias,
                    log_rate: parts.log_rate,
                    skip: parts.skip,
                    norm: match (&ssd.norm, parts.norm) {
                        (Some(norm), Some(parts)) => Some(norm.ready(parts, NormKind::Rms, &device)?),
                        _ => None,
                    },
                    selective: match (&ssd.selective, parts.selective) {
                        (Some(own), Some(parts)) => Some(own.assemble(parts, how, &device)?),
                        _ => None,
                    },
                    output: ssd.output.assemble(parts.output, how, &row_norms)?,
                }),
                _ => None,
            },
            attention_post_norm: ready(&self.attention_post_norm, parts.attention_post_norm)?,
            mlp_norm: ready(&self.mlp_norm, parts.mlp_norm)?,
            up: side_by_side(&self.up, parts.up)?,
            curve: parts.curve,
            down: match (&self.down, parts.down) {
                (Some(down), Some(parts)) => Some(down.row_parallel(parts, how, shard, first_down)?),
                _ => None,
            },
            mixture: match (&self.mixture, parts.mixture, &spec.experts) {
                (Some(mixture), Some(parts), Some(experts)) => {
                    let turned = spec.names.experts.adapters_turned;
                    Some(mixture.assemble(parts, how, (experts, turned), shard)?)
                }
                _ => None,
            },
            beside: match (&self.beside, parts.beside) {
                (Some(norms), Some(parts)) => {
                    let ready = |norm: &Norm, parts| norm.ready(parts, spec.norm, &device);
                    Some(Beside {
                        before: ready(&norms.before, parts.before)?,
                        behind: ready(&norms.behind, parts.behind)?,
                        behind_dense: ready(&norms.behind_dense, parts.behind_dense)?,
                    })
                }
                _ => None,
            },
            mlp_post_norm: ready(&self.mlp_post_norm, parts.mlp_post_norm)?,
            per_layer: match (&self.per_layer, parts.per_layer) {
                (Some(own), Some(parts)) => Some(PerLayer {
                    gate: own.gate.assemble(parts.gate, how, &row_norms)?,
                    projection: own.projection.assemble(parts.projection, how, &row_norms)?,
                    norm: own.norm.ready(parts.norm, spec.norm, &device)?,
                }),
                _ => None,
            },
            altup: match (&self.altup, parts.altup) {
                (Some(own), Some(parts)) => {
                    let layer = |layer: &Layer, parts| layer.assemble(parts, how, &row_norms);
                    let [of_left, of_right] = parts.laurel;
                    let router_norm = own.router_norm.ready(parts.router_norm, spec.norm, &device)?;
                    // What the router reads is divided by its width.
                    let gamma = router_norm.gamma.rank::<1>()? / spec.hidden as f32;
                    Some(Alternating {
                        router: layer(&own.router, parts.router)?,
                        router_norm: NormTensors { gamma: AnyTensor::new(gamma), ..router_norm },
                        prediction: layer(&own.prediction, parts.prediction)?,
                        correction: layer(&own.correction, parts.correction)?,
                        scale: parts.scale,
                        laurel: [layer(&own.laurel[0], of_left)?, layer(&own.laurel[1], of_right)?],
                        laurel_norm: own.laurel_norm.ready(parts.laurel_norm, spec.norm, &device)?,
                    })
                }
                _ => None,
            },
            cutoff: self.own.cutoff,
            scalar: parts.scalar,
        })
    }
}
