//! Products by units, multiplied as f32: tiles of 64 by 64, of which a unit has 4 by 4.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::Product;
use super::finish::{Form, Four, Grouping, Place, Sizes, put, share, written_from};
use super::tiles::{Cut, Tiles};

/// Rows, and columns, of a tile.
const TILE: usize = 64;
/// Units along each side of a tile.
const SIDE: usize = TILE / 4;
/// Units of a cube.
pub(super) const UNITS: usize = SIDE * SIDE;
/// Factors of a sum that are in shared memory together.
const DEPTH: usize = 16;
/// Fours from one step of the depth to the next: one more than there are, so that neighbours lie in other banks.
const PITCH: usize = SIDE + 1;
/// Bytes of a cube's shared memory.
pub(super) const BYTES: usize = 2 * DEPTH * PITCH * 16;

/// Cuts a product for units.
pub(super) fn cut(of: Product) -> Cut {
    Cut::new(of, Tiles { rows: TILE, columns: TILE, down: 1, across: 1, depth: DEPTH, stages: 1 })
}

/// Brings a slab of an operand into shared memory, `[depth, across]`, zeros where there is nothing.
#[cube]
fn bring<S: Float>(
    source: &[Vector<S, Const<1>>],
    first: usize,
    line: usize,
    across: usize,
    all_across: usize,
    depth: usize,
    all_depth: usize,
    into: &mut [Four],
    #[comptime] along: bool,
) {
    let unit = UNIT_POS as usize;
    // Neighbours read what lies one behind the other.
    let mut of_depth = unit / SIDE;
    let mut group = unit % SIDE;
    if comptime!(along) {
        of_depth = unit % DEPTH;
        group = unit / DEPTH;
    }
    let at = depth + of_depth;
    let mut four = Four::new(0.0);
    if at < all_depth {
        #[unroll]
        for i in 0..4usize {
            let across = across + group * 4 + i;
            if across < all_across {
                let mut place = first + at * line + across;
                if comptime!(along) {
                    place = first + across * line + at;
                }
                four.insert(i, f32::cast_from(source[place].extract(0usize)));
            }
        }
    }
    into[of_depth * PITCH + group] = four;
}

/// Adds the products of a slab to this unit's 4 by 4, a row each.
#[cube]
fn accumulate(left: &[Four], right: &[Four], into: &mut Array<Four>) {
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    for at in 0..DEPTH {
        let rows = left[at * PITCH + y];
        let columns = right[at * PITCH + x];
        #[unroll]
        for i in 0..4usize {
            into[i] = fma(Four::new(rows.extract(i)), columns, into[i]);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_by_units<A: Float, B: Float, P: Float, Q: Float, C: Float, O: Float, N: Size>(
    a: &[Vector<A, Const<1>>],
    b: &[Vector<B, Const<1>>],
    p: &[Vector<P, Const<1>>],
    q: &[Vector<Q, Const<1>>],
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_a: Place,
    of_b: Place,
    of_p: Place,
    of_q: Place,
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    groups: Grouping,
    #[comptime] a_along: bool,
    #[comptime] b_along: bool,
    #[comptime] form: Form,
    #[define(A)] _a_type: ElemType,
    #[define(B)] _b_type: ElemType,
    #[define(P)] _p_type: ElemType,
    #[define(Q)] _q_type: ElemType,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
) {
    let share = share(&sizes, &groups, TILE, TILE);
    if !share.any {
        terminate!();
    }
    let mut left = Shared::<[Four]>::new_slice(comptime!(DEPTH * PITCH));
    let mut right = Shared::<[Four]>::new_slice(comptime!(DEPTH * PITCH));
    let mut sums = Array::<Four>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        sums[i] = Four::new(0.0);
    }
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    let a_first = of_a.first + share.left * of_a.matrix;
    let b_first = of_b.first + share.right * of_b.matrix;
    for slab in range_stepped(share.from, share.to, DEPTH) {
        sync_cube();
        bring::<A>(a, a_first, of_a.line, share.row, sizes.rows, slab, share.to, &mut left, a_along);
        bring::<B>(b, b_first, of_b.line, share.column, sizes.columns, slab, share.to, &mut right, b_along);
        sync_cube();
        accumulate(&left, &right, &mut sums);
    }
    if comptime!(form.more) {
        let p_first = of_p.first + share.left * of_p.matrix;
        let q_first = of_q.first + share.right * of_q.matrix;
        for slab in range_stepped(0usize, share.more, DEPTH) {
            sync_cube();
            bring::<P>(p, p_first, of_p.line, share.row, sizes.rows, slab, share.more, &mut left, a_along);
            bring::<Q>(
                q,
                q_first,
                of_q.line,
                share.column,
                sizes.columns,
                slab,
                share.more,
                &mut right,
                b_along,
            );
            sync_cube();
            accumulate(&left, &right, &mut sums);
        }
    }
    let d_first = written_from(&share, &sizes, &of_d, form);
    let c_first = of_c.first + share.batch * of_c.matrix;
    #[unroll]
    for i in 0..4usize {
        put::<C, O, N>(
            sums[i],
            share.row + y * 4 + i,
            share.column + x * 4,
            c,
            bias,
            share.bias,
            d,
            c_first,
            of_c.line,
            d_first,
            of_d.line,
            &sizes,
            form,
        );
    }
}
