//! `QuantError`: faults of a quantised matrix that comes from outside.

use burnish_core::{Coded, ErrorCode};

/// Why codes, scales and shapes are no quantised matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A part is longer or shorter than its matrix needs.
    #[error("{what} are {got}, expected {expected} for a matrix of {rows} x {row}")]
    Length {
        /// Which part.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// How many there have to be.
        expected: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Elements of each.
        row: usize,
    },
    /// A scale is no number that a code can be multiplied by.
    #[error("{what} {at} is {value}, expected a finite number")]
    NotFinite {
        /// Which part.
        what: &'static str,
        /// Its place.
        at: usize,
        /// What is there.
        value: f32,
    },
    /// A matrix of no or too many elements.
    #[error("a matrix of {rows} x {row} is not read")]
    Shape {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of each.
        row: usize,
    },
    /// An input's group that is not there.
    #[error("input {input} is of group {got}, and there are {groups} groups")]
    Group {
        /// The input.
        input: usize,
        /// Its group.
        got: i64,
        /// How many there are.
        groups: usize,
    },
    /// Groups of no inputs, or words that do not divide a matrix.
    #[error("groups of {group} inputs, of {rows} outputs and {row} inputs: {expected}")]
    Grouping {
        /// Inputs of a group.
        group: usize,
        /// Outputs.
        rows: usize,
        /// Inputs.
        row: usize,
        /// What is expected.
        expected: &'static str,
    },
}

impl Coded for QuantError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Length { .. }
            | Self::NotFinite { .. }
            | Self::Shape { .. }
            | Self::Group { .. }
            | Self::Grouping { .. } => ErrorCode::QuantizedModel,
        }
    }
}
