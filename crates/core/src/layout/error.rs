//! Errors of layouts.

use std::ops::Range;

/// A layout that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No ranks.
    #[error("a dimension cannot be split over no ranks; give at least one")]
    NoRanks,
    /// Splits over different numbers of ranks in one dimension.
    #[error("`{what}` is split over {placed} ranks, but what it is packed with over {group}")]
    Ranks {
        /// Which of them.
        what: String,
        /// Its ranks.
        placed: usize,
        /// Those of the first.
        group: usize,
    },
    /// A dimension that a shape does not have.
    #[error("shape {shape:?} has no dimension {dim}")]
    Dimension {
        /// The shape.
        shape: Vec<usize>,
        /// The dimension asked for.
        dim: usize,
    },
    /// A split of another length than the dimension's.
    #[error(
        "the split is of {got}, but dimension {dim} of shape {shape:?} is {expected}; make it from this shape"
    )]
    Length {
        /// The shape.
        shape: Vec<usize>,
        /// The dimension.
        dim: usize,
        /// Its length.
        expected: usize,
        /// The split's length.
        got: usize,
    },
    /// Ranges of a dimension that overlap, go back or end behind it.
    #[error("ranges {got:?} of dimension {dim}, expected ascending ones without overlap within {within:?}")]
    Ranges {
        /// The dimension.
        dim: usize,
        /// The ranges.
        got: Vec<Range<usize>>,
        /// The dimension's elements.
        within: Range<usize>,
    },
    /// An inner layout that is not of what the rank holds.
    #[error("rank {rank} holds shape {expected:?}, but what it is divided by further is a layout of {got:?}")]
    Shape {
        /// The rank of the outer layout.
        rank: usize,
        /// The shape of the inner layout.
        got: Vec<usize>,
        /// What the rank holds.
        expected: Vec<usize>,
    },
    /// Inner layouts over other axes on different ranks, or over an axis that is divided already.
    #[error(
        "rank {rank} is divided further over {got:?}, expected {expected:?}; each axis comes once, the same on every rank"
    )]
    Axes {
        /// The rank of the outer layout.
        rank: usize,
        /// Axes of its inner layout, with their sizes.
        got: Vec<(String, usize)>,
        /// Those of rank 0, without what the outer layout has.
        expected: Vec<(String, usize)>,
    },
}
