//! Rows by index, and their gradient.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements;

/// Names no row: zeros.
pub const NO_ROW: u32 = u32::MAX;

/// Rows `ids` (32-bit integers) of `table` `[rows, columns]`, in `dtype`; zeros for [`NO_ROW`].
///
/// `n columns (w_table + w_y)` bytes for `n` ids.
///
/// # Panics
/// If the table is not rows of `columns`.
#[must_use]
pub fn gather_rows(
    client: &Client,
    table: &Buffer,
    ids: &Buffer,
    columns: usize,
    dtype: FloatType,
) -> Buffer {
    assert!(columns > 0 && table.len.is_multiple_of(columns), "invariant: a table of rows of {columns}");
    let y = Buffer::empty(client, ids.len * columns, dtype);
    if y.len > 0 {
        let size = vector(columns, 4, &[table]);
        let (count, dim) = elements::launch(client, y.len / size);
        gathered::launch(
            client,
            count,
            dim,
            address(&[table, &y]),
            size,
            table.arg(size),
            ids.arg(1),
            y.arg(size),
            columns / size,
            table.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

/// Where the rows of a gradient go: places of `dy` by the row that they are added to, as 32-bit integers.
#[derive(Clone, Debug)]
pub struct Places {
    /// For each row of the table, and once more, where its places begin in `order`.
    pub starts: Buffer,
    /// Places of `dy`, row after row of the table.
    pub order: Buffer,
}

/// The sums of the rows of `dy` that go to each row of a table, `[rows, columns]` in `dtype`; a row that none goes to is 0.
///
/// A row's places are added one after another, so nothing is atomic: `n columns w_dy + rows columns w` bytes for `n` places.
///
/// # Panics
/// If `dy` is not rows of `columns`.
#[must_use]
pub fn scatter_rows(
    client: &Client,
    dy: &Buffer,
    places: &Places,
    columns: usize,
    dtype: FloatType,
) -> Buffer {
    assert!(columns > 0 && dy.len.is_multiple_of(columns), "invariant: dy is rows of {columns}");
    let rows = places.starts.len - 1;
    let table = Buffer::empty(client, rows * columns, dtype);
    if table.len > 0 {
        let size = vector(columns, 4, &[dy]);
        let (count, dim) = elements::launch(client, table.len / size);
        scattered::launch(
            client,
            count,
            dim,
            address(&[dy, &table]),
            size,
            dy.arg(size),
            places.starts.arg(1),
            places.order.arg(1),
            table.arg(size),
            columns / size,
            dy.dtype.elem(),
            dtype.elem(),
        );
    }
    table
}

#[cube(launch, address_type = "dynamic")]
fn gathered<I: Float, O: Float, N: Size>(
    table: &[Vector<I, N>],
    ids: &[u32],
    y: &mut [Vector<O, N>],
    #[comptime] vectors: usize,
    #[define(I)] _of_table: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    let row = ids[ABSOLUTE_POS / vectors];
    let mut value = Vector::<O, N>::new(O::from_int(0));
    if row != NO_ROW {
        value = Vector::cast_from(table[row as usize * vectors + ABSOLUTE_POS % vectors]);
    }
    y[ABSOLUTE_POS] = value;
}

#[cube(launch, address_type = "dynamic")]
fn scattered<I: Float, O: Float, N: Size>(
    dy: &[Vector<I, N>],
    starts: &[u32],
    order: &[u32],
    table: &mut [Vector<O, N>],
    #[comptime] vectors: usize,
    #[define(I)] _of_dy: ElemType,
    #[define(O)] _of_table: ElemType,
) {
    if ABSOLUTE_POS >= table.len() {
        terminate!();
    }
    let row = ABSOLUTE_POS / vectors;
    let column = ABSOLUTE_POS % vectors;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut at = starts[row] as usize;
    let end = starts[row + 1] as usize;
    while at < end {
        sum += Vector::<f32, N>::cast_from(dy[order[at] as usize * vectors + column]);
        at += 1;
    }
    table[ABSOLUTE_POS] = Vector::cast_from(sum);
}
