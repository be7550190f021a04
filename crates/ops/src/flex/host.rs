//! Between tensors on the flex backend and the slices that kernels read.

use std::sync::Arc;

use burn::tensor::{Shape, TensorData};
use burn_flex::FlexTensor;
use burnish_core::PackedRows;
use burnish_cpu_kernels::Weight;
use half::{bf16, f16};

use crate::{AnyTensor, Dtype, OpsError};

/// A contiguous host view of a plain flex tensor; keeps the storage alive.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    values: Values,
    dtype: Dtype,
}

#[derive(Clone, Debug)]
enum Values {
    Tensor(FlexTensor),
    /// A weight in fewer bits.
    Packed(Arc<dyn PackedRows>),
}

impl Host {
    /// The view, or `None` when the tensor lives on another backend.
    pub(crate) fn of(tensor: &AnyTensor) -> Option<Self> {
        let dtype = tensor.dtype()?;
        let flex = tensor.carrier().inner().try_into_primitive::<burn::backend::Flex>().ok()?;
        let tensor = if flex.is_contiguous() { flex } else { flex.to_contiguous() };
        Some(Self { values: Values::Tensor(tensor), dtype })
    }

    /// The view of an f32 argument.
    pub(crate) fn f32_of(op: &'static str, what: &'static str, tensor: &AnyTensor) -> Result<Self, OpsError> {
        match Self::of(tensor) {
            Some(host) if host.dtype == Dtype::F32 => Ok(host),
            _ => Err(OpsError::Dtype { op, what, got: tensor.dtype(), expected: "float32 on the CPU" }),
        }
    }

    /// The view of a weight in any stored dtype.
    pub(crate) fn weight_of(
        op: &'static str,
        what: &'static str,
        tensor: &AnyTensor,
    ) -> Result<Self, OpsError> {
        if let Some(rows) = tensor.as_packed() {
            return Ok(Self { values: Values::Packed(rows.clone()), dtype: rows.dtype() });
        }
        match Self::of(tensor) {
            Some(host) if host.dtype != Dtype::F64 => Ok(host),
            _ => Err(OpsError::Dtype {
                op,
                what,
                got: tensor.dtype(),
                expected: "float32, bfloat16 or float16 on the CPU",
            }),
        }
    }

    pub(crate) fn f32(&self) -> &[f32] {
        match &self.values {
            Values::Tensor(tensor) => tensor.as_slice::<f32>(),
            Values::Packed(_) => None,
        }
        .expect("invariant: contiguous f32, checked when the view was made")
    }

    /// The elements to write to, where nobody else has them.
    pub(crate) fn own_f32(&mut self) -> Option<&mut [f32]> {
        match &mut self.values {
            Values::Tensor(tensor) => {
                let elements = tensor.layout().num_elements();
                tensor.try_storage_mut::<f32>().filter(|values| values.len() == elements)
            }
            Values::Packed(_) => None,
        }
    }

    /// The view as a tensor again; `None` for a weight in fewer bits.
    pub(crate) fn into_tensor(self) -> Option<AnyTensor> {
        match self.values {
            Values::Tensor(tensor) => Some(of_flex(tensor)),
            Values::Packed(_) => None,
        }
    }

    pub(crate) fn weight(&self) -> Weight<'_> {
        const WHY: &str = "invariant: contiguous, of the dtype read when the view was made";
        let tensor = match &self.values {
            Values::Tensor(tensor) => tensor,
            Values::Packed(rows) => return Weight::packed(&**rows),
        };
        match self.dtype {
            Dtype::Bf16 => Weight::Bf16(tensor.as_slice::<bf16>().expect(WHY)),
            Dtype::F16 => Weight::F16(tensor.as_slice::<f16>().expect(WHY)),
            _ => Weight::F32(tensor.as_slice::<f32>().expect(WHY)),
        }
    }
}

/// A plain flex tensor around `values`, without a copy.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> AnyTensor {
    of_flex(FlexTensor::from_data(TensorData::new(values, Shape::from(shape.to_vec()))))
}

fn of_flex(flex: FlexTensor) -> AnyTensor {
    AnyTensor::new(burn::tensor::Tensor::<1>::from_primitive::<burn::backend::Flex>(flex))
}
