//! Tiles of 64 by 64: operands brought into shared memory, and their products by units.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

pub(super) use crate::elements::Four;

/// Queries, and keys, of a tile.
pub(super) const TILE: usize = burnish_core::FLASH_TILE;
/// Units along each side of a tile; each has 4 by 4 of its elements.
pub(super) const SIDE: usize = TILE / 4;
/// Units of a cube.
pub(super) const UNITS: usize = SIDE * SIDE;
/// Columns of a slab of two operands whose product over columns is taken.
pub(super) const SLAB: usize = 16;
/// Fours from one row of a tile to the next: one more than there are, so that neighbours lie in other banks.
pub(super) const PITCH: usize = SIDE + 1;

/// Brings 16 columns of 64 rows into shared memory, column by column: `[16, 64]`, zeros past `end` and past a head's end.
#[cube]
pub(super) fn stage_columns<E: Float>(
    source: &[E],
    first: usize,
    stride: usize,
    row: usize,
    end: usize,
    column: usize,
    into: &mut [Four],
    #[comptime] head_dim: usize,
) {
    let depth = UNIT_POS as usize % SLAB;
    let group = UNIT_POS as usize / SLAB;
    let column = column + depth;
    let mut four = Four::new(0.0);
    if column < head_dim {
        #[unroll]
        for i in 0..4usize {
            let row = row + group * 4 + i;
            if row < end {
                four.insert(i, f32::cast_from(source[first + row * stride + column]));
            }
        }
    }
    into[depth * PITCH + group] = four;
}

/// Brings whole rows into shared memory: `[depth, 64 * blocks]`, zeros past `end` and past a head's end.
#[cube]
pub(super) fn stage_rows<E: Float>(
    source: &[E],
    first: usize,
    stride: usize,
    row: usize,
    end: usize,
    into: &mut [Four],
    #[comptime] head_dim: usize,
    #[comptime] depth: usize,
) {
    let blocks = comptime!(head_dim.div_ceil(TILE));
    let fours = comptime!(blocks * SIDE);
    #[unroll]
    for turn in 0..comptime!((depth * fours).div_ceil(UNITS)) {
        let at = turn * UNITS + UNIT_POS as usize;
        if at < comptime!(depth * fours) {
            let row = row + at / fours;
            let column = at % fours * 4;
            let mut four = Four::new(0.0);
            if row < end {
                #[unroll]
                for i in 0..4usize {
                    if column + i < head_dim {
                        four.insert(i, f32::cast_from(source[first + row * stride + column + i]));
                    }
                }
            }
            into[at] = four;
        }
    }
}

/// Adds a product over `depth`: this unit's 4 rows of `a` by its 4 columns of each block of 64 of `b`.
///
/// # Shapes
/// - a: `[depth, 64]` from `a_first`, rows `PITCH` apart
/// - b: `[depth, 64 * blocks]`, rows `pitch` apart
/// - into: four rows of a block one behind the other
#[cube]
pub(super) fn add_product(
    a: &[Four],
    a_first: usize,
    b: &[Four],
    into: &mut Array<Four>,
    #[comptime] pitch: usize,
    #[comptime] blocks: usize,
    #[comptime] depth: usize,
) {
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    for at in 0..depth {
        let rows = a[a_first + at * PITCH + y];
        #[unroll]
        for block in 0..blocks {
            let columns = b[at * pitch + block * SIDE + x];
            #[unroll]
            for i in 0..4usize {
                into[block * 4 + i] = fma(Four::new(rows.extract(i)), columns, into[block * 4 + i]);
            }
        }
    }
}

/// The product of 64 rows of heads with 64 others, over a head's columns: this unit's 4 by 4.
#[cube]
pub(super) fn product<E: Float>(
    a: &[E],
    a_first: usize,
    a_stride: usize,
    a_row: usize,
    a_end: usize,
    b: &[E],
    b_first: usize,
    b_stride: usize,
    b_row: usize,
    b_end: usize,
    left: &mut [Four],
    right: &mut [Four],
    into: &mut Array<Four>,
    #[comptime] head_dim: usize,
) {
    #[unroll]
    for i in 0..4usize {
        into[i] = Four::new(0.0);
    }
    for slab in 0..comptime!(head_dim.div_ceil(SLAB)) {
        sync_cube();
        stage_columns::<E>(a, a_first, a_stride, a_row, a_end, slab * SLAB, left, head_dim);
        stage_columns::<E>(b, b_first, b_stride, b_row, b_end, slab * SLAB, right, head_dim);
        sync_cube();
        add_product(&*left, 0usize, &*right, into, PITCH, 1usize, SLAB);
    }
}

/// Adds the product of a tile in shared memory, `[64, 64]` with what is summed first, and 64 rows of a head.
#[cube]
pub(super) fn add_rows<E: Float>(
    tile: &[Four],
    b: &[E],
    b_first: usize,
    b_stride: usize,
    b_row: usize,
    b_end: usize,
    right: &mut [Four],
    into: &mut Array<Four>,
    #[comptime] head_dim: usize,
    #[comptime] depth: usize,
) {
    let blocks = comptime!(head_dim.div_ceil(TILE));
    for slab in 0..comptime!(TILE / depth) {
        sync_cube();
        stage_rows::<E>(b, b_first, b_stride, b_row + slab * depth, b_end, right, head_dim, depth);
        sync_cube();
        add_product(tile, slab * depth * PITCH, &*right, into, comptime!(blocks * SIDE), blocks, depth);
    }
}

/// Puts this unit's 4 by 4, held row by row, into a tile of shared memory with columns first.
#[cube]
pub(super) fn put_columns(tile: &mut [Four], values: &Array<Four>) {
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    #[unroll]
    for j in 0..4usize {
        let mut column = Four::new(0.0);
        #[unroll]
        for i in 0..4usize {
            column.insert(i, values[i].extract(j));
        }
        tile[(x * 4 + j) * PITCH + y] = column;
    }
}

/// Rows of a slab of whole rows: 16, or 8 of long ones, so that a cube's shared memory stays below 32 KiB.
pub(super) fn depth(head_dim: usize) -> usize {
    if head_dim <= 128 { 16 } else { 8 }
}

/// Fours that the right operand takes at most.
pub(super) fn right(head_dim: usize) -> usize {
    (SLAB * PITCH).max(depth(head_dim) * head_dim.div_ceil(TILE) * SIDE)
}

/// Bytes of a cube's shared memory.
pub(super) fn bytes(head_dim: usize) -> usize {
    16 * (SLAB * PITCH + right(head_dim) + TILE * PITCH)
}
