//! `PackedRows`: a matrix in fewer bits, read where its elements are needed.

use std::borrow::Cow;
use std::fmt::Debug;

use crate::Dtype;

/// Rows that kernels on GPUs multiply with codes at most: a matrix in fewer bits is widened for products of more.
pub const FEW_ROWS: usize = 8;

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
    /// Elements of a block: a multiple of 16.
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

/// What a code is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codes {
    /// Four bits, two a byte with the first in the upper half, that stand for these values.
    Four([f32; 16]),
    /// Eight bits: signed numbers.
    Eight,
}

/// Which of its matrix' scales the element of a row and a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleOf<'a> {
    /// Scale `groups row + (step row + first + column) / block`.
    Blocks {
        /// Scales from row to row.
        groups: usize,
        /// Elements from row to row, where blocks run over rows.
        step: usize,
        /// Elements of the first block that stand before the first column.
        first: usize,
        /// Elements of a block.
        block: usize,
    },
    /// Scale `groups row + list[column]`.
    Listed {
        /// Scales from row to row.
        groups: usize,
        /// By column.
        list: &'a [u32],
    },
}

/// The scales of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum ScaleValues<'a> {
    /// As they are.
    Plain(Cow<'a, [f32]>),
    /// In eight bits: scale `i` is `table[codes[i]] * scales[(i + first) / block] + offset`, each operation rounded.
    Coded {
        /// One a scale.
        codes: &'a [u8],
        /// What codes stand for.
        table: &'a [f32; 256],
        /// Factors of blocks of scales.
        scales: Cow<'a, [f32]>,
        /// Scales of the first block that stand before the first.
        first: usize,
        /// Scales of a block.
        block: usize,
        /// What is added.
        offset: f32,
    },
}

/// A matrix of a [`PackedStrip`].
#[derive(Clone, Debug, PartialEq)]
pub struct PackedMatrix<'a> {
    /// The codes of all rows.
    pub codes: &'a [u8],
    /// What they are multiplied by.
    pub scales: ScaleValues<'a>,
    /// What is taken from the value of a code, by scale; nothing where there are none.
    pub zeros: &'a [u8],
}

/// Neighbouring columns of a matrix in fewer bits, as memory of a device can hold them: matrices of as many rows and of one
/// kind, one below the other. An element is `(value - zero) * scale * factor`, each operation rounded to f32, and then
/// rounded to [`PackedRows::dtype`].
#[derive(Clone, Debug, PartialEq)]
pub struct PackedStrip<'a> {
    /// Rows of each matrix.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Codes from row to row: the element of a row and a column has code `line row + column` of its matrix.
    pub line: usize,
    /// What a code is.
    pub kind: Codes,
    /// Which scale an element has.
    pub scale_of: ScaleOf<'a>,
    /// Multiplies all elements.
    pub factor: f32,
    /// Not none.
    pub matrices: Vec<PackedMatrix<'a>>,
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

    /// All rows for the memory of a device, as strips of columns side by side that elements of any can be read from there;
    /// `None` where they lie otherwise.
    fn strips(&self) -> Option<Vec<PackedStrip<'_>>> {
        None
    }

    /// All elements in [`Self::dtype`], row by row.
    fn bytes(&self) -> Vec<u8>;
}
