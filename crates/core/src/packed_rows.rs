//! `PackedRows`: a matrix in fewer bits, read where its elements are needed.

use std::fmt::Debug;

use crate::Dtype;

/// What the codes of a block are multiplied by, `scale * (value - zero)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScale {
    /// Of all its elements.
    pub scale: f32,
    /// Taken from what a code stands for, first.
    pub zero: f32,
}

/// Elements of a row in four bits, from the first of a block on.
#[derive(Clone, Copy, Debug)]
pub struct FourBits<'a> {
    /// Two a byte, the first in the upper half.
    pub codes: &'a [u8],
    /// What they stand for before [`BlockScale`].
    pub values: &'a [f32; 16],
    /// Elements of a block: a multiple of 32.
    pub block: usize,
}

/// Elements of a row in eight bits.
#[derive(Clone, Copy, Debug)]
pub struct EightBits<'a> {
    /// Signed, one an element.
    pub codes: &'a [u8],
    /// Factors of every element, one after the other.
    pub scales: [f32; 2],
    /// Whether products of a few rows multiply codes, with rows that are rounded to eight bits for it, instead of elements.
    pub products: bool,
}

/// A frozen matrix that is held in fewer bits than it is read in: kernels read the pieces of rows that they pack.
pub trait PackedRows: Debug + Send + Sync {
    /// Rows, and elements of each.
    fn shape(&self) -> [usize; 2];

    /// What elements are rounded to as they are read.
    fn dtype(&self) -> Dtype;

    /// Elements of a row from a column on, rounded and widened again.
    ///
    /// # Panics
    /// If the row has not so many.
    fn read(&self, row: usize, column: usize, out: &mut [f32]);

    /// The codes that [`Self::read`] reads from a column on and the scales of so many blocks, for kernels that widen by
    /// vectors: where elements are four bits in blocks within the row, and the column is a block's first.
    fn four_bits(&self, _row: usize, _column: usize, _scales: &mut [BlockScale]) -> Option<FourBits<'_>> {
        None
    }

    /// The codes that [`Self::read`] reads from a column on, where elements are eight bits with the row's scale.
    fn eight_bits(&self, _row: usize, _column: usize) -> Option<EightBits<'_>> {
        None
    }

    /// All elements in [`Self::dtype`], row by row.
    fn bytes(&self) -> Vec<u8>;
}
