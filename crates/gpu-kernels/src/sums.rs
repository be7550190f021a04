//! Sums of rows, and over rows, in a fixed order.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::{elements, row};

/// The most groups of rows whose sums are summed in a second pass.
const GROUPS: usize = 256;

/// Rows of a group where each of `groups` at the most is summed by one cube, from first to last.
pub(crate) fn rows_each(rows: usize) -> usize {
    rows.div_ceil(GROUPS).max(1)
}

/// The sum of the elements of each row of `x` `[rows, columns]`, or of their `squares`, `[rows]` in f32.
///
/// One launch, a cube for each row: `rows columns w_x` bytes, 1 or 2 flops for each element.
///
/// # Panics
/// If `x` has no such rows.
#[must_use]
pub fn sum_rows(client: &Client, x: &Buffer, rows: usize, squares: bool) -> Buffer {
    let y = Buffer::empty(client, rows, FloatType::F32);
    if rows > 0 {
        assert!(x.len.is_multiple_of(rows), "invariant: x is [rows, columns]");
        let columns = x.len / rows;
        let size = vector(columns, 4, &[x]);
        let units = row::units(client, columns / size);
        sum_of_row::launch(
            client,
            row::cubes(client, rows),
            CubeDim::new_1d(units),
            address(&[x]),
            size,
            x.arg(size),
            y.arg(1),
            columns / size,
            units,
            squares,
            x.dtype.elem(),
        );
    }
    y
}

#[cube(launch, address_type = "dynamic")]
fn sum_of_row<I: Float, N: Size>(
    x: &[Vector<I, N>],
    y: &mut [f32],
    vectors: usize,
    #[comptime] units: u32,
    #[comptime] squares: bool,
    #[define(I)] _of_x: ElemType,
) {
    let row = CUBE_POS;
    if row >= y.len() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let step = comptime!(units as usize);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    let mut i = unit;
    while i < vectors {
        let value = Vector::<f32, N>::cast_from(x[row * vectors + i]);
        if comptime!(squares) {
            sums += value * value;
        } else {
            sums += value;
        }
        i += step;
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units as usize));
    let all = row::sum_vectors(sums, &mut shared, units);
    if unit == 0 {
        y[row] = all;
    }
}

/// The sum of the rows of `x` `[rows, columns]` in f32, `[columns]`, from first to last.
///
/// One launch, a unit for each vector of columns: `4 rows columns` bytes, a flop for each element.
#[must_use]
pub fn over_rows(client: &Client, x: &Buffer, columns: usize) -> Buffer {
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
