//! One entry of a model's registry.

use serde::{Deserialize, Serialize};

use crate::{Dtype, Layout, Precision};

/// What a parameter is for. Optimizers and plans choose by role, never by name matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A weight matrix `[out, in]` of a linear layer.
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
}

/// A logical parameter: global shape, role, dtypes, trainability and layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// The Hugging Face or PEFT name, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The global shape, whatever a rank holds of it.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Its four dtypes.
    pub precision: Precision,
    /// Whether the optimizer updates it.
    pub trainable: bool,
    /// The parameter whose storage this one shares (tied weights).
    pub alias_of: Option<String>,
    /// Placement over the tensor-parallel axis.
    pub layout: Layout,
    /// Rows of the matrices that are stacked in dimension 0 and have nothing to do with each other (fused queries, keys
    /// and values; heads), of the global shape; none: it is one matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<usize>,
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
            layout: Layout::Replicated,
            blocks: Vec::new(),
        }
    }

    /// The number of elements of the logical tensor.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether decoupled weight decay applies: not to norms and biases (as Transformers' Trainer).
    #[must_use]
    pub fn decays(&self) -> bool {
        !matches!(self.role, Role::Norm | Role::Bias)
    }
}
