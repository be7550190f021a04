//! Sums over rows in a fixed order.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements;

/// The most groups of rows whose sums are summed in a second pass.
const GROUPS: usize = 256;

/// Rows of a group where each of `groups` at the most is summed by one cube, from first to last.
pub(crate) fn rows_each(rows: usize) -> usize {
    rows.div_ceil(GROUPS).max(1)
}

/// The sum of the rows of `x` `[rows, columns]` in f32, from first to last.
pub(crate) fn over_rows(client: &Client, x: &Buffer, columns: usize) -> Buffer {
    let y = Buffer::empty(client, columns, FloatType::F32);
    if columns > 0 {
        let size = vector(columns, 4, &[x]);
        let (count, dim) = elements::launch(client, columns / size);
        columns_of::launch(client, count, dim, address(&[x]), size, x.arg(size), y.arg(size));
    }
    y
}

#[cube(launch, address_type = "dynamic")]
fn columns_of<N: Size>(x: &[Vector<f32, N>], y: &mut [Vector<f32, N>]) {
    let columns = y.len();
    if ABSOLUTE_POS >= columns {
        terminate!();
    }
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut at = ABSOLUTE_POS;
    while at < x.len() {
        sum += x[at];
        at += columns;
    }
    y[ABSOLUTE_POS] = sum;
}
