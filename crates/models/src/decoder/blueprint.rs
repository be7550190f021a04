//! A model before storage exists: its registry and how its layers index it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burnish_core::{Compute, Dtype, ExpertGate, LinearPart, Parameter, Registry, Role};

use crate::decoder::invocation::Invocation;
use crate::decoder::layers::{
    ALTUP_LAYERS, ALTUP_NORM, ALTUP_SCALE, Alternating, BESIDE_NORMS, Beside, Block, CURVE, Delta,
    LATENT_LAYERS, LATENT_NORMS, LAUREL, LAUREL_NORM, Latent, Layer, Mixture, Norm, NormParts, NormPlace,
    PER_LAYER_GATE, PER_LAYER_NORM, PER_LAYER_PROJECTION, PerLayer, Place, ROUTER_SCALES, SCALAR, SINKS,
    Selective, Ssd,
};
use crate::decoder::mixed::Mixed;
use crate::decoder::queries_keys::Orders;
use crate::decoder::rotaries::KeptRotations;
use crate::decoder::streams::StreamLayers;
use crate::decoder::tp_plan::Shard;
use crate::decoder::virtual_tokens::Prompt;
use crate::decoder::{BlockKind, Decoder};
use crate::spec::names::{DeltaNames, PER_LAYER, PROJECTIONS, QkvNames, STREAMS, UpNames};
use crate::spec::{
    AltUp, BlockLayout, BlockSizes, ChannelDecay, ExpertsSpec, GatedDelta, KeysValues, LatentAttention,
    LayerSpec, LearnedPositions, Output, PerLayerInputs, QkNorm, SelectiveScanSpec, SharedExpert, ShortConv,
    SsdSpec,
};
use crate::{ModelError, Parameters, Spec};

/// A decoder's parameters by name and its layers by index. Adapters are attached here, before anything is read.
#[derive(Clone, Debug)]
pub struct Blueprint {
    pub(crate) spec: Spec,
    pub(crate) registry: Registry,
    pub(crate) embed: Layer,
    /// What an adapter has of virtual tokens before every text.
    pub(crate) prompt: Option<Prompt>,
    /// What an adapter waits for in a text.
    pub(crate) invocation: Option<Invocation>,
    /// Where the adapter is several.
    pub(crate) mixed: Option<Mixed>,
    /// Parameters of an adapter that all its modules have, one and the same.
    pub(crate) shared: Vec<usize>,
    pub(crate) embed_norm: Option<Norm>,
    pub(crate) positions: Option<Layer>,
    /// From the embedding to the stream, and from the stream to the head.
    pub(crate) projections: Option<[Layer; 2]>,
    pub(crate) per_layer: Option<PerLayerTables>,
    /// From the first of several streams to the others, and back.
    pub(crate) streams: Option<StreamLayers>,
    pub(crate) blocks: Vec<Block>,
    /// The norm behind the blocks, and the layer before the head's own norm.
    pub(crate) dense_head: Option<(Norm, Layer)>,
    pub(crate) norm: Norm,
    pub(crate) head: Layer,
    pub(crate) compute: Compute,
}

/// What makes the inputs of every block beside the stream.
#[derive(Clone, Debug)]
pub(crate) struct PerLayerTables {
    /// `[vocab, blocks * width]`.
    pub(crate) table: Layer,
    /// Of the embedding, `[blocks * width, hidden]`.
    pub(crate) projection: Layer,
    /// Of what that gives for one block.
    pub(crate) norm: Norm,
}

/// The parameter that another name stands for, where a parameter has no storage of its own.
pub(crate) fn alias(registry: &Registry, parameter: &Parameter) -> Option<usize> {
    parameter.alias_of.as_ref().and_then(|name| registry.index_of(name))
}

/// Whether a parameter corrects the scores of experts where they are compared: a buffer of Transformers' classes, which
/// nothing trains.
pub(crate) fn is_correction(parameter: &Parameter) -> bool {
    parameter.role == Role::Router && !parameter.name.ends_with(".weight")
}

/// Whether a parameter is a buffer of Transformers' classes, which nothing trains.
fn is_buffer(parameter: &Parameter) -> bool {
    is_correction(parameter) || parameter.name.rsplit('.').next() == Some(SCALAR)
}

struct Builder {
    registry: Registry,
}

impl Builder {
    fn add(&mut self, name: String, shape: &[usize], role: Role) -> Result<usize, ModelError> {
        Ok(self.registry.add(Parameter::new(name, shape, role, Dtype::F32))?)
    }

    fn linear(
        &mut self,
        place: Place,
        module: &str,
        [out, inputs]: [usize; 2],
        bias: bool,
    ) -> Result<Layer, ModelError> {
        let role = if matches!(place, Place::Head | Place::Score) { Role::Head } else { Role::Matrix };
        let weight = self.add(format!("{module}.weight"), &[out, inputs], role)?;
        let bias = if bias { Some(self.add(format!("{module}.bias"), &[out], Role::Bias)?) } else { None };
        Ok(Layer::new(place, weight, bias))
    }

    /// Several layers on one input in one matrix, one after another: `outs`, `repeats` times.
    fn packed(
        &mut self,
        place: Place,
        module: &str,
        (outs, repeats): (&[usize], usize),
        inputs: usize,
        bias: bool,
    ) -> Result<Layer, ModelError> {
        let layer = self.linear(place, module, [outs.iter().sum::<usize>() * repeats, inputs], bias)?;
        if let Some(weight) = self.registry.get_mut(&format!("{module}.weight")) {
            weight.blocks = outs.repeat(repeats);
        }
        Ok(layer)
    }

    /// A norm of the stream.
    fn norm(&mut self, place: NormPlace, module: &str, spec: &Spec) -> Result<Norm, ModelError> {
        let kind = spec.norm;
        let mut norm = self.norm_of(place, module, &[spec.hidden], kind.has_weight())?;
        if kind.has_bias() {
            norm.parts.bias = Some(self.add(format!("{module}.bias"), &[spec.hidden], Role::Bias)?);
        }
        Ok(norm)
    }

    fn norm_of(
        &mut self,
        place: NormPlace,
        module: &str,
        shape: &[usize],
        weight: bool,
    ) -> Result<Norm, ModelError> {
        let weight =
            if weight { Some(self.add(format!("{module}.weight"), shape, Role::Norm)?) } else { None };
        Ok(Norm {
            place,
            width: shape.iter().product(),
            parts: NormParts { weight, bias: None },
            saved: None,
            kind: None,
            eps: None,
        })
    }

    /// A mixture of experts, `name` giving modules their names.
    fn mixture(
        &mut self,
        spec: &Spec,
        experts: &ExpertsSpec,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Mixture, ModelError> {
        let (h, i, count, names) = (spec.hidden, experts.intermediate, experts.count, &spec.names.experts);
        let weight = self.add(format!("{}.weight", name(names.router)), &[count, h], Role::Router)?;
        let correction = if experts.corrected {
            let shape = if names.beside_pictures { vec![2, count] } else { vec![count] };
            Some(self.add(name(names.correction), &shape, Role::Router)?)
        } else {
            None
        };
        let bias = if experts.biased {
            Some(self.add(format!("{}.bias", name(names.router)), &[count], Role::Bias)?)
        } else {
            correction
        };
        let router = Layer::new(Place::Router, weight, bias);
        let mut matrix = |place, module: &str, shape: [usize; 3], blocks: &[usize]| {
            let weight = self.add(name(module), &shape, Role::Expert)?;
            if let Some(parameter) = self.registry.get_mut(&name(module)) {
                parameter.blocks = blocks.repeat(count);
            }
            let bias = match experts.biased {
                true => Some(self.add(format!("{}_bias", name(module)), &shape[..2], Role::Bias)?),
                false => None,
            };
            Ok::<_, ModelError>(Layer::new(place, weight, bias))
        };
        // Gates and ups by turns are one matrix.
        let halves = matches!(experts.gate, ExpertGate::Halves(_) | ExpertGate::ClampedHalves { .. });
        let halves: &[usize] = if halves { &[i, i] } else { &[] };
        let shape = [count, experts.gate.reads(i), h];
        let gate_up = matrix(Place::ExpertsUp, names.gate_up, shape, halves)?;
        let down = matrix(Place::ExpertsDown, names.down, [count, h, i], &[])?;
        let shared_gate = match experts.shared {
            Some(SharedExpert { gated: true, .. }) => {
                Some(self.linear(Place::SharedGate, &name(names.shared_gate), [1, h], false)?)
            }
            _ => None,
        };
        let scales = if experts.beside {
            let [of_input, of_experts] = ROUTER_SCALES.map(name);
            // Trained as any weight, and no matrices.
            Some([self.add(of_input, &[h], Role::Matrix)?, self.add(of_experts, &[count], Role::Matrix)?])
        } else {
            None
        };
        Ok(Mixture { router, gate_up, down, shared_gate, scales })
    }

    /// What makes the latents of a block's attention.
    fn latent(
        &mut self,
        spec: &Spec,
        sizes: &LatentAttention,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Latent, ModelError> {
        let (h, bias) = (spec.hidden, spec.qkv_bias);
        let mut made = |at: usize, width: usize, rank: usize| {
            let layer = self.linear(Place::Latent, &name(LATENT_LAYERS[at]), [width, h], bias)?;
            let norm = self.norm_of(NormPlace::Stream, &name(LATENT_NORMS[at]), &[rank], true)?;
            Ok::<_, ModelError>((layer, norm))
        };
        let query = sizes.query_rank.map(|rank| made(0, rank, rank)).transpose()?;
        let (layer, norm) = made(1, sizes.rank + sizes.turned, sizes.rank)?;
        Ok(Latent { query, layer, norm })
    }

    /// What a gated delta rule reads.
    fn delta_inputs(
        &mut self,
        spec: &Spec,
        sizes: &GatedDelta,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Vec<Layer>, ModelError> {
        let (h, heads, each) = (spec.hidden, sizes.key_heads, sizes.each());
        let (keys, values) = (heads * sizes.key_dim, sizes.value_heads * sizes.value_dim);
        match spec.names.delta {
            DeltaNames::Apart([of_qkv, of_gates, of_learning, of_forgetting]) => {
                let number = [sizes.value_heads, h];
                Ok(vec![
                    self.packed(Place::DeltaQkv, &name(of_qkv), (&[keys, keys, values], 1), h, false)?,
                    self.linear(Place::DeltaValues, &name(of_gates), [values, h], false)?,
                    self.linear(Place::DeltaHeads, &name(of_learning), number, false)?,
                    self.linear(Place::DeltaHeads, &name(of_forgetting), number, false)?,
                ])
            }
            DeltaNames::PerGroup([of_all, of_numbers]) => {
                let (k, v) = (sizes.key_dim, each * sizes.value_dim);
                Ok(vec![
                    self.packed(Place::DeltaGroups, &name(of_all), (&[k, k, v, v], heads), h, false)?,
                    self.packed(Place::DeltaGroupHeads, &name(of_numbers), (&[each; 2], heads), h, false)?,
                ])
            }
            DeltaNames::ByChannel([of_q, of_k, of_v, of_learning], more) => {
                let layers = [
                    (of_q, Place::DeltaKeys, keys),
                    (of_k, Place::DeltaKeys, keys),
                    (of_v, Place::DeltaValues, values),
                    (of_learning, Place::DeltaHeads, sizes.value_heads),
                ];
                // Gates, and what channels forget by, where they come straight from the stream.
                let more = more.into_iter().zip([(Place::DeltaValues, values), (Place::DeltaKeys, keys)]);
                let more = more.filter_map(|(modules, (place, width))| match modules {
                    [module] => Some((*module, place, width)),
                    _ => None,
                });
                let layers = layers.into_iter().chain(more);
                layers
                    .map(|(module, place, width)| self.linear(place, &name(module), [width, h], false))
                    .collect()
            }
            DeltaNames::ByLayer(all) => {
                let places = [
                    (Place::DeltaKeys, keys),
                    (Place::DeltaKeys, keys),
                    (Place::DeltaValues, values),
                    (Place::DeltaValues, values),
                    (Place::DeltaHeads, sizes.value_heads),
                    (Place::DeltaHeads, sizes.value_heads),
                ];
                let layers = all.into_iter().zip(places);
                layers
                    .map(|(module, (place, width))| self.linear(place, &name(module), [width, h], false))
                    .collect()
            }
        }
    }

    /// Of a delta rule whose channels forget each by itself what makes gates, and what channels forget by.
    fn narrow_layers(
        &mut self,
        spec: &Spec,
        sizes: &GatedDelta,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Vec<[Layer; 2]>, ModelError> {
        let rank = sizes.by_channel.and_then(|decay| decay.rank);
        let (DeltaNames::ByChannel(_, pairs), Some(rank)) = (spec.names.delta, rank) else {
            return Ok(Vec::new());
        };
        let (keys, values) = (sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim);
        let pairs = pairs.into_iter().zip([(Place::DeltaValues, values), (Place::DeltaKeys, keys)]);
        let mut made = Vec::new();
        for (modules, (place, width)) in pairs {
            if let [narrow, wide] = modules {
                let narrow = self.linear(Place::Latent, &name(narrow), [rank, spec.hidden], false)?;
                made.push([narrow, self.linear(place, &name(wide), [width, rank], false)?]);
            }
        }
        Ok(made)
    }

    /// A state space, whole on every rank.
    fn ssd(
        &mut self,
        spec: &Spec,
        sizes: &SsdSpec,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Ssd<Layer, usize, Norm>, ModelError> {
        let (h, heads, width, names) = (spec.hidden, [sizes.heads], sizes.width(), spec.names.ssd);
        let [of_input, of_output] = sizes.biases;
        let (state, channels) = (sizes.groups * sizes.state, sizes.channels());
        let parts: &[usize] = match sizes.selective {
            Some(_) => &[width, width],
            None => &[width, width, state, state, sizes.heads],
        };
        let conv = name(names.conv);
        Ok(Ssd {
            input: self.packed(Place::PerLayer, &name(names.input), (parts, 1), h, of_input)?,
            kernel: self.add(format!("{conv}.weight"), &[channels, 1, sizes.taps], Role::Convolution)?,
            kernel_bias: match sizes.conv_bias {
                true => Some(self.add(format!("{conv}.bias"), &[channels], Role::Bias)?),
                false => None,
            },
            bias: match sizes.selective {
                Some(_) => None,
                None => Some(self.add(name(names.bias), &heads, Role::Bias)?),
            },
            // Trained as any weight, and no matrices.
            log_rate: match sizes.selective {
                Some(_) => self.add(name(names.log_rate), &[width, sizes.state], Role::Convolution)?,
                None => self.add(name(names.log_rate), &heads, Role::Matrix)?,
            },
            skip: self.add(name(names.skip), &heads, Role::Matrix)?,
            norm: match sizes.norm {
                true => Some(self.norm_of(NormPlace::Stream, &name(names.norm), &[width], true)?),
                false => None,
            },
            selective: match sizes.selective {
                Some(own) => Some(self.selective(spec, sizes, own, name)?),
                None => None,
            },
            output: self.linear(Place::PerLayer, &name(names.output), [h, width], of_output)?,
        })
    }

    /// What makes steps and directions of Mamba's state space.
    fn selective(
        &mut self,
        spec: &Spec,
        sizes: &SsdSpec,
        own: SelectiveScanSpec,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Selective<Layer, Norm>, ModelError> {
        let (SelectiveScanSpec { step_rank: rank, norm_weights, .. }, state) = (own, sizes.state);
        let ([of_read, of_steps], of_norms) = spec.names.ssd.selective;
        Ok(Selective {
            read: self.packed(
                Place::PerLayer,
                &name(of_read),
                (&[rank, state, state], 1),
                sizes.width(),
                false,
            )?,
            steps: self.linear(Place::PerLayer, &name(of_steps), [sizes.width(), rank], true)?,
            norms: match own.norm_eps {
                Some(_) => {
                    let mut norm = |at: usize, width: usize| {
                        self.norm_of(NormPlace::Stream, &name(of_norms[at]), &[width], norm_weights)
                    };
                    Some([norm(0, rank)?, norm(1, state)?, norm(2, state)?])
                }
                None => None,
            },
        })
    }

    /// What a block makes of streams beside each other.
    fn alternating(
        &mut self,
        spec: &Spec,
        altup: &AltUp,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Alternating<Layer, Norm, usize>, ModelError> {
        let (h, n, rank) = (spec.hidden, altup.streams, altup.laurel_rank);
        let mut whole =
            |module: &str, shape: [usize; 2]| self.linear(Place::PerLayer, &name(module), shape, false);
        let [of_router, of_prediction, of_correction] = ALTUP_LAYERS;
        let router = whole(of_router, [n, h])?;
        let (prediction, correction) = (whole(of_prediction, [n * n, n])?, whole(of_correction, [n, n])?);
        let laurel = [whole(LAUREL[0], [rank, h])?, whole(LAUREL[1], [h, rank])?];
        Ok(Alternating {
            router,
            router_norm: self.norm(NormPlace::Stream, &name(ALTUP_NORM), spec)?,
            prediction,
            correction,
            // Trained as any weight, and no matrix.
            scale: self.add(name(ALTUP_SCALE), &[h], Role::Matrix)?,
            laurel,
            laurel_norm: self.norm(NormPlace::Stream, &name(LAUREL_NORM), spec)?,
        })
    }

    fn block(&mut self, spec: &Spec, layer: usize) -> Result<Block, ModelError> {
        let own = spec.layers[layer].sizes.map(|sizes| spec.with_sizes(sizes));
        let (spec, keys) = (own.as_ref().unwrap_or(spec), spec.layers[layer].keys);
        let (h, i, d, names) = (spec.hidden, spec.intermediate, spec.head_dim, &spec.names);
        let (q, kv) = (spec.heads * spec.query_dim(), spec.kv_heads * d);
        let name = |module: &str| names.in_block(layer, module);
        let layout = spec.layers[layer].layout.unwrap_or(spec.layout);
        let of_ssd = spec.ssd_of(layer);
        let LayerSpec { no_attention, no_feed_forward, .. } = spec.layers[layer];
        let bare = spec.layers[layer].no_attention_norm || no_attention && of_ssd.is_none();
        let attention_norm = if layout.is_pre() && !bare {
            // Latents are whole on every rank, and so what they are made of; Laurel and state spaces too.
            let place = if spec.latent.is_some() || spec.altup.is_some() || of_ssd.is_some() {
                NormPlace::Stream
            } else {
                NormPlace::Divided
            };
            Some(self.norm(place, &name(names.attention_norm), spec)?)
        } else {
            None
        };
        let convolution = spec.conv.filter(|_| spec.layers[layer].conv);
        let of_delta = spec.delta_of(layer);
        let bias = spec.qkv_bias;
        let latent = match spec.latent.filter(|_| !no_attention && of_delta.is_none()) {
            Some(sizes) => Some(self.latent(spec, &sizes, &name)?),
            None => None,
        };
        let qkv = match names.qkv {
            _ if no_attention => Vec::new(),
            QkvNames::OfLatent([of_q, of_kv]) if of_delta.is_none() => {
                let sizes = spec.latent.expect("invariant: latents have their sizes");
                let (heads, reads) = (spec.heads, sizes.query_rank.unwrap_or(h));
                let wide = heads * (sizes.still + sizes.value);
                let mut all = vec![
                    self.linear(Place::Queries, &name(of_q), [heads * spec.query_dim(), reads], false)?,
                    self.linear(Place::LatentUp, &name(of_kv), [wide, sizes.rank], false)?,
                ];
                if let Some(each) = spec.gates_apart() {
                    let shape = [heads * each, h];
                    all.push(self.linear(Place::HeadGates, &name(names.head_gates), shape, false)?);
                }
                all
            }
            _ if of_delta.is_some() => match of_delta {
                Some(sizes) => self.delta_inputs(spec, sizes, &name)?,
                None => Vec::new(),
            },
            _ if convolution.is_some() => {
                let bias = convolution.is_some_and(|conv| conv.bias);
                vec![self.packed(Place::ConvIn, &name(names.conv[0]), (&[h; 3], 1), h, bias)?]
            }
            QkvNames::OfLatent(_) => Vec::new(),
            QkvNames::Apart([of_q, of_k, of_v]) => {
                let mut all = vec![self.linear(Place::Queries, &name(of_q), [q, h], bias)?];
                let of_v = (of_v, Place::Values, spec.kv_heads * spec.value_dim());
                let of_k = (of_k, Place::KeysValues, kv);
                let of_keys = match keys {
                    KeysValues::Own => &[of_k, of_v][..],
                    KeysValues::KeysAsValues => &[of_k],
                    KeysValues::Of(_) => &[],
                };
                for &(module, place, rows) in of_keys {
                    all.push(self.linear(place, &name(module), [rows, h], bias)?);
                }
                if let Some(each) = spec.gates_apart() {
                    let shape = [spec.heads * each, h];
                    all.push(self.linear(Place::HeadGates, &name(names.head_gates), shape, false)?);
                }
                all
            }
            QkvNames::Packed(module) => {
                vec![self.packed(Place::Qkv, &name(module), (&[q, kv, kv], 1), h, bias)?]
            }
            QkvNames::PerGroup(module) => {
                let group = [q / spec.kv_heads, d, d];
                vec![self.packed(Place::QkvPerGroup, &name(module), (&group, spec.kv_heads), h, bias)?]
            }
            QkvNames::Quarters(module) => {
                vec![self.packed(Place::QkvPerGroup, &name(module), (&[q / 4; 3], 4), h, bias)?]
            }
        };
        let narrow = match of_delta {
            Some(sizes) => self.narrow_layers(spec, sizes, &name)?,
            None => Vec::new(),
        };
        let still = spec.layers[layer].rope.is_none();
        let normed = |kind: &QkNorm| !(*kind == QkNorm::PerHeadRotatedBare && still);
        let attends = convolution.is_none() && of_delta.is_none() && !no_attention;
        let qk_norms = match spec.qk_norm.filter(|_| attends).filter(normed) {
            None => None,
            Some(kind) => {
                let [of_q, of_k] = names.qk_norms.map(name);
                let (at_q, at_k) = match kind {
                    QkNorm::WholeWidth => ((NormPlace::Queries, vec![q]), (NormPlace::Keys, vec![kv])),
                    QkNorm::PerHeadLayer { own: true } => {
                        let (of_q, of_k) = (vec![spec.heads, d], vec![spec.kv_heads, d]);
                        ((NormPlace::QueryHeads, of_q), (NormPlace::KeyHeads, of_k))
                    }
                    _ => ((NormPlace::Divided, vec![d]), (NormPlace::Divided, vec![d])),
                };
                let biased = kind == (QkNorm::PerHeadLayer { own: false });
                let mut norm = |place, module: &str, shape: &[usize], lent: bool| {
                    let bare = matches!(kind, QkNorm::PerHeadBare | QkNorm::PerHeadRotatedBare);
                    let weight = !bare && !lent;
                    let mut norm = self.norm_of(place, module, shape, weight)?;
                    if biased {
                        norm.parts.bias = Some(self.add(format!("{module}.bias"), shape, Role::Bias)?);
                    }
                    Ok::<_, ModelError>(norm)
                };
                let lent = matches!(keys, KeysValues::Of(_));
                Some((norm(at_q.0, &of_q, &at_q.1, false)?, norm(at_k.0, &of_k, &at_k.1, lent)?))
            }
        };
        let sinks = if spec.sinks && attends && !spec.layers[layer].no_sinks {
            // Trained as any weight, and no matrix.
            Some(self.add(name(SINKS), &[spec.heads], Role::Matrix)?)
        } else {
            None
        };
        let mut kernels = Vec::new();
        if let Some(sizes) = of_delta {
            let (keys, values) = (sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim);
            let all = names.delta.convolutions();
            let channels = if all.len() == 1 { vec![2 * keys + values] } else { vec![keys, keys, values] };
            for (module, channels) in all.iter().zip(channels) {
                let shape = [channels, 1, sizes.taps];
                kernels.push(self.add(format!("{}.weight", name(module)), &shape, Role::Convolution)?);
            }
        }
        let mut kernels = kernels.into_iter();
        let of_kernel = kernels.next();
        let delta = match of_delta {
            Some(sizes) => {
                let [bias, log_rate] = names.delta.rates().map(name);
                let heads = sizes.value_heads;
                let (biases, rates) = match sizes.by_channel {
                    // As Kimi Linear's class has them.
                    Some(ChannelDecay { rank: Some(_), .. }) => (heads * sizes.key_dim, vec![1, 1, heads, 1]),
                    Some(_) => (heads * sizes.key_dim, vec![heads]),
                    None => (heads, vec![heads]),
                };
                Some(Delta {
                    kernels: kernels.collect(),
                    bias: self.add(bias, &[biases], Role::Bias)?,
                    // Trained as any weight, and no matrix.
                    log_rate: self.add(log_rate, &rates, Role::Matrix)?,
                    norm: self.norm_of(
                        NormPlace::Divided,
                        &name(names.delta.norm()),
                        &[sizes.value_dim],
                        true,
                    )?,
                })
            }
            None => None,
        };
        let conv = match convolution {
            _ if of_delta.is_some() => Some(NormParts { weight: of_kernel, bias: None }),
            Some(ShortConv { taps, bias }) => {
                let module = name(names.conv[1]);
                let weight = Some(self.add(format!("{module}.weight"), &[h, 1, taps], Role::Convolution)?);
                let bias =
                    if bias { Some(self.add(format!("{module}.bias"), &[h], Role::Bias)?) } else { None };
                Some(NormParts { weight, bias })
            }
            None => None,
        };
        let o = match convolution {
            _ if no_attention => None,
            _ if of_delta.is_some() => {
                let reads = of_delta.map_or(0, |d| d.value_heads * d.value_dim);
                Some(self.linear(Place::DeltaOut, &name(names.delta.output()), [h, reads], false)?)
            }
            Some(ShortConv { bias, .. }) => {
                Some(self.linear(Place::ConvOut, &name(names.conv[2]), [h, h], bias)?)
            }
            None => {
                let shape = [h, spec.heads * spec.value_dim()];
                let bias = spec.o_bias || spec.layers[layer].o_bias;
                Some(self.linear(Place::Output, &name(names.o), shape, bias)?)
            }
        };
        let ssd = match of_ssd {
            Some(sizes) => Some(self.ssd(spec, sizes, &name)?),
            None => None,
        };
        let post = |b: &mut Self, module: &str| -> Result<Option<Norm>, ModelError> {
            if !layout.is_post() {
                return Ok(None);
            }
            let norm = b.norm(NormPlace::Stream, &name(module), spec)?;
            Ok(Some(Norm { eps: spec.post_norm_eps, ..norm }))
        };
        let attention_post_norm = post(self, names.attention_post_norm)?;
        let mlp_norm = if layout.is_pre() && layout != BlockLayout::ParallelShared && !no_feed_forward {
            // A router reads the whole stream, and so what it gives is whole.
            let mixed = spec.experts_of(layer).is_some_and(|experts| !experts.beside);
            let place = if mixed { NormPlace::Stream } else { NormPlace::Divided };
            Some(self.norm(place, &name(names.mlp_norm), spec)?)
        } else {
            None
        };
        let bias = spec.mlp_bias;
        let experts = spec.experts_of(layer);
        let mixture = match experts {
            Some(experts) => Some(self.mixture(spec, experts, &name)?),
            None => None,
        };
        let beside = experts.is_some_and(|experts| experts.beside);
        let shared = experts.filter(|_| !beside).map(|experts| experts.shared);
        let i = shared.flatten().map_or(i, |shared| shared.intermediate);
        let of_up = if shared.is_some() { names.experts.shared_up } else { names.up };
        let up = match of_up {
            _ if shared == Some(None) || no_feed_forward => Vec::new(),
            UpNames::Gated([gate, up]) => vec![
                self.linear(Place::Inner, &name(gate), [i, h], bias)?,
                self.linear(Place::Inner, &name(up), [i, h], bias)?,
            ],
            UpNames::Packed(module) => {
                vec![self.packed(Place::GateUp, &name(module), (&[i, i], 1), h, bias)?]
            }
            UpNames::Plain(module) => vec![self.linear(Place::Inner, &name(module), [i, h], bias)?],
        };
        let curve = if spec.xielu {
            let [of_p, of_n] = CURVE.map(name);
            // Trained as any weight, and no matrix.
            Some((self.add(of_p, &[1], Role::Matrix)?, self.add(of_n, &[1], Role::Matrix)?))
        } else {
            None
        };
        let down = match shared {
            Some(None) => None,
            None if no_feed_forward => None,
            Some(_) => Some(self.linear(Place::Down, &name(names.experts.shared_down), [h, i], bias)?),
            None => Some(self.linear(Place::Down, &name(names.down), [h, i], bias)?),
        };
        let beside = if beside {
            let [before, behind, behind_dense] = BESIDE_NORMS.map(name);
            Some(Beside {
                before: self.norm(NormPlace::Stream, &before, spec)?,
                behind: self.norm(NormPlace::Stream, &behind, spec)?,
                behind_dense: self.norm(NormPlace::Stream, &behind_dense, spec)?,
            })
        } else {
            None
        };
        let mlp_post_norm = match spec.layers[layer].mlp_post_norm {
            true => Some(self.norm(NormPlace::Stream, &name(names.mlp_post_norm), spec)?),
            false => post(self, names.mlp_post_norm)?,
        };
        let per_layer = match spec.per_layer {
            Some(PerLayerInputs { width, .. }) => Some(PerLayer {
                gate: self.linear(Place::PerLayer, &name(PER_LAYER_GATE), [width, h], false)?,
                projection: self.linear(Place::PerLayer, &name(PER_LAYER_PROJECTION), [h, width], false)?,
                norm: self.norm(NormPlace::Stream, &name(PER_LAYER_NORM), spec)?,
            }),
            None => None,
        };
        let altup = match spec.altup {
            Some(altup) => Some(self.alternating(spec, &altup, &name)?),
            None => None,
        };
        let scalar = if spec.layer_scalars { Some(self.add(name(SCALAR), &[1], Role::Norm)?) } else { None };
        Ok(Block {
            name: names.block(layer),
            shared_as: None,
            attention_norm,
            latent,
            qkv,
            narrow,
            qk_norms,
            sinks,
            conv,
            delta,
            o,
            ssd,
            attention_post_norm,
            mlp_norm,
            up,
            curve,
            down,
            mixture,
            beside,
            mlp_post_norm,
            per_layer,
            altup,
            scalar,
            own: spec.layers[layer],
        })
    }
}

impl PerLayerTables {
    /// What a pass reads, in order, what it reads at once together.
    pub(crate) fn indices(&self, adapters: bool) -> [Vec<usize>; 3] {
        [self.table.indices(adapters), self.projection.indices(adapters), self.norm.indices(adapters)]
    }
}

impl Blueprint {
    /// The parameters and layers of a spec, all frozen.
    ///
    /// # Errors
    /// Never for a spec read from a configuration; the registry refuses double names.
    pub fn new(spec: Spec) -> Result<Self, ModelError> {
        let mut b = Builder { registry: Registry::new() };
        let (h, names) = (spec.hidden, spec.names);
        let table = |b: &mut Builder, place, module: &str, rows: usize, width: usize| {
            let weight = b.add(format!("{module}.weight"), &[rows, width], Role::Embedding)?;
            Ok::<_, ModelError>(Layer::new(place, weight, None))
        };
        if spec.tied && spec.embeddings != spec.vocab {
            return Err(ModelError::Unsupported {
                key: "tie_word_embeddings".to_owned(),
                got: format!("true, with {} embeddings and {} logits", spec.embeddings, spec.vocab),
                supported: "false where there are more embeddings than logits",
            });
        }
        let embed = table(&mut b, Place::Embedding, names.embed, spec.embeddings, spec.ends)?;
        if spec.part && spec.output == Output::Score {
            return Err(ModelError::Unsupported {
                key: "model_type".to_owned(),
                got: spec.family.model_type().to_owned(),
                supported: "a model of text alone, for scores",
            });
        }
        let embed_norm = if spec.embedding_norm {
            let of_embeddings = spec.end_norms.map_or(spec.norm, |[of_embeddings, _]| of_embeddings);
            let own = Spec { norm: of_embeddings, ..spec.clone() };
            let norm = b.norm(NormPlace::Stream, names.embed_norm, &own)?;
            Some(Norm { kind: Some(of_embeddings), ..norm })
        } else {
            None
        };
        let positions = match spec.positions {
            Some(LearnedPositions { offset, count }) => {
                Some(table(&mut b, Place::Positions, names.positions, offset + count, h)?)
            }
            None => None,
        };
        let projections = if spec.ends == h {
            None
        } else {
            let [of_in, of_out] = PROJECTIONS.map(|module| names.beside_embed(module));
            Some([
                b.linear(Place::PerLayer, &of_in, [h, spec.ends], false)?,
                b.linear(Place::PerLayer, &of_out, [spec.ends, h], false)?,
            ])
        };
        let per_layer = match spec.per_layer {
            Some(PerLayerInputs { width, tokens }) => {
                let [of_table, of_projection, of_norm] = PER_LAYER.map(|module| names.beside_embed(module));
                let all = width * spec.layers.len();
                let weight = b.add(format!("{of_table}.weight"), &[tokens, all], Role::Embedding)?;
                Some(PerLayerTables {
                    table: Layer::new(Place::Embedding, weight, None),
                    projection: b.linear(Place::PerLayer, &of_projection, [all, h], false)?,
                    norm: b.norm_of(NormPlace::Stream, &of_norm, &[width], true)?,
                })
            }
            None => None,
        };
        let streams = match spec.altup {
            Some(altup) => {
                let mut all = |at: usize| {
                    let list = names.beside_embed(STREAMS[at]);
                    let layer = |i| b.linear(Place::PerLayer, &format!("{list}.{i}"), [h, h], false);
                    (0..altup.streams - 1).map(layer).collect::<Result<Vec<_>, _>>()
                };
                Some(StreamLayers { into: all(0)?, out: all(1)? })
            }
            None => None,
        };
        let blocks = (0..spec.layers.len()).map(|layer| b.block(&spec, layer)).collect::<Result<_, _>>()?;
        let dense_head = match spec.dense_head {
            Some(bias) => {
                let [of_norm, of_layer] = names.dense_head;
                let norm = b.norm(NormPlace::Stream, of_norm, &spec)?;
                Some((norm, b.linear(Place::PerLayer, of_layer, [h, h], bias)?))
            }
            None => None,
        };
        let norm = match spec.final_norm {
            true => {
                let kind = spec.end_norms.map_or(spec.norm, |[_, last]| last);
                let norm = b.norm(NormPlace::Stream, names.norm, &Spec { norm: kind, ..spec.clone() })?;
                Norm { kind: Some(kind), ..norm }
            }
            false => b.norm_of(NormPlace::Stream, names.norm, &[h], false)?,
        };
        let score = spec.output == Output::Score;
        let place = if score { Place::Score } else { Place::Head };
        let head = if spec.tied {
            let name = format!("{}.weight", names.head);
            let mut alias = Parameter::new(name, &[spec.vocab, spec.ends], Role::Head, Dtype::F32);
            alias.alias_of = Some(format!("{}.weight", names.embed));
            b.registry.add(alias)?;
            let bias = if spec.head_bias {
                Some(b.add(format!("{}.bias", names.head), &[spec.vocab], Role::Bias)?)
            } else {
                None
            };
            Layer::new(place, embed.parts.weight, bias)
        } else {
            let rows = if score { 1 } else { spec.vocab };
            b.linear(place, spec.head_name(), [rows, spec.ends], spec.head_bias && !score)?
        };
        let compute = Compute::Fp32;
        let registry = b.registry;
        let (prompt, invocation, mixed, shared) = (None, None, None, Vec::new());
        Ok(Self {
            spec,
            registry,
            embed,
            prompt,
            invocation,
            mixed,
            shared,
            embed_norm,
            positions,
            projections,
            per_layer,
            streams,
            blocks,
            dense_head,
            norm,
            head,
            compute,
        })
    }

    /// What it describes.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The parameters.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The parameters, to set dtypes and what trains.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Marks every base parameter as trained, buffers aside.
    pub fn train_all(&mut self) {
        for parameter in self.registry.iter_mut() {
            parameter.trainable = !is_buffer(parameter);
        }
    }

    /// Makes each attention head's rows of queries, keys and values a matrix of its own ([`Parameter::blocks`]).
    pub fn split_heads(&mut self) {
        let latent = self.spec.latent.is_some();
        let attending = self.blocks.iter().enumerate().filter(|(_, b)| b.conv.is_none());
        let layers = attending.flat_map(|(at, b)| b.qkv.iter().map(move |layer| (at, layer)));
        let layers = layers.filter(|(_, layer)| layer.place != Place::HeadGates);
        for (at, layer) in layers {
            let BlockSizes { heads, head_dim: dim, .. } = self.spec.sizes(at);
            let dim = if layer.place == Place::Values {
                self.spec.with_sizes(self.spec.sizes(at)).value_dim()
            } else {
                dim
            };
            let weights = layer.all().filter(|(part, _)| *part == LinearPart::Weight);
            for (_, index) in weights {
                let name = self.registry.at(index).name.clone();
                if let Some(weight) = self.registry.get_mut(&name) {
                    let dim = if latent { weight.shape[0] / heads } else { dim };
                    weight.blocks = vec![dim; weight.shape[0] / dim];
                }
            }
        }
    }

    /// Which parameters are read together, in the order of forward: the embedding, the blocks, the norm and the head.
    /// What an adapter's copies replace is in none.
    #[must_use]
    pub fn units(&self) -> Vec<(String, Vec<usize>)> {
        let mut seen = BTreeSet::new();
        let mut unit = |name: &str, indices: Vec<usize>| {
            (name.to_owned(), indices.into_iter().filter(|&i| seen.insert(i)).collect())
        };
        // What several blocks read is there as long as the embedding.
        let mut units = vec![unit(self.spec.names.embed, [self.tables(true), self.shared.clone()].concat())];
        units.extend(self.blocks.iter().map(|b| unit(&b.name, b.indices(true))));
        let mut last: Vec<usize> = self.projections.iter().flat_map(|[_, out]| out.indices(true)).collect();
        last.extend(self.streams.iter().flat_map(|own| &own.out).flat_map(|layer| layer.indices(true)));
        last.extend(self.dense_head_indices(true));
        last.extend(self.norm.indices(true));
        last.extend(self.head.indices(true));
        units.push(unit(self.spec.head_name(), last));
        units
    }

    /// The parameters of what stands between the blocks and the head's own norm.
    fn dense_head_indices(&self, adapters: bool) -> Vec<usize> {
        let both = self.dense_head.iter();
        both.flat_map(|(norm, layer)| [norm.indices(adapters), layer.indices(adapters)].concat()).collect()
    }

    /// The parameters of the embedding, its norm and of learned positions.
    fn tables(&self, adapters: bool) -> Vec<usize> {
        let norm = self.embed_norm.iter().flat_map(|norm| norm.indices(adapters));
        let positions = self.positions.iter().flat_map(|p| p.indices(adapters));
        let per_layer = self.per_layer.iter().flat_map(|own| own.indices(adapters).concat());
        let projection = self.projections.iter().flat_map(|[into, _]| into.indices(adapters));
        let prompt = self.prompt.iter().filter(|_| adapters).flat_map(|prompt| prompt.indices.clone());
        let embed = self.embed.indices(adapters).into_iter().chain(prompt).chain(projection);
        let streams = self.streams.iter().flat_map(|own| &own.into);
        let streams = streams.flat_map(|layer| layer.indices(adapters));
        embed.chain(norm).chain(positions).chain(per_layer).chain(streams).collect()
    }

    /// What a pass without gradients reads, in order, what it reads at once together; without `adapters` the base alone.
    #[must_use]
    pub fn reads(&self, adapters: bool) -> Vec<Vec<usize>> {
        let mut reads = vec![self.embed.indices(adapters)];
        reads.extend(self.prompt.iter().filter(|_| adapters).map(|prompt| prompt.indices.clone()));
        reads.extend(self.projections.iter().map(|[into, _]| into.indices(adapters)));
        reads.extend(self.positions.iter().map(|p| p.indices(adapters)));
        reads.extend(self.embed_norm.iter().map(|norm| norm.indices(adapters)));
        reads.extend(self.per_layer.iter().flat_map(|own| own.indices(adapters)));
        reads.extend(self.streams.iter().flat_map(|own| &own.into).map(|layer| layer.indices(adapters)));
        reads.extend(self.blocks.iter().map(|b| b.indices(adapters)));
        reads.extend(self.streams.iter().flat_map(|own| &own.out).map(|layer| layer.indices(adapters)));
        reads.extend(self.projections.iter().map(|[_, out]| out.indices(adapters)));
        reads.push(self.dense_head_indices(adapters));
        reads.extend([self.norm.indices(adapters), self.head.indices(adapters)]);
        // Nothing is read of a norm without parameters.
        reads.retain(|read| !read.is_empty());
        reads
    }

    /// The model over storage that follows this blueprint's registry.
    #[must_use]
    pub fn into_decoder(self, parameters: Arc<dyn Parameters>) -> Decoder {
        let shard = Shard::whole(&self.spec);
        self.into_shard(parameters, shard, Shard::whole)
    }

    /// This rank's part of the model, over storage of its part of each parameter.
    pub(crate) fn into_shard(
        self,
        parameters: Arc<dyn Parameters>,
        shard: Shard,
        shard_of: impl Fn(&Spec) -> Shard,
    ) -> Decoder {
        let mut kinds: BTreeMap<BlockSizes, Arc<BlockKind>> = BTreeMap::new();
        let mut kind_of = |layer: usize| {
            let sizes = self.spec.sizes(layer);
            let kind = || {
                let spec = self.spec.with_sizes(sizes);
                let shard = shard_of(&spec);
                let orders = Orders::new(&spec, shard.heads, shard.kv_heads);
                Arc::new(BlockKind { spec: Arc::new(spec), shard, orders })
            };
            kinds.entry(sizes).or_insert_with(kind).clone()
        };
        let kinds = (0..self.blocks.len()).map(&mut kind_of).collect();
        Decoder {
            shard,
            spec: Arc::new(self.spec),
            parameters,
            embed: self.embed,
            prompt: self.prompt,
            invocation: self.invocation,
            mixed: self.mixed,
            embed_norm: self.embed_norm,
            positions: self.positions,
            projections: self.projections,
            per_layer: self.per_layer,
            streams: self.streams,
            blocks: self.blocks.into_iter().map(Arc::new).collect(),
            dense_head: self.dense_head,
            norm: self.norm,
            head: self.head,
            kinds,
            compute: self.compute,
            rotations: KeptRotations::default(),
        }
    }

    /// Every linear layer and the embedding, by module name.
    pub(crate) fn layers_mut(&mut self) -> Vec<(String, &mut Layer)> {
        let named = |registry: &Registry, layer: &Layer| {
            let weight = &registry.at(layer.parts.weight).name;
            weight.strip_suffix(".weight").unwrap_or(weight).to_owned()
        };
        let mut all = vec![(self.spec.names.embed.to_owned(), &mut self.embed)];
        all.extend(self.positions.as_mut().map(|layer| (self.spec.names.positions.to_owned(), layer)));
        if let Some(projections) = &mut self.projections {
            let names = PROJECTIONS.map(|module| self.spec.names.beside_embed(module));
            all.extend(names.into_iter().zip(projections));
        }
        if let Some(own) = &mut self.per_layer {
            let [of_table, of_projection, _] = PER_LAYER.map(|module| self.spec.names.beside_embed(module));
            all.extend([(of_table, &mut own.table), (of_projection, &mut own.projection)]);
        }
        if let Some(StreamLayers { into, out }) = &mut self.streams {
            for (list, layers) in STREAMS.into_iter().zip([into, out]) {
                let list = self.spec.names.beside_embed(list);
                let named = layers.iter_mut().enumerate();
                all.extend(named.map(|(i, layer)| (format!("{list}.{i}"), layer)));
            }
        }
        for block in &mut self.blocks {
            let (name, shared_as) = (block.name.clone(), block.shared_as.clone());
            for layer in block.layers_mut() {
                let module = named(&self.registry, layer);
                let within = shared_as.as_ref().and_then(|shared_as| module.strip_prefix(shared_as));
                all.push((within.map_or(module.clone(), |within| format!("{name}{within}")), layer));
            }
        }
        all.extend(
            self.dense_head.as_mut().map(|(_, layer)| (self.spec.names.dense_head[1].to_owned(), layer)),
        );
        all.push((self.spec.head_name().to_owned(), &mut self.head));
        all
    }

    /// Every norm, by module name.
    pub(crate) fn norms_mut(&mut self) -> Vec<(String, &mut Norm)> {
        let names = self.spec.names;
        let mut all = Vec::new();
        all.extend(self.embed_norm.as_mut().map(|norm| (names.embed_norm.to_owned(), norm)));
        all.extend(self.per_layer.as_mut().map(|own| (names.beside_embed(PER_LAYER[2]), &mut own.norm)));
        for b in &mut self.blocks {
            let name = b.name.clone();
            all.extend(
                b.norms_mut(&names).into_iter().map(|(module, norm)| (format!("{name}.{module}"), norm)),
            );
        }
        all.extend(self.dense_head.as_mut().map(|(norm, _)| (names.dense_head[0].to_owned(), norm)));
        all.push((names.norm.to_owned(), &mut self.norm));
        all
    }
}
