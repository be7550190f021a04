//! Errors of wrapped modules.

use burn::tensor::DType;
use burnish_checkpoint::CheckpointError;
use burnish_comm::CommError;
use burnish_core::{Coded, ErrorCode, RegistryError};
use burnish_ops::OpsError;
use burnish_optim::OptimError;

use crate::{PlanError, ZeroError};

/// A module that cannot be wrapped, or a step that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The store's error.
    #[error(transparent)]
    Zero(#[from] ZeroError),
    /// A segment's error.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// An optimizer's error.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// Two parameters of one path.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A module that nothing of trains.
    #[error(
        "none of the module's {parameters} float parameters requires a gradient; make it on a device with autodiff \
         (`device.autodiff()`), or bring it back with `train()`"
    )]
    Frozen {
        /// How many there are.
        parameters: usize,
    },
    /// A module on several devices.
    #[error("the module is on {devices} devices, expected one per rank; bring it to one with `fork`")]
    Devices {
        /// How many.
        devices: usize,
    },
    /// An element type that does not travel.
    #[error(
        "parameter `{parameter}` is {got:?}, expected F32, BF16 or F16; cast it, or leave it out of the wrap \
         with `leave`"
    )]
    Dtype {
        /// The parameter.
        parameter: String,
        /// What it is.
        got: DType,
    },
    /// A parameter that was not initialized when it was wrapped and then turned out to be of another dtype.
    #[error(
        "parameter `{parameter}` was not initialized yet and was taken for {expected:?}, the device's float type, but \
         is {got:?}; initialize it before wrapping (`param.val()`)"
    )]
    LateDtype {
        /// The parameter.
        parameter: String,
        /// What it is.
        got: DType,
        /// What it was taken for.
        expected: DType,
    },
    /// A pattern that matches nothing.
    #[error("{what} `{pattern}` matches no parameter; the paths begin with {paths:?}")]
    Unmatched {
        /// What the pattern is for.
        what: &'static str,
        /// The pattern.
        pattern: String,
        /// The first components of all paths.
        paths: Vec<String>,
    },
    /// A parameter in two blocks.
    #[error("blocks `{first}` and `{second}` both hold `{parameter}`; a block must not lie in another")]
    Overlap {
        /// A block.
        first: String,
        /// The other.
        second: String,
        /// What both hold.
        parameter: String,
    },
    /// A block with a batch normalisation that trains.
    #[error(
        "block `{block}` has an enabled training flag at `{flag}` (batch normalisation): a block runs again in backward, \
         where its running statistics would move twice; freeze the flag (`freeze_group`), or leave the layer out of blocks"
    )]
    Flag {
        /// The block.
        block: String,
        /// The flag's path.
        flag: String,
    },
    /// A module that was run as a block and is none.
    #[error(
        "`{block}` was run as a block, but {reason}; name it with `Wrap::block` and pass the pass's own submodule"
    )]
    NotABlock {
        /// The module: the path of its first known parameter, or its type.
        block: String,
        /// Why it is none.
        reason: &'static str,
    },
    /// Ranks with other values of what must be equal.
    #[error(
        "`{parameter}` has other values on ranks {ranks:?} than on rank 0; seed all ranks alike, or load the same file"
    )]
    Differs {
        /// The first parameter (or constant) that differs.
        parameter: String,
        /// Where.
        ranks: Vec<usize>,
    },
    /// A pass that was dropped with its gradients.
    #[error(
        "the last training pass was dropped without `finish`; call `discard` on every rank to give the step up"
    )]
    Unfinished,
    /// Gradients for a pass that takes none.
    #[error("an evaluation pass takes no gradients; begin a training pass with `micro_batch`")]
    Evaluation,
    /// A step without a micro-batch.
    #[error("a step needs at least one finished micro-batch since the last one, got none")]
    NoGradients,
    /// A parameter that is not there.
    #[error("no parameter at `{path}`; the paths begin with {paths:?}")]
    Unknown {
        /// The path asked for.
        path: String,
        /// The first components of all paths.
        paths: Vec<String>,
    },
    /// Saved state that could not be read.
    #[error("saved state of `{parameter}`, rows {rows:?}: {source}")]
    Restore {
        /// The parameter.
        parameter: String,
        /// The rows.
        rows: std::ops::Range<usize>,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A checkpoint that cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another rank failed where this one did not.
    #[error("this rank {what}, another one could not; its own error says why")]
    OtherRanks {
        /// What they did together.
        what: &'static str,
    },
    /// Saved state without a weight.
    #[error("saved state has no rows {rows:?} of `{parameter}`; was it saved for another module?")]
    Missing {
        /// The parameter.
        parameter: String,
        /// The rows.
        rows: std::ops::Range<usize>,
    },
}

impl From<CommError> for ModuleError {
    fn from(error: CommError) -> Self {
        Self::Zero(error.into())
    }
}

impl From<PlanError> for ModuleError {
    fn from(error: PlanError) -> Self {
        Self::Zero(error.into())
    }
}

impl Coded for ModuleError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Frozen { .. } => ErrorCode::NothingTrains,
            Self::Differs { .. } => ErrorCode::RanksDiffer,
            Self::OtherRanks { .. } => ErrorCode::RankFailed,
            Self::Restore { .. } | Self::Missing { .. } => ErrorCode::CannotResume,
            Self::Devices { .. }
            | Self::Dtype { .. }
            | Self::LateDtype { .. }
            | Self::Unmatched { .. }
            | Self::Overlap { .. }
            | Self::Flag { .. }
            | Self::NotABlock { .. }
            | Self::Unfinished
            | Self::Evaluation
            | Self::NoGradients
            | Self::Unknown { .. } => ErrorCode::Internal,
            Self::Zero(error) => error.code(),
            Self::Ops(error) => error.code(),
            Self::Optim(error) => error.code(),
            Self::Registry(error) => error.code(),
            Self::Checkpoint(error) => error.code(),
        }
    }
}
