//! `Packed`: a frozen matrix in fewer bits, for a device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use burnish_core::PackedRows;

use crate::AnyTensor;
#[cfg(feature = "cube")]
use crate::cube::Resting;
use crate::tensor::in_burn;

/// A matrix in fewer bits. On CubeCL's devices its codes and scales go there when its elements are first asked for, and clones
/// share them.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    rows: Arc<dyn PackedRows>,
    /// All dimensions but the last count as rows.
    shape: Vec<usize>,
    device: Device,
    /// `None` where no kernel widens it.
    #[cfg(feature = "cube")]
    resting: Arc<std::sync::OnceLock<Option<Resting>>>,
}

impl Packed {
    pub(crate) fn new(rows: Arc<dyn PackedRows>, shape: &[usize], device: &Device) -> Self {
        Self {
            rows,
            shape: shape.to_vec(),
            device: device.clone(),
            #[cfg(feature = "cube")]
            resting: Arc::default(),
        }
    }

    pub(crate) fn rows(&self) -> &Arc<dyn PackedRows> {
        &self.rows
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The elements of some rows as a tensor of `shape`.
    pub(crate) fn widened(&self, rows: Range<usize>, shape: &[usize]) -> AnyTensor {
        #[cfg(feature = "cube")]
        if let Some(resting) = self.resting() {
            return resting.widened(rows, shape);
        }
        AnyTensor::from_data(self.on_host(rows, shape), &self.device)
    }

    /// What a device of CubeCL's has of it, where a kernel reads that.
    #[cfg(feature = "cube")]
    pub(crate) fn resting(&self) -> Option<&Resting> {
        self.resting.get_or_init(|| Resting::new(&*self.rows, &self.device)).as_ref()
    }

    fn on_host(&self, rows: Range<usize>, shape: &[usize]) -> TensorData {
        let ([count, width], dtype) = (self.rows.shape(), in_burn(self.rows.dtype()));
        if rows == (0..count) {
            return TensorData::from_bytes_vec(self.rows.bytes(), shape.to_vec(), dtype);
        }
        let mut values = vec![0.0_f32; rows.len() * width];
        for (row, out) in rows.zip(values.chunks_exact_mut(width)) {
            self.rows.read(row, 0, out);
        }
        TensorData::new(values, shape.to_vec()).convert_dtype(dtype)
    }
}
