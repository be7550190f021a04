//! Errors of operations: shapes, dtypes and devices that do not fit, found before Burn panics.

use std::ops::Range;

use burnish_core::{Coded, Dtype, ErrorCode};

/// An operation that cannot be recorded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// A tensor of another rank.
    #[error("expected a tensor of rank {expected}, got shape {shape:?}")]
    Rank {
        /// The rank asked for.
        expected: usize,
        /// The shape that came.
        shape: Vec<usize>,
    },
    /// A tensor of another shape.
    #[error("{op}: `{what}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The shape that came.
        got: Vec<usize>,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor of another dtype.
    #[error("{op}: `{what}` is {got:?}, expected {expected}; cast it where it is loaded or gathered")]
    Dtype {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The dtype that came.
        got: Option<Dtype>,
        /// The dtypes that are accepted.
        expected: &'static str,
    },
    /// A segment that trains weights, with an input that autodiff does not track.
    #[error(
        "segment `{name}`: it has trainable weights but none of its inputs is tracked, so their gradients would be \
         dropped; make the input a leaf (`AnyTensor::leaf`) before the first segment"
    )]
    UntrackedInput {
        /// The segment.
        name: String,
    },
    /// A segment closure that holds a tracked tensor of the outer graph.
    #[error(
        "segment `{name}`: its closure captured a tracked tensor of the outer graph, which would deadlock in \
         backward; pass it as an input or capture it outside autodiff (`AnyTensor::plain`)"
    )]
    CapturedTracked {
        /// The segment.
        name: String,
    },
    /// A tensor on a device with Burn's own gradient checkpointing.
    #[error(
        "{op}: the tensor uses Burn's balanced gradient checkpointing; use `Device::autodiff()` without it \
         and a segment for recomputation"
    )]
    Checkpointing {
        /// The operation.
        op: &'static str,
    },
    /// A tensor on a device whose backend this build of burnish does not record operations on.
    #[error(
        "{op}: the backend of {device} is not compiled into burnish-ops; build with its feature `{feature}`, which \
         every burnish crate that computes passes through, or move the tensor to a device that is"
    )]
    NoBackend {
        /// The operation.
        op: &'static str,
        /// The device, as Burn prints it.
        device: String,
        /// The feature that compiles its backend.
        feature: &'static str,
    },
    /// More tracked inputs than an operation can declare.
    #[error("{op}: {got} tracked inputs, at most {most} are supported")]
    TooManyInputs {
        /// The operation.
        op: &'static str,
        /// How many came.
        got: usize,
        /// How many fit.
        most: usize,
    },
    /// A magnitude together with a bias of B.
    #[error(
        "{op}: a low-rank branch has both a magnitude (DoRA) and a bias of B; PEFT defines no such layer, leave one out"
    )]
    MagnitudeAndBias {
        /// The operation.
        op: &'static str,
    },
    /// A document that continues one which itself continues another.
    #[error(
        "attention: document {document} continues {parent}, which continues another; continue the first of them"
    )]
    Continued {
        /// The document.
        document: usize,
        /// The one before it.
        parent: usize,
    },
    /// Two documents that share a token.
    #[error("attention: documents {first:?} and {second:?} overlap; every token belongs to at most one")]
    Overlap {
        /// The document that starts first.
        first: Range<usize>,
        /// The other.
        second: Range<usize>,
    },
    /// A name of polynomials that there is not.
    #[error("orthogonalize: unknown polynomials `{got}`; expected quintic or polar_express")]
    UnknownPolynomials {
        /// The name.
        got: String,
    },
    /// An index outside a table.
    #[error("{op}: index {got} is outside 0..{limit}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The index.
        got: usize,
        /// The table's length.
        limit: usize,
    },
}

impl From<burnish_core::UnknownWord> for OpsError {
    fn from(word: burnish_core::UnknownWord) -> Self {
        Self::UnknownPolynomials { got: word.got }
    }
}

impl Coded for OpsError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoBackend { .. } => ErrorCode::NotBuilt,
            Self::MagnitudeAndBias { .. } => ErrorCode::UnsupportedAdapter,
            Self::UnknownPolynomials { .. } => ErrorCode::BadValue,
            Self::Rank { .. }
            | Self::Shape { .. }
            | Self::Dtype { .. }
            | Self::UntrackedInput { .. }
            | Self::CapturedTracked { .. }
            | Self::Checkpointing { .. }
            | Self::TooManyInputs { .. }
            | Self::Continued { .. }
            | Self::Overlap { .. }
            | Self::Index { .. } => ErrorCode::Internal,
        }
    }
}
