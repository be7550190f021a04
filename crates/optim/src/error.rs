//! Errors of optimizers.

use burnish_core::{Coded, Dtype, ErrorCode, OptionFault, UnknownWord, alternatives};

/// An optimizer that cannot be set up or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
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
    /// A word that is none of an option's.
    #[error("unknown {option} `{got}`; expected {}", alternatives(words))]
    UnknownName {
        /// The option.
        option: &'static str,
        /// The word.
        got: String,
        /// The option's words.
        words: &'static [&'static str],
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
    /// A matrix that does not say which of its dimensions is which.
    #[error(
        "muon: `{parameter}` of shape {shape:?} does not say whether it is `[out, in]` or `[in, out]`; declare its \
         orientation, or give it a role that AdamW updates"
    )]
    Orientation {
        /// The parameter.
        parameter: String,
        /// Its logical shape.
        shape: Vec<usize>,
    },
    /// A pattern for parameters that are not there.
    #[error("`{pattern}` matches no parameter of the module; its paths are {paths:?}")]
    Unmatched {
        /// The pattern.
        pattern: String,
        /// All paths.
        paths: Vec<String>,
    },
    /// A hyper-parameter outside its range.
    #[error(transparent)]
    Option(#[from] OptionFault),
}

impl From<UnknownWord> for OptimError {
    fn from(UnknownWord { option, got, words }: UnknownWord) -> Self {
        Self::UnknownName { option, got, words }
    }
}

impl Coded for OptimError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownSlot { .. }
            | Self::MissingSlot { .. }
            | Self::SlotShape { .. }
            | Self::SlotDtype { .. } => ErrorCode::CannotResume,
            Self::UnknownName { .. } => ErrorCode::BadValue,
            Self::NothingForMuon { .. } => ErrorCode::NothingTrains,
            Self::Blocks { .. } | Self::Orientation { .. } | Self::Unmatched { .. } => ErrorCode::Internal,
            Self::Option(error) => error.code(),
        }
    }
}
