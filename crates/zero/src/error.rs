//! What can be wrong with a plan and with what runs by it.

use burnish_core::Dtype;

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
    /// A parameter in no unit.
    #[error(
        "parameter `{parameter}` is in no unit, so nothing would gather or reduce it; add it to the unit that uses it"
    )]
    Unplaced {
        /// The parameter.
        parameter: String,
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
