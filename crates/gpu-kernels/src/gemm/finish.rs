//! The finish of sums before they are written, and sums of their parts.

use super::GROUP_ROWS;
use crate::mma::{Pair, pair};
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

pub(super) use crate::elements::Four;

/// What is done to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub(crate) add: bool,
    pub(crate) bias: bool,
    /// Another product's sums are added.
    pub(crate) more: bool,
    /// Not a part, which is written as it is.
    pub(crate) whole: bool,
}

/// Where matrices lie in a buffer, in the buffer's vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) first: usize,
    /// From line to line.
    pub(crate) line: usize,
    /// From matrix to matrix.
    pub(crate) matrix: usize,
}

/// Numbers of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Factors of a sum.
    pub(crate) depth: usize,
    /// Factors of the other product's sum.
    pub(crate) more_depth: usize,
    /// Factors of a part of the first.
    pub(crate) each: usize,
    pub(crate) parts: usize,
    pub(crate) batches: usize,
    /// Multiplies the sums.
    pub(crate) scale: f32,
    /// The first of a grouped product's right matrices among all groups', and how many there are.
    pub(crate) first_group: usize,
    pub(crate) groups: usize,
}

/// Which matrices a tile multiplies, of a grouped product.
#[derive(CubeType, CubeLaunch)]
#[allow(dead_code, reason = "kernels get the types that are derived from it")]
pub(super) enum Grouping {
    /// Those of its batch.
    Batches,
    /// The right one that each [`GROUP_ROWS`] rows say, if it is one of these.
    Rows(Box<[u32]>),
    /// The only ones, and of their factors those between the beginnings of its batch and of the next.
    Depth(Box<[u32]>),
}

/// What a cube computes.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Share {
    /// Whether there is anything.
    pub(super) any: bool,
    /// The matrix of the output, and of what is added.
    pub(super) batch: usize,
    /// The matrices of the left and right operands.
    pub(super) left: usize,
    pub(super) right: usize,
    pub(super) part: usize,
    /// Its first row and column of the output.
    pub(super) row: usize,
    pub(super) column: usize,
    /// The factors of its sums.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Those of the other product's.
    pub(super) more: usize,
    /// Where the bias of its matrix begins.
    pub(super) bias: usize,
}

/// Tiles one below the other that are computed about together, since they read the same columns.
const GROUP: usize = 8;

/// The share of this cube.
#[cube]
pub(super) fn share(
    sizes: &Sizes,
    groups: &Grouping,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) -> Share {
    let down = sizes.rows.div_ceil(rows);
    let across = sizes.columns.div_ceil(columns);
    let tiles = down * across;
    let cube = CUBE_POS;
    let tile = cube % tiles;
    let part = cube / tiles % sizes.parts;
    let batch = cube / (tiles * sizes.parts);
    let group = tile / (GROUP * across) * GROUP;
    let inside = tile % (GROUP * across);
    let height = min(down - group, GROUP);
    let row = (group + inside % height) * rows;
    let mut from = part * sizes.each;
    let mut to = min(from + sizes.each, sizes.depth);
    let mut left = batch;
    let mut right = batch;
    let mut any = batch < sizes.batches;
    let mut bias = 0usize;
    match groups {
        Grouping::Batches => {}
        Grouping::Rows(of) => {
            let group = of[min(row, sizes.rows - 1) / GROUP_ROWS] as usize;
            any = any && group >= sizes.first_group && group < sizes.first_group + sizes.groups;
            right = select(any, group - sizes.first_group, 0usize);
            bias = right * sizes.columns;
        }
        Grouping::Depth(starts) => {
            let there = min(batch, sizes.batches - 1);
            from = starts[there] as usize;
            to = starts[there + 1] as usize;
            left = 0usize;
            right = 0usize;
        }
    }
    Share {
        any,
        batch,
        left,
        right,
        part,
        row,
        column: inside / height * columns,
        from,
        to,
        // With the last part.
        more: select(part + 1 == sizes.parts, sizes.more_depth, 0usize),
        bias,
    }
}

/// Where in `d` this cube's matrix begins: of parts of sums each has one.
#[cube]
pub(super) fn written_from(share: &Share, sizes: &Sizes, of_d: &Place, #[comptime] form: Form) -> usize {
    let mut first = of_d.first + share.batch * of_d.matrix;
    if comptime!(!form.whole) {
        first = (share.batch * sizes.parts + share.part) * of_d.matrix;
    }
    first
}

/// Finishes a vector of sums; `at` is its place in what is added, `column` in vectors.
#[cube]
fn finished<C: Float, N: Size>(
    value: Vector<f32, N>,
    c: &[Vector<C, N>],
    bias: &[f32],
    bias_first: usize,
    at: usize,
    column: usize,
    scale: f32,
    #[comptime] form: Form,
) -> Vector<f32, N> {
    let mut value = value;
    if comptime!(form.whole) {
        value *= Vector::new(scale);
        if comptime!(form.add) {
            value += Vector::<f32, N>::cast_from(c[at]);
        }
        if comptime!(form.bias) {
            let mut of_bias = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for k in 0..N::value() {
                of_bias.insert(k, bias[bias_first + column * N::value() + k]);
            }
            value += of_bias;
        }
    }
    value
}

/// Writes four neighbours of a row, from a fourth one on, as far as they are in the output; in vectors of four at the most.
#[cube]
pub(super) fn put<C: Float, O: Float, N: Size>(
    four: Four,
    row: usize,
    column: usize,
    c: &[Vector<C, N>],
    bias: &[f32],
    bias_first: usize,
    d: &mut [Vector<O, N>],
    c_first: usize,
    c_line: usize,
    d_first: usize,
    d_line: usize,
    sizes: &Sizes,
    #[comptime] form: Form,
) {
    let mut pairs = Array::<Pair<f32>>::new(2usize);
    #[unroll]
    for i in 0..2usize {
        pairs[i] = pair::<f32>(four.extract(comptime!(2 * i)), four.extract(comptime!(2 * i + 1)));
    }
    put_run::<C, O, N>(
        &pairs, 2usize, row, column, c, bias, bias_first, d, c_first, c_line, d_first, d_line, sizes, form,
    );
}

/// Writes neighbours of a row, from a multiple of their number, as far as they are in the output; in vectors of at most as many.
#[cube]
pub(super) fn put_run<C: Float, O: Float, N: Size>(
    pairs: &Array<Pair<f32>>,
    #[comptime] count: usize,
    row: usize,
    column: usize,
    c: &[Vector<C, N>],
    bias: &[f32],
    bias_first: usize,
    d: &mut [Vector<O, N>],
    c_first: usize,
    c_line: usize,
    d_first: usize,
    d_line: usize,
    sizes: &Sizes,
    #[comptime] form: Form,
) {
    if row < sizes.rows {
        let size = N::value();
        #[unroll]
        for k in 0..comptime!(2 * count / size) {
            let at = column / size + k;
            if at * size < sizes.columns {
                let mut value = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for i in 0..size {
                    let one = comptime!(k * size + i);
                    value.insert(i, pairs[comptime!(one / 2)].extract(comptime!(one % 2)));
                }
                let value = finished::<C, N>(
                    value,
                    c,
                    bias,
                    bias_first,
                    c_first + row * c_line + at,
                    at,
                    sizes.scale,
                    form,
                );
                d[d_first + row * d_line + at] = Vector::cast_from(value);
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn add_parts<C: Float, O: Float, N: Size>(
    sums: &[Vector<f32, N>],
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
) {
    let width = sizes.columns / N::value();
    let matrix = sizes.rows * width;
    if ABSOLUTE_POS >= sizes.batches * matrix {
        terminate!();
    }
    let batch = ABSOLUTE_POS / matrix;
    let inside = ABSOLUTE_POS % matrix;
    let row = inside / width;
    let column = inside % width;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for part in 0..sizes.parts {
        sum += sums[(batch * sizes.parts + part) * matrix + inside];
    }
    let at = of_c.first + batch * of_c.matrix + row * of_c.line + column;
    let sum = finished::<C, N>(sum, c, bias, 0usize, at, column, sizes.scale, form);
    d[of_d.first + batch * of_d.matrix + row * of_d.line + column] = Vector::cast_from(sum);
}
