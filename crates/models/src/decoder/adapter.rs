//! LoRA on a blueprint: which parameters an adapter adds and where layers find them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use burnish_core::{LoraParts, Parameter, Role};
use burnish_peft::{LoraConfig, LoraPlan, LoraSite, ModuleInfo, ModuleKind, PeftMethod, Purpose, Targets};

use crate::ModelError;
use crate::decoder::blueprint::Blueprint;
use crate::decoder::change::LayerChange;
use crate::decoder::invocation::Invocation;
use crate::decoder::layers::{Adapter, Block, Layer, Place};
use crate::decoder::mixed::Mixed;
use crate::decoder::tp_plan::Parallel;
use crate::decoder::virtual_tokens::Prompt;
use crate::spec::{KeysValues, Output, Pairs, SCORE};

/// What the trained copy of a base parameter is called (`modules_to_save`).
pub(crate) fn copy_name(base: &str) -> String {
    format!("modules_to_save.{base}")
}

/// PEFT's word for adapters of models that score texts (`task_type`).
pub const SCORING_TASK: &str = "SEQ_CLS";

/// The configuration, with the score among `modules_to_save` where PEFT puts it there.
fn with_score(config: &LoraConfig, output: Output) -> LoraConfig {
    let mut config = config.clone();
    if output == Output::Score && config.task_type.as_deref() == Some(SCORING_TASK) {
        let saved = config.modules_to_save.get_or_insert_default();
        if !saved.iter().any(|name| name == SCORE) {
            saved.push(SCORE.to_owned());
        }
    }
    config
}

/// Layers of a model whose layers stand several times, at most.
const MOST_LAYERS: usize = 4096;

/// Whether a module or parameter is one of a block.
fn within(name: &str, block: &Block) -> bool {
    name.strip_prefix(&block.name).is_some_and(|rest| rest.starts_with('.'))
}

impl Blueprint {
    /// The modules that an adapter may target.
    #[must_use]
    pub fn modules(&mut self) -> Vec<ModuleInfo> {
        let shapes: Vec<Vec<usize>> = self.registry.iter().map(|p| p.shape.clone()).collect();
        let routers_are_linear = self.spec.names.experts.router_is_linear;
        let turned = self.spec.names.experts.adapters_turned;
        let module = |(name, layer): (String, &mut Layer)| {
            let shape = &shapes[layer.parts.weight];
            // Routers and the stacked matrices of experts are parameters, not linears, as in Transformers and PEFT.
            let (name, kind) = match layer.place {
                Place::Embedding | Place::Positions => (name, ModuleKind::Embedding),
                Place::Head | Place::Score => (name, ModuleKind::Head),
                Place::Router if routers_are_linear => (name, ModuleKind::Linear),
                Place::Router => (format!("{name}.weight"), ModuleKind::Parameter),
                Place::ExpertsUp | Place::ExpertsDown if turned => {
                    (name, ModuleKind::ExpertsTurned(shape[0]))
                }
                Place::ExpertsUp | Place::ExpertsDown => (name, ModuleKind::Experts(shape[0])),
                _ => (name, ModuleKind::Linear),
            };
            let [.., out, input] = shape[..] else { unreachable!("invariant: layers have matrices") };
            ModuleInfo::new(name, kind, out, input)
        };
        // PEFT adapts no head of rows of length one, which is no linear layer.
        let unit_head = self.spec.unit_head;
        let adapted = |layer: &Layer| !(unit_head && layer.place == Place::Head);
        self.layers_mut().into_iter().filter(|(_, layer)| adapted(layer)).map(module).collect()
    }

    /// Plans an adapter on this base and adds its parameters. The base stays frozen, except what the configuration
    /// trains along: with the task [`SCORING_TASK`] the score is among that, as in PEFT.
    ///
    /// # Errors
    /// If the configuration is not supported, or a pattern matches nothing.
    pub fn attach(
        &mut self,
        config: &LoraConfig,
        use_: Purpose,
        model_type: &str,
    ) -> Result<LoraPlan, ModelError> {
        let shared = match config.replication() {
            Some(ranges) => self.replicate(ranges)?,
            None => Vec::new(),
        };
        let modules = self.modules();
        let mut config = with_score(config, self.spec.output);
        if let Some(PeftMethod::PrefixTuning(prefix)) = &mut config.method {
            prefix.on_model(self.blocks.len(), self.spec.kv_heads, self.spec.head_dim)?;
        }
        let mut plan = LoraPlan::new(&config, use_, model_type, &modules, &self.registry)?;
        self.say_where(&mut plan, use_);
        let turned = |name: &&String| self.registry.get(name).is_some_and(|p| self.spec.names.turns(p));
        if let Some(name) = plan.saved.iter().find(turned) {
            return Err(ModelError::SavedTurned { name: name.clone() });
        }
        let keys = matches!(plan.config.method, Some(PeftMethod::PrefixTuning(_)));
        if plan.prompt.is_some() {
            if keys {
                self.check_prefix()?
            } else {
                self.check_prompt()?
            }
            self.check_text()?;
        }
        if !shared.is_empty()
            && let Some(name) = plan.saved.iter().find(|name| self.blocks.iter().any(|b| within(name, b)))
        {
            let supported = "of modules outside blocks with layer_replication";
            let (key, got) = ("modules_to_save".to_owned(), name.clone());
            return Err(ModelError::Unsupported { key, got, supported });
        }
        for parameter in plan.parameters() {
            self.registry.add(parameter)?;
        }
        self.invocation = self.invocation_of(&plan)?;
        let registry = &self.registry;
        let index = |name: &str| {
            registry.index_of(name).ok_or_else(|| ModelError::UnknownParameter { name: name.to_owned() })
        };
        let mut layers = Vec::new();
        for site in &plan.sites {
            let optional = |name: &Option<String>| name.as_deref().map(index).transpose();
            let lora = LoraParts {
                a: index(&site.a_name)?,
                b: index(&site.b_name)?,
                b_bias: optional(&site.b_bias_name)?,
                magnitude: optional(&site.magnitude_name)?,
            };
            let adapter = Adapter {
                site: site.module.clone(),
                scale: site.scale as f32,
                dropout: site.dropout as f32,
                turned: false,
            };
            if let Some((alias, _)) = plan.kept_tie.as_ref().filter(|(_, table)| *table == site.base_weight())
            {
                let site = alias.trim_end_matches(".weight").to_owned();
                let dropout = plan.config.dropout() as f32;
                layers.push((lora, Adapter { site, dropout, turned: true, ..adapter.clone() }));
            }
            layers.push((lora, adapter));
        }
        let prompt = match &plan.prompt {
            Some(file) => {
                let indices = plan.prompt_parts().map(|part| index(&part.name)).collect::<Result<_, _>>()?;
                Some(Prompt { count: file.shape[0], indices, encoder: plan.encoder.clone(), keys })
            }
            None => None,
        };
        let parts = plan.changes.iter().flat_map(|site| site.parts.iter().map(move |part| (site, part)));
        let of_all = parts.filter(|(site, part)| site.shares(part));
        let of_all = of_all.map(|(_, part)| index(&part.name));
        let shared = of_all.chain(shared.into_iter().map(Ok)).collect::<Result<BTreeSet<_>, _>>()?;
        let mut changes = Vec::new();
        let made =
            |site: &&burnish_peft::ChangeSite| site.parts.iter().all(|p| p.shape.iter().all(|&n| n > 0));
        for site in plan.changes.iter().filter(made) {
            let change = LayerChange {
                indices: site.parts.iter().map(|part| index(&part.name)).collect::<Result<_, _>>()?,
                follows: site.parts.iter().map(|part| part.follows).collect(),
                change: site.change.clone(),
                site: site.module.clone(),
                dropout: site.dropout as f32,
                piece: None,
            };
            changes.push((site.module.clone(), Arc::new(change)));
        }
        let (embed, tied) = (self.embed.parts.weight, self.spec.names.embed);
        for (name, layer) in self.layers_mut() {
            let of = |name: &str| changes.iter().find(|(module, _)| module == name).map(|(_, c)| c.clone());
            layer.change = of(&name);
            // What shares the embedding's storage has its rows too.
            if layer.parts.weight == embed && layer.change.is_none() {
                layer.change = of(tied).filter(|change| !change.rows().is_empty());
            }
            let weight = format!("{name}.weight");
            let is = |site: &str| site == name || layer.place == Place::Router && site == weight;
            let found = layers.iter().find(|(_, adapter)| is(&adapter.site)).cloned();
            (layer.parts.lora, layer.adapter) = found.unzip();
        }
        self.prompt = prompt;
        self.shared = shared.into_iter().collect();
        for name in &plan.saved {
            let index = self.copy(name)?;
            if plan.kept_tie.as_ref().is_some_and(|(_, table)| table == name) {
                let head = self.head.saved.get_or_insert(self.head.parts.base());
                head.weight = index;
            }
        }
        for name in &plan.biases {
            if let Some(bias) = self.registry.get_mut(name) {
                bias.trainable = true;
            }
        }
        Ok(plan)
    }

    /// Puts ranges of blocks one after another in place of all, as PEFT does: a block that stands several times is one, but for
    /// its name and the factors that it will have. Returns the parameters that several read.
    fn replicate(&mut self, ranges: &[(usize, usize)]) -> Result<Vec<usize>, ModelError> {
        let (spec, count) = (&self.spec, self.blocks.len());
        let refused = |got: String, supported| {
            let key = "layer_replication".to_owned();
            Err(ModelError::Unsupported { key, got, supported })
        };
        if let Some((start, end)) = ranges.iter().find(|(start, end)| start >= end || *end > count) {
            return refused(format!("[{start}, {end}]"), "ranges [start, end) of the model's layers");
        }
        let layers = ranges.iter().try_fold(0_usize, |all, (start, end)| all.checked_add(end - start));
        if layers.is_none_or(|layers| layers > MOST_LAYERS) {
            return refused(format!("{} ranges", ranges.len()), "no more than 4096 layers in all");
        }
        let alike = spec.layers.iter().all(|own| *own == spec.layers[0] && own.keys == KeysValues::Own);
        if !alike || spec.per_layer.is_some() || spec.altup.is_some() || spec.recached_beyond.is_some() {
            return refused("given".to_owned(), "a model whose layers are all of one kind");
        }
        let names = self.spec.names;
        let order: Vec<usize> = ranges.iter().flat_map(|&(start, end)| start..end).collect();
        let block = |(at, &from): (usize, &usize)| {
            let own = &self.blocks[from];
            Block { name: names.block(at), shared_as: Some(own.name.clone()), ..own.clone() }
        };
        let blocks: Vec<Block> = order.iter().enumerate().map(block).collect();
        self.blocks = blocks;
        self.spec.layers = order.iter().map(|&from| self.spec.layers[from]).collect();
        Ok(self.blocks.iter().flat_map(|block| block.indices(false)).collect())
    }

    /// What an adapter waits for, which then is on linear layers of blocks alone.
    fn invocation_of(&self, plan: &LoraPlan) -> Result<Option<Invocation>, ModelError> {
        let Some(tokens) = plan.config.invocation() else { return Ok(None) };
        let refused = |got: String, supported| {
            let key = "alora_invocation_tokens".to_owned();
            Err(ModelError::Unsupported { key, got, supported })
        };
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
            return refused(id.to_string(), "tokens of the vocabulary");
        }
        if let Some(site) = self.outside_blocks(plan) {
            let supported =
                "on linear layers of blocks; leave out of target_modules what stands outside them";
            return refused(format!("on `{}`", site.module), supported);
        }
        Ok(Some(Invocation(Arc::new(tokens.to_vec()))))
    }

    /// A site that is in no block.
    pub(crate) fn outside_blocks<'p>(&self, plan: &'p LoraPlan) -> Option<&'p LoraSite> {
        plan.sites.iter().find(|site| !self.blocks.iter().any(|block| within(&site.module, block)))
    }

    /// Makes the adapter several, of which each sequence has its columns.
    pub(crate) fn mix(&mut self, columns: Vec<Range<usize>>) {
        self.mixed = Some(Mixed(columns));
    }

    /// Tells changes of layers which part of them a tensor-parallel rank has.
    pub(crate) fn place_changes(&mut self, parallel: &Parallel, rank: usize) {
        for (_, layer) in self.layers_mut() {
            let region = parallel.layout(layer.parts.weight).region(rank);
            if let Some(change) = layer.change.as_mut().filter(|_| !region.is_whole()) {
                Arc::make_mut(change).piece = Some(region);
            }
        }
    }

    /// That virtual tokens may stand before this model's texts.
    fn check_prompt(&self) -> Result<(), ModelError> {
        let refused = |key: &str, got: String, supported| {
            Err(ModelError::Unsupported { key: key.to_owned(), got, supported })
        };
        if self.spec.embedding_scale != 1.0 {
            // Families scale before or after virtual tokens come in.
            let got = self.spec.embedding_scale.to_string();
            return refused(
                "the factor of embeddings",
                got,
                "1 with virtual tokens (prompt and P-tuning); LoRA",
            );
        }
        if self.spec.ends != self.spec.hidden || self.spec.per_layer.is_some() {
            let supported =
                "embeddings of the blocks' width alone with virtual tokens (prompt and P-tuning); LoRA";
            return refused("the width of embeddings", self.spec.ends.to_string(), supported);
        }
        if let Some(length) = self.spec.recached_beyond {
            let got = length.to_string();
            let supported = "none with virtual tokens (prompt and P-tuning); LoRA";
            return refused("original_max_position_embeddings", got, supported);
        }
        Ok(())
    }

    /// That what follows virtual tokens is text.
    fn check_text(&self) -> Result<(), ModelError> {
        if self.spec.output == Output::Score {
            let supported = "CAUSAL_LM with virtual tokens (prompt and P-tuning); LoRA";
            let (key, got) = ("task_type".to_owned(), SCORING_TASK.to_owned());
            return Err(ModelError::Unsupported { key, got, supported });
        }
        Ok(())
    }

    /// That keys and values of virtual tokens may stand before those of this model's texts.
    fn check_prefix(&self) -> Result<(), ModelError> {
        let spec = &self.spec;
        let refused = |key: &str, got: &str| {
            let supported = "attention with keys and values of its own in every block, all of one size and of neighbours that do not turn together, with peft_type PREFIX_TUNING; LoRA, PROMPT_TUNING";
            Err(ModelError::Unsupported { key: key.to_owned(), got: got.to_owned(), supported })
        };
        let other = |own: &crate::spec::LayerSpec| {
            let instead = own.conv || own.delta || own.ssd || own.no_attention;
            instead || own.chunk.is_some() || own.sizes.is_some() || own.keys != KeysValues::Own || own.lends
        };
        if spec.latent.is_some() || spec.layers.iter().any(other) {
            return refused("attention", "another");
        }
        // Rows of virtual tokens would be routed, too.
        if spec.experts.is_some() {
            return refused("experts", "given");
        }
        if spec.per_layer.is_some() || spec.altup.is_some() {
            return refused("inputs of each block", "given");
        }
        if !spec.slopes.is_empty() || !spec.rounded_slopes.is_empty() {
            return refused("alibi", "true");
        }
        if spec.pairs == Pairs::Neighbours && !spec.ropes.is_empty() {
            return refused("rotation", "of neighbours");
        }
        // At position 0 nothing turns, unless a factor is on it.
        if spec.ropes.iter().any(|rope| rope.depends_on_length() || rope.frequencies(1).1 != 1.0) {
            return refused("rope_scaling", "with a factor of attention, or by the length of a text");
        }
        Ok(())
    }

    /// Completes the configuration for PEFT, which meets the whole model: other parts get no adapter, and of GPT-2's
    /// matrices it is said that they are turned, as PEFT itself does.
    fn say_where(&self, plan: &mut LoraPlan, use_: Purpose) {
        let mut kinds =
            plan.sites.iter().map(|site| site.kind).chain(plan.changes.iter().map(|site| site.kind));
        let linear = kinds.any(|kind| kind == ModuleKind::Linear);
        if self.spec.names.turned && linear {
            plan.config.rest.insert("fan_in_fan_out".to_owned(), true.into());
        }
        if self.spec.part && use_ == Purpose::Create && plan.config.exclude_modules.is_none() {
            let within = self.spec.names.embed.rsplit_once('.').map_or("", |(within, _)| within);
            let within = within.replace('.', r"\.");
            plan.config.exclude_modules = Some(Targets::Pattern(format!(r"^(?!{within}\.|lm_head$).*")));
        }
    }

    /// Adds a trained copy of a base parameter and points its layer there; where it is.
    fn copy(&mut self, base: &str) -> Result<usize, ModelError> {
        let unknown = || ModelError::UnknownParameter { name: base.to_owned() };
        let original = self.registry.get(base).ok_or_else(unknown)?.clone();
        let role = if base.starts_with(self.spec.names.head) { Role::Head } else { original.role };
        let mut copy = Parameter { name: copy_name(base), role, alias_of: None, ..original };
        copy.trainable = true;
        let index = self.registry.add(copy)?;
        let (module, part) = base.rsplit_once('.').ok_or_else(unknown)?;
        for (name, layer) in self.layers_mut() {
            if name == module {
                let saved = layer.saved.get_or_insert(layer.parts.base());
                if part == "bias" {
                    saved.bias = Some(index);
                } else {
                    saved.weight = index;
                }
                return Ok(index);
            }
        }
        for (name, norm) in self.norms_mut() {
            if name == module {
                let saved = norm.saved.get_or_insert(norm.parts);
                if part == "bias" {
                    saved.bias = Some(index);
                } else {
                    saved.weight = Some(index);
                }
                return Ok(index);
            }
        }
        Err(unknown())
    }
}
