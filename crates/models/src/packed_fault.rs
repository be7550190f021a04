//! `PackedFault`: faults of the tensors that a quantised folder has of a matrix.

use burnish_core::{Coded, ErrorCode};
use burnish_quant::QuantError;
use burnish_weight_files::WeightFileError;

/// Why the tensors of a quantised matrix are none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackedFault {
    /// Its numbers do not fit each other.
    #[error(transparent)]
    Parts(#[from] QuantError),
    /// A tensor that is not there, or cannot be read.
    #[error(transparent)]
    File(#[from] WeightFileError),
    /// A tensor of another dtype or shape.
    #[error("tensor `{tensor}` is {got}, expected {expected}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What it is.
        got: String,
        /// What it has to be.
        expected: String,
    },
    /// A description that is not read.
    #[error("`{tensor}`: {key} is {got}, expected {expected}")]
    State {
        /// The tensor.
        tensor: String,
        /// What of it.
        key: &'static str,
        /// What it says.
        got: String,
        /// What would be read.
        expected: String,
    },
}

impl Coded for PackedFault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Parts(..) | Self::Tensor { .. } | Self::State { .. } => ErrorCode::QuantizedModel,
            Self::File(error) => error.code(),
        }
    }
}
