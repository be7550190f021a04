//! `Parameters`: the trait by which operations read weights and hand over their gradients.

use std::sync::Arc;

use burnish_core::Registry;

use crate::recomputed::sunk;
use crate::{AnyTensor, OpsError};

/// The parameters of a model, whoever holds their pieces.
///
/// Reading a parameter gives the whole tensor; a sharded source gathers. There is no handle to a shard's storage.
/// Every rank of a job reads in the same order, so an implementation may communicate.
pub trait Parameters: Send + Sync {
    /// The parameters, in index order.
    fn registry(&self) -> &Registry;
    /// The parameter at `index`, whole and plain, in its stored dtype.
    fn read(&self, index: usize) -> AnyTensor;
    /// Several at once, as the parameters of a block: a sharded source gathers them together.
    fn read_all(&self, indices: &[usize]) -> Vec<AnyTensor> {
        indices.iter().map(|&index| self.read(index)).collect()
    }
    /// Whether reading the parameter at `index` communicates. How often such parameters are read is planned for every rank:
    /// a block that has one is computed again in backward whatever it trains.
    fn gathers(&self, _index: usize) -> bool {
        false
    }
    /// Adds to the gradient of the parameter at `index`. Called during backward, as soon as a gradient is complete
    /// for one use of the parameter.
    fn accumulate(&self, index: usize, gradient: AnyTensor);
}

/// Puts `value`, read from `parameters`, on the tape of `root`: its gradient goes to [`Parameters::accumulate`] as soon
/// as backward has it, and is not kept.
///
/// `root` is a leaf, of any shape; it gets no gradient.
///
/// # Errors
/// If `root` is not tracked by plain autodiff.
pub fn recorded(
    parameters: &Arc<dyn Parameters>,
    index: usize,
    value: AnyTensor,
    root: &AnyTensor,
) -> Result<AnyTensor, OpsError> {
    let parameters = Arc::clone(parameters);
    sunk(root, value, move |gradient| parameters.accumulate(index, gradient))
}
