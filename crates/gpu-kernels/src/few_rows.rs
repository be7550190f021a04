//! Products of a few rows with a matrix in fewer bits, whose elements are nowhere in memory.

use burnish_core::FEW_ROWS;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType};
use crate::elements::Four;
use crate::packed::{Form, Layout, PackedLayout, VALUES, elements, table};
use crate::row::{self, Units};

/// Outputs of a cube.
pub(crate) const OUTPUTS: usize = 4;
/// Units that share them.
pub(crate) const UNITS: usize = 128;

/// What is done to the sums of a product of a few rows: `scale sum + bias + add`.
#[derive(Clone, Copy, Debug)]
pub struct FewRows<'a> {
    /// Multiplies the sums.
    pub scale: f32,
    /// By output, f32.
    pub bias: Option<&'a Buffer>,
    /// By row and output.
    pub add: Option<&'a Buffer>,
    /// What is written.
    pub dtype: FloatType,
}

/// `x W^T`, finished, of [`FEW_ROWS`] rows at most: `x` is `[rows, columns]`, `W` a strip that has all columns, whose elements are
/// rounded to the dtype of `x`.
///
/// Codes and scales once, `w_x rows columns` bytes for every 4 outputs, which a cube of 128 units computes; sums are in f32, over
/// a unit's vectors (of 16 bytes of `x` where rows, words and blocks are whole vectors) from first to last and then over units,
/// always by the same tree. 64 bytes of shared memory for values and 2 KiB for sums.
///
/// # Panics
/// If sizes do not fit.
#[must_use]
pub fn multiply_few_rows(
    client: &Client,
    x: &Buffer,
    layout: &PackedLayout,
    [words, numbers]: [&Buffer; 2],
    finish: FewRows<'_>,
) -> Buffer {
    let [outputs, columns] = layout.shape();
    let rows = x.len / columns.max(1);
    assert!((1..=FEW_ROWS).contains(&rows) && x.len == rows * columns, "invariant: a few rows of {columns}");
    let size = if x.is_aligned(16 / x.dtype.bytes()) { layout.size(0, columns, x.dtype) } else { 1 };
    let y = Buffer::empty(client, rows * outputs, finish.dtype);
    assert!(finish.bias.is_none_or(|bias| bias.len == outputs), "invariant: a bias for each output");
    assert!(finish.add.is_none_or(|add| add.len == y.len), "invariant: as many elements are added");
    if outputs == 0 {
        return y;
    }
    let (bias, add) = (finish.bias.unwrap_or(numbers), finish.add.unwrap_or(numbers));
    let units = row::units(client, UNITS.min(row::most_units(client)));
    multiply_codes::launch(
        client,
        row::cubes(client, outputs.div_ceil(OUTPUTS)),
        CubeDim::new_1d(units.count),
        layout.address(x.len.max(y.len), [words, numbers]),
        size,
        x.arg(size),
        words.arg(1),
        numbers.arg(1),
        bias.arg(1),
        add.arg(1),
        y.arg(1),
        layout.arg(size),
        outputs,
        finish.scale,
        layout.form(size),
        Asked { rows, bias: finish.bias.is_some(), add: finish.add.is_some(), units },
        x.dtype.elem(),
        add.dtype.elem(),
        finish.dtype.elem(),
    );
    y
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    rows: usize,
    bias: bool,
    add: bool,
    units: Units,
}

/// Sums with the products of a vector of a row and one of each output's.
#[cube]
pub(crate) fn with_products<N: Size>(
    sums: Four,
    row: Vector<f32, N>,
    weights: &Array<Vector<f32, N>>,
) -> Four {
    let mut sums = sums;
    #[unroll]
    for output in 0..comptime!(OUTPUTS) {
        sums.insert(output, with_product::<N>(sums.extract(output), row, weights[output]));
    }
    sums
}

/// A sum with the products of two vectors, one after another.
#[cube]
pub(crate) fn with_product<N: Size>(sum: f32, row: Vector<f32, N>, weight: Vector<f32, N>) -> f32 {
    let mut sum = sum;
    #[unroll]
    for k in 0..N::value() {
        sum += row.extract(k) * weight.extract(k);
    }
    sum
}

#[cube(launch, address_type = "dynamic")]
fn multiply_codes<I: Float, A: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    words: &[u32],
    numbers: &[f32],
    bias: &[f32],
    add: &[A],
    y: &mut [O],
    layout: &Layout,
    outputs: usize,
    factor: f32,
    #[comptime] form: Form,
    #[comptime] asked: Asked,
    #[define(I)] _of_x: ElemType,
    #[define(A)] _of_add: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    let first = CUBE_POS * comptime!(OUTPUTS);
    if first >= outputs {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let mut values = Shared::<[f32]>::new_slice(comptime!(VALUES));
    table(numbers, &mut values, form);
    let mut sums = Array::<Four>::new(comptime!(asked.rows));
    #[unroll]
    for row in 0..comptime!(asked.rows) {
        sums[row] = Four::new(0.0f32);
    }
    for vector in range_stepped(unit, layout.of_row, comptime!(asked.units.count as usize)) {
        let mut weights = Array::<Vector<f32, N>>::new(comptime!(OUTPUTS));
        #[unroll]
        for output in 0..comptime!(OUTPUTS) {
            // Those behind the last are it once more, and not written.
            let of = min(first + output, outputs - 1);
            let wide = elements::<N>(words, numbers, &values, layout, of, vector, form);
            weights[output] = Vector::<f32, N>::cast_from(Vector::<I, N>::cast_from(wide));
        }
        #[unroll]
        for row in 0..comptime!(asked.rows) {
            let own = Vector::<f32, N>::cast_from(x[row * layout.of_row + vector]);
            sums[row] = with_products::<N>(sums[row], own, &weights);
        }
    }
    let mut shared = Shared::<[Four]>::new_slice(comptime!(asked.units.count as usize));
    #[unroll]
    for row in 0..comptime!(asked.rows) {
        let four = row::sum(sums[row], &mut shared, asked.units);
        #[unroll]
        for output in 0..comptime!(OUTPUTS) {
            let column = first + output;
            if unit == comptime!(output) && column < outputs {
                let at = comptime!(row) * outputs + column;
                let mut sum = four.extract(output) * factor;
                if asked.bias {
                    sum += bias[column];
                }
                if asked.add {
                    sum += f32::cast_from(add[at]);
                }
                y[at] = O::cast_from(sum);
            }
        }
    }
}
