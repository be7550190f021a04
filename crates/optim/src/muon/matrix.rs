//! The logical matrices of a parameter.

use std::ops::Range;

use burnish_core::{Orientation, Parameter};
use burnish_ops::AnyTensor;

use crate::OptimError;
use crate::matrix_gather::rows_and_columns;

/// A parameter of which Muon orthogonalises every block; there is none of another rank than 2 or 3.
///
/// What is orthogonalised is [upright](Self::upright): `[out, in]`, whatever lies in memory.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) name: String,
    /// Logical: `[out, in]` or `[experts, out, in]`.
    pub(crate) shape: Vec<usize>,
    /// `in`.
    pub(crate) columns: usize,
    /// Rows of each independent matrix, one above the other.
    pub(crate) blocks: Vec<usize>,
    /// Whether it is stored the other way round, `[in, out]`.
    turned: bool,
}

impl Matrix {
    /// `parameter` has its logical shape.
    pub(crate) fn of(parameter: &Parameter) -> Result<Self, OptimError> {
        let turned = match parameter.orientation {
            Orientation::OutIn => false,
            Orientation::InOut => true,
            Orientation::Undeclared => {
                return Err(OptimError::Orientation {
                    parameter: parameter.name.clone(),
                    shape: parameter.shape.clone(),
                });
            }
        };
        let mut shape = parameter.shape.clone();
        if let (true, [.., a, b]) = (turned, &mut shape[..]) {
            std::mem::swap(a, b);
        }
        let [rows, columns] = rows_and_columns(&shape);
        let blocks = match (&parameter.blocks[..], &shape[..]) {
            ([], &[experts, out, _]) => vec![out; experts],
            ([], _) => vec![rows],
            (blocks, _) => blocks.to_vec(),
        };
        let whole = matches!(shape.len(), 2 | 3) && rows * columns > 0;
        if !whole || blocks.contains(&0) || blocks.iter().sum::<usize>() != rows {
            return Err(OptimError::Blocks {
                parameter: parameter.name.clone(),
                shape: parameter.shape.clone(),
                blocks,
                rows,
            });
        }
        Ok(Self { name: parameter.name.clone(), shape, columns, blocks, turned })
    }

    /// A whole matrix as it is stored, as `[out, in]`.
    pub(crate) fn upright(&self, stored: AnyTensor) -> AnyTensor {
        if self.turned { transposed(&stored) } else { stored }
    }

    /// A whole `[out, in]` as it is stored.
    pub(crate) fn stored(&self, upright: AnyTensor) -> AnyTensor {
        if self.turned { transposed(&upright) } else { upright }
    }

    /// The rows of each block.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut row = 0;
        self.blocks.iter().map(move |&rows| {
            row += rows;
            row - rows..row
        })
    }

    /// All stored rows and columns.
    pub(crate) fn all(&self) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let elements: usize = self.shape.iter().product();
        let width = self.stored_columns();
        let every = |n| std::iter::once(0..n).collect();
        (every(elements / width), every(width))
    }

    fn stored_columns(&self) -> usize {
        if self.turned { self.shape[self.shape.len() - 2] } else { self.columns }
    }

    /// Which stored elements a piece of these stored rows and columns holds, in its order.
    pub(crate) fn runs(&self, rows: &[Range<usize>], columns: &[Range<usize>]) -> Vec<Range<u64>> {
        let width = self.stored_columns();
        let at = |row: usize, column: usize| (row * width + column) as u64;
        let every = columns.len() == 1 && columns[0] == (0..width);
        let mut runs = Vec::new();
        for rows in rows {
            if every {
                runs.push(at(rows.start, 0)..at(rows.end, 0));
            } else {
                runs.extend(
                    rows.clone()
                        .flat_map(|row| columns.iter().map(move |c| at(row, c.start)..at(row, c.end))),
                );
            }
        }
        runs
    }
}

/// With the last two dimensions the other way round.
fn transposed(tensor: &AnyTensor) -> AnyTensor {
    const WHY: &str = "invariant: matrices have two dimensions, or three with experts";
    match tensor.shape().len() {
        2 => AnyTensor::new(tensor.rank::<2>().expect(WHY).transpose()),
        _ => AnyTensor::new(tensor.rank::<3>().expect(WHY).transpose()),
    }
}
