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
    /// An unknown name of a choice.
    #[error("unknown {option} `{got}`; expected {expected}")]
    UnknownName {
        /// What is chosen.
        option: &'static str,
        /// The name.
        got: String,
        /// The known names.
        expected: &'static str,
    },
    /// Muon with nothing to do.
    #[error(
        "muon: none of the {trained} trained parameters is a matrix of a linear layer or of experts ({adapters} are adapter factors); let it take adapters, train the matrices, or use adamw"
    )]
    NothingForMuon {
        /// How many parameters are trained.
        trained: usize,
        /// How many of them are factors of adapters.
        adapters: usize,
    },
    /// Stacked matrices that are not the parameter.
    #[error(
        "muon: `{parameter}` of shape {shape:?} is stacked of {blocks:?} rows, expected {rows} rows together and none empty"
    )]
    Blocks {
        /// The parameter.
        parameter: String,
        /// Its logical shape.
        shape: Vec<usize>,
        /// The rows of its blocks.
        blocks: Vec<usize>,
        /// Its rows.
        rows: usize,
    },
    /// A hyper-parameter outside its range.
    #[error("muon: {option} is {got}, expected {expected}")]
    Range {
        /// The hyper-parameter.
        option: &'static str,
        /// Its value.
        got: f64,
        /// Its range.
        expected: &'static str,
    },
}
