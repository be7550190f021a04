//! Dropout by counters: which elements stay is a function of their row's key and their column.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements;

/// Which elements of rows stay.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// An element is dropped where its word is below this (`burnish_core::random::dropout_threshold`).
    pub threshold: u32,
    /// Multiplies what stays: `1 / (1 - p)`.
    pub scale: f32,
    /// The mask's column at the first column of the rows.
    pub first_column: u32,
}

/// `x` `[rows, columns]` where it stays, else 0, in `dtype`; `keys` has the 32-bit key of each row.
///
/// The words are those of `burnish_core::random::dropout_bits`, made where they are used: `n (w_x + w_y)` bytes and about 10
/// operations for each of `n` elements.
///
/// # Panics
/// If `x` is not a row for each key.
#[must_use]
pub fn dropout(client: &Client, x: &Buffer, keys: &Buffer, mask: Mask, dtype: FloatType) -> Buffer {
    let y = Buffer::empty(client, x.len, dtype);
    if x.len > 0 {
        assert!(x.len.is_multiple_of(keys.len), "invariant: a key for each row");
        let columns = x.len / keys.len;
        let size = vector(columns, 4, &[x]);
        let (count, dim) = elements::launch(client, x.len / size);
        masked::launch(
            client,
            count,
            dim,
            address(&[x]),
            size,
            x.arg(size),
            keys.arg(1),
            y.arg(size),
            mask.threshold,
            mask.scale,
            mask.first_column,
            columns / size,
            size,
            x.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

#[cube(launch, address_type = "dynamic")]
fn masked<I: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    keys: &[u32],
    y: &mut [Vector<O, N>],
    threshold: u32,
    scale: f32,
    first_column: u32,
    #[comptime] vectors: usize,
    #[comptime] size: usize,
    #[define(I)] _of_x: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    let key = keys[ABSOLUTE_POS / vectors];
    let column = (ABSOLUTE_POS % vectors) as u32 * comptime!(size as u32) + first_column;
    let from = Vector::<f32, N>::cast_from(x[ABSOLUTE_POS]);
    let mut to = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..N::value() {
        let word = mix(key ^ ((column + comptime!(k as u32)) * 0x9E37_79B9u32));
        to.insert(k, select(word >= threshold, from.extract(k) * scale, 0.0f32));
    }
    y[ABSOLUTE_POS] = Vector::cast_from(to);
}

/// `burnish_core::random::mix32`.
#[cube]
fn mix(x: u32) -> u32 {
    let x = x ^ (x >> 16u32);
    let x = x * 0x7feb_352du32;
    let x = x ^ (x >> 15u32);
    let x = x * 0x846c_a68bu32;
    x ^ (x >> 16u32)
}
