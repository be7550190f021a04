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
    pub tensor: AnyTensor,
    /// Whether it is of the elements that this rank updates or of the whole parameter.
    pub held: SlotScope,
}
