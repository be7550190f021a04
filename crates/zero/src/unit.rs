//! The pieces of a model that are gathered and reduced together.

use serde::{Deserialize, Serialize};

/// Parameters that a model uses together: the embedding, a block, the head.
///
/// Units are listed in forward order. A tied parameter belongs to the unit that lists it, or its target, first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name in errors and plans, `model.layers.3`.
    pub name: String,
    /// Registry indices.
    pub parameters: Vec<usize>,
    /// Whether it is used at both ends of the model or more than once (embedding, head): its gradients are complete
    /// only when a micro-batch ends.
    pub root: bool,
}

impl Unit {
    /// A unit that is used in one place.
    #[must_use]
    pub fn block(name: impl Into<String>, parameters: Vec<usize>) -> Self {
        Self { name: name.into(), parameters, root: false }
    }

    /// A unit whose gradients are complete when a micro-batch ends.
    #[must_use]
    pub fn root(name: impl Into<String>, parameters: Vec<usize>) -> Self {
        Self { name: name.into(), parameters, root: true }
    }
}
