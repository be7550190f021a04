//! RMSNorm of rows.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::row::Units;
use crate::{row, sums};

/// A norm's values and what its gradient needs.
#[derive(Clone, Debug)]
pub struct Normed {
    /// `[rows, columns]`.
    pub y: Buffer,
    /// `1 / sqrt(mean(x^2) + eps)` of each row, f32.
    pub rstd: Buffer,
}

/// `y = x rstd gamma` of `rows` rows, `y` in `dtype`; `gamma` is `[columns]` in f32.
///
/// Reads `x` twice, of which the second comes from the cache where rows are a few tens of KiB, and writes `y` once:
/// `rows columns (w_x + w_y)` bytes and 4 flops for each element. Statistics are in f32.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn rms_norm(
    client: &Client,
    x: &Buffer,
    gamma: &Buffer,
    rows: usize,
    eps: f32,
    dtype: FloatType,
) -> Normed {
    let columns = gamma.len;
    assert_eq!(x.len, rows * columns, "invariant: x is [rows, columns]");
    assert_eq!(gamma.dtype, FloatType::F32, "invariant: gamma is f32");
    let (y, rstd) = (Buffer::empty(client, x.len, dtype), Buffer::empty(client, rows, FloatType::F32));
    if x.len > 0 {
        let size = vector(columns, 4, &[x, gamma]);
        let units = row::units(client, columns / size);
        forward::launch(
            client,
            row::cubes(client, rows),
            CubeDim::new_1d(units.count),
            address(&[x]),
            size,
            x.arg(size),
            gamma.arg(size),
            y.arg(size),
            rstd.arg(1),
            eps,
            columns,
            columns / size,
            units,
            x.dtype.elem(),
            dtype.elem(),
        );
    }
    Normed { y, rstd }
}

#[cube(launch, address_type = "dynamic")]
fn forward<I: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    gamma: &[Vector<f32, N>],
    y: &mut [Vector<O, N>],
    rstd: &mut [f32],
    eps: f32,
    #[comptime] columns: usize,
    #[comptime] vectors: usize,
    #[comptime] units: Units,
    #[define(I)] _of_x: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    let row = CUBE_POS;
    if row >= rstd.len() {
        terminate!();
    }
    let first = row * vectors;
    let unit = UNIT_POS as usize;
    let step = comptime!(units.count as usize);

    let mut squares = Vector::<f32, N>::new(0.0);
    let mut i = unit;
    while i < vectors {
        let value = Vector::<f32, N>::cast_from(x[first + i]);
        squares += value * value;
        i += step;
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units.count as usize));
    let columns = f32::new(comptime!(columns as f32));
    let mean = row::sum_vectors(squares, &mut shared, units) / columns;
    let reciprocal = 1.0f32 / (mean + eps).sqrt();
    if unit == 0 {
        rstd[row] = reciprocal;
    }
    let scale = Vector::<f32, N>::new(reciprocal);
    let mut i = unit;
    while i < vectors {
        let value = Vector::<f32, N>::cast_from(x[first + i]);
        y[first + i] = Vector::cast_from(value * scale * gamma[i]);
        i += step;
    }
}

/// The gradients of a norm's input and gain.
#[derive(Clone, Debug)]
pub struct NormGrad {
    /// `[rows, columns]`, in the dtype of `x`.
    pub dx: Buffer,
    /// `[columns]` in f32, where it is wanted.
    pub gamma: Option<Buffer>,
}

/// The gradients of [`rms_norm`]'s `x` and, where it is wanted, `gamma`, from `dy` `[rows, columns]` and the forward's
/// `rstd`: `dx = rstd (dy gamma - u mean(dy gamma u))` and `sum(dy u)` over rows, with `u = x rstd`.
///
/// Reads `x` and `dy` twice, the second time from the cache, and writes `dx` once: `rows columns (2 w_x + w_dy)` bytes and
/// 9 flops for each element. The gain's gradient is first summed over at most 1024 groups of successive rows, then over
/// groups.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn rms_norm_backward(
    client: &Client,
    x: &Buffer,
    gamma: &Buffer,
    rstd: &Buffer,
    dy: &Buffer,
    want_gamma: bool,
) -> NormGrad {
    let (rows, columns) = (rstd.len, gamma.len);
    assert!(x.len == rows * columns && dy.len == x.len, "invariant: x and dy are [rows, columns]");
    assert!(
        gamma.dtype == FloatType::F32 && rstd.dtype == FloatType::F32,
        "invariant: gamma and rstd are f32"
    );
    let dx = Buffer::empty(client, x.len, x.dtype);
    let size = vector(columns, 4, &[x, gamma, dy]);
    let each = if want_gamma { sums::rows_each(rows) } else { 1 };
    let groups = rows.div_ceil(each);
    // Without a gain's gradient there is nothing to write: one vector stands for the argument.
    let partial = Buffer::empty(client, if want_gamma { groups * columns } else { size }, FloatType::F32);
    if x.len > 0 {
        let units = row::units(client, columns / size);
        backward::launch(
            client,
            row::cubes(client, groups),
            CubeDim::new_1d(units.count),
            address(&[x]),
            size,
            x.arg(size),
            gamma.arg(size),
            rstd.arg(1),
            dy.arg(size),
            dx.arg(size),
            partial.arg(size),
            each,
            columns,
            columns / size,
            units,
            want_gamma,
            x.dtype.elem(),
            dy.dtype.elem(),
        );
    }
    let gamma = want_gamma.then(|| sums::over_rows(client, &partial, columns));
    NormGrad { dx, gamma }
}

#[cube(launch, address_type = "dynamic")]
fn backward<I: Float, D: Float, N: Size>(
    x: &[Vector<I, N>],
    gamma: &[Vector<f32, N>],
    rstd: &[f32],
    dy: &[Vector<D, N>],
    dx: &mut [Vector<I, N>],
    partial: &mut [Vector<f32, N>],
    each: usize,
    #[comptime] columns: usize,
    #[comptime] vectors: usize,
    #[comptime] units: Units,
    #[comptime] want_gamma: bool,
    #[define(I)] _of_x: ElemType,
    #[define(D)] _of_dy: ElemType,
) {
    let rows = rstd.len();
    let begin = CUBE_POS * each;
    if begin >= rows {
        terminate!();
    }
    let end = min(begin + each, rows);
    let unit = UNIT_POS as usize;
    let step = comptime!(units.count as usize);
    let mine = comptime!(vectors.div_ceil(units.count as usize));
    let columns = f32::new(comptime!(columns as f32));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units.count as usize));
    let mut sums = Array::<Vector<f32, N>>::new(mine);
    #[unroll]
    for j in 0..mine {
        sums[j] = Vector::new(0.0f32);
    }
    for row in begin..end {
        let first = row * vectors;
        let reciprocal = rstd[row];
        let scale = Vector::<f32, N>::new(reciprocal);
        let mut dots = Vector::<f32, N>::new(0.0f32);
        let mut i = unit;
        while i < vectors {
            let u = Vector::<f32, N>::cast_from(x[first + i]) * scale;
            dots += Vector::<f32, N>::cast_from(dy[first + i]) * gamma[i] * u;
            i += step;
        }
        let mean = Vector::<f32, N>::new(row::sum_vectors(dots, &mut shared, units) / columns);
        #[unroll]
        for j in 0..mine {
            let i = unit + comptime!(j * units.count as usize);
            if i < vectors {
                let u = Vector::<f32, N>::cast_from(x[first + i]) * scale;
                let d = Vector::<f32, N>::cast_from(dy[first + i]);
                dx[first + i] = Vector::cast_from((d * gamma[i] - u * mean) * scale);
                if comptime!(want_gamma) {
                    sums[j] += d * u;
                }
            }
        }
    }
    if comptime!(want_gamma) {
        #[unroll]
        for j in 0..mine {
            let i = unit + comptime!(j * units.count as usize);
            if i < vectors {
                partial[CUBE_POS * vectors + i] = sums[j];
            }
        }
    }
}
