//! Parameters that one rank holds whole.

use std::sync::{Mutex, PoisonError, RwLock};

use burnish_core::{Parameter, Registry};
use burnish_ops::{AnyTensor, Parameters, accumulate};

/// All parameters in this process's memory.
#[derive(Debug)]
pub struct LocalParams {
    registry: Registry,
    values: Vec<RwLock<Option<AnyTensor>>>,
    gradients: Vec<Mutex<Option<AnyTensor>>>,
}

impl LocalParams {
    /// Storage for a registry, with one value per parameter in its order (aliases share).
    #[must_use]
    pub fn new<V: Into<AnyTensor>>(registry: Registry, values: Vec<V>) -> Self {
        assert_eq!(registry.len(), values.len(), "invariant: one tensor per parameter");
        let gradients = values.iter().map(|_| Mutex::new(None)).collect();
        Self {
            registry,
            values: values.into_iter().map(|v| RwLock::new(Some(v.into()))).collect(),
            gradients,
        }
    }

    /// Replaces the value at `index`.
    pub fn write(&self, index: usize, value: AnyTensor) {
        *self.values[index].write().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    /// Takes the value out, so that an update may happen in place; [`Self::write`] puts it back.
    #[must_use]
    pub fn take(&self, index: usize) -> AnyTensor {
        let taken = self.values[index].write().unwrap_or_else(PoisonError::into_inner).take();
        taken.expect("invariant: a taken parameter is written back before it is read")
    }

    /// What is held as `parameter`, by one of these names, if that is held in the same way.
    pub(crate) fn shared(
        &self,
        parameter: &Parameter,
        mut names: impl Iterator<Item = String>,
    ) -> Option<AnyTensor> {
        let index = names.find_map(|name| self.registry.index_of(&name))?;
        let own = self.registry.at(index);
        let alike = own.shape == parameter.shape
            && own.precision.store == parameter.precision.store
            && own.quantization == parameter.quantization;
        if !alike {
            return None;
        }
        self.values[index].read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the gradient at `index`.
    #[must_use]
    pub fn take_gradient(&self, index: usize) -> Option<AnyTensor> {
        self.gradients[index].lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Parameters for LocalParams {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn read(&self, index: usize) -> AnyTensor {
        let held = self.values[index].read().unwrap_or_else(PoisonError::into_inner).clone();
        held.expect("invariant: a taken parameter is written back before it is read")
    }

    fn accumulate(&self, index: usize, gradient: AnyTensor) {
        let mut slot = self.gradients[index].lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(accumulate(slot.take(), gradient));
    }
}
