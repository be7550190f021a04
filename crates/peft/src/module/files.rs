//! A Burn module's adapter in PEFT's folders.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burnish_core::Dtype;
use burnish_weight_files::{FolderWriter, HostTensor};

use super::survey::{Survey, turned};
use super::{Adapters, refuse};
use crate::{AdapterFolder, Factor, LoraConfig, PeftError, Purpose, write_adapter};

/// Writes the adapter of `module`, which `config` described when it was [attached](super::attach):
/// `adapter_config.json`, `adapter_model.safetensors` with PEFT's names and shapes, and a model card if there is none.
///
/// # Errors
/// If the module has not the adapter that `config` describes (all differences are listed), or the disk refuses.
pub fn save<M: Module>(module: &M, config: &LoraConfig, folder: impl AsRef<Path>) -> Result<(), PeftError> {
    refuse(config)?;
    let survey = Survey::with_adapters(module);
    let plan = survey.plan(config, Purpose::Load)?;
    let weights = plan.sites.iter().map(|site| site.base_weight());
    let factors = weights.flat_map(|weight| ["a", "b"].map(|field| format!("{weight}.lora.{field}")));
    let own = plan.base_parameters().map(|(name, _)| survey.path(name).to_owned());
    let mut values = Values { wanted: factors.chain(own).collect(), ..Values::default() };
    module.visit(&mut values);
    let mut tensors: HashMap<String, HostTensor> = HashMap::new();
    for site in &plan.sites {
        for (factor, field) in [(Factor::A, "a"), (Factor::B, "b")] {
            let path = format!("{}.lora.{field}", site.base_weight());
            if let Some((shape, values)) = values.by_path.remove(&path) {
                let [rows, columns] = [shape[0], shape[1]];
                let tensor = HostTensor::from_f32(&turned(&values, columns), &[columns, rows], Dtype::F32)?;
                tensors.insert(site.name(factor).to_owned(), tensor);
            }
        }
    }
    for (name, _) in plan.base_parameters() {
        if let Some((_, values)) = values.by_path.remove(survey.path(name)) {
            tensors.insert(name.to_owned(), survey.file_tensor(name, values)?);
        }
    }
    let mut writer = FolderWriter::in_place(folder.as_ref())?;
    write_adapter(&mut writer, &plan, |name| Ok::<_, PeftError>(tensors.remove(name)))?;
    writer.commit()?;
    Ok(())
}

/// Puts the adapter of a folder on `module`, a pristine base: as [attached](super::attach), with the folder's factors.
/// Base parameters that the folder holds take its values.
///
/// # Errors
/// If there is no adapter, it is of another method or asks for what an adapter on a weight cannot do, its tensors are not
/// those of its configuration on this module (all differences are listed), or the module has adapters already.
pub fn load<M: Module>(module: M, folder: impl AsRef<Path>) -> Result<M, PeftError> {
    let folder = AdapterFolder::open(folder)?;
    refuse(&folder.config)?;
    let survey = Survey::of(&module)?;
    let plan = survey.plan(&folder.config, Purpose::Load)?;
    plan.check_plain_base()?;
    let tensors = folder.load(&plan)?;
    let mut adapters = Adapters::new(&survey, &plan);
    for site in &plan.sites {
        let factor = |factor| tensors.parameters[site.name(factor)].to_f32();
        adapters.site(site, &factor(Factor::A), &factor(Factor::B));
    }
    let own = plan.base_parameters().filter_map(|(name, _)| Some((name, tensors.parameters.get(name)?)));
    let replaced = tensors.base_weights.iter().map(|(name, tensor)| (name.as_str(), tensor));
    for (name, tensor) in own.chain(replaced) {
        adapters.values.insert(survey.path(name).to_owned(), survey.burn_values(name, tensor));
    }
    Ok(module.apply_reparameterization(adapters))
}

/// Values of some parameters, by path, as Burn holds them.
#[derive(Default)]
struct Values {
    wanted: HashSet<String>,
    at: Vec<String>,
    by_path: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.at.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.at.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.at.join(".");
        if !self.wanted.remove(&path) {
            return;
        }
        let value = param.base().without_autodiff();
        let shape = value.dims().to_vec();
        let values = value.into_data().convert::<f32>().iter::<f32>().collect();
        self.by_path.insert(path, (shape, values));
    }
}
