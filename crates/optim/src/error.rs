//! What can be wrong with an optimizer.

use burnish_core::Dtype;

/// An optimizer that cannot be set up or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// An unknown schedule name.
    #[error("unknown lr_scheduler_type `{0}`; expected linear, cosine, constant or constant_with_warmup")]
    UnknownSchedule(String),
    /// A slot of a parameter that this optimizer does not keep.
    #[error(
        "optimizer state: `{parameter}` has no slot `{slot}` here; was the checkpoint written by another optimizer or for other trained parameters?"
    )]
    UnknownSlot {
        /// The parameter.
        parameter: String,
        /// The slot.
        slot: String,
    },
    /// A parameter with some of its slots only.
    #[error("optimizer state: `{parameter}` has other slots but not `{slot}`; is the checkpoint complete?")]
    MissingSlot {
        /// The parameter.
        parameter: String,
        /// The slot.
        slot: &'static str,
    },
    /// A slot with another shape.
    #[error("optimizer state: slot `{slot}` of `{parameter}` has shape {got:?}, expected {expected:?}")]
    SlotShape {
        /// The parameter.
        parameter: String,
        /// The slot.
        slot: String,
        /// In the checkpoint.
        got: Vec<usize>,
        /// By the model.
        expected: Vec<usize>,
    },
    /// A slot with another dtype.
    #[error("optimizer state: slot `{slot}` of `{parameter}` is {got:?}, declared as {expected}")]
    SlotDtype {
        /// The parameter.
        parameter: String,
        /// The slot.
        slot: String,
        /// In the checkpoint.
        got: Option<Dtype>,
        /// By declaration.
        expected: Dtype,
    },
}
