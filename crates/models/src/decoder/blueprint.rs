//! A model before storage exists: its registry and how its layers index it.

use std::collections::BTreeSet;
use std::sync::Arc;

use burnish_core::{Dtype, LinearPart, Parameter, Registry, Role};

use crate::decoder::Decoder;
use crate::decoder::layers::{Block, Layer, Norm};
use crate::decoder::tp_plan::Shard;
use crate::spec::{EMBED, HEAD, Output};
use crate::{ModelError, Parameters, Spec};

/// A decoder's parameters by name and its layers by index. Adapters are attached here, before anything is read.
#[derive(Clone, Debug)]
pub struct Blueprint {
    pub(crate) spec: Spec,
    pub(crate) registry: Registry,
    pub(crate) embed: Layer,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Norm,
    pub(crate) head: Layer,
}

struct Builder {
    registry: Registry,
}

impl Builder {
    fn add(&mut self, name: String, shape: &[usize], role: Role) -> Result<usize, ModelError> {
        Ok(self.registry.add(Parameter::new(name, shape, role, Dtype::F32))?)
    }

    fn linear(&mut self, module: &str, out: usize, inputs: usize, bias: bool) -> Result<Layer, ModelError> {
        let weight = self.add(format!("{module}.weight"), &[out, inputs], Role::Matrix)?;
        let bias = if bias { Some(self.add(format!("{module}.bias"), &[out], Role::Bias)?) } else { None };
        Ok(Layer::new(weight, bias))
    }

    /// Several layers on one input in one matrix, one after another.
    fn packed(
        &mut self,
        module: &str,
        outs: &[usize],
        inputs: usize,
        bias: bool,
    ) -> Result<Layer, ModelError> {
        let layer = self.linear(module, outs.iter().sum(), inputs, bias)?;
        if let Some(weight) = self.registry.get_mut(&format!("{module}.weight")) {
            weight.blocks = outs.to_vec();
        }
        Ok(layer)
    }

    fn norm(&mut self, module: &str, dim: usize) -> Result<Norm, ModelError> {
        Ok(Norm { weight: self.add(format!("{module}.weight"), &[dim], Role::Norm)?, saved: None })
    }
}

impl Blueprint {
    /// The parameters and layers of a spec, all frozen.
    ///
    /// # Errors
    /// Never for a spec read from a configuration; the registry refuses double names.
    pub fn new(spec: Spec) -> Result<Self, ModelError> {
        let mut b = Builder { registry: Registry::new() };
        let (h, i, d) = (spec.hidden, spec.intermediate, spec.head_dim);
        let (q, kv) = (spec.heads * d, spec.kv_heads * d);
        let weight = b.add(format!("{EMBED}.weight"), &[spec.vocab, h], Role::Embedding)?;
        let embed = Layer::new(weight, None);
        let mut blocks = Vec::with_capacity(spec.layers);
        for l in 0..spec.layers {
            let name = format!("model.layers.{l}");
            let attn = format!("{name}.self_attn");
            blocks.push(Block {
                input_norm: b.norm(&format!("{name}.input_layernorm"), h)?,
                qkv: if spec.packed {
                    vec![b.packed(&format!("{attn}.qkv_proj"), &[q, kv, kv], h, spec.qkv_bias)?]
                } else {
                    vec![
                        b.linear(&format!("{attn}.q_proj"), q, h, spec.qkv_bias)?,
                        b.linear(&format!("{attn}.k_proj"), kv, h, spec.qkv_bias)?,
                        b.linear(&format!("{attn}.v_proj"), kv, h, spec.qkv_bias)?,
                    ]
                },
                head_norms: if spec.qk_norm {
                    Some((b.norm(&format!("{attn}.q_norm"), d)?, b.norm(&format!("{attn}.k_norm"), d)?))
                } else {
                    None
                },
                o: b.linear(&format!("{attn}.o_proj"), h, q, spec.o_bias)?,
                post_norm: b.norm(&format!("{name}.post_attention_layernorm"), h)?,
                gate_up: if spec.packed {
                    vec![b.packed(&format!("{name}.mlp.gate_up_proj"), &[i, i], h, spec.mlp_bias)?]
                } else {
                    vec![
                        b.linear(&format!("{name}.mlp.gate_proj"), i, h, spec.mlp_bias)?,
                        b.linear(&format!("{name}.mlp.up_proj"), i, h, spec.mlp_bias)?,
                    ]
                },
                down: b.linear(&format!("{name}.mlp.down_proj"), h, i, spec.mlp_bias)?,
                window: spec.windows[l],
                name,
            });
        }
        let norm = b.norm("model.norm", h)?;
        let head = if spec.tied {
            let mut alias =
                Parameter::new(format!("{HEAD}.weight"), &[spec.vocab, h], Role::Head, Dtype::F32);
            alias.alias_of = Some(format!("{EMBED}.weight"));
            b.registry.add(alias)?;
            Layer::new(weight, None)
        } else {
            let rows = if spec.output == Output::Score { 1 } else { spec.vocab };
            let weight = b.add(format!("{}.weight", spec.head_name()), &[rows, h], Role::Head)?;
            Layer::new(weight, None)
        };
        Ok(Self { spec, registry: b.registry, embed, blocks, norm, head })
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

    /// Marks every base parameter as trained.
    pub fn train_all(&mut self) {
        for parameter in self.registry.iter_mut() {
            parameter.trainable = true;
        }
    }

    /// Makes each attention head's rows of queries, keys and values a matrix of its own ([`Parameter::blocks`]).
    pub fn split_heads(&mut self) {
        let dim = self.spec.head_dim;
        for layer in self.blocks.iter().flat_map(|b| &b.qkv) {
            let weights = layer.all().filter(|(part, _)| *part == LinearPart::Weight);
            for (_, index) in weights {
                let name = self.registry.at(index).name.clone();
                if let Some(weight) = self.registry.get_mut(&name) {
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
        let mut units = vec![unit(EMBED, self.embed.indices(true))];
        units.extend(self.blocks.iter().map(|b| unit(&b.name, b.indices(true))));
        let mut last = vec![self.norm.index(true)];
        last.extend(self.head.indices(true));
        units.push(unit(self.spec.head_name(), last));
        units
    }

    /// What a pass without gradients reads, in order, what it reads at once together; without `adapters` the base alone.
    #[must_use]
    pub fn reads(&self, adapters: bool) -> Vec<Vec<usize>> {
        let mut reads = vec![self.embed.indices(adapters)];
        reads.extend(self.blocks.iter().map(|b| b.indices(adapters)));
        reads.extend([vec![self.norm.index(adapters)], self.head.indices(adapters)]);
        reads
    }

    /// The model over storage that follows this blueprint's registry.
    #[must_use]
    pub fn into_decoder(self, parameters: Arc<dyn Parameters>) -> Decoder {
        let shard = Shard::whole(&self.spec);
        self.into_shard(parameters, shard)
    }

    /// This rank's part of the model, over storage of its part of each parameter.
    pub(crate) fn into_shard(self, parameters: Arc<dyn Parameters>, shard: Shard) -> Decoder {
        Decoder {
            shard,
            spec: self.spec,
            parameters,
            embed: self.embed,
            blocks: self.blocks.into_iter().map(Arc::new).collect(),
            norm: self.norm,
            head: self.head,
        }
    }

    /// Every linear layer and the embedding, by module name.
    pub(crate) fn layers_mut(&mut self) -> Vec<(String, &mut Layer)> {
        let mut all = vec![(EMBED.to_owned(), &mut self.embed)];
        for b in &mut self.blocks {
            let layers = b.qkv.iter_mut().chain([&mut b.o]).chain(&mut b.gate_up).chain([&mut b.down]);
            for layer in layers {
                let weight = &self.registry.at(layer.parts.weight).name;
                all.push((weight.strip_suffix(".weight").unwrap_or(weight).to_owned(), layer));
            }
        }
        all.push((self.spec.head_name().to_owned(), &mut self.head));
        all
    }

    /// Every norm, by module name.
    pub(crate) fn norms_mut(&mut self) -> Vec<(String, &mut Norm)> {
        let mut all = Vec::new();
        for b in &mut self.blocks {
            let name = b.name.clone();
            all.push((format!("{name}.input_layernorm"), &mut b.input_norm));
            all.push((format!("{name}.post_attention_layernorm"), &mut b.post_norm));
            if let Some((q, k)) = &mut b.head_norms {
                all.push((format!("{name}.self_attn.q_norm"), q));
                all.push((format!("{name}.self_attn.k_norm"), k));
            }
        }
        all.push(("model.norm".to_owned(), &mut self.norm));
        all
    }
}
