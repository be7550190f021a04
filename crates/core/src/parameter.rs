//! One entry of a model's registry.

use serde::{Deserialize, Serialize};

use crate::{Dtype, Layout, Precision, Quantization};

/// What a parameter is for. Optimizers and plans choose by role, never by name matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A weight matrix of a linear layer; which dimension is which says its [`Orientation`].
    Matrix,
    /// A token embedding `[vocab, hidden]`.
    Embedding,
    /// The output projection `[vocab, hidden]`.
    Head,
    /// A normalisation weight.
    Norm,
    /// A bias.
    Bias,
    /// A mixture-of-experts router.
    Router,
    /// A batch of expert matrices.
    Expert,
    /// An adapter factor.
    Adapter,
    /// The kernel of a convolution.
    Convolution,
}

/// Which of a matrix' last two dimensions is its fan out (outputs, rows of `y = W x`) and which its fan in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orientation {
    /// `[out, in]`, as PyTorch and Hugging Face have it.
    #[default]
    OutIn,
    /// `[in, out]`, as Burn's `Linear` has it.
    InOut,
    /// Unknown: what depends on it refuses the parameter.
    Undeclared,
}

impl Orientation {
    /// Whether it is [`OutIn`](Self::OutIn).
    #[must_use]
    pub fn is_out_in(&self) -> bool {
        *self == Self::OutIn
    }
}

/// A logical parameter: global shape, role, dtypes, trainability and layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// The Hugging Face or PEFT name, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The logical shape; in the registry of what one rank holds, that of its part ([`Self::layout`]).
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Its four dtypes.
    pub precision: Precision,
    /// Whether the optimizer updates it.
    pub trainable: bool,
    /// The parameter whose storage this one shares (tied weights).
    pub alias_of: Option<String>,
    /// How the logical tensor lies over the ranks of a mesh where `shape` is that of one rank's part of it; `None` where it
    /// is the logical shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Which dimensions of a matrix are its fans.
    #[serde(default, skip_serializing_if = "Orientation::is_out_in")]
    pub orientation: Orientation,
    /// Outputs of the matrices that are stacked along the fan out and have nothing to do with each other (fused queries,
    /// keys and values; heads), of the global shape; none: it is one matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<usize>,
    /// How it rests in fewer bits; it is read in [`Precision::store`]. Of frozen matrices only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
}

impl Parameter {
    /// A frozen, replicated parameter at rest in `store`.
    #[must_use]
    pub fn new(name: impl Into<String>, shape: &[usize], role: Role, store: Dtype) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            role,
            precision: Precision::stored(store),
            trainable: false,
            alias_of: None,
            layout: None,
            orientation: Orientation::OutIn,
            blocks: Vec::new(),
            quantization: None,
        }
    }

    /// The number of elements of the logical tensor.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// `rows` rows (dimension 0) of it as a matrix: all dimensions but the last count as rows. A stack of matrices rests in
    /// fewer bits as that.
    #[must_use]
    pub fn as_matrix(&self, rows: usize) -> [usize; 2] {
        match self.shape.split_last() {
            Some((&columns, outer)) => [rows * outer.iter().skip(1).product::<usize>(), columns],
            None => [1, 1],
        }
    }

    /// Bytes at rest of `rows` rows of `row` elements of it.
    #[must_use]
    pub fn stored_bytes(&self, rows: usize, row: usize) -> usize {
        match self.quantization {
            Some(quantization) => {
                let [rows, row] = self.as_matrix(rows);
                quantization.bytes(rows, row)
            }
            None => rows * row * self.precision.store.bytes(),
        }
    }

    /// Whether decoupled weight decay applies: not to norms and biases (as Transformers' Trainer).
    #[must_use]
    pub fn decays(&self) -> bool {
        !matches!(self.role, Role::Norm | Role::Bias)
    }
}
