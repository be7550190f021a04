//! `SlotSpec`: name, dtype and scope of one piece of optimizer state.

use burnish_core::Dtype;
use burnish_ops::AnyTensor;
use serde::{Deserialize, Serialize};

/// A declared state slot: its name and its dtype, whatever the gradient's or a file's dtype is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotSpec {
    /// The slot's name, as PyTorch's state dict calls it.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
}

/// Which ranks keep a slot of a parameter, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotScope {
    /// Each rank, of the elements that it updates: masters, moments, momentum.
    Rows,
    /// The rank that orthogonalises the matrix, of the whole matrix: second moments of orthogonalised updates.
    Whole,
}

/// What an optimizer declares of one slot of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its dtype.
    pub dtype: Dtype,
    /// Who keeps it.
    pub held: SlotScope,
}

/// One slot of one parameter.
#[derive(Clone, Debug)]
pub struct SlotTensor {
    /// The parameter's name.
    pub parameter: String,
    /// The slot's name.
    pub slot: &'static str,
    /// Its value.
    pub tensor: SlotValue,
    /// Whether it is of the elements that this rank updates or of the whole parameter.
    pub held: SlotScope,
}

/// The elements of a slot.
#[derive(Clone, Debug)]
pub enum SlotValue {
    /// Floats.
    Tensor(AnyTensor),
    /// Codes of values in blocks, one byte each.
    Bytes {
        /// In the order of the elements.
        bytes: Vec<u8>,
        /// The shape.
        shape: Vec<usize>,
    },
}

impl SlotValue {
    /// The shape.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Tensor(tensor) => tensor.shape(),
            Self::Bytes { shape, .. } => shape.clone(),
        }
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Tensor(tensor) => tensor.dtype(),
            Self::Bytes { .. } => Some(Dtype::U8),
        }
    }

    /// The elements as f32: of bytes the codes themselves.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Tensor(tensor) => tensor.to_f32(),
            Self::Bytes { bytes, .. } => bytes.iter().map(|&code| f32::from(code)).collect(),
        }
    }

    /// The tensor, if it is one of floats.
    #[must_use]
    pub fn into_tensor(self) -> Option<AnyTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Bytes { .. } => None,
        }
    }
}

impl From<AnyTensor> for SlotValue {
    fn from(tensor: AnyTensor) -> Self {
        Self::Tensor(tensor)
    }
}
