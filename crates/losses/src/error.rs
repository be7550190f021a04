//! Errors of losses: invalid options, and inputs whose shapes do not agree.

use burnish_core::{Coded, ErrorCode, OptionFault, UnknownWord};
use burnish_ops::OpsError;

/// Every failure of the preference, reward and policy losses. Each message says what, where, expected, got, and the
/// mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// A named option value that does not exist.
    #[error("`{option}`: unknown value `{got}`; use one of {expected}")]
    Unknown {
        /// The option.
        option: &'static str,
        /// The value given.
        got: String,
        /// All there are.
        expected: String,
    },
    /// An option out of range, or two that contradict each other.
    #[error(transparent)]
    Option(#[from] OptionFault),
    /// Options and inputs that exclude each other.
    #[error("{what}; {mend}")]
    Conflict {
        /// The contradiction.
        what: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// No loss at all.
    #[error("`loss_type` is empty; name at least one loss, as `sigmoid`")]
    NoLoss,
    /// A list of the wrong length.
    #[error("{what}: {got} values, expected {expected}; they belong to the same {of}")]
    Length {
        /// The list.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
        /// What there must be one value per.
        of: &'static str,
    },
    /// Targets of a sequence that the micro-batch does not have.
    #[error(
        "sequence {sequence}: targets {start}..{end} of {targets}; sequences are ranges of the micro-batch's targets"
    )]
    Targets {
        /// Number of the sequence in the micro-batch.
        sequence: usize,
        /// First target.
        start: usize,
        /// One past the last.
        end: usize,
        /// Targets in the micro-batch.
        targets: usize,
    },
    /// Something the options ask for was not computed.
    #[error("sequence {sequence} has no {what}, which {because}; {mend}")]
    Missing {
        /// Number of the sequence (or pair) in the micro-batch.
        sequence: usize,
        /// What is missing.
        what: &'static str,
        /// The option that asks for it.
        because: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// A denominator that the micro-batch alone exceeds.
    #[error(
        "{what}: the step has {got}, this micro-batch alone {here}; count over all micro-batches and ranks"
    )]
    Denominator {
        /// What is counted.
        what: &'static str,
        /// The step's count.
        got: f64,
        /// The micro-batch's count.
        here: f64,
    },
    /// A tensor operation.
    #[error(transparent)]
    Ops(#[from] OpsError),
}

impl From<UnknownWord> for LossError {
    fn from(UnknownWord { option, got, words }: UnknownWord) -> Self {
        Self::Unknown { option, got, expected: words.join(", ") }
    }
}

pub(crate) const AT_LEAST_0: &str = "a number that is at least 0";
pub(crate) const ABOVE_0: &str = "a number above 0";

/// Whether a number is finite and not negative.
pub(crate) fn at_least_0(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

/// Whether a number is finite and positive.
pub(crate) fn above_0(value: f64) -> bool {
    value > 0.0 && in_f32(value)
}

/// Whether float32 holds a number, as losses are computed.
pub(crate) fn in_f32(value: f64) -> bool {
    (value as f32).is_finite()
}

/// Fails when a micro-batch alone has more than the whole step.
pub(crate) fn within(what: &'static str, got: f64, here: f64) -> Result<(), LossError> {
    if here <= got { Ok(()) } else { Err(LossError::Denominator { what, got, here }) }
}

impl Coded for LossError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::NoLoss => ErrorCode::BadValue,
            Self::Conflict { .. } => ErrorCode::Conflict,
            Self::Length { .. } | Self::Targets { .. } | Self::Missing { .. } | Self::Denominator { .. } => {
                ErrorCode::Internal
            }
            Self::Option(error) => error.code(),
            Self::Ops(error) => error.code(),
        }
    }
}
