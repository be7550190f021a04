//! Products of a few rows with a matrix whose columns lie one behind the other, as those of a step of decoding with a weight: the
//! weight is read once, straight to the registers that multiply it, and sums are in no parts that another launch adds.

use burnish_core::FEW_ROWS;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::finish::{self, Place, Sizes, SizesLaunch};
use super::{Add, Finish, Matrices, Product};
use crate::buffer::{FloatType, address};
use crate::elements::Four;
use crate::few_rows::{OUTPUTS, UNITS, with_products};
use crate::row::{self, Units};

/// Whether this is such a product.
pub(super) fn fits(of: Product, a: &Matrices, b: &Matrices) -> bool {
    of.batches == 1 && of.rows <= FEW_ROWS && !a.transposed && b.transposed
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    /// Rows of which it has sums, as many as there are at least.
    rows: usize,
    units: Units,
}

/// The product, finished, written to `d`.
pub(super) fn multiply(
    client: &Client,
    (factors, of): (FloatType, Product),
    [a, b, d]: [&Matrices; 3],
    finish: &Finish,
) {
    // Both operands in vectors of so many elements, of 16 bytes at most.
    let size = |a: &Matrices, b: &Matrices, depth: usize| {
        let most = |m: &Matrices| 16 / m.buffer.dtype.bytes();
        a.vector(depth, most(a)).min(b.vector(depth, most(b)))
    };
    let (p, q, more_depth) = finish.more.as_ref().map_or((a, b, 0), |more| (&more.a, &more.b, more.depth));
    let (own, others) = (size(a, b, of.depth), if more_depth > 0 { size(p, q, more_depth) } else { 1 });
    let other = match &finish.add {
        Add::Other(c) => Some(c),
        _ => None,
    };
    let c = other.unwrap_or(d);
    let (vectors, more_vectors) = (of.depth / own, more_depth / others);
    let units = row::units(client, vectors.clamp(1, UNITS));
    let rows = of.rows.next_power_of_two();
    let all = [&a.buffer, &b.buffer, &p.buffer, &q.buffer, &c.buffer, &d.buffer];
    let [of_a, of_b, of_p, of_q, of_c, of_d] = all.map(|buffer| buffer.dtype.elem());
    // SAFETY: the kernel reads and writes rows and columns that there are, of matrices that lie in their buffers.
    unsafe {
        by_few_rows::launch_unchecked(
            client,
            row::cubes(client, of.columns.div_ceil(OUTPUTS)),
            CubeDim::new_1d(units.count),
            address(&all),
            own,
            others,
            a.buffer.arg(own),
            b.buffer.arg(own),
            p.buffer.arg(others),
            q.buffer.arg(others),
            c.buffer.arg(1),
            finish.bias.as_ref().unwrap_or(&d.buffer).arg(1),
            if other.is_none() { BufferArg::alias(4, d.buffer.len) } else { d.buffer.arg(1) },
            a.place(own),
            b.place(own),
            p.place(others),
            q.place(others),
            c.place(1),
            d.place(1),
            SizesLaunch::new(of.rows, of.columns, vectors, more_vectors, vectors, 1, 1, finish.scale, 0, 0),
            finish.form(true),
            Asked { rows, units },
            of_a,
            of_b,
            of_p,
            of_q,
            of_c,
            of_d,
            factors.elem(),
        );
    }
}

/// Adds this unit's products of so many vectors of lines of both: those of a cube's columns from `first` on.
#[cube]
fn add_products<A: Float, B: Float, E: Float, N: Size>(
    a: &[Vector<A, N>],
    b: &[Vector<B, N>],
    of_a: &Place,
    of_b: &Place,
    vectors: usize,
    first: usize,
    sizes: &Sizes,
    sums: &mut Array<Four>,
    #[comptime] asked: Asked,
) {
    for vector in range_stepped(UNIT_POS as usize, vectors, comptime!(asked.units.count as usize)) {
        let mut weights = Array::<Vector<f32, N>>::new(comptime!(OUTPUTS));
        #[unroll]
        for column in 0..comptime!(OUTPUTS) {
            // Those behind the last are it once more, and not written.
            let line = min(first + column, sizes.columns - 1);
            let own = b[of_b.first + line * of_b.line + vector];
            weights[column] = Vector::<f32, N>::cast_from(Vector::<E, N>::cast_from(own));
        }
        #[unroll]
        for row in 0..comptime!(asked.rows) {
            let line = min(row, sizes.rows - 1);
            let own = a[of_a.first + line * of_a.line + vector];
            let own = Vector::<f32, N>::cast_from(Vector::<E, N>::cast_from(own));
            sums[row] = with_products::<N>(sums[row], own, &weights);
        }
    }
}

/// A cube has [`OUTPUTS`] columns of all rows.
#[cube(launch_unchecked, address_type = "dynamic")]
fn by_few_rows<A: Float, B: Float, P: Float, Q: Float, C: Float, O: Float, E: Float, N: Size, M: Size>(
    a: &[Vector<A, N>],
    b: &[Vector<B, N>],
    p: &[Vector<P, M>],
    q: &[Vector<Q, M>],
    c: &[C],
    bias: &[f32],
    d: &mut [O],
    of_a: Place,
    of_b: Place,
    of_p: Place,
    of_q: Place,
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    #[comptime] form: finish::Form,
    #[comptime] asked: Asked,
    #[define(A)] _a_type: ElemType,
    #[define(B)] _b_type: ElemType,
    #[define(P)] _p_type: ElemType,
    #[define(Q)] _q_type: ElemType,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
    #[define(E)] _factors: ElemType,
) {
    let first = CUBE_POS * comptime!(OUTPUTS);
    if first >= sizes.columns {
        terminate!();
    }
    let mut sums = Array::<Four>::new(comptime!(asked.rows));
    #[unroll]
    for row in 0..comptime!(asked.rows) {
        sums[row] = Four::new(0.0f32);
    }
    add_products::<A, B, E, N>(a, b, &of_a, &of_b, sizes.depth, first, &sizes, &mut sums, asked);
    if comptime!(form.more) {
        add_products::<P, Q, E, M>(p, q, &of_p, &of_q, sizes.more_depth, first, &sizes, &mut sums, asked);
    }
    let mut shared = Shared::<[Four]>::new_slice(comptime!(asked.units.count as usize));
    #[unroll]
    for row in 0..comptime!(asked.rows) {
        let four = row::sum(sums[row], &mut shared, asked.units);
        #[unroll]
        for of_cube in 0..comptime!(OUTPUTS) {
            let column = first + of_cube;
            if UNIT_POS as usize == comptime!(of_cube) && column < sizes.columns && row < sizes.rows {
                let mut sum = four.extract(of_cube) * sizes.scale;
                if comptime!(form.add) {
                    sum += f32::cast_from(c[of_c.first + row * of_c.line + column]);
                }
                if comptime!(form.bias) {
                    sum += bias[column];
                }
                d[of_d.first + row * of_d.line + column] = O::cast_from(sum);
            }
        }
    }
}
