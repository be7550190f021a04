//! From a folder to a model in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_core::random::Stream;
use burnish_core::work::{Unit, Work};
use burnish_core::{
    Compute, Dtype, Layout, Parameter, Quantization, QuantizeOnLoad, Region, Registry, Role, Scheme,
};
use burnish_ops::{AnyTensor, column_norms, host_device, row_norms};
use burnish_peft::{
    AdapterFolder, AdapterTensors, Change, ChangeSite, Decomposition, Factor, InitWeights, Loftq, LoraConfig,
    LoraPlan, LoraSite, ModuleKind, PeftError, Purpose, decompose, init_lora_weights,
};
use burnish_quant::{Quantized, Values};
use burnish_tp::{AdapterSums, Tp};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

use crate::decoder::adapter::copy_name;
use crate::decoder::layers::CURVE;
use crate::files::folder::{ModelFolder, named_in, quantize, read_rows, rows_in, to_device, to_host};
use crate::files::loftq::AlternatedWeights;
use crate::files::packed::widened;
use crate::files::pieces::read_pieces;
use crate::{
    Blueprint, Decoder, ExpertSharding, Exporter, LocalParams, ModelAxes, ModelError, Names, Parallel,
    Parameters, RowSource,
};

/// What trains.
pub enum Tuning<'a> {
    /// Nothing: scoring and generation.
    None,
    /// Every base parameter.
    Full,
    /// A fresh adapter.
    NewAdapter(&'a LoraConfig),
    /// An adapter from a folder, trained further or only used.
    Adapter(&'a AdapterFolder),
}

/// A model whose parameters are known and whose values can be asked for, rows at a time: a rank that keeps a part reads
/// a part.
pub struct ModelPlan<'a> {
    folder: &'a ModelFolder,
    pub(crate) blueprint: Blueprint,
    pub(super) plan: Option<LoraPlan>,
    tensors: AdapterTensors,
    base: usize,
    seed: u64,
    /// Tensor parallelism, when there is any.
    parallel: Option<(Arc<Parallel>, ModelAxes)>,
    initial: Initial,
    pub(crate) sums: AdapterSums,
    pub(crate) experts: ExpertSharding,
    pub(super) alternated: AlternatedWeights,
}

impl<'a> ModelPlan<'a> {
    /// The parameters of a model folder under `tuning`, without reading weights.
    ///
    /// `trained` is the stored dtype of trained matrices, and of frozen ones that an adapter's start changes (PiSSA, OLoRA);
    /// others stay as they are in the files. A fresh adapter's values
    /// are a function of `seed` and each parameter's name.
    ///
    /// # Errors
    /// If the folder or the adapter does not fit.
    pub fn new(
        folder: &'a ModelFolder,
        tuning: &Tuning<'_>,
        trained: Dtype,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let mut blueprint = Blueprint::new(folder.spec().clone())?;
        let base = blueprint.registry().len();
        let model_type = folder.model_type();
        let mut tensors = AdapterTensors::default();
        let plan = match tuning {
            Tuning::None => None,
            Tuning::Full => {
                blueprint.train_all();
                None
            }
            Tuning::NewAdapter(config) => Some(blueprint.attach(config, Purpose::Create, model_type)?),
            Tuning::Adapter(adapter) => {
                let plan = blueprint.attach(&adapter.config, Purpose::Load, model_type)?;
                let spec = folder.spec();
                tensors = adapter.load_part(&plan, |module| spec.has(module))?;
                Some(plan)
            }
        };
        Self::of(folder, blueprint, (base, plan, tensors), (trained, seed))
    }

    /// The parameters of a blueprint, of which the first `base` are the folder's and the others the adapter's.
    pub(crate) fn of(
        folder: &'a ModelFolder,
        mut blueprint: Blueprint,
        (base, plan, tensors): (usize, Option<LoraPlan>, AdapterTensors),
        (trained, seed): (Dtype, u64),
    ) -> Result<Self, ModelError> {
        folder.declare(blueprint.registry_mut(), base, trained)?;
        if folder.is_quantized() {
            let how = packed_as(blueprint.registry());
            let mend = "take another init_lora_weights";
            if plan.as_ref().is_some_and(LoraPlan::changes_base) {
                return Err(folder.quantized_already(how, "no start can change it:", mend));
            }
            if plan.as_ref().is_some_and(|plan| plan.config.keeps_b() && !plan.is_loaded()) {
                return Err(folder.quantized_already(how, "its minor vectors are in no file of it:", mend));
            }
            let own = |plan: &LoraPlan| plan.starts_from_quantization() || plan.own_quantization().is_some();
            if plan.as_ref().is_some_and(own) {
                return Err(folder.quantized_already(how, "what that lost is in no file of it:", mend));
            }
        }
        // What an adapter's start leaves of a weight is a new value: rounded as trained ones are.
        for site in plan.iter().filter(|plan| plan.changes_base()).flat_map(|plan| &plan.sites) {
            if let Some(weight) = blueprint.registry_mut().get_mut(&site.base_weight()) {
                weight.precision.store = trained;
            }
        }
        let (initial, sums) = (Initial::default(), AdapterSums::default());
        let (parallel, experts) = (None, ExpertSharding::default());
        let alternated = AlternatedWeights::default();
        Ok(Self {
            folder,
            blueprint,
            plan,
            tensors,
            base,
            seed,
            parallel,
            initial,
            sums,
            experts,
            alternated,
        })
    }

    /// The same model, whose adapter starts from these factors, which rows of the data gave ([`RowStart`](crate::RowStart)).
    #[must_use]
    pub fn starting_from(self, factors: &BTreeMap<String, Arc<Decomposition>>) -> Self {
        factors.iter().for_each(|(module, made)| self.initial.put(module, made.clone()));
        self
    }

    /// The same model, of which these parameters train.
    pub(super) fn training_only(mut self, weights: &[usize]) -> Self {
        for (index, parameter) in self.blueprint.registry_mut().iter_mut().enumerate() {
            parameter.trainable = weights.contains(&index);
        }
        self
    }

    /// How the ranks of [`Self::over`] sum their addends of adapters on the linears of blocks; fused, if not said. Those
    /// with magnitudes (DoRA) and those on embedding and head stay fused.
    #[must_use]
    pub fn summing(self, sums: AdapterSums) -> Self {
        Self { sums, ..self }
    }

    /// How the ranks of [`Self::over`] have the experts of mixtures; a part of every one, if not said.
    #[must_use]
    pub fn sharing_experts(self, experts: ExpertSharding) -> Self {
        Self { experts, ..self }
    }

    /// The same model, whose products on the CPU multiply `compute`; fp32, if not said. Weights keep their dtype.
    #[must_use]
    pub fn computing(mut self, compute: Compute) -> Self {
        self.blueprint.compute = compute;
        self
    }

    /// The same model, whose frozen matrices rest in fp32 where their files have 16 bits, if `widened`: for products of fp32
    /// on devices that multiply in the dtype of a weight, as all but the CPU do. What rests in fewer bits stays as it is.
    #[must_use]
    pub fn widening(mut self, widened: bool) -> Self {
        let is_narrow =
            |p: &&mut Parameter| !p.trainable && p.quantization.is_none() && p.precision.store.bytes() == 2;
        let frozen = self.blueprint.registry_mut().iter_mut().take(self.base);
        for parameter in frozen.filter(|_| widened).filter(is_narrow) {
            parameter.precision.store = Dtype::F32;
        }
        self
    }

    /// The same model, the frozen matrices of whose blocks rest in fewer bits and are read in `read`. As in Transformers
    /// the embedding, the head, routers and what trains keep their dtypes, and a folder that is quantised already stays as it
    /// is; experts too where that is said.
    ///
    /// # Errors
    /// If nothing is frozen there, or the adapter's start changes the base (PiSSA, OLoRA).
    pub fn quantized(mut self, how: QuantizeOnLoad, read: Dtype) -> Result<Self, ModelError> {
        let QuantizeOnLoad { quantization, experts } = how;
        let unsupported = |got: &str, supported: &'static str| ModelError::Unsupported {
            key: "load_in_4bit or load_in_8bit".to_owned(),
            got: got.to_owned(),
            supported,
        };
        if self.plan.as_ref().is_some_and(LoraPlan::changes_base) {
            return Err(unsupported("a start that changes the base", "another init_lora_weights"));
        }
        if self.plan.as_ref().is_some_and(|plan| plan.config.keeps_b() && !plan.is_loaded()) {
            let supported = "a base in full under a fresh mica, as in PEFT; another init_lora_weights";
            return Err(unsupported("vectors of the base", supported));
        }
        let bits = if quantization.scheme == Scheme::Int8 { 8 } else { 4 };
        if let Some(own) = self.plan.as_ref().and_then(LoraPlan::own_quantization) {
            let other = own.bits.is_some_and(|said| said != bits);
            if other || quantization != (Loftq { bits: Some(bits), ..own }).quantization() {
                let supported = "the bits of the adapter's loftq_config, as PEFT quantises them: NF4 without nested scales, or eight";
                return Err(unsupported(&quantization.scheme.to_string(), supported));
            }
        }
        self.plan.iter_mut().for_each(|plan| plan.note_bits(bits));
        if self.folder.is_quantized() {
            let already = |p: &Parameter| p.quantization.is_some_and(|own| own.scheme != Scheme::Int8);
            let four = self.registry().iter().any(already);
            if four == (quantization.scheme != Scheme::Int8) {
                return Ok(self);
            }
            let how = packed_as(self.registry());
            let what = "cannot become other bits:";
            return Err(self.folder.quantized_already(how, what, "leave load_in_4bit and load_in_8bit out"));
        }
        let of_a_block =
            |p: &&mut Parameter| is_of_a_block(p, experts) && !p.trainable && p.quantization.is_none();
        let mut any = false;
        for parameter in self.blueprint.registry_mut().iter_mut().take(self.base).filter(of_a_block) {
            parameter.quantization = Some(quantization);
            parameter.precision.store = read;
            any = true;
        }
        if any { Ok(self) } else { Err(unsupported("nothing frozen", "an adapter: use_peft")) }
    }

    /// The parameter at `index` in the fewer bits that the registry declares: as the folder has it, or quantised from the
    /// folder's values.
    ///
    /// # Errors
    /// Those of [`Self::rows`]; those of [`ModelFolder::packed`].
    pub fn quantize(&self, index: usize, quantization: Quantization) -> Result<Quantized, ModelError> {
        let parameter = self.registry().at(index);
        if let Some(packed) = self.folder.packed(parameter)? {
            return Ok(packed);
        }
        if let Some((site, own)) = self.own_quantization(&parameter.name) {
            return Ok(self.alternated(site, own)?.bits.clone());
        }
        let whole = self.rows(index, 0..rows_in(parameter))?;
        if parameter.role != Role::Expert {
            return quantize(&whole, quantization);
        }
        // Each matrix by itself, gates and ups apart.
        let [rows, row] = parameter.as_matrix(1);
        let each = if parameter.blocks.is_empty() { rows } else { parameter.blocks[0] };
        let size = each * row * whole.dtype.bytes();
        let one = |bytes: &[u8]| {
            quantize(&HostTensor::new(whole.dtype, &[each, row], bytes.to_vec())?, quantization)
        };
        Ok(Quantized::stacked(whole.bytes.chunks_exact(size).map(one).collect::<Result<_, _>>()?))
    }

    /// Rows of what this rank holds of a parameter in fewer bits. A matrix is quantised whole and then divided, so that
    /// every rank has the codes of the same blocks.
    ///
    /// # Errors
    /// Those of [`Self::quantize`].
    pub fn quantized_rows(
        &self,
        index: usize,
        rows: Range<usize>,
        quantization: Quantization,
    ) -> Result<Quantized, ModelError> {
        let whole = self.quantize(index, quantization)?;
        let held = match self.layout_of(index) {
            Some((layout, rank)) => layout.region(rank),
            None => Region::whole(&self.registry().at(index).shape),
        };
        let region = held.along(0, &[rows]).as_matrix();
        Ok(if region.is_whole() { whole } else { whole.region(&region) })
    }

    /// The same model divided over the ranks of `tp`, of which this one holds a part of each layer.
    ///
    /// # Errors
    /// If there are more ranks than heads, or experts where ranks have whole ones.
    pub fn over(self, tp: &Tp) -> Result<Self, ModelError> {
        let axes = ModelAxes::of(tp, self.experts);
        self.over_axes(&axes)
    }

    /// The same model over ranks along two axes: those that share layers, and groups of them that have other experts.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn over_axes(mut self, axes: &ModelAxes) -> Result<Self, ModelError> {
        let parallel = Parallel::new(&mut self.blueprint, axes.sizes(), self.sums, self.experts)?;
        self.blueprint.place_changes(&parallel, axes.all.rank());
        self.parallel = Some((Arc::new(parallel), axes.clone()));
        Ok(self)
    }

    /// How parameters lie over tensor-parallel ranks, if there are several.
    #[must_use]
    pub fn parallel(&self) -> Option<&Arc<Parallel>> {
        self.parallel.as_ref().map(|(parallel, _)| parallel)
    }

    /// How the parameter at `index` lies over ranks, and which this one is, when there are several.
    pub(crate) fn layout_of(&self, index: usize) -> Option<(&Layout, usize)> {
        self.parallel.as_ref().map(|(parallel, axes)| (parallel.layout(index), axes.all.rank()))
    }

    /// The parameters, of their global shapes.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.blueprint.registry()
    }

    /// The parameters with the shapes of what this rank holds.
    #[must_use]
    pub fn local_registry(&self) -> Registry {
        match &self.parallel {
            Some((parallel, axes)) => parallel.local_registry(self.registry(), axes.all.rank()),
            None => self.registry().clone(),
        }
    }

    /// As [`Self::rows`], of what this rank holds.
    ///
    /// # Errors
    /// Those of [`Self::rows`].
    pub fn local_rows(&self, index: usize, rows: Range<usize>) -> Result<HostTensor, ModelError> {
        if let Some((layout, rank)) = self.layout_of(index)
            && let (Some((1, split)), 2) = (layout.split(), self.registry().at(index).shape.len())
            && let Some(columns) = split.range(rank)
            && self.is_in_folder(index)
        {
            return self.folder.block(self.registry().at(index), rows, columns);
        }
        self.local(index, rows, |rows| self.rows(index, rows))
    }

    /// Rows of what this rank holds of a parameter, from rows of the whole that `read` gives.
    ///
    /// # Errors
    /// Whatever `read` returns.
    pub fn local<E>(
        &self,
        index: usize,
        rows: Range<usize>,
        read: impl Fn(Range<usize>) -> Result<HostTensor, E>,
    ) -> Result<HostTensor, E> {
        match &self.parallel {
            Some((parallel, axes)) => parallel.read(index, axes.all.rank(), rows, read),
            None => read(rows),
        }
    }

    /// Makes each attention head's rows of queries, keys and values a matrix of its own, for an optimizer that treats
    /// matrices as such.
    pub fn split_heads(&mut self) {
        self.blueprint.split_heads();
    }

    /// Which parameters are read together, in the order of forward: the embedding, the blocks, the head.
    #[must_use]
    pub fn units(&self) -> Vec<(String, Vec<usize>)> {
        self.blueprint.units()
    }

    /// Rows (along dim 0; all of them for the whole) of the initial value of the parameter at `index`, in its stored
    /// dtype.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn rows(&self, index: usize, rows: Range<usize>) -> Result<HostTensor, ModelError> {
        let registry = self.registry();
        let parameter = registry.at(index);
        if let Some(target) = &parameter.alias_of {
            return self.rows(self.index_of(target)?, rows);
        }
        let store = parameter.precision.store;
        let part = |tensor: &HostTensor| tensor.rows(rows.clone()).cast(store);
        let own = &self.tensors.parameters;
        if index < self.base {
            if let Some(site) = self.site_of_weight(&parameter.name) {
                let mut values = self.original(index, rows.clone())?.to_f32();
                self.decomposition(site)?.take_from(site, rows.clone(), &mut values);
                let shape = with_rows(&parameter.shape, rows.len());
                return Ok(HostTensor::from_f32(&values, &shape, store)?);
            }
            if let (Some((site, own)), None) =
                (self.own_quantization(&parameter.name), parameter.quantization)
            {
                return Ok(part(&widened(&self.alternated(site, own)?.bits, store)));
            }
            let trained_along = if parameter.trainable { own.get(&parameter.name) } else { None };
            return match self.tensors.base_weights.get(&parameter.name).or(trained_along) {
                Some(tensor) => Ok(part(tensor)),
                None => self.original(index, rows),
            };
        }
        if let Some(original) = parameter.name.strip_prefix(&copy_name("")) {
            return match own.get(original) {
                Some(tensor) => Ok(part(tensor)),
                None => Ok(self.rows(self.index_of(original)?, rows)?.cast(store)),
            };
        }
        match own.get(&parameter.name) {
            Some(tensor) => Ok(part(tensor)),
            None => self.new_factor(parameter, &rows),
        }
    }

    /// Whether a parameter starts as the folder's files have it.
    pub(crate) fn is_in_folder(&self, index: usize) -> bool {
        let parameter = self.registry().at(index);
        let name = &parameter.name;
        let given = self.tensors.base_weights.contains_key(name)
            || parameter.trainable && self.tensors.parameters.contains_key(name);
        let base = index < self.base && parameter.alias_of.is_none() && self.folder.has_weights();
        base && !given && self.site_of_weight(name).is_none() && self.own_quantization(name).is_none()
    }

    /// Rows of a base parameter as the folder has it.
    pub(super) fn original(&self, index: usize, rows: Range<usize>) -> Result<HostTensor, ModelError> {
        let parameter = self.registry().at(index);
        if self.folder.has_weights() && !self.folder.is_fresh(parameter) {
            return self.folder.rows(parameter, rows);
        }
        random(parameter, self.folder.spec().initializer_range, self.seed, &rows)
    }

    /// The site whose factors are taken from this base weight, if any.
    fn site_of_weight(&self, name: &str) -> Option<&LoraSite> {
        let plan = self.plan.as_ref().filter(|p| p.changes_base())?;
        plan.site(name.strip_suffix(".weight")?).filter(|s| s.kind != ModuleKind::Embedding)
    }

    /// The factors that a site starts from, made on first use: they need the whole weight.
    fn decomposition(&self, site: &LoraSite) -> Result<Arc<Decomposition>, ModelError> {
        if let Some(known) = self.initial.get(&site.module) {
            return Ok(known);
        }
        if let Some((site, own)) = self.own_quantization(&site.base_weight()) {
            return Ok(self.alternated(site, own)?.factors.clone());
        }
        if self.plan.as_ref().is_some_and(LoraPlan::starts_from_rows) {
            let condition = "as eva, corda or lora_ga without rows of the data: train a fresh adapter by the program, or draw its start by `RowStart`";
            return Err(PeftError::Conflict { key: "init_lora_weights", condition }.into());
        }
        let index = self.index_of(&site.base_weight())?;
        let parameter = self.registry().at(index);
        let mut weight = self.original(index, 0..site.out)?.to_f32();
        if let Some(quantization) = parameter.quantization {
            // What the model will read in its place.
            let read = widened(&self.quantize(index, quantization)?, parameter.precision.store);
            weight.iter_mut().zip(read.to_f32()).for_each(|(w, read)| *w -= read);
        }
        let init = self.plan.as_ref().map(|p| &p.config.init_lora_weights);
        let made = init.and_then(|init| decompose(site, init, &weight, self.seed));
        let made = Arc::new(made.ok_or_else(|| ModelError::UnknownParameter { name: site.a_name.clone() })?);
        self.initial.put(&site.module, made.clone());
        Ok(made)
    }

    /// Makes what files are written relative to ([`LoraPlan::changes_base`]) where reading has not: a rank that has no row of
    /// a base weight, or went on from a checkpoint's factors, may still be the one that writes them.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn make_initial(&self) -> Result<(), ModelError> {
        let Some(plan) = self.plan.as_ref().filter(|p| p.changes_base()) else { return Ok(()) };
        for site in plan.sites.iter().filter(|s| s.kind != ModuleKind::Embedding) {
            self.decomposition(site)?;
        }
        Ok(())
    }

    /// What a pass without gradients reads, in order, what it reads at once together; without `adapters` the base alone.
    #[must_use]
    pub fn reads(&self, adapters: bool) -> Vec<Vec<usize>> {
        self.blueprint.reads(adapters)
    }

    /// The adapter's plan.
    #[must_use]
    pub fn plan(&self) -> Option<&LoraPlan> {
        self.plan.as_ref()
    }

    /// What writes the model's files.
    #[must_use]
    pub fn exporter(&self) -> Exporter {
        Exporter {
            registry: self.registry().clone(),
            plan: self.plan.clone(),
            base: self.base,
            initial: self.initial.clone(),
            names: self.folder.spec().names,
        }
    }

    /// The model over storage that holds [`Self::local_registry`]'s parameters.
    #[must_use]
    pub fn into_model(self, parameters: Arc<dyn Parameters>) -> Model {
        let Self { blueprint, plan, base, parallel, initial, .. } = self;
        if !plan.as_ref().is_some_and(LoraPlan::changes_base) {
            // Nothing is written relative to it.
            initial.clear();
        }
        let decoder = match parallel {
            Some((parallel, axes)) => {
                let whole = parallel.shard(&axes, blueprint.spec());
                blueprint.into_shard(parameters.clone(), whole, |spec| parallel.shard(&axes, spec))
            }
            None => blueprint.into_decoder(parameters.clone()),
        };
        Model { decoder, parameters, plan, base, initial }
    }

    /// The model with every parameter (of what this rank holds) in this process's memory.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn resident(self, device: &Device) -> Result<(Model, Arc<LocalParams>), ModelError> {
        self.resident_beside(device, None)
    }

    /// As [`Self::resident`]; what is as the folder has it is shared with `other`, the parameters of the same folder without an
    /// adapter: one over a base that is there already takes its own parameters only.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn resident_beside(
        self,
        device: &Device,
        other: Option<&LocalParams>,
    ) -> Result<(Model, Arc<LocalParams>), ModelError> {
        let registry = self.local_registry();
        let mut values: Vec<AnyTensor> = Vec::with_capacity(registry.len());
        let work = self.loading();
        for (index, parameter) in registry.iter().enumerate() {
            let rows = 0..rows_in(parameter);
            let names = || self.folder.spec().names.in_files(&parameter.name);
            let shared =
                other.filter(|_| self.is_in_folder(index)).and_then(|o| o.shared(parameter, names()));
            let value = match (shared, &parameter.alias_of, parameter.quantization) {
                (Some(shared), ..) => shared,
                (None, Some(target), _) => values[self.index_of(target)?].clone(),
                (None, None, Some(how)) => {
                    let quantized = Arc::new(self.quantized_rows(index, rows, how)?);
                    let values = Values::new(quantized, parameter.precision.store);
                    AnyTensor::packed(Arc::new(values), &parameter.shape, device)
                }
                (None, None, None) => to_device(self.local_rows(index, rows)?, device),
            };
            values.push(value);
            work.advance(1);
        }
        drop(work);
        let parameters = Arc::new(LocalParams::new(registry, values));
        Ok((self.into_model(parameters.clone()), parameters))
    }

    /// What reads every parameter, as work that can be shown.
    #[must_use]
    pub fn loading(&self) -> Work {
        let path = self.folder.path();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Work::begin(format!("loading {name}"), Unit::Tensors, self.registry().len() as u64)
    }

    pub(super) fn index_of(&self, name: &str) -> Result<usize, ModelError> {
        let unknown = || ModelError::UnknownParameter { name: name.to_owned() };
        self.registry().index_of(name).ok_or_else(unknown)
    }

    fn new_factor(&self, parameter: &Parameter, rows: &Range<usize>) -> Result<HostTensor, ModelError> {
        let unknown = || ModelError::UnknownParameter { name: parameter.name.clone() };
        let plan = self.plan.as_ref().ok_or_else(unknown)?;
        for site in &plan.sites {
            for factor in site.factors() {
                if site.name(factor) == parameter.name {
                    let values = self.start(plan, site, factor, rows.clone(), elements(parameter, rows))?;
                    let shape = with_rows(&parameter.shape, rows.len());
                    return Ok(HostTensor::from_f32(&values, &shape, Dtype::F32)?);
                }
            }
        }
        if let Some(prompt) = plan.prompt_parts().find(|part| part.name == parameter.name) {
            let values = prompt.start.values(&prompt.name, self.seed, elements(parameter, rows));
            let shape = with_rows(&parameter.shape, rows.len());
            return Ok(HostTensor::from_f32(&values.ok_or_else(unknown)?, &shape, Dtype::F32)?);
        }
        for site in &plan.changes {
            let Some(part) = site.parts.iter().find(|part| part.name == parameter.name) else { continue };
            let values = match part.start.values(&part.name, self.seed, elements(parameter, rows)) {
                Some(values) => values,
                None => self.base_rows(site, rows.clone())?,
            };
            let shape = with_rows(&parameter.shape, rows.len());
            return Ok(HostTensor::from_f32(&values, &shape, Dtype::F32)?);
        }
        Err(unknown())
    }
}

impl ModelPlan<'_> {
    /// The base's rows that some rows of a parameter replace.
    fn base_rows(&self, site: &ChangeSite, rows: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let Change::Rows(ids) = &site.change else { return Ok(Vec::new()) };
        let table = self.index_of(&site.base_weight())?;
        let mut values = Vec::with_capacity(rows.len() * site.input);
        for &id in &ids[rows] {
            values.extend(self.rows(table, id..id + 1)?.to_f32());
        }
        Ok(values)
    }

    /// The initial values of some rows (`elements` of the whole) of a factor.
    fn start(
        &self,
        plan: &LoraPlan,
        site: &LoraSite,
        factor: Factor,
        rows: Range<usize>,
        elements: Range<usize>,
    ) -> Result<Vec<f32>, ModelError> {
        if factor == Factor::Magnitude {
            return self.magnitude(site, rows);
        }
        let mut init = &plan.config.init_lora_weights;
        let quantized = plan.starts_from_quantization().then(|| self.is_quantized(plan, site)).transpose()?;
        if quantized == Some(false) {
            init = &InitWeights::Flag(true);
        }
        if quantized == Some(true)
            || plan.config.keeps_b()
            || plan.starts_from_rows() && site.kind != ModuleKind::Embedding
            || self.site_of_weight(&site.base_weight()).is_some()
        {
            let start = self.decomposition(site)?;
            let whole = if factor == Factor::A { &start.a } else { &start.b };
            return Ok(whole[elements].to_vec());
        }
        Ok(init_lora_weights(site, factor, init, self.seed, elements)?)
    }

    /// Whether the weight of a site rests in fewer bits; an error if none of the model does.
    fn is_quantized(&self, plan: &LoraPlan, site: &LoraSite) -> Result<bool, ModelError> {
        if self.registry().iter().all(|p| p.quantization.is_none()) {
            let condition = "as loftq over a base in full: hold it in fewer bits, as with load_in_4bit";
            return Err(PeftError::Conflict { key: "init_lora_weights", condition }.into());
        }
        let is = self.registry().get(&site.base_weight()).is_some_and(|p| p.quantization.is_some());
        if !is && plan.own_quantization().is_some() {
            let condition = "as loftq in several iterations on a module that keeps its bits, which PEFT would quantise too: leave embedding and head out of target_modules";
            return Err(PeftError::Conflict { key: "init_lora_weights", condition }.into());
        }
        Ok(is)
    }

    /// The norms of a site's adapted weight: what its magnitude starts from, so that the adapter starts as no change.
    /// The operation is the one that training divides by.
    fn magnitude(&self, site: &LoraSite, rows: Range<usize>) -> Result<Vec<f32>, ModelError> {
        // The same start on every device, and none where the run is on another.
        let device = host_device();
        let table = site.kind == ModuleKind::Embedding;
        // A row's norm needs that row alone, a column's all rows.
        let (weight_rows, b_rows) =
            if table { (0..site.out, 0..site.input) } else { (rows.clone(), rows.clone()) };
        let value = |name: &str, rows: Range<usize>| -> Result<AnyTensor, ModelError> {
            let index = self.index_of(name)?;
            if let Some(quantization) = self.registry().at(index).quantization {
                // Of the weight as it will be read.
                let rows = Region::rows(&self.registry().at(index).shape, rows).as_matrix();
                let quantized = self.quantize(index, quantization)?.region(&rows);
                return Ok(to_device(
                    widened(&quantized, self.registry().at(index).precision.store),
                    &device,
                ));
            }
            Ok(to_device(self.rows(index, rows)?, &device))
        };
        let weight = value(&site.base_weight(), weight_rows)?;
        let (a, b) = (value(&site.a_name, 0..site.rank)?, value(&site.b_name, b_rows)?);
        let norms = if table { column_norms } else { row_norms };
        let norms = norms(&weight, &a, &b, site.scale as f32)?.to_f32();
        Ok(if table { norms[rows].to_vec() } else { norms })
    }
}

/// The factors that sites start from, where those come from the base ([`LoraPlan::changes_base`]): files are written
/// relative to them. Shared by whatever came of one [`ModelPlan`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Initial(Arc<Mutex<BTreeMap<String, Arc<Decomposition>>>>);

impl Initial {
    pub(crate) fn get(&self, module: &str) -> Option<Arc<Decomposition>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(module).cloned()
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn put(&self, module: &str, made: Arc<Decomposition>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(module.to_owned(), made);
    }
}

/// A model: what runs, where its parameters are, and what was planned.
pub struct Model {
    /// The decoder over [`Self::parameters`].
    pub decoder: Decoder,
    /// The parameters; reading one gives it whole.
    pub parameters: Arc<dyn Parameters>,
    /// The adapter's plan.
    pub plan: Option<LoraPlan>,
    pub(crate) base: usize,
    initial: Initial,
}

impl Model {
    /// Reads a model folder whole into this process's memory; see [`ModelPlan`].
    ///
    /// # Errors
    /// If the folder or the adapter does not fit, or a file is damaged.
    pub fn load(
        folder: &ModelFolder,
        tuning: &Tuning<'_>,
        trained: Dtype,
        seed: u64,
        device: &Device,
    ) -> Result<Self, ModelError> {
        Ok(ModelPlan::new(folder, tuning, trained, seed)?.resident(device)?.0)
    }

    /// A parameter's value on the host, in its stored dtype.
    #[must_use]
    pub fn host(&self, index: usize) -> HostTensor {
        to_host(&self.parameters.read(index))
    }

    /// What writes this model's files.
    #[must_use]
    pub fn exporter(&self) -> Exporter {
        let registry = self.parameters.registry().clone();
        let names = self.decoder.spec().names;
        Exporter { registry, plan: self.plan.clone(), base: self.base, initial: self.initial.clone(), names }
    }

    /// Writes the adapter as PEFT does.
    ///
    /// # Errors
    /// If a file cannot be written. Without an adapter nothing is written.
    pub fn write_adapter(&self, writer: &mut FolderWriter) -> Result<(), ModelError> {
        self.exporter().adapter(writer, &Whole(self))
    }

    /// Writes the base parameters as a full model folder in `dtype` (without folding an adapter in).
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_full(
        &self,
        folder: &ModelFolder,
        writer: &mut FolderWriter,
        dtype: Dtype,
    ) -> Result<(), ModelError> {
        self.exporter().full(folder, writer, dtype, &Whole(self))
    }

    /// Writes the base with the adapter folded in, from the pristine base: each weight is rounded once.
    ///
    /// # Errors
    /// If a merged weight is not finite, or a file cannot be written.
    pub fn write_merged(
        &self,
        folder: &ModelFolder,
        writer: &mut FolderWriter,
        dtype: Dtype,
    ) -> Result<(), ModelError> {
        let registry = self.parameters.registry();
        let Some(plan) = &self.plan else { return self.write_full(folder, writer, dtype) };
        plan.check_merge()?;
        let untie = self.unties(plan);
        let all = |index: usize| std::iter::once(0..rows_in(registry.at(index))).collect();
        folder.write(writer, registry, self.base, dtype, untie, all, |index| self.merged(index, dtype))
    }
}

impl Model {
    /// As [`Self::write_merged`], with the matrices of blocks quantised (again) as bitsandbytes stores them, each from its
    /// merged values. Other tensors are in `dtype`, or as the folder's files have them where none is said.
    ///
    /// # Errors
    /// If a merged weight is not finite, or a file cannot be written; if the model has parts that are no text.
    pub fn write_quantized(
        &self,
        folder: &ModelFolder,
        writer: &mut FolderWriter,
        dtype: Option<Dtype>,
        quantization: Quantization,
    ) -> Result<(), ModelError> {
        self.plan.as_ref().map_or(Ok(()), LoraPlan::check_merge)?;
        let mut registry = self.parameters.registry().clone();
        let untie = self.plan.as_ref().is_some_and(|plan| self.unties(plan));
        for parameter in registry.iter_mut() {
            let experts = parameter.quantization.is_some();
            parameter.quantization = is_of_a_block(parameter, experts).then_some(quantization);
        }
        let written = |p: &&Parameter| p.alias_of.is_none() || untie;
        let parameters: Vec<&Parameter> = registry.iter().take(self.base).filter(written).collect();
        folder.write_quantized(writer, &parameters, dtype, untie, quantization, |parameter| {
            let index = registry.index_of(&parameter.name);
            let index = index.ok_or_else(|| ModelError::UnknownParameter { name: parameter.name.clone() })?;
            self.merged(index, dtype.unwrap_or(Dtype::F32))
        })
    }

    /// Whether a head that is tied in the base but adapted on its own becomes a weight of its own.
    pub(crate) fn unties(&self, plan: &LoraPlan) -> bool {
        let (registry, names) = (self.parameters.registry(), &self.decoder.spec().names);
        let head = format!("{}.weight", names.head);
        registry.get(&head).is_some_and(|p| p.alias_of.is_some())
            && [names.head, names.embed].iter().any(|module| plan.parts_from_tied(module))
    }

    /// The value of a base parameter with the adapter folded in; copies in `dtype`.
    pub(crate) fn merged(&self, index: usize, dtype: Dtype) -> Result<HostTensor, ModelError> {
        let registry = self.parameters.registry();
        let Some(plan) = &self.plan else { return Ok(self.host(index)) };
        let name = &registry.at(index).name;
        if let Some(copy) = registry.index_of(&copy_name(name)) {
            return Ok(self.host(copy).cast(dtype));
        }
        let (module, part) = name.rsplit_once('.').unwrap_or((name, ""));
        if let Some(site) = plan.change(module) {
            let host = |name: &str| registry.index_of(name).map(|i| self.host(i));
            let unknown = |name: String| ModelError::UnknownParameter { name };
            let parts: BTreeMap<&str, HostTensor> =
                site.parts.iter().filter_map(|part| Some((part.name.as_str(), host(&part.name)?))).collect();
            let weight = host(&site.base_weight()).ok_or_else(|| unknown(site.base_weight()))?;
            let bias = host(&site.base_bias()).map(|bias| bias.cast(Dtype::F32));
            let out =
                site.merge(&weight.cast(Dtype::F32), bias.as_ref(), |part| parts.get(part.name.as_str()))?;
            return Ok(if part == "bias" {
                out.bias.unwrap_or_else(|| self.host(index))
            } else {
                out.weight
            });
        }
        // Of a bare parameter by its own name.
        let Some(site) = plan.site(name).or_else(|| plan.site(module)) else {
            return Ok(self.host(index));
        };
        let factor = |f| registry.index_of(site.name(f)).map(|i| self.host(i));
        let (Some(a), Some(b)) = (factor(Factor::A), factor(Factor::B)) else {
            return Ok(self.host(index));
        };
        let (b_bias, magnitude) = (factor(Factor::BBias), factor(Factor::Magnitude));
        let weight = registry.index_of(&site.base_weight()).map(|i| self.host(i).cast(Dtype::F32));
        let Some(weight) = weight else { return Ok(self.host(index)) };
        let bias = registry.index_of(&site.base_bias()).map(|i| self.host(i).cast(Dtype::F32));
        let out = burnish_peft::merge_site(site, &weight, bias.as_ref(), |f| match f {
            Factor::A => &a,
            Factor::B => &b,
            Factor::BBias => b_bias.as_ref().unwrap_or(&b),
            Factor::Magnitude => magnitude.as_ref().unwrap_or(&b),
        })?;
        Ok(if part == "bias" { out.bias.unwrap_or_else(|| self.host(index)) } else { out.weight })
    }
}

impl ModelFolder {
    /// Writes this folder's model with the matrices of its blocks as bitsandbytes stores them, one after another (of experts
    /// where that is said, a matrix of each); other tensors in `dtype`, or as they are where none is said.
    ///
    /// # Errors
    /// If it is quantised already, has parts that are no text, or a file is damaged or cannot be written.
    pub fn quantize_to(
        &self,
        writer: &mut FolderWriter,
        dtype: Option<Dtype>,
        how: QuantizeOnLoad,
    ) -> Result<(), ModelError> {
        let QuantizeOnLoad { quantization, experts } = how;
        let planned = ModelPlan::new(self, &Tuning::None, Dtype::F32, 0)?;
        if self.is_quantized() {
            let how = packed_as(planned.registry());
            return Err(self.quantized_already(
                how,
                "is not quantised twice:",
                "start from the model that it was made of",
            ));
        }
        let mut registry = planned.registry().clone();
        for parameter in registry.iter_mut().filter(|p| is_of_a_block(p, experts)) {
            parameter.quantization = Some(quantization);
        }
        let parameters: Vec<&Parameter> = registry.iter().filter(|p| p.alias_of.is_none()).collect();
        self.write_quantized(writer, &parameters, dtype, false, quantization, |parameter| {
            self.rows(parameter, 0..rows_in(parameter))
        })
    }
}

struct Whole<'a>(&'a Model);

impl RowSource for Whole<'_> {
    fn rows(&self, index: usize) -> Vec<Range<usize>> {
        std::iter::once(0..rows_in(self.0.parameters.registry().at(index))).collect()
    }

    fn read(&self, index: usize) -> Result<HostTensor, ModelError> {
        Ok(self.0.host(index))
    }

    fn encoded_prompt(&self) -> Result<Option<HostTensor>, ModelError> {
        Ok(self.0.decoder.encoded_prompt()?.map(|values| to_host(&values)))
    }
}

/// Reads a model folder for scoring: everything frozen, nothing adapted.
///
/// # Errors
/// If a file is missing or damaged, or the weights do not fit the configuration.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Model, ModelError> {
    Model::load(&ModelFolder::open(path)?, &Tuning::None, Dtype::F32, 0, device)
}

/// Whether it is one of the matrices that are quantised: those of blocks, as in Transformers, and of `experts`.
pub(crate) fn is_of_a_block(parameter: &Parameter, experts: bool) -> bool {
    match parameter.role {
        Role::Matrix => parameter.shape.len() == 2,
        Role::Expert => experts,
        _ => false,
    }
}

/// How the matrices of a folder are quantised.
fn packed_as(registry: &Registry) -> String {
    let schemes = registry.iter().find_map(|p| p.quantization);
    schemes.map_or_else(String::new, |quantization| quantization.scheme.to_string())
}

fn with_rows(shape: &[usize], rows: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    shape
}

/// The elements of some rows.
fn elements(parameter: &Parameter, rows: &Range<usize>) -> Range<usize> {
    let row: usize = parameter.shape.iter().skip(1).product();
    rows.start * row..rows.end * row
}

/// Rows of a base parameter that is in no file, as Transformers initialises it: matrices N(0, initializer_range), norms 1, biases 0;
/// a function of the seed, the name and the position.
fn random(parameter: &Parameter, std: f64, seed: u64, rows: &Range<usize>) -> Result<HostTensor, ModelError> {
    let stream = Stream::new(seed, &parameter.name);
    let elements = elements(parameter, rows);
    let of_curve = |alpha: f64| vec![alpha.exp_m1().ln() as f32; elements.len()];
    let values: Vec<f32> = match parameter.role {
        // xIELU begins with 0.8 on both sides; below zero 0.5 of it is fixed.
        _ if parameter.name.ends_with(CURVE[0]) => of_curve(0.8),
        _ if parameter.name.ends_with(CURVE[1]) => of_curve(0.3),
        Role::Norm => vec![1.0; elements.len()],
        Role::Bias => vec![0.0; elements.len()],
        _ => elements.map(|i| stream.normal(i as u64) * std as f32).collect(),
    };
    let shape = with_rows(&parameter.shape, rows.len());
    Ok(HostTensor::from_f32(&values, &shape, parameter.precision.store)?)
}

/// Where a checkpoint's model or adapter files keep the trained parameters.
pub struct Reloaded {
    adapter: Option<AdapterTensors>,
    weights: Option<WeightFolder>,
    names: Names,
}

impl Reloaded {
    /// Opens the model or adapter files at `path`, as `exporter` writes them.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the adapter does not fit.
    pub fn open(exporter: &Exporter, path: &Path) -> Result<Self, ModelError> {
        Ok(match &exporter.plan {
            Some(plan) => {
                let folder = AdapterFolder::open(path)?;
                let tensors = folder.load(&plan.exported().with_ranks_of(&folder.config))?;
                Self { adapter: Some(plan.trained_part(tensors)?), weights: None, names: exporter.names }
            }
            None => Self { adapter: None, weights: Some(WeightFolder::open(path)?), names: exporter.names },
        })
    }

    /// Rows of a trained parameter, in its stored dtype.
    ///
    /// # Errors
    /// If it is missing or does not fit.
    pub fn rows(&self, parameter: &Parameter, rows: Range<usize>) -> Result<HostTensor, ModelError> {
        let name = parameter.name.strip_prefix(&copy_name("")).unwrap_or(&parameter.name);
        let unknown = || ModelError::UnknownParameter { name: name.to_owned() };
        let tensor = match (&self.adapter, &self.weights) {
            (Some(adapter), _) => adapter.parameters.get(name).ok_or_else(unknown)?.rows(rows),
            (None, Some(weights)) => {
                let pieces = self.names.pieces(parameter);
                if !pieces.is_empty() && named_in(weights, &self.names, name).is_none() {
                    let find = |name: &str| named_in(weights, &self.names, name);
                    return read_pieces(weights, &pieces, &find, parameter, rows, parameter.precision.store);
                }
                let there = named_in(weights, &self.names, name);
                read_rows(weights, there.as_deref().unwrap_or(name), rows, self.names.turns(parameter))?
            }
            (None, None) => return Err(unknown()),
        };
        Ok(tensor.cast(parameter.precision.store))
    }
}
