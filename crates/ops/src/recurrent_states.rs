//! States of sequences being generated, of each one that does not grow.

use burn::tensor::{DType, Device, Tensor};

use crate::sequence_rows::SequenceRows;
use crate::{AnyTensor, Documents, OpsError};

/// The states of sequences being generated, f32, of linear attention or of a selective scan.
#[derive(Clone, Debug)]
pub struct RecurrentStates(SequenceRows);

impl RecurrentStates {
    /// Of `sequences` that have said nothing.
    #[must_use]
    pub fn new(sequences: usize) -> Self {
        Self(SequenceRows::new("recurrent_states", sequences, 1))
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Sequence `i` becomes what `order[i]` was.
    ///
    /// # Errors
    /// If `order` names a sequence that is not held; the states are then as before.
    pub fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        self.0.reorder(order)
    }

    /// The sequences of `other` follow those that are here.
    pub fn append(&mut self, other: Self) {
        self.0.append(other.0);
    }

    /// Takes out the sequences from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        Self(self.0.split_off(at))
    }

    /// The rows, for steps that are recorded.
    pub fn rows(&mut self) -> &mut SequenceRows {
        &mut self.0
    }

    /// The states `[sequences, width]` before `texts`, one of each sequence.
    pub(crate) fn before(
        &mut self,
        op: &'static str,
        texts: &Documents,
        width: usize,
        device: &Device,
    ) -> Result<AnyTensor, OpsError> {
        self.0.settle_for(texts.len());
        if texts.len() != self.0.count() {
            let (got, expected) = (vec![texts.len()], vec![self.0.count()]);
            return Err(OpsError::Shape { op, what: "texts", got, expected });
        }
        let states =
            AnyTensor::new(self.0.held(|rows| Tensor::<2>::zeros([rows, width], (device, DType::F32))));
        crate::check::shape(op, "states", states.shape(), &[texts.len(), width])?;
        Ok(states)
    }

    /// Keeps what those texts left.
    pub(crate) fn keep(&mut self, states: &AnyTensor) -> Result<(), OpsError> {
        self.0.keep(states.rank()?);
        Ok(())
    }
}
