//! Values that the ranks of a process have in common.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burnish_zero::Kept;

/// Whole frozen parameters by device and index: one copy serves all ranks of this process that share a device.
#[derive(Default)]
pub(crate) struct Frozen(Mutex<HashMap<(usize, usize), Kept>>);

impl Frozen {
    /// The parameter at `index` on the device at `place`, which the first rank that asks reads.
    pub(crate) fn get<E>(
        &self,
        place: usize,
        index: usize,
        read: impl FnOnce() -> Result<Kept, E>,
    ) -> Result<Kept, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = all.get(&(place, index)) {
            return Ok(value.clone());
        }
        let value = read()?;
        all.insert((place, index), value.clone());
        Ok(value)
    }

    /// Keeps none any more; ranks go on with what they have.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
