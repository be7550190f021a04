//! Parameters that are read when they are asked for: a model is compared with its file one block at a time.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_core::{Dtype, Registry};
use burnish_gguf::GgufFile;
use burnish_ops::{AnyTensor, Parameters, host_device};
use burnish_weight_files::HostTensor;

use super::names::{Part, Tensors};
use crate::ModelError;
use crate::decoder::blueprint::alias;
use crate::files::folder::{ModelFolder, rows_in, to_device};
use crate::files::load::ModelPlan;

/// The first error of reading, which a pass cannot return.
#[derive(Clone, Default)]
pub(super) struct Failed(Arc<Mutex<Option<ModelError>>>);

impl Failed {
    /// The value, or zeros in its place.
    fn or_zeros(&self, value: Result<HostTensor, ModelError>, shape: &[usize], store: Dtype) -> HostTensor {
        value.unwrap_or_else(|error| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            HostTensor::zeros(store, shape)
        })
    }

    /// Fails if reading did.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// A model folder's parameters; those of an adapter are held.
pub(super) struct FolderParameters {
    folder: Arc<ModelFolder>,
    registry: Registry,
    held: Vec<Option<AnyTensor>>,
    failed: Failed,
    device: Device,
}

impl FolderParameters {
    pub(super) fn new(
        folder: &Arc<ModelFolder>,
        plan: &ModelPlan<'_>,
        failed: Failed,
    ) -> Result<Self, ModelError> {
        let (registry, device) = (plan.registry().clone(), host_device());
        let mut held = Vec::with_capacity(registry.len());
        for (index, parameter) in registry.iter().enumerate() {
            let streams = parameter.alias_of.is_some() || plan.is_in_folder(index);
            let value = if streams { None } else { Some(plan.rows(index, 0..rows_in(parameter))?) };
            held.push(value.map(|value| to_device(value, &device)));
        }
        Ok(Self { folder: folder.clone(), registry, held, failed, device })
    }

    /// The same with other values of what is held, by name.
    pub(super) fn with(mut self, values: Vec<(String, HostTensor)>) -> Self {
        for (name, value) in values {
            if let Some(index) = self.registry.index_of(&name) {
                self.held[index] = Some(to_device(value, &self.device));
            }
        }
        self
    }
}

impl Parameters for FolderParameters {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn read(&self, index: usize) -> AnyTensor {
        let parameter = self.registry.at(index);
        if let Some(index) = alias(&self.registry, parameter) {
            return self.read(index);
        }
        if let Some(held) = &self.held[index] {
            return held.clone();
        }
        let value = self.folder.rows(parameter, 0..rows_in(parameter));
        to_device(self.failed.or_zeros(value, &parameter.shape, parameter.precision.store), &self.device)
    }

    fn accumulate(&self, _index: usize, _gradient: AnyTensor) {}
}

/// A GGUF file's parameters, in 32 bits.
pub(super) struct FileParameters {
    pub(super) file: GgufFile,
    pub(super) tensors: Tensors,
    pub(super) registry: Registry,
    pub(super) failed: Failed,
}

impl FileParameters {
    /// A parameter's values.
    pub(super) fn values(&self, index: usize) -> Result<Vec<f32>, ModelError> {
        let parameter = self.registry.at(index);
        let parts = self.tensors.of(&parameter.name)?;
        values(&self.file, parts, &parameter.shape)
    }
}

/// A parameter's values from its parts.
fn values(file: &GgufFile, parts: &[Part], shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    if let [part] = parts {
        let mut values = file.values(&part.tensor)?;
        part.change.backward(&mut values, shape[0]);
        return Ok(values);
    }
    let (matrices, rows) = (shape[0], shape[1]);
    let width: usize = shape[2..].iter().product();
    let mut all = vec![0.0; matrices * rows * width];
    for part in parts {
        let own = part.rows.clone().unwrap_or(0..rows);
        let values = file.values(&part.tensor)?;
        for (matrix, values) in values.chunks_exact(own.len() * width).enumerate() {
            all[(matrix * rows + own.start) * width..][..values.len()].copy_from_slice(values);
        }
    }
    Ok(all)
}

impl Parameters for FileParameters {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn read(&self, index: usize) -> AnyTensor {
        let parameter = self.registry.at(index);
        if let Some(index) = alias(&self.registry, parameter) {
            return self.read(index);
        }
        let value = self
            .values(index)
            .and_then(|values| Ok(HostTensor::from_f32(&values, &parameter.shape, Dtype::F32)?));
        to_device(self.failed.or_zeros(value, &parameter.shape, Dtype::F32), &host_device())
    }

    fn accumulate(&self, _index: usize, _gradient: AnyTensor) {}
}
