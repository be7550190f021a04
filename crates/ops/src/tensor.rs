//! A float tensor whose rank is a run-time fact.
//!
//! Burn's [`Tensor`] carries its rank in its type; a list of weights mixes matrices and vectors.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burnish_core::{Dtype, PackedRows};

use crate::OpsError;
use crate::packed::Packed;

/// A float tensor of any rank, plain or tracked by autodiff.
#[derive(Clone, Debug)]
pub struct AnyTensor(Repr);

#[derive(Clone, Debug)]
enum Repr {
    Dense(DispatchTensor),
    /// A frozen matrix in fewer bits, or a stack of them, for this device: kernels on the CPU read pieces of it, all others a
    /// tensor of its elements that is made for each of them.
    Packed(Packed),
}

/// The processor, for what is computed once and must be the same whatever a run computes on; a build without it has its
/// default device.
#[must_use]
pub fn host_device() -> Device {
    #[cfg(feature = "flex")]
    return Device::flex();
    #[cfg(not(feature = "flex"))]
    Device::default()
}

/// Whether tensors of `device` lie in host memory, so that looking at their elements costs nothing.
#[must_use]
pub fn on_host(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return *device == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

impl AnyTensor {
    /// Erases the rank.
    #[must_use]
    pub fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(Repr::Dense(tensor.into_dispatch()))
    }

    /// A frozen matrix in fewer bits, or a stack of matrices of this shape, whose rows lie one below the other. Products on
    /// the CPU widen it piece by piece, whatever else reads it makes a tensor of all its elements. On a GPU it rests in its
    /// few bits, which go there at its first use and stay as long as this tensor or a clone of it: keep one.
    ///
    /// # Panics
    /// If the rows are not of `shape`.
    #[must_use]
    pub fn packed(rows: Arc<dyn PackedRows>, shape: &[usize], device: &Device) -> Self {
        let (own, last) = (rows.shape(), shape.last().copied());
        let elements = shape.iter().product::<usize>();
        assert!(
            last == Some(own[1]) && elements == own[0] * own[1],
            "invariant: {own:?} rows of a tensor of shape {shape:?}"
        );
        Self(Repr::Packed(Packed::new(rows, shape, device)))
    }

    /// The matrix in fewer bits, where it is one.
    #[must_use]
    pub fn as_packed(&self) -> Option<&Arc<dyn PackedRows>> {
        match &self.0 {
            Repr::Packed(packed) => Some(packed.rows()),
            Repr::Dense(_) => None,
        }
    }

    /// Rows of a matrix in fewer bits as a tensor of `shape`; `None` of others.
    pub(crate) fn widened_rows(&self, rows: Range<usize>, shape: &[usize]) -> Option<Self> {
        match &self.0 {
            Repr::Packed(packed) => Some(packed.widened(rows, shape)),
            Repr::Dense(_) => None,
        }
    }

    /// What a device of CubeCL's has of a matrix in fewer bits, where a kernel reads that.
    #[cfg(feature = "cube")]
    pub(crate) fn resting(&self) -> Option<&crate::cube::Resting> {
        match &self.0 {
            Repr::Packed(packed) => packed.resting(),
            Repr::Dense(_) => None,
        }
    }

    /// The tensor of its elements.
    fn dense(&self) -> DispatchTensor {
        match &self.0 {
            Repr::Dense(tensor) => tensor.clone(),
            Repr::Packed(packed) => packed.widened(0..packed.rows().shape()[0], packed.shape()).dispatch(),
        }
    }

    /// A plain tensor on `device` from host memory, keeping the dtype of `data`.
    #[must_use]
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        let (bytes, shape, dtype) = data.into_parts();
        let flat = TensorData::from_bytes(bytes, [shape.num_elements()], dtype);
        Self::of_flat(Tensor::from_data(flat, (device, dtype)), shape)
    }

    /// Elements in another shape. Of several dimensions Burn would leave lines of many widths apart on a GPU, and kernels would copy
    /// them each time that they read them.
    fn of_flat(flat: Tensor<1>, shape: Shape) -> Self {
        fn shaped<const D: usize>(flat: Tensor<1>, shape: Shape) -> AnyTensor {
            // Where there is nothing, Burn takes the zero in a shape for another number.
            AnyTensor::new(match shape.num_elements() {
                0 => Tensor::<D>::empty(shape, (&flat.device(), flat.dtype())),
                _ => flat.reshape::<D, _>(shape),
            })
        }
        match shape.num_dims() {
            1 => Self::new(flat),
            2 => shaped::<2>(flat, shape),
            3 => shaped::<3>(flat, shape),
            4 => shaped::<4>(flat, shape),
            rank => unreachable!("invariant: parameters have rank 1 to 4, not {rank}"),
        }
    }

    /// The tensor with its rank in the type again.
    ///
    /// # Errors
    /// If the shape has another rank.
    pub fn rank<const D: usize>(&self) -> Result<Tensor<D>, OpsError> {
        let shape = self.shape();
        if shape.len() != D {
            return Err(OpsError::Rank { expected: D, shape });
        }
        Ok(Tensor::from_dispatch(self.dense()))
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match &self.0 {
            Repr::Dense(tensor) => tensor.shape().to_vec(),
            Repr::Packed(packed) => packed.shape().to_vec(),
        }
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        Some(match self.burn_dtype() {
            DType::F64 => Dtype::F64,
            DType::F32 => Dtype::F32,
            DType::BF16 => Dtype::Bf16,
            DType::F16 => Dtype::F16,
            _ => return None,
        })
    }

    /// The element type as Burn has it; nothing is widened for it.
    pub(crate) fn burn_dtype(&self) -> DType {
        match &self.0 {
            Repr::Dense(tensor) => tensor.dtype(),
            Repr::Packed(packed) => in_burn(packed.rows().dtype()),
        }
    }

    /// Whether gradients flow through it.
    #[must_use]
    pub fn is_tracked(&self) -> bool {
        matches!(self.0, Repr::Dense(_)) && self.carrier().is_tracked()
    }

    /// The tensor outside autodiff.
    #[must_use]
    pub fn plain(&self) -> Self {
        match &self.0 {
            Repr::Packed(..) => self.clone(),
            Repr::Dense(_) => Self::new(self.carrier().inner()),
        }
    }

    /// The tensor on a device of autodiff, where nothing is tracked until a leaf comes in.
    #[must_use]
    pub fn untracked(&self) -> Self {
        Self::new(self.carrier().inner().autodiff())
    }

    /// The values in another float dtype, outside autodiff.
    #[must_use]
    pub fn cast(&self, dtype: burn::tensor::FloatDType) -> Self {
        let (tensor, shape) = (self.carrier().inner(), Shape::from(self.shape()));
        let elements = shape.num_elements();
        let flat = if elements > 0 { tensor.reshape::<1, _>(Shape::from([elements])) } else { tensor };
        Self::of_flat(flat.cast(dtype), shape)
    }

    /// A fresh leaf on this tensor's values.
    #[must_use]
    pub fn leaf(&self) -> Self {
        Self::new(self.carrier().inner().autodiff().require_grad())
    }

    /// Takes this leaf's gradient out of `gradients`.
    pub fn take_gradient(&self, gradients: &mut burn::tensor::Gradients) -> Option<Self> {
        self.carrier().grad_remove(gradients).map(Self::new)
    }

    /// Copies the values to the host, in the tensor's dtype.
    #[must_use]
    pub fn to_data(&self) -> TensorData {
        // Rows that Burn puts together may lie apart, and would come one by one.
        #[cfg(feature = "cube")]
        if let Some(memory) = crate::cube::memory(self) {
            return crate::cube::tensor(memory).carrier().into_data();
        }
        self.carrier().inner().into_data()
    }

    /// Copies the values to the host as f32.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        self.to_data().convert::<f32>().try_into_vec().expect("invariant: converted to f32")
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        match &self.0 {
            Repr::Packed(packed) => packed.device().clone(),
            Repr::Dense(_) => self.carrier().device(),
        }
    }

    /// Whether the elements lie in host memory, so that looking at them costs nothing.
    #[must_use]
    pub fn is_on_host(&self) -> bool {
        if let Repr::Packed(packed) = &self.0 {
            return on_host(packed.device());
        }
        #[cfg(feature = "flex")]
        if self.carrier().inner().try_into_primitive::<burn::backend::Flex>().is_ok() {
            return true;
        }
        false
    }

    pub(crate) fn dispatch(self) -> DispatchTensor {
        match self.0 {
            Repr::Dense(tensor) => tensor,
            Repr::Packed(..) => self.dense(),
        }
    }

    pub(crate) fn from_dispatch(tensor: DispatchTensor) -> Self {
        Self(Repr::Dense(tensor))
    }

    /// Rank does not matter for metadata and autodiff calls.
    pub(crate) fn carrier(&self) -> Tensor<1> {
        Tensor::from_dispatch(self.dense())
    }
}

/// Burn's name of the dtype of a tensor's elements; what is stored in others is read as f32.
pub(crate) fn in_burn(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F64 => DType::F64,
        Dtype::Bf16 => DType::BF16,
        Dtype::F16 => DType::F16,
        _ => DType::F32,
    }
}

impl<const D: usize> From<Tensor<D>> for AnyTensor {
    fn from(tensor: Tensor<D>) -> Self {
        Self::new(tensor)
    }
}

impl From<&AnyTensor> for AnyTensor {
    fn from(tensor: &AnyTensor) -> Self {
        tensor.clone()
    }
}
