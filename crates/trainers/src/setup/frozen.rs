//! Values that the ranks of a process have in common.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use burnish_models::{ModelPlan, to_device};
use burnish_zero::Kept;

use crate::TrainError;

/// Whole frozen parameters by device and index: one copy serves all ranks of this process that share a device.
#[derive(Default)]
pub(crate) struct Frozen(Mutex<HashMap<(usize, usize), Kept>>);

impl Frozen {
    /// `rows` of a parameter that no update changes, on a device and its place: of a whole one the copy that all ranks
    /// there have in common. In fewer bits it is quantised whole, so that every rank has the codes of the same blocks.
    pub(crate) fn rows(
        &self,
        (place, device): (usize, &Device),
        planned: &ModelPlan<'_>,
        index: usize,
        rows: Range<usize>,
    ) -> Result<Kept, TrainError> {
        let parameter = planned.registry().at(index);
        let whole =
            planned.parallel().is_none() && rows.len() == parameter.shape.first().copied().unwrap_or(1);
        let read = || -> Result<Kept, TrainError> {
            let Some(quantization) = parameter.quantization else {
                return Ok(to_device(planned.local_rows(index, rows.clone())?, device).into());
            };
            Ok(planned.quantized_rows(index, rows.clone(), quantization)?.into())
        };
        if whole { self.get(place, index, read) } else { read() }
    }

    /// The parameter at `index` on the device at `place`, which the first rank that asks reads.
    fn get<E>(&self, place: usize, index: usize, read: impl FnOnce() -> Result<Kept, E>) -> Result<Kept, E> {
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
