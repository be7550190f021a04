//! The logical matrices of a parameter.

use std::ops::Range;

use burnish_core::Parameter;

use crate::OptimError;
use crate::assembly::rows_and_columns;

/// A parameter of which Muon orthogonalises every block; there is none of another rank than 2 or 3.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) name: String,
    /// Logical.
    pub(crate) shape: Vec<usize>,
    pub(crate) columns: usize,
    /// Rows of each independent matrix, one above the other.
    pub(crate) blocks: Vec<usize>,
}

impl Matrix {
    /// `parameter` has its logical shape.
    pub(crate) fn of(parameter: &Parameter) -> Result<Self, OptimError> {
        let [rows, columns] = rows_and_columns(&parameter.shape);
        let blocks = match (&parameter.blocks[..], &parameter.shape[..]) {
            ([], &[experts, out, _]) => vec![out; experts],
            ([], _) => vec![rows],
            (blocks, _) => blocks.to_vec(),
        };
        let whole = matches!(parameter.shape.len(), 2 | 3) && rows * columns > 0;
        if !whole || blocks.contains(&0) || blocks.iter().sum::<usize>() != rows {
            return Err(OptimError::Blocks {
                parameter: parameter.name.clone(),
                shape: parameter.shape.clone(),
                blocks,
                rows,
            });
        }
        Ok(Self { name: parameter.name.clone(), shape: parameter.shape.clone(), columns, blocks })
    }

    /// The rows of each block.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut row = 0;
        self.blocks.iter().map(move |&rows| {
            row += rows;
            row - rows..row
        })
    }

    /// Which logical elements a piece of these rows and columns holds, in its order.
    pub(crate) fn runs(&self, rows: &[Range<usize>], columns: &[Range<usize>]) -> Vec<Range<u64>> {
        let at = |row: usize, column: usize| (row * self.columns + column) as u64;
        let every = columns.len() == 1 && columns[0] == (0..self.columns);
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
