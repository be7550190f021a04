//! Sums of rows, and over rows, in a fixed order.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::row::{self, Units};

/// The most groups of rows whose sums are summed in a second pass, and the least rows of one.
const GROUPS: usize = 1024;
const LEAST: usize = 4;

/// Rows of a group where each of 1024 groups at the most is summed by one cube, from first to last.
pub(crate) fn rows_each(rows: usize) -> usize {
    rows.div_ceil(GROUPS).max(LEAST)
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
            CubeDim::new_1d(units.count),
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
    #[comptime] units: Units,
    #[comptime] squares: bool,
    #[define(I)] _of_x: ElemType,
) {
    let row = CUBE_POS;
    if row >= y.len() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let step = comptime!(units.count as usize);
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
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units.count as usize));
    let all = row::sum_vectors(sums, &mut shared, units);
    if unit == 0 {
        y[row] = all;
    }
}

/// Tensors whose squares are summed in one launch.
const TOGETHER: usize = 8;
/// Elements that a cube squares and sums.
const PART: usize = 1 << 15;

/// The sum of the squares of each tensor, `[tensors]` in f32, whatever their lengths.
///
/// A launch for each eight tensors, and one that adds up parts of 32768 elements: `w` bytes and 2 flops for each element.
///
/// # Panics
/// If tensors are of several dtypes.
#[must_use]
pub fn sums_of_squares(client: &Client, tensors: &[Buffer]) -> Buffer {
    let Some(dtype) = tensors.first().map(|t| t.dtype) else {
        return Buffer::empty(client, 0, FloatType::F32);
    };
    assert!(tensors.iter().all(|t| t.dtype == dtype), "invariant: tensors of one dtype");
    let longest = tensors.iter().map(|t| t.len).max().unwrap_or(0);
    let parts = longest.div_ceil(PART).max(1);
    let units = row::units(client, PART);
    let partial = Buffer::empty(client, tensors.len() * parts, FloatType::F32);
    for (first, group) in (0..).step_by(TOGETHER).zip(tensors.chunks(TOGETHER)) {
        let all: Vec<&Buffer> = group.iter().collect();
        let size = group.iter().map(|t| vector(t.len, 4, &[t])).min().unwrap_or(1);
        // The last group's first tensor stands for those that there are not.
        let at = |i: usize| group.get(i).unwrap_or(&group[0]).arg(size);
        // What a kernel is told of a buffer's length is that of the memory behind it.
        let vectors = |i: usize| group.get(i).map_or(0, |t| t.len / size);
        squares_of_parts::launch(
            client,
            row::cubes(client, group.len() * parts),
            CubeDim::new_1d(units.count),
            address(&all),
            size,
            at(0),
            at(1),
            at(2),
            at(3),
            at(4),
            at(5),
            at(6),
            at(7),
            vectors(0),
            vectors(1),
            vectors(2),
            vectors(3),
            vectors(4),
            vectors(5),
            vectors(6),
            vectors(7),
            partial.arg(1),
            group.len(),
            first,
            parts,
            units,
            dtype.elem(),
        );
    }
    if parts == 1 { partial } else { sum_rows(client, &partial, tensors.len(), false) }
}

/// The sum of the squares of this unit's elements of a part.
#[cube]
fn squares_of<I: Float, N: Size>(
    x: &[Vector<I, N>],
    vectors: usize,
    part: usize,
    #[comptime] units: Units,
) -> Vector<f32, N> {
    let each = comptime!(PART) / N::value();
    let end = min((part + 1) * each, vectors);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    let mut i = part * each + UNIT_POS as usize;
    while i < end {
        let value = Vector::<f32, N>::cast_from(x[i]);
        sums += value * value;
        i += comptime!(units.count as usize);
    }
    sums
}

#[cube(launch, address_type = "dynamic")]
fn squares_of_parts<I: Float, N: Size>(
    a: &[Vector<I, N>],
    b: &[Vector<I, N>],
    c: &[Vector<I, N>],
    d: &[Vector<I, N>],
    e: &[Vector<I, N>],
    f: &[Vector<I, N>],
    g: &[Vector<I, N>],
    h: &[Vector<I, N>],
    of_a: usize,
    of_b: usize,
    of_c: usize,
    of_d: usize,
    of_e: usize,
    of_f: usize,
    of_g: usize,
    of_h: usize,
    partial: &mut [f32],
    tensors: usize,
    first: usize,
    parts: usize,
    #[comptime] units: Units,
    #[define(I)] _of_tensors: ElemType,
) {
    let (tensor, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if tensor >= tensors {
        terminate!();
    }
    let sums = if tensor == 0 {
        squares_of::<I, N>(a, of_a, part, units)
    } else if tensor == 1 {
        squares_of::<I, N>(b, of_b, part, units)
    } else if tensor == 2 {
        squares_of::<I, N>(c, of_c, part, units)
    } else if tensor == 3 {
        squares_of::<I, N>(d, of_d, part, units)
    } else if tensor == 4 {
        squares_of::<I, N>(e, of_e, part, units)
    } else if tensor == 5 {
        squares_of::<I, N>(f, of_f, part, units)
    } else if tensor == 6 {
        squares_of::<I, N>(g, of_g, part, units)
    } else {
        squares_of::<I, N>(h, of_h, part, units)
    };
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units.count as usize));
    let all = row::sum_vectors(sums, &mut shared, units);
    if UNIT_POS == 0 {
        partial[(first + tensor) * parts + part] = all;
    }
}

/// Rows that a cube sums over.
const TALL: usize = 128;
/// Vectors of columns of a cube at the most: so many bytes lie one behind the other.
const BESIDE: usize = 32;
/// Rows that a unit asks for together.
const AHEAD: usize = 4;

/// How a cube sums over rows: units beside each other have vectors of columns, units below each other rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Columns {
    beside: usize,
    below: usize,
}

/// The sum of the rows of `x` `[rows, columns]` in f32, `[columns]`, always the same tree.
///
/// A launch for each time that 128 rows become one: `4 rows columns` bytes, a flop for each element.
#[must_use]
pub fn over_rows(client: &Client, x: &Buffer, columns: usize) -> Buffer {
    if columns == 0 {
        return Buffer::empty(client, 0, FloatType::F32);
    }
    let mut x = x.clone();
    loop {
        let rows = x.len / columns;
        let parts = rows.div_ceil(TALL).max(1);
        let y = Buffer::empty(client, parts * columns, FloatType::F32);
        let size = vector(columns, 4, &[&x]);
        let vectors = columns / size;
        let beside = vectors.next_power_of_two().min(BESIDE);
        let split = Columns { beside, below: (row::most_units(client) / beside).max(1) };
        columns_of::launch(
            client,
            row::cubes(client, vectors.div_ceil(beside) * parts),
            CubeDim::new_1d((split.beside * split.below) as u32),
            address(&[&x]),
            size,
            x.arg(size),
            y.arg(size),
            rows,
            vectors,
            split,
        );
        if parts == 1 {
            return y;
        }
        x = y;
    }
}

#[cube(launch, address_type = "dynamic")]
fn columns_of<N: Size>(
    x: &[Vector<f32, N>],
    y: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    #[comptime] split: Columns,
) {
    let groups = vectors.div_ceil(split.beside);
    let (part, group) = (CUBE_POS / groups, CUBE_POS % groups);
    if part * vectors >= y.len() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let column = group * split.beside + unit % split.beside;
    let there = column < vectors;
    let end = min((part + 1) * TALL, rows);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut line = part * TALL + unit / split.beside;
    while there && line < end {
        let mut some = Array::<Vector<f32, N>>::new(AHEAD);
        #[unroll]
        for turn in 0..AHEAD {
            let of_turn = line + comptime!(turn * split.below);
            some[turn] = x[min(of_turn, end - 1) * vectors + column];
        }
        #[unroll]
        for turn in 0..AHEAD {
            if line + comptime!(turn * split.below) < end {
                sum += some[turn];
            }
        }
        line += comptime!(AHEAD * split.below);
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(split.beside * split.below));
    shared[unit] = sum;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(split.below.ilog2()) {
        let half = comptime!((split.below >> (level + 1)) * split.beside);
        if unit < half {
            let other = shared[unit + half];
            shared[unit] += other;
        }
        sync_cube();
    }
    if there && unit < split.beside {
        y[part * vectors + column] = shared[unit];
    }
}
