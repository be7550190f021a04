//! From a folder to a model in memory.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_core::random::Stream;
use burnish_core::{Dtype, Parameter, Role};
use burnish_peft::{AdapterFolder, AdapterTensors, Factor, LoraConfig, Plan, Use, fresh, write_adapter};
use burnish_store::{FolderWriter, HostTensor, WeightFolder};

use crate::adapter::copy_name;
use crate::folder::{ModelFolder, to_device, to_host};
use crate::{Blueprint, Decoder, ModelError, Parameters, Resident};

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

/// A model in memory: what runs, what is stored, and what was planned.
pub struct Model {
    /// The decoder over [`Self::parameters`].
    pub decoder: Decoder,
    /// The parameters, whole.
    pub parameters: Arc<Resident>,
    /// The adapter's plan.
    pub plan: Option<Plan>,
    base: usize,
}

impl Model {
    /// Reads a model folder.
    ///
    /// `trained` is the stored dtype of trained matrices; frozen ones stay as they are in the files. A fresh adapter's
    /// values are a function of `seed` and each parameter's name.
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
        let mut blueprint = Blueprint::new(folder.spec().clone())?;
        let base = blueprint.registry().len();
        let model_type = folder.config().get("model_type").and_then(|v| v.as_str()).unwrap_or_default();
        let mut tensors = AdapterTensors::default();
        let plan = match tuning {
            Tuning::None => None,
            Tuning::Full => {
                blueprint.train_all();
                None
            }
            Tuning::NewAdapter(config) => Some(blueprint.attach(config, Use::Create, model_type)?),
            Tuning::Adapter(adapter) => {
                let plan = blueprint.attach(&adapter.config, Use::Load, model_type)?;
                tensors = adapter.load(&plan)?;
                Some(plan)
            }
        };
        folder.declare(blueprint.registry_mut(), base, trained)?;
        let mut values = Vec::with_capacity(blueprint.registry().len());
        for (index, parameter) in blueprint.registry().iter().enumerate() {
            let value = if index < base {
                match (&parameter.alias_of, stored(&mut tensors, parameter)) {
                    (Some(target), _) => value_of(&blueprint, &values, target)?,
                    (None, Some(tensor)) => to_device(tensor.cast(parameter.precision.store), device),
                    (None, None) if folder.has_weights() => folder.read(parameter, device)?,
                    (None, None) => {
                        to_device(random(parameter, folder.spec().initializer_range, seed)?, device)
                    }
                }
            } else if let Some(original) = parameter.name.strip_prefix(&copy_name("")) {
                match tensors.parameters.remove(original) {
                    Some(tensor) => to_device(tensor.cast(parameter.precision.store), device),
                    None => {
                        let value: burnish_ops::AnyTensor = value_of(&blueprint, &values, original)?;
                        to_device(to_host(&value).cast(parameter.precision.store), device)
                    }
                }
            } else {
                match tensors.parameters.remove(&parameter.name) {
                    Some(tensor) => to_device(tensor.cast(Dtype::F32), device),
                    None => to_device(new_factor(plan.as_ref(), parameter, seed)?, device),
                }
            };
            values.push(value);
        }
        let parameters = Arc::new(Resident::new(blueprint.registry().clone(), values));
        Ok(Self { decoder: blueprint.into_decoder(parameters.clone()), parameters, plan, base })
    }

    /// The stored dtype of trained matrices (fp32 when nothing of the base trains).
    #[must_use]
    pub fn trained_dtype(&self) -> Dtype {
        let registry = self.parameters.registry();
        registry.trainable().find(|p| p.shape.len() == 2).map_or(Dtype::F32, |p| p.precision.store)
    }

    /// A parameter's value on the host, in its stored dtype.
    #[must_use]
    pub fn host(&self, index: usize) -> HostTensor {
        to_host(&self.parameters.read(index))
    }

    /// Writes the adapter as PEFT does.
    ///
    /// # Errors
    /// If a file cannot be written. Without an adapter nothing is written.
    pub fn write_adapter(&self, writer: &mut FolderWriter) -> Result<(), ModelError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let registry = self.parameters.registry();
        let find = |name: &str| registry.index_of(&copy_name(name)).or_else(|| registry.index_of(name));
        write_adapter(writer, plan, |name| -> Result<_, ModelError> {
            Ok(find(name).filter(|&i| registry.at(i).trainable).map(|i| self.host(i)))
        })
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
        folder.write(writer, self.parameters.registry(), self.base, dtype, false, |i| Ok(self.host(i)))
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
        // A head that is tied in the base but adapted on its own becomes a weight of its own.
        let head = format!("{}.weight", crate::HEAD);
        let untie = registry.get(&head).is_some_and(|p| p.alias_of.is_some())
            && [crate::HEAD, crate::EMBED]
                .iter()
                .any(|m| plan.site(m).is_some() || plan.saved.contains(&format!("{m}.weight")));
        let merged = |index: usize| -> Result<HostTensor, ModelError> {
            let name = &registry.at(index).name;
            if let Some(copy) = registry.index_of(&copy_name(name)) {
                return Ok(self.host(copy).cast(dtype));
            }
            let Some((module, part)) = name.rsplit_once('.') else { return Ok(self.host(index)) };
            let Some(site) = plan.site(module) else { return Ok(self.host(index)) };
            let factor = |f| registry.index_of(site.name(f)).map(|i| self.host(i));
            let (Some(a), Some(b)) = (factor(Factor::A), factor(Factor::B)) else {
                return Ok(self.host(index));
            };
            let b_bias = factor(Factor::BBias);
            let weight = registry.index_of(&site.base_weight()).map(|i| self.host(i).cast(Dtype::F32));
            let Some(weight) = weight else { return Ok(self.host(index)) };
            let bias = registry.index_of(&site.base_bias()).map(|i| self.host(i).cast(Dtype::F32));
            let out = burnish_peft::merge_site(site, &weight, bias.as_ref(), |f| match f {
                Factor::A => &a,
                Factor::B => &b,
                Factor::BBias => b_bias.as_ref().unwrap_or(&b),
            })?;
            Ok(if part == "bias" { out.bias.unwrap_or_else(|| self.host(index)) } else { out.weight })
        };
        folder.write(writer, registry, self.base, dtype, untie, merged)
    }
}

/// Reads a model folder for scoring: everything frozen, nothing adapted.
///
/// # Errors
/// If a file is missing or damaged, or the weights do not fit the configuration.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Model, ModelError> {
    Model::load(&ModelFolder::open(path)?, &Tuning::None, Dtype::F32, 0, device)
}

fn stored(tensors: &mut AdapterTensors, parameter: &Parameter) -> Option<HostTensor> {
    tensors.base_weights.remove(&parameter.name).or_else(|| {
        // Biases that train along lie in the adapter's file; copies of `modules_to_save` are taken by name later.
        if parameter.trainable { tensors.parameters.remove(&parameter.name) } else { None }
    })
}

fn value_of<T: Clone>(blueprint: &Blueprint, values: &[T], name: &str) -> Result<T, ModelError> {
    blueprint
        .registry()
        .index_of(name)
        .and_then(|i| values.get(i))
        .cloned()
        .ok_or_else(|| ModelError::UnknownParameter { name: name.to_owned() })
}

/// A fresh base parameter, as Transformers initialises it: matrices N(0, initializer_range), norms 1, biases 0; a
/// function of the seed and the name.
fn random(parameter: &Parameter, std: f64, seed: u64) -> Result<HostTensor, ModelError> {
    let stream = Stream::new(seed, &parameter.name);
    let values: Vec<f32> = match parameter.role {
        Role::Norm => vec![1.0; parameter.elements()],
        Role::Bias => vec![0.0; parameter.elements()],
        _ => (0..parameter.elements() as u64).map(|i| stream.normal(i) * std as f32).collect(),
    };
    Ok(HostTensor::from_f32(&values, &parameter.shape, parameter.precision.store)?)
}

fn new_factor(plan: Option<&Plan>, parameter: &Parameter, seed: u64) -> Result<HostTensor, ModelError> {
    let unknown = || ModelError::UnknownParameter { name: parameter.name.clone() };
    let plan = plan.ok_or_else(unknown)?;
    for site in &plan.sites {
        for factor in site.factors() {
            if site.name(factor) == parameter.name {
                let values =
                    fresh(site, factor, &plan.config.init_lora_weights, seed, 0..parameter.elements());
                return Ok(HostTensor::from_f32(&values, &parameter.shape, Dtype::F32)?);
            }
        }
    }
    Err(unknown())
}

/// Reads the trained parameters back from a checkpoint's model or adapter files.
///
/// # Errors
/// If a tensor is missing or does not fit.
pub fn reload_trained(model: &Model, path: &Path, device: &Device) -> Result<(), ModelError> {
    let registry = model.parameters.registry();
    if let Some(plan) = &model.plan {
        let mut tensors = AdapterFolder::open(path)?.load(plan)?;
        for (index, parameter) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
            let name = parameter.name.strip_prefix(&copy_name("")).unwrap_or(&parameter.name);
            let tensor = tensors
                .parameters
                .remove(name)
                .ok_or_else(|| ModelError::UnknownParameter { name: name.to_owned() })?;
            model.parameters.write(index, to_device(tensor.cast(parameter.precision.store), device));
        }
        return Ok(());
    }
    let weights = WeightFolder::open(path)?;
    for (index, parameter) in registry.iter().enumerate() {
        if parameter.trainable && parameter.alias_of.is_none() {
            let tensor = weights.read(&parameter.name)?;
            model.parameters.write(index, to_device(tensor.cast(parameter.precision.store), device));
        }
    }
    Ok(())
}
