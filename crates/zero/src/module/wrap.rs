//! `Wrap`: options of sharding a Burn module.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::DType;
use burnish_comm::Group;
use burnish_core::{Dtype, Orientation, Parameter, Registry, Role};
use burnish_optim::{AdamWOptions, MuonOptions, Optimizer};

use super::fill::{Extract, Place, Places, stored_shape};
use super::initial::{Loader, compare};
use super::survey::{Found, Survey};
use super::{ModuleError, Wrapped};
use crate::{MatrixAllToAll, OrthoCost, Plan, Policy, ShardedParams, Stage, Unit};

/// Which values ranks begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initial {
    /// Those of rank 0; the other ranks need not even initialize their module.
    #[default]
    FromRankZero,
    /// Each rank's own, which must be the same bits everywhere ([`ModuleError::Differs`] otherwise).
    Verified,
}

/// What a loss of several ranks and micro-batches is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduce {
    /// Each loss is a mean over its samples: gradients are averaged over ranks and micro-batches.
    #[default]
    Mean,
    /// Each loss is a share of one sum: gradients are added.
    Sum,
}

/// How a module is to be wrapped: settings, then [`over`](Self::over) a group of ranks.
///
/// Patterns are paths as Burn's module traversal has them (`layers.0.weight`), where `*` stands for any one component;
/// a pattern matches a parameter at that path and all below it.
#[derive(Clone, Debug)]
pub struct Wrap {
    policy: Policy,
    blocks: Vec<String>,
    roles: Vec<(String, Role)>,
    orientations: Vec<(String, Orientation)>,
    left: Vec<String>,
    reduce_dtype: Dtype,
    initial: Initial,
    pub(super) reduce: Reduce,
    pub(super) max_norm: Option<f64>,
    adamw: AdamWOptions,
    muon: Option<MuonOptions>,
    pub(super) seed: u64,
    pub(super) gather_on_use: bool,
}

impl Wrap {
    /// The defaults at a policy: values of rank 0, averaged gradients in f32, no clipping, AdamW for everything.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            blocks: Vec::new(),
            roles: Vec::new(),
            orientations: Vec::new(),
            left: Vec::new(),
            reduce_dtype: Dtype::F32,
            initial: Initial::default(),
            reduce: Reduce::default(),
            max_norm: None,
            adamw: AdamWOptions::default(),
            muon: None,
            seed: 0,
            gather_on_use: false,
        }
    }

    /// The defaults of a stage.
    #[must_use]
    pub fn stage(stage: Stage) -> Self {
        Self::new(Policy::new(stage))
    }

    /// Names a block, or with `*` several (`layers.*`), in forward order. Its parameters are not in the module any more:
    /// they are where [`Pass::block`](super::Pass::block) runs it. At every stage, so that one program runs at all.
    #[must_use]
    pub fn block(mut self, pattern: impl Into<String>) -> Self {
        self.blocks.push(pattern.into());
        self
    }

    /// At stage 3, gathers parameters outside blocks where the module's own forward uses them, and again where backward
    /// needs them: whole for as long as an operation runs, without naming blocks. Activations are kept.
    ///
    /// For what trains, and in evaluation for all; what `apply_lora` derives from others, and in training what is frozen,
    /// is gathered for a whole pass, as Burn keeps values that autodiff does not compute. `Embedding` keeps its matrix.
    /// [`Plan::traffic`] says what is moved when each piece of the module is used in one place.
    ///
    /// # Collectives
    /// Every use is a gather, in forward and in backward: ranks use the same parameters in the same order.
    #[must_use]
    pub fn gather_on_use(mut self) -> Self {
        self.gather_on_use = true;
        self
    }

    /// What parameters are for; otherwise told by shape (one dimension: bias or norm by name, no weight decay; two:
    /// matrix; and what an `Embedding` holds is one).
    #[must_use]
    pub fn role(mut self, pattern: impl Into<String>, role: Role) -> Self {
        self.roles.push((pattern.into(), role));
        self
    }

    /// How matrices lie that are not Burn's own modules', for what depends on it (Muon).
    #[must_use]
    pub fn orientation(mut self, pattern: impl Into<String>, orientation: Orientation) -> Self {
        self.orientations.push((pattern.into(), orientation));
        self
    }

    /// Leaves parameters alone: each rank keeps its own in the module, and nothing updates or synchronizes them. The
    /// running statistics of Burn's `BatchNorm` are always left; a `RunningState` of your own has to be.
    #[must_use]
    pub fn leave(mut self, pattern: impl Into<String>) -> Self {
        self.left.push(pattern.into());
        self
    }

    /// The dtype in which gradients travel (f32 unless stated; they are added in f32 in any case).
    #[must_use]
    pub fn reduce_dtype(mut self, dtype: Dtype) -> Self {
        self.reduce_dtype = dtype;
        self
    }

    /// Which values ranks begin with.
    #[must_use]
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// Whether gradients are averaged or added.
    #[must_use]
    pub fn reduce(mut self, reduce: Reduce) -> Self {
        self.reduce = reduce;
        self
    }

    /// Clips to a global norm, as `torch.nn.utils.clip_grad_norm_`, over the logical parameters of all ranks.
    #[must_use]
    pub fn clip(mut self, max_norm: f64) -> Self {
        self.max_norm = Some(max_norm);
        self
    }

    /// AdamW's settings.
    #[must_use]
    pub fn adamw(mut self, options: AdamWOptions) -> Self {
        self.adamw = options;
        self
    }

    /// Muon for matrices ([`MuonOptions::takes`]), AdamW for the rest; [`Wrap::role`] says what is no matrix. Each matrix
    /// is orthogonalised whole, by the one rank that owns it, at every stage.
    #[must_use]
    pub fn muon(mut self, options: MuonOptions) -> Self {
        self.muon = Some(options);
        self
    }

    /// Seeds the dropout of blocks (0 unless stated). Ranks, passes and blocks draw differently.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Wraps a module on this rank of `group`. Every rank calls it with a module of the same structure.
    ///
    /// Which parameters train is what the module says (`require_grad`); clones of one `Param` are one tied parameter.
    ///
    /// # Errors
    /// If a pattern matches nothing, blocks overlap or hold enabled training flags, nothing trains, a dtype does not
    /// travel, or ranks have different modules.
    pub fn over<M: Module>(self, group: &Group, module: M) -> Result<Wrapped<M>, ModuleError> {
        let mut survey = Survey::default();
        module.visit(&mut survey);
        let Survey { found, flags, constants, .. } = survey;
        let heads = heads(found.iter().map(|f| f.path.as_str()));
        let unmatched = |what, pattern: &str| {
            let (pattern, paths) = (pattern.to_owned(), heads.clone());
            Err(ModuleError::Unmatched { what, pattern, paths })
        };
        let roles = self.roles.iter().map(|(p, _)| ("role", p));
        let orientations = self.orientations.iter().map(|(p, _)| ("orientation", p));
        let declared = roles.chain(orientations);
        for (what, pattern) in declared.chain(self.left.iter().map(|p| ("left parameters", p))) {
            if !found.iter().any(|f| matches(pattern, &f.path).is_some()) {
                return unmatched(what, pattern);
            }
        }
        let found: Vec<Found> = found
            .into_iter()
            .filter(|f| !f.buffer && !self.left.iter().any(|p| matches(p, &f.path).is_some()))
            .collect();
        let names = self.block_names(&found)?;
        let mut draws = vec![false; names.len()];
        for (number, block) in names.iter().enumerate() {
            for (flag, statistics) in flags.iter().filter(|(flag, _)| matches(block, flag).is_some()) {
                if *statistics {
                    return Err(ModuleError::Flag { block: block.clone(), flag: flag.clone() });
                }
                draws[number] = true;
            }
        }
        if !found.iter().any(|f| f.trainable) {
            return Err(ModuleError::Frozen { parameters: found.len() });
        }
        let mut devices = module.devices();
        let device = match (devices.pop(), devices.len()) {
            (Some(device), 0) => device.without_autodiff(),
            (_, more) => return Err(ModuleError::Devices { devices: more + 1 }),
        };
        let (registry, places) = self.places(found, &names)?;
        let units = self.units(&registry, &places, &names);
        let muon = self.muon;
        let cost = |_, parameter: &Parameter| muon.and_then(|muon| OrthoCost::of(&muon, parameter));
        let plan = Arc::new(Plan::with_owners(&registry, units, group.size(), self.policy.clone(), cost)?);
        plan.agree(group)?;
        let values = group.channel("module");
        compare(&values, "constants", &constants)?;
        let mut extract = Extract { places: &places, path: Vec::new(), sources: HashMap::new() };
        let skeleton = module.map(&mut extract);
        let mut loader = Loader {
            registry: &registry,
            group: values.clone(),
            device: device.clone(),
            initial: self.initial,
            sources: extract.sources,
            digests: Vec::new(),
        };
        let store = ShardedParams::new(plan.clone(), group, &device, |index, rows| loader.rows(index, rows))?;
        if self.initial == Initial::Verified {
            compare(&values, "initial values", &loader.digests)?;
        }
        // At stage 0 every rank has all matrices, and AdamW needs none whole.
        let alone = muon.is_none() || self.policy.stage == Stage::Zero;
        let meeting = if alone { Group::alone() } else { group.clone() };
        let matrices = plan.matrices(group.rank());
        let exchange = MatrixAllToAll::new(&meeting, &device, matrices, self.policy.bucket_elements)?;
        let local = store.local_registry();
        let optimizer = match muon {
            None => Optimizer::adamw(&local, self.adamw),
            Some(muon) => {
                Optimizer::muon(&local, &registry, muon, self.adamw, &|index| exchange.owns(index))?
            }
        };
        let blocks = names.into_iter().zip(draws).map(|(path, draws)| Block { path, draws }).collect();
        Ok(Wrapped::assemble(self, skeleton, places, blocks, Arc::new(store), (optimizer, exchange), values))
    }

    /// The blocks' paths, in the order of the patterns and then of the module.
    fn block_names(&self, found: &[Found]) -> Result<Vec<String>, ModuleError> {
        let mut names: Vec<String> = Vec::new();
        for pattern in &self.blocks {
            let before = names.len();
            for found in found {
                if let Some(name) = matches(pattern, &found.path)
                    && !names[before..].contains(&name)
                {
                    names.push(name);
                }
            }
            if names.len() == before {
                let paths = heads(found.iter().map(|f| f.path.as_str()));
                return Err(ModuleError::Unmatched { what: "block", pattern: pattern.clone(), paths });
            }
        }
        for found in found {
            let mut of = names.iter().filter(|b| matches(b, &found.path).is_some());
            if let (Some(first), Some(second)) = (of.next(), of.next()) {
                let (first, second) = (first.clone(), second.clone());
                return Err(ModuleError::Overlap { first, second, parameter: found.path.clone() });
            }
        }
        Ok(names)
    }

    /// The registry, and the module's places in it. A `Param` that was met before is tied to where it was met.
    fn places(&self, found: Vec<Found>, blocks: &[String]) -> Result<(Registry, Places), ModuleError> {
        let mut registry = Registry::new();
        let mut places = Places::default();
        let mut first: HashMap<ParamId, String> = HashMap::new();
        for found in found {
            let store = match found.dtype {
                DType::F32 | DType::Flex32 => Dtype::F32,
                DType::BF16 => Dtype::Bf16,
                DType::F16 => Dtype::F16,
                got => return Err(ModuleError::Dtype { parameter: found.path, got }),
            };
            let role = self.roles.iter().rev().find(|(p, _)| matches(p, &found.path).is_some());
            let role = role.map_or(found.role, |(_, role)| *role);
            let mut parameter = Parameter::new(&found.path, &stored_shape(&found.shape), role, store);
            let orientation = self.orientations.iter().rev().find(|(p, _)| matches(p, &found.path).is_some());
            parameter.orientation = orientation.map_or(found.orientation, |(_, orientation)| *orientation);
            parameter.trainable = found.trainable;
            parameter.precision.reduce = self.reduce_dtype;
            parameter.alias_of = first.get(&found.id).cloned();
            first.entry(found.id).or_insert_with(|| found.path.clone());
            let target = parameter.alias_of.clone();
            let own = registry.add(parameter)?;
            let block = blocks.iter().position(|b| matches(b, &found.path).is_some());
            places.add(Place {
                index: target.and_then(|t| registry.index_of(&t)).unwrap_or(own),
                own,
                path: found.path,
                id: found.id,
                block: block.map(|block| (block, ParamId::new())),
                shape: found.shape,
                trainable: found.trainable,
                derived: found.derived,
                device: found.device,
                mapper: found.mapper,
            });
        }
        Ok((registry, places))
    }

    /// What stands outside blocks is one unit that is there for a whole pass. Without blocks its gradients all come at
    /// once, so at stages 0 to 2 there is a unit for each piece of the module; and where pieces are gathered when they are used.
    fn units(&self, registry: &Registry, places: &Places, blocks: &[String]) -> Vec<Unit> {
        let outside = places.iter().filter(|p| p.block.is_none());
        let by_piece = self.policy.stage < Stage::Three || self.gather_on_use;
        let mut units: Vec<Unit> = if blocks.is_empty() && by_piece {
            let mut units: Vec<Unit> = Vec::new();
            for place in outside {
                let piece = piece(&registry.at(place.own).name);
                match units.last_mut().filter(|unit| unit.name == piece) {
                    Some(unit) => unit.parameters.push(place.own),
                    None => units.push(Unit::block(piece, vec![place.own])),
                }
            }
            units
        } else {
            vec![Unit::root("outside blocks", outside.map(|p| p.own).collect())]
        };
        for (number, name) in blocks.iter().enumerate() {
            let of = places.iter().filter(|p| p.block.is_some_and(|(b, _)| b == number));
            units.push(Unit::block(name, of.map(|p| p.own).collect()));
        }
        units
    }
}

/// A block of a wrapped module.
pub(super) struct Block {
    pub(super) path: String,
    /// Whether it has dropout or noise that is on.
    pub(super) draws: bool,
}

/// The part of a path up to its first number, that included: `layers.3`, or the first component.
fn piece(path: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    let number = parts.iter().position(|part| part.bytes().all(|b| b.is_ascii_digit()));
    parts[..=number.unwrap_or(0)].join(".")
}

/// What of `path` a pattern covers, if it does.
fn matches(pattern: &str, path: &str) -> Option<String> {
    let mut covered = Vec::new();
    let mut parts = path.split('.');
    for expected in pattern.split('.') {
        let part = parts.next()?;
        if expected != "*" && expected != part {
            return None;
        }
        covered.push(part);
    }
    Some(covered.join("."))
}

/// The first components of paths.
pub(super) fn heads<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut heads: Vec<String> = Vec::new();
    for path in paths {
        let head = path.split('.').next().unwrap_or_default();
        if !heads.iter().any(|h| h == head) {
            heads.push(head.to_owned());
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_components() {
        assert_eq!(matches("layers.*", "layers.10.q.weight").as_deref(), Some("layers.10"));
        assert_eq!(matches("layers.1", "layers.10.q.weight"), None);
        assert_eq!(matches("layers.1", "layers.1.q.weight").as_deref(), Some("layers.1"));
        assert_eq!(matches("*.weight", "head.weight").as_deref(), Some("head.weight"));
        assert_eq!(matches("layers.0.q", "layers.0"), None);
    }

    #[test]
    fn pieces_end_with_the_first_number() {
        assert_eq!(piece("model.layers.3.q.0.weight"), "model.layers.3");
        assert_eq!(piece("head.weight"), "head");
        assert_eq!(piece("w"), "w");
    }
}
