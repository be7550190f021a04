//! Parts of matrices, copied row by row.

use std::ops::Range;

use super::Matrix;
use super::routes::Cell;

/// The rows and columns of a matrix that lie one after the other in memory, row by row.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    rows: Vec<Range<usize>>,
    columns: Vec<Range<usize>>,
    width: usize,
}

impl Grid {
    /// All of a matrix.
    pub(super) fn whole(matrix: &Matrix) -> Self {
        let [rows, columns] = matrix.size();
        Self::new(std::iter::once(0..rows).collect(), std::iter::once(0..columns).collect())
    }

    /// This rank's part.
    pub(super) fn held(matrix: &Matrix) -> Self {
        Self::new(matrix.rows.clone(), matrix.columns.clone())
    }

    fn new(rows: Vec<Range<usize>>, columns: Vec<Range<usize>>) -> Self {
        let width = columns.iter().map(Range::len).sum();
        Self { rows, columns, width }
    }

    pub(super) fn elements(&self) -> usize {
        self.rows.iter().map(Range::len).sum::<usize>() * self.width
    }

    /// Where a cell's first element is; the cell lies in one range of rows and one of columns.
    fn start(&self, cell: &Cell) -> usize {
        place(&self.rows, cell.rows.start) * self.width + place(&self.columns, cell.columns.start)
    }

    /// A cell out of the grid's elements.
    pub(super) fn read(&self, from: &[f32], cell: &Cell, to: &mut [f32]) {
        rows(from, self.start(cell), self.width, to, 0, cell.columns.len(), cell);
    }

    /// A cell into the grid's elements.
    pub(super) fn write(&self, to: &mut [f32], cell: &Cell, from: &[f32]) {
        rows(from, 0, cell.columns.len(), to, self.start(cell), self.width, cell);
    }

    /// A cell from this grid's elements into another's.
    pub(super) fn copy(&self, from: &[f32], cell: &Cell, to: &mut [f32], other: &Self) {
        rows(from, self.start(cell), self.width, to, other.start(cell), other.width, cell);
    }
}

/// How many of the numbers in `ranges` come before `number`, which is one of them.
fn place(ranges: &[Range<usize>], number: usize) -> usize {
    let mut before = 0;
    for range in ranges {
        if range.contains(&number) {
            return before + number - range.start;
        }
        before += range.len();
    }
    unreachable!("invariant: a cell is within what its holders hold")
}

fn rows(
    from: &[f32],
    from_start: usize,
    from_stride: usize,
    to: &mut [f32],
    to_start: usize,
    to_stride: usize,
    cell: &Cell,
) {
    let (height, width) = (cell.rows.len(), cell.columns.len());
    if width == from_stride && width == to_stride {
        to[to_start..to_start + height * width]
            .copy_from_slice(&from[from_start..from_start + height * width]);
        return;
    }
    for row in 0..height {
        let (a, b) = (from_start + row * from_stride, to_start + row * to_stride);
        to[b..b + width].copy_from_slice(&from[a..a + width]);
    }
}
