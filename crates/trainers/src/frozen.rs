//! Values that the ranks of a process have in common.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burnish_ops::AnyTensor;

/// Whole frozen parameters by index: one copy serves all ranks of this process.
#[derive(Default)]
pub(crate) struct Frozen(Mutex<HashMap<usize, AnyTensor>>);

impl Frozen {
    /// The parameter at `index`, which the first rank that asks reads.
    pub(crate) fn get<E>(
        &self,
        index: usize,
        read: impl FnOnce() -> Result<AnyTensor, E>,
    ) -> Result<AnyTensor, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = all.get(&index) {
            return Ok(value.clone());
        }
        let value = read()?;
        all.insert(index, value.clone());
        Ok(value)
    }

    /// Keeps none any more; ranks go on with what they have.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
