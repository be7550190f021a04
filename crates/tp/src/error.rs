//! Errors of tensor parallelism.

use std::ops::Range;

use burn::tensor::DType;
use burnish_comm::CommError;
use burnish_core::{Coded, Dtype, ErrorCode, LayoutError};

use crate::{LinearPart, Style};

/// What goes wrong in tensor parallelism.
///
/// Collectives inside forward and backward cannot return an error: [`Tp`](crate::Tp) keeps the first one, gives zeros
/// from then on without communicating, and [`Tp::check`](crate::Tp::check) returns it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TpError {
    /// Ranks did not do the same, or one of them is gone.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A layout that cannot be built.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A style that nobody knows.
    #[error("tensor-parallel plan: `{pattern}` has style `{style}`, expected one of {known}")]
    UnknownStyle {
        /// The plan's pattern; empty for a style on its own.
        pattern: String,
        /// What it says.
        style: String,
        /// The styles there are, written out.
        known: String,
    },
    /// A style of Transformers that is not supported.
    #[error("tensor-parallel plan: `{pattern}` has style `{style}`, which is not supported: {why}")]
    UnsupportedStyle {
        /// The plan's pattern; empty for a style on its own.
        pattern: String,
        /// What it says.
        style: String,
        /// Why, and what to write instead.
        why: &'static str,
    },
    /// A pattern that no parameter has.
    #[error(
        "tensor-parallel plan: `{pattern}` matches no parameter; write module names as in the checkpoint, layer numbers as `*`"
    )]
    Unmatched {
        /// The pattern.
        pattern: String,
    },
    /// No ranks.
    #[error("tensor parallelism needs at least one rank, got 0")]
    NoRanks,
    /// More ranks than attention heads.
    #[error(
        "{heads} attention heads cannot be given to {tp} ranks, each needs at least one; set tp_size to at most {heads}"
    )]
    Heads {
        /// Attention heads.
        heads: usize,
        /// Ranks.
        tp: usize,
    },
    /// Query heads that are not a multiple of the key and value heads.
    #[error(
        "{heads} attention heads are not a multiple of {kv_heads} key and value heads; check the model's configuration"
    )]
    HeadGroups {
        /// Attention heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// A split of another length, or over another number of ranks.
    #[error(
        "`{style}` {part}: the split is of {got}, but dimension {dim} of shape {shape:?} is {expected}; make it from the global shape"
    )]
    SplitLength {
        /// The style.
        style: Style,
        /// Which tensor of the layer.
        part: LinearPart,
        /// The global shape.
        shape: Vec<usize>,
        /// The sharded dimension.
        dim: usize,
        /// Its length.
        expected: usize,
        /// The split's length.
        got: usize,
    },
    /// A tensor without the dimension that its style shards.
    #[error("`{style}` {part}: shape {shape:?} has no dimension {dim}")]
    Dimension {
        /// The style.
        style: Style,
        /// Which tensor of the layer.
        part: LinearPart,
        /// The global shape.
        shape: Vec<usize>,
        /// The dimension that the style shards.
        dim: usize,
    },
    /// A placement or split for another number of ranks.
    #[error(
        "`{what}` is placed on {placed} ranks, but the group has {group}; make placements with the group's size"
    )]
    Ranks {
        /// The parameter.
        what: String,
        /// Ranks of the placement.
        placed: usize,
        /// Ranks of the group.
        group: usize,
    },
    /// A tensor of another shape.
    #[error("`{what}`: got shape {got:?}, expected {expected:?}")]
    Shape {
        /// The parameter.
        what: String,
        /// The shape that came.
        got: Vec<usize>,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor of another dtype.
    #[error("`{what}` is {got:?}, expected {expected}; cast it before")]
    Dtype {
        /// The parameter.
        what: String,
        /// The dtype that came.
        got: Option<Dtype>,
        /// The dtypes that are accepted.
        expected: &'static str,
    },
    /// A plan that names something else than this crate's linear layer.
    #[error(
        "`{parameter}` is to be `{style}`, but it is not of a `burnish_tp::Linear`; make the layer one (`linear.into()`), or leave it out of the plan"
    )]
    NotLinear {
        /// The parameter's path.
        parameter: String,
        /// What the plan says of it.
        style: Style,
    },
    /// A style that a linear layer does not have.
    #[error(
        "linear layer `{layer}`: got style `{style}`, expected colwise, colwise_gather_output, rowwise, rowwise_split_input or replicated"
    )]
    LinearStyle {
        /// The layer's path.
        layer: String,
        /// The style.
        style: Style,
    },
    /// A layer that is divided twice.
    #[error("linear layer `{layer}` is divided already; divide the whole module once, or `gather` it first")]
    Divided {
        /// The layer's path.
        layer: String,
    },
    /// A layer with fewer features than ranks.
    #[error(
        "linear layer `{layer}`: {features} features cannot be divided over {ranks} ranks; leave it replicated"
    )]
    Narrow {
        /// The layer's path.
        layer: String,
        /// Features of the divided dimension.
        features: usize,
        /// Ranks.
        ranks: usize,
    },
    /// A module's parameter of an element type that does not travel.
    #[error(
        "parameter `{parameter}` is {got:?}, expected F32, BF16 or F16; cast it before the module is divided"
    )]
    ParameterDtype {
        /// The parameter's path.
        parameter: String,
        /// What it is.
        got: DType,
    },
    /// Ranks that share elements hold different rows of them.
    #[error(
        "`{what}`: rows {rows:?} do not hold row {row} on every rank that shares it; divide shared parameters alike on all tensor-parallel ranks"
    )]
    Rows {
        /// The parameter.
        what: String,
        /// The rows given, of the local tensor.
        rows: Range<usize>,
        /// The global row.
        row: usize,
    },
}

impl Coded for TpError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Heads { .. } | Self::HeadGroups { .. } | Self::Narrow { .. } => ErrorCode::CannotDivide,
            Self::NoRanks => ErrorCode::BadLaunch,
            Self::UnknownStyle { .. }
            | Self::UnsupportedStyle { .. }
            | Self::Unmatched { .. }
            | Self::SplitLength { .. }
            | Self::Dimension { .. }
            | Self::Ranks { .. }
            | Self::Shape { .. }
            | Self::Dtype { .. }
            | Self::NotLinear { .. }
            | Self::LinearStyle { .. }
            | Self::Divided { .. }
            | Self::ParameterDtype { .. }
            | Self::Rows { .. } => ErrorCode::Internal,
            Self::Comm(error) => error.code(),
            Self::Layout(error) => error.code(),
        }
    }
}
