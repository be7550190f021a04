//! One walk through a model: what is tracked, what is recomputed, and where gradients go in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burnish_ops::{AnyTensor, OpsError, Run, Weights, segment};

use crate::layers::{Assembly, DropoutStep};
use crate::resident::Parameters;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Plain tensors, no graph: evaluation, scoring, rollouts, reference models.
    Score,
    /// A graph whose backward fills the parameters' gradients.
    Train {
        /// Recompute each block in backward instead of keeping its activations.
        recompute: bool,
        /// Dropout of this step.
        dropout: Option<DropoutStep>,
    },
}

/// One walk through a model over one micro-batch.
pub struct Pass {
    parameters: Arc<dyn Parameters>,
    mode: Mode,
    adapters: bool,
    leaves: Mutex<BTreeMap<usize, AnyTensor>>,
}

impl Pass {
    /// A pass over `parameters`; `adapters` off runs the base model.
    #[must_use]
    pub fn new(parameters: Arc<dyn Parameters>, mode: Mode, adapters: bool) -> Self {
        Self { parameters, mode, adapters, leaves: Mutex::new(BTreeMap::new()) }
    }

    /// Whether gradients are wanted.
    #[must_use]
    pub fn training(&self) -> bool {
        matches!(self.mode, Mode::Train { .. })
    }

    pub(crate) fn adapters(&self) -> bool {
        self.adapters
    }

    pub(crate) fn assembly(&self, rows: &Arc<Vec<u64>>) -> Assembly {
        let dropout = match self.mode {
            Mode::Train { dropout: Some(step), .. } => Some((step, rows.clone())),
            _ => None,
        };
        Assembly { adapters: self.adapters, dropout }
    }

    /// The parameter at `index`: a leaf of this pass when it trains, plain otherwise.
    pub(crate) fn read(&self, index: usize) -> AnyTensor {
        if !(self.training() && self.trainable(index)) {
            return self.parameters.read(index);
        }
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.entry(index).or_insert_with(|| self.parameters.read(index).leaf()).clone()
    }

    /// Runs one block on `x`: as a segment when it is to be recomputed, on this pass's tape otherwise.
    pub(crate) fn block(
        &self,
        name: &str,
        x: &AnyTensor,
        indices: Vec<usize>,
        run: Run,
    ) -> Result<AnyTensor, OpsError> {
        if matches!(self.mode, Mode::Train { recompute: true, .. }) {
            let trainable = indices.iter().map(|&i| self.trainable(i)).collect();
            let weights = Arc::new(Resident { parameters: self.parameters.clone(), indices, trainable });
            return segment(name, std::slice::from_ref(x), weights, true, run);
        }
        let tensors: Vec<AnyTensor> = indices.into_iter().map(|i| self.read(i)).collect();
        run(std::slice::from_ref(x), &tensors)
    }

    /// Backward from a scalar; gradients go to the parameters.
    ///
    /// # Errors
    /// If `loss` is not of shape `[1]`.
    pub fn backward(self, loss: &AnyTensor) -> Result<(), OpsError> {
        let loss = loss.rank::<1>()?;
        if !loss.is_tracked() {
            return Ok(());
        }
        let mut gradients = loss.backward();
        drop(loss);
        let leaves = self.leaves.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (index, leaf) in leaves {
            if let Some(gradient) = leaf.take_gradient(&mut gradients) {
                self.parameters.accumulate(index, gradient);
            }
        }
        Ok(())
    }

    fn trainable(&self, index: usize) -> bool {
        self.parameters.registry().at(index).trainable
    }
}

/// A segment's weights, read from the parameters each time they are needed.
struct Resident {
    parameters: Arc<dyn Parameters>,
    indices: Vec<usize>,
    trainable: Vec<bool>,
}

impl Weights for Resident {
    fn gather(&self) -> Vec<AnyTensor> {
        self.indices.iter().map(|&i| self.parameters.read(i)).collect()
    }

    fn trainable(&self) -> Vec<bool> {
        self.trainable.clone()
    }

    fn sink(&self, index: usize, gradient: AnyTensor) {
        self.parameters.accumulate(self.indices[index], gradient);
    }
}
