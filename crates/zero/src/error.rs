//! Errors of ZeRO.

use std::ops::Range;
use std::sync::Arc;

use burnish_comm::CommError;
use burnish_core::{Coded, Dtype, ErrorCode};
use burnish_quant::QuantError;

use crate::ExchangeError;

/// A plan that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A world without ranks.
    #[error("a plan needs at least one rank, got 0")]
    NoRanks,
    /// A unit with an index that is not in the registry.
    #[error("unit `{unit}` lists parameter {index}, but the registry has {parameters}")]
    Index {
        /// The unit.
        unit: String,
        /// The index.
        index: usize,
        /// How many parameters there are.
        parameters: usize,
    },
    /// A parameter in two units.
    #[error(
        "parameter `{parameter}` is in unit `{first}` and again in `{second}`; list it once (a tied copy has its own index)"
    )]
    Twice {
        /// The parameter.
        parameter: String,
        /// The unit that lists it first.
        first: String,
        /// The unit that lists it again.
        second: String,
    },
    /// A dtype that weights or gradients cannot have.
    #[error("parameter `{parameter}`: {field} dtype is {got}, expected float32, bfloat16 or float16")]
    Dtype {
        /// The parameter.
        parameter: String,
        /// Which of its dtypes.
        field: &'static str,
        /// What it is.
        got: Dtype,
    },
    /// A tied parameter that differs from its target.
    #[error(
        "parameter `{parameter}` is tied to `{target}` but has (shape, trainable) {got:?}, expected {expected:?}"
    )]
    Tied {
        /// The parameter.
        parameter: String,
        /// What it is tied to.
        target: String,
        /// Its shape, and whether it trains.
        got: (Vec<usize>, bool),
        /// The target's.
        expected: (Vec<usize>, bool),
    },
}

/// What goes wrong while a model runs by a plan.
///
/// Reading and accumulating happen inside backward, where no error can be returned: the first one is kept, reads give
/// zeros from then on, nothing communicates any more, and the next call that returns a result returns it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZeroError {
    /// A block whose randomness did not repeat.
    #[error(
        "block `{block}` drew other random numbers in backward than in forward: another thread draws from Burn's generator at the same time, or the block is not a function of its inputs; run ranks as processes, or draw inside blocks only"
    )]
    OtherDraws {
        /// The block.
        block: String,
    },
    /// Ranks did not do the same.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A plan that cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Matrices that cannot come together.
    #[error(transparent)]
    MatrixAllToAll(#[from] ExchangeError),
    /// A plan for another number of ranks.
    #[error("the plan is for {plan} ranks, but the group has {group}; make the plan with the group's size")]
    World {
        /// Ranks of the plan.
        plan: usize,
        /// Ranks of the group.
        group: usize,
    },
    /// Ranks made different plans.
    #[error(
        "ranks {ranks:?} have another plan than this one, {}; start all ranks with the same model and settings",
        first(parameter.as_deref())
    )]
    Plans {
        /// The ranks (counted in the world) whose plan differs from this rank's.
        ranks: Vec<usize>,
        /// The first parameter that differs between any two ranks; none if units or policies do.
        parameter: Option<String>,
    },
    /// A value of another shape or dtype than declared.
    #[error(
        "parameter `{parameter}`: {what} has shape {got:?} in {dtype:?}, expected {expected:?} in {declared}"
    )]
    Value {
        /// The parameter.
        parameter: String,
        /// Which value.
        what: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// Its dtype.
        dtype: Option<Dtype>,
        /// The shape asked for.
        expected: Vec<usize>,
        /// The dtype asked for.
        declared: Dtype,
    },
    /// A parameter that could not be loaded.
    #[error("parameter `{parameter}`, rows {rows:?}: {source}")]
    Load {
        /// The parameter.
        parameter: String,
        /// The rows that were asked for.
        rows: Range<usize>,
        /// Why.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Rows in fewer bits that another rank sent and that are none.
    #[error("parameter `{parameter}`: the rows that came from other ranks: {source}")]
    Received {
        /// The parameter.
        parameter: String,
        /// Why.
        source: QuantError,
    },
    /// A write of what rests in fewer bits.
    #[error("parameter `{parameter}` rests in fewer bits, and is not written; load it in full")]
    Quantized {
        /// The parameter.
        parameter: String,
    },
    /// A micro-batch that was begun while another was open.
    #[error(
        "a micro-batch began before the last one ended; call `end_micro_batch`, or `discard` on every rank to give the step up"
    )]
    Open,
    /// A write that was changed and not committed.
    #[error(
        "parameter `{parameter}` was changed through a write guard that was dropped; call `commit` to keep the change"
    )]
    Uncommitted {
        /// The parameter.
        parameter: String,
    },
    /// A parameter that another thread has taken for its update.
    #[error("parameter `{parameter}` was {what} while its value was taken for an update; put it back first")]
    Taken {
        /// The parameter.
        parameter: String,
        /// What was tried.
        what: &'static str,
    },
}

fn first(parameter: Option<&str>) -> String {
    match parameter {
        Some(name) => format!("the first parameter that differs is `{name}`"),
        None => "with equal parameters but other units or another policy".to_owned(),
    }
}

impl Coded for PlanError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoRanks => ErrorCode::BadLaunch,
            Self::Index { .. } | Self::Twice { .. } | Self::Dtype { .. } | Self::Tied { .. } => {
                ErrorCode::Internal
            }
        }
    }
}

impl Coded for ZeroError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Plans { .. } => ErrorCode::RanksDiffer,
            Self::OtherDraws { .. }
            | Self::World { .. }
            | Self::Value { .. }
            | Self::Open
            | Self::Uncommitted { .. }
            | Self::Quantized { .. }
            | Self::Taken { .. } => ErrorCode::Internal,
            Self::Load { .. } => ErrorCode::CannotResume,
            Self::Received { source, .. } => source.code(),
            Self::Comm(error) => error.code(),
            Self::Plan(error) => error.code(),
            Self::MatrixAllToAll(error) => error.code(),
        }
    }
}
