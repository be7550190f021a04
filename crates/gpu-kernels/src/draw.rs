//! Rows of logits from which tokens are drawn: what a block of each adds to its row's sum, and a block's logits. A draw reads no
//! more of them.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::row::{self, Units};

/// Logits of a block.
pub const DRAW_BLOCK: usize = 1024;
/// Numbers of a block.
pub const DRAW_NUMBERS: usize = 3;

/// Behind a row's last logit.
const NONE: f32 = f32::MIN;

/// Of each block of rows of logits `z`, `[rows, vocab]`, f32 `[rows, blocks, 3]`: the largest `m` of `z / temperature`, the sum of
/// `exp(z / temperature - m)`, and the place in the block of the first that is as large. `temperatures` is f32, one for each row.
///
/// One launch: `rows vocab w_z` bytes, one exponential for each logit. A sum with one that is not finite is none either.
///
/// # Panics
/// If `z` has no whole rows.
#[must_use]
pub fn logit_blocks(client: &Client, z: &Buffer, temperatures: &Buffer) -> Buffer {
    let rows = temperatures.len;
    assert!(rows > 0 && z.len.is_multiple_of(rows), "invariant: a temperature for each row");
    let vocab = z.len / rows;
    let blocks = vocab.div_ceil(DRAW_BLOCK);
    let units = row::units(client, DRAW_BLOCK.min(row::most_units(client)));
    let out = Buffer::empty(client, rows * blocks * DRAW_NUMBERS, FloatType::F32);
    blocks_of_logits::launch(
        client,
        row::cubes(client, rows * blocks),
        CubeDim::new_1d(units.count),
        address(&[z]),
        z.arg(1),
        temperatures.arg(1),
        out.arg(1),
        vocab,
        blocks,
        units,
        z.dtype.elem(),
    );
    out
}

/// The logits of one block of each row, f32 `[rows, 1024]`: `blocks` are 32-bit integers. The least number behind a row's last.
///
/// One launch: `1024 rows (w_z + 4)` bytes.
///
/// # Panics
/// If `z` has no whole rows.
#[must_use]
pub fn logits_of_blocks(client: &Client, z: &Buffer, blocks: &Buffer) -> Buffer {
    let rows = blocks.len;
    assert!(rows > 0 && z.len.is_multiple_of(rows), "invariant: a block for each row");
    let out = Buffer::empty(client, rows * DRAW_BLOCK, FloatType::F32);
    let units = row::most_units(client);
    a_block_of_each::launch(
        client,
        row::cubes(client, out.len.div_ceil(units)),
        CubeDim::new_1d(units as u32),
        address(&[z]),
        z.arg(1),
        blocks.arg(1),
        out.arg(1),
        z.len / rows,
        z.dtype.elem(),
    );
    out
}

/// A cube has a block.
#[cube(launch, address_type = "dynamic")]
fn blocks_of_logits<E: Float>(
    z: &[E],
    temperatures: &[f32],
    out: &mut [f32],
    vocab: usize,
    blocks: usize,
    #[comptime] units: Units,
    #[define(E)] _of_z: ElemType,
) {
    let row = CUBE_POS / blocks;
    if row >= temperatures.len() {
        terminate!();
    }
    let block = CUBE_POS % blocks;
    let temperature = temperatures[row];
    let first = block * comptime!(DRAW_BLOCK);
    let count = comptime!(units.count as usize);
    let each = comptime!(DRAW_BLOCK / units.count as usize);
    let mut values = Array::<f32>::new(each);
    let mut top = f32::new(NONE);
    let mut place = f32::new(0.0);
    #[unroll]
    for turn in 0..each {
        let of_block = turn * count + UNIT_POS as usize;
        let at = min(first + of_block, vocab - 1);
        let own = f32::cast_from(z[row * vocab + at]) / temperature;
        let value = select(first + of_block < vocab, own, NONE);
        values[turn] = value;
        if value > top {
            top = value;
            place = f32::cast_from(of_block as u32);
        }
    }
    let own_top = top;
    let mut shared = Shared::<[f32]>::new_slice(count);
    let top = row::largest(top, &mut shared, units);
    let mut sum = 0.0f32;
    #[unroll]
    for turn in 0..each {
        let there = first + turn * count + (UNIT_POS as usize) < vocab;
        sum += select(there, (values[turn] - top).exp(), 0.0);
    }
    let sum = row::sum(sum, &mut shared, units);
    // The first of the largest is the largest of what is less the later it comes.
    let nearest = select(own_top == top, -place, -comptime!(DRAW_BLOCK as f32));
    let nearest = row::largest(nearest, &mut shared, units);
    if UNIT_POS == 0 {
        let at = (row * blocks + block) * comptime!(DRAW_NUMBERS);
        out[at] = top;
        out[at + 1] = sum;
        out[at + 2] = -nearest;
    }
}

/// A unit has a logit.
#[cube(launch, address_type = "dynamic")]
fn a_block_of_each<E: Float>(
    z: &[E],
    blocks: &[u32],
    out: &mut [f32],
    vocab: usize,
    #[define(E)] _of_z: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at >= blocks.len() * comptime!(DRAW_BLOCK) {
        terminate!();
    }
    let row = at / comptime!(DRAW_BLOCK);
    let of_row = blocks[row] as usize * comptime!(DRAW_BLOCK) + at % comptime!(DRAW_BLOCK);
    let own = f32::cast_from(z[row * vocab + min(of_row, vocab - 1)]);
    out[at] = select(of_row < vocab, own, NONE);
}
