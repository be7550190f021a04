//! Errors of the matrix exchange.

use std::ops::Range;

use burnish_core::{Coded, Dtype, ErrorCode};

/// Matrices that cannot come together. Ranks are counted in the world where a group is known, else as holdings are listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Ranks that list other matrices.
    #[error(
        "ranks {ranks:?} list other matrices than the first rank, which has {expected} as number {position}; give every \
         rank the same matrices, also those of which it holds nothing"
    )]
    Unlike {
        /// The ranks with another list.
        ranks: Vec<usize>,
        /// The first position that differs.
        position: usize,
        /// What the first rank has there.
        expected: String,
    },
    /// Matrices out of order.
    #[error(
        "matrix `{matrix}` (parameter {index}) comes after parameter {after}; list each once, by rising index"
    )]
    Order {
        /// The matrix.
        matrix: String,
        /// Its parameter.
        index: usize,
        /// The one before.
        after: usize,
    },
    /// Ranks with another shape.
    #[error(
        "matrix `{matrix}` has shape {got:?} on ranks {ranks:?}, expected {expected:?} as on the first rank"
    )]
    Shape {
        /// The matrix.
        matrix: String,
        /// Where.
        ranks: Vec<usize>,
        /// Its shape there.
        got: Vec<usize>,
        /// Its shape on the first rank.
        expected: Vec<usize>,
    },
    /// Ranges that are not ranges of the matrix.
    #[error(
        "matrix `{matrix}`: rank {rank} holds {what} {got:?}, expected rising ranges without overlap within {within:?}"
    )]
    Ranges {
        /// The matrix.
        matrix: String,
        /// Where.
        rank: usize,
        /// Rows or columns.
        what: &'static str,
        /// The ranges.
        got: Vec<Range<usize>>,
        /// What there is.
        within: Range<usize>,
    },
    /// A part of a matrix that nobody holds.
    #[error(
        "matrix `{matrix}`: no rank holds rows {rows:?} of columns {columns:?} (ranks {holders:?} hold other parts); \
         announce what every rank holds, over all ranks that hold some"
    )]
    Uncovered {
        /// The matrix.
        matrix: String,
        /// Rows of the part.
        rows: Range<usize>,
        /// Columns of the part.
        columns: Range<usize>,
        /// Who holds something of the matrix.
        holders: Vec<usize>,
    },
    /// A matrix that some holders brought and others did not.
    #[error(
        "matrix `{matrix}`: ranks {given:?} have an update for their part, ranks {lacking:?} have none for theirs; sum \
         gradients so that all holders have one or none has"
    )]
    Lacking {
        /// The matrix.
        matrix: String,
        /// Who brought a piece.
        given: Vec<usize>,
        /// Who holds a part and brought none.
        lacking: Vec<usize>,
    },
    /// A piece of another shape or dtype than announced.
    #[error("matrix `{matrix}`: {what} has shape {got:?} in {dtype:?}, expected {expected:?} in float32")]
    Piece {
        /// The matrix.
        matrix: String,
        /// Which value.
        what: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// Its dtype.
        dtype: Option<Dtype>,
        /// The rows and columns that were announced, or the whole shape.
        expected: Vec<usize>,
    },
    /// The same on other ranks.
    #[error(
        "matrix `{matrix}`: ranks {ranks:?} brought another piece than they announced; their errors say more"
    )]
    Spoiled {
        /// The matrix.
        matrix: String,
        /// Where.
        ranks: Vec<usize>,
    },
    /// A value for a parameter that was not announced.
    #[error(
        "parameter {index} is not among the {matrices} announced matrices, or not of this rank; announce it"
    )]
    Unknown {
        /// The parameter.
        index: usize,
        /// How many were announced.
        matrices: usize,
    },
    /// Whole matrices that do not come from the last gather.
    #[error("matrix `{matrix}` was {what}; scatter exactly the matrices that gather gave, once per gather")]
    Turn {
        /// The matrix.
        matrix: String,
        /// What happened.
        what: &'static str,
    },
}

impl ExchangeError {
    /// The same error with other names for ranks.
    pub(super) fn named(mut self, name: impl Fn(usize) -> usize) -> Self {
        let all = |ranks: &mut Vec<usize>| ranks.iter_mut().for_each(|r| *r = name(*r));
        match &mut self {
            Self::Unlike { ranks, .. } | Self::Shape { ranks, .. } | Self::Spoiled { ranks, .. } => {
                all(ranks)
            }
            Self::Uncovered { holders, .. } => all(holders),
            Self::Lacking { given, lacking, .. } => {
                all(given);
                all(lacking);
            }
            Self::Ranges { rank, .. } => *rank = name(*rank),
            Self::Order { .. } | Self::Piece { .. } | Self::Unknown { .. } | Self::Turn { .. } => {}
        }
        self
    }
}

impl Coded for ExchangeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unlike { .. } | Self::Shape { .. } | Self::Lacking { .. } | Self::Spoiled { .. } => {
                ErrorCode::RanksDiffer
            }
            Self::Order { .. }
            | Self::Ranges { .. }
            | Self::Uncovered { .. }
            | Self::Piece { .. }
            | Self::Unknown { .. }
            | Self::Turn { .. } => ErrorCode::Internal,
        }
    }
}
