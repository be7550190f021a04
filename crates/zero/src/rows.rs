//! The rows (dimension 0) of a parameter over data-parallel ranks: contiguous ranges in rank order, uneven and empty ones
//! too, without padding. FSDP2's rows rather than DeepSpeed's flat slices, so that a matrix keeps its rows whole.

use burnish_core::layout::{DP, Layout, Region, Split};

/// A parameter of `shape` by rows; `split` is given how many there are, and the elements of each. A scalar is one row.
///
/// # Panics
/// If the split is not of as many rows.
pub(crate) fn by_rows(shape: &[usize], split: impl FnOnce(usize, usize) -> Split) -> Layout {
    let whole = Region::whole(shape);
    let (rows, row) = rows_of(whole.shape());
    Layout::sharded(whole.shape(), DP, 0, split(rows, row)).expect("invariant: a split of the rows")
}

/// The same rows, each of so many bytes.
///
/// # Panics
/// If it is not divided by rows.
pub(crate) fn bytes_of(layout: &Layout, bytes: usize) -> Layout {
    let Some((0, split)) = layout.split() else { panic!("invariant: divided by rows") };
    by_rows(&[layout.all_rows(), bytes], |_, _| split.clone())
}

/// A parameter that is one part, whatever the ranks.
pub(crate) fn whole(shape: &[usize]) -> Layout {
    Layout::replicated(shape, DP, 1)
}

/// Rows and elements per row of a shape.
pub(crate) fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    }
}

/// The shape of `rows` rows of a parameter.
pub(crate) fn rows_shape(shape: &[usize], rows: usize) -> Vec<usize> {
    match shape {
        [] => vec![rows],
        [_, rest @ ..] => std::iter::once(rows).chain(rest.iter().copied()).collect(),
    }
}
