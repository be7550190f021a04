//! What an optimizer keeps per parameter.

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

/// One slot of one parameter.
#[derive(Clone, Debug)]
pub struct SlotTensor {
    /// The parameter's name.
    pub parameter: String,
    /// The slot's name.
    pub slot: &'static str,
    /// Its value.
    pub tensor: AnyTensor,
}
