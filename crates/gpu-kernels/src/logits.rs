//! Rows of logits: what a loss needs to know of each, and their gradient where they lie.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::row;

/// Numbers per row of [`logit_parts`].
pub const PARTS: usize = 7;

/// From a product to logits: `softcap(scale z) / temperature`, with `softcap(z) = cap tanh(z / cap)`.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// Multiplies the product.
    pub scale: f32,
    /// The cap, or 0 where there is none.
    pub softcap: f32,
    /// Divides the capped.
    pub temperature: f32,
}

/// Seven numbers of each row of logits `[rows, vocab]`, f32 `[rows, 7]`: the largest `m`; `sum e`, `sum e^2` and
/// `sum e (z - m)` with `e = exp(z - m)`; `sum z`; and of the entry `targets` (32-bit integers), both 0 where `owned` is 0: the
/// logit, and 1 where nothing is above it and nothing before it as high.
///
/// A cube for each row, which reads it once and keeps `m` and the sums up to date: `rows vocab w_z` bytes, one exponential
/// and about 12 flops for each element.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn logit_parts(
    client: &Client,
    z: &Buffer,
    targets: &Buffer,
    owned: &Buffer,
    scaling: Scaling,
) -> Buffer {
    let rows = targets.len;
    assert!(rows > 0 && z.len.is_multiple_of(rows), "invariant: rows of logits, one for each target");
    let vocab = z.len / rows;
    let parts = Buffer::empty(client, rows * PARTS, FloatType::F32);
    let units = row::units(client, vocab);
    parts_of::launch(
        client,
        row::cubes(client, rows),
        CubeDim::new_1d(units),
        address(&[z]),
        z.arg(1),
        targets.arg(1),
        owned.arg(1),
        parts.arg(1),
        scaling.scale,
        scaling.softcap,
        1.0 / scaling.temperature,
        vocab,
        scaling.softcap != 0.0,
        units,
        z.dtype.elem(),
    );
    parts
}

/// The gradient of one row's loss with respect to its log-probability and its entropy.
#[derive(Clone, Debug)]
pub struct RowGradients {
    /// `ln sum exp z` over the whole vocabulary, f32.
    pub log_z: Buffer,
    /// The entropy, f32, where a gradient of it may come; else as long, of anything.
    pub entropy: Buffer,
    /// `[2, tokens]`: gradients of log-probabilities and of entropies, f32.
    pub upstream: Buffer,
    /// The first of the rows in `upstream`.
    pub first: usize,
    /// The number of its tokens.
    pub tokens: usize,
}

/// What of a row's gradient depends on the loss.
#[derive(Clone, Copy, Debug)]
pub struct Smoothing {
    /// Whether gradients of the entropy are read.
    pub entropy: bool,
    /// The target's part: 1 less the smoothing.
    pub target: f32,
    /// Every entry's part: the smoothing over the vocabulary's size.
    pub each: f32,
}

/// The gradient of logits' product from the product itself, with `p` the probabilities and `g` upstream's:
/// `g_lp (target 1[j = t] + each) - p_j (g_lp + g_h (log p_j + H))`, times the slope of the scaling.
///
/// Written where `z` lies if nobody else holds it: `2 rows vocab w_z` bytes, one exponential and about 10 flops for each
/// element.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn logit_gradient(
    client: &Client,
    z: Buffer,
    targets: &Buffer,
    owned: &Buffer,
    of: &RowGradients,
    scaling: Scaling,
    smoothing: Smoothing,
) -> Buffer {
    let rows = targets.len;
    assert!(rows > 0 && z.len.is_multiple_of(rows), "invariant: rows of logits, one for each target");
    assert!(of.first + rows <= of.log_z.len, "invariant: rows of the tokens that there are");
    let vocab = z.len / rows;
    let in_place = z.handle.can_mut();
    let dz = if in_place { z.clone() } else { Buffer::empty(client, z.len, z.dtype) };
    let out = if in_place { BufferArg::alias(0, z.len) } else { dz.arg(1) };
    let units = row::units(client, vocab);
    gradient::launch(
        client,
        row::cubes(client, rows),
        CubeDim::new_1d(units),
        address(&[&z]),
        z.arg(1),
        targets.arg(1),
        owned.arg(1),
        of.log_z.arg(1),
        of.entropy.arg(1),
        of.upstream.arg(1),
        out,
        of.first,
        of.tokens,
        scaling.scale,
        scaling.softcap,
        1.0 / scaling.temperature,
        smoothing.target,
        smoothing.each,
        vocab,
        scaling.softcap != 0.0,
        smoothing.entropy,
        units,
        z.dtype.elem(),
    );
    dz
}

#[cube]
fn logit(z: f32, scale: f32, softcap: f32, over: f32, #[comptime] capped: bool) -> f32 {
    let z = z * scale;
    if comptime!(capped) { (z / softcap).tanh() * softcap * over } else { z * over }
}

#[cube(launch, address_type = "dynamic")]
fn parts_of<I: Float>(
    z: &[I],
    targets: &[u32],
    owned: &[f32],
    parts: &mut [f32],
    scale: f32,
    softcap: f32,
    over: f32,
    #[comptime] vocab: usize,
    #[comptime] capped: bool,
    #[comptime] units: u32,
    #[define(I)] _of_z: ElemType,
) {
    let row = CUBE_POS;
    if row >= targets.len() {
        terminate!();
    }
    let first = row * vocab;
    let unit = UNIT_POS as usize;
    let target = targets[row] as usize;
    let of_target = logit(f32::cast_from(z[first + target]), scale, softcap, over, capped);

    let mut top = f32::new(comptime!(-1e30f32));
    let mut sum = 0.0f32;
    let mut squares = 0.0f32;
    let mut weighted = 0.0f32;
    let mut total = 0.0f32;
    let mut ahead = 0.0f32;
    let mut i = unit;
    while i < vocab {
        let value = logit(f32::cast_from(z[first + i]), scale, softcap, over, capped);
        total += value;
        if value > of_target || (value == of_target && i < target) {
            ahead = 1.0f32;
        }
        if value > top {
            let down = max(top - value, -200.0f32);
            let shrink = down.exp();
            weighted = shrink * (weighted + sum * down);
            sum *= shrink;
            squares *= shrink * shrink;
            top = value;
        }
        let below = max(value - top, -200.0f32);
        let e = below.exp();
        sum += e;
        squares += e * e;
        weighted += e * below;
        i += comptime!(units as usize);
    }
    let size = comptime!(units as usize);
    let mut tops = Shared::<[f32]>::new_slice(size);
    let mut sums = Shared::<[f32]>::new_slice(size);
    let all = row::largest(top, &mut tops, units);
    let down = max(top - all, -200.0f32);
    let shrink = down.exp();
    let weighted = row::sum(shrink * (weighted + sum * down), &mut sums, units);
    let sum = row::sum(sum * shrink, &mut sums, units);
    let squares = row::sum(squares * shrink * shrink, &mut sums, units);
    let total = row::sum(total, &mut sums, units);
    let ahead = row::sum(ahead, &mut sums, units);
    if unit == 0 {
        let own = owned[row];
        let at = row * 7;
        parts[at] = all;
        parts[at + 1] = sum;
        parts[at + 2] = squares;
        parts[at + 3] = weighted;
        parts[at + 4] = total;
        parts[at + 5] = select(own > 0.5f32, of_target, 0.0f32);
        parts[at + 6] = select(own > 0.5f32 && ahead < 0.5f32, 1.0f32, 0.0f32);
    }
}

#[cube(launch, address_type = "dynamic")]
fn gradient<I: Float>(
    z: &[I],
    targets: &[u32],
    owned: &[f32],
    log_z: &[f32],
    entropy: &[f32],
    upstream: &[f32],
    dz: &mut [I],
    start: usize,
    tokens: usize,
    scale: f32,
    softcap: f32,
    over: f32,
    of_target: f32,
    of_each: f32,
    #[comptime] vocab: usize,
    #[comptime] capped: bool,
    #[comptime] entropies: bool,
    #[comptime] units: u32,
    #[define(I)] _of_z: ElemType,
) {
    let row = CUBE_POS;
    if row >= targets.len() {
        terminate!();
    }
    let first = row * vocab;
    let token = start + row;
    let target = targets[row] as usize;
    let g = upstream[token];
    let own = g * owned[row] * of_target;
    let each = g * of_each;
    let log_z = log_z[token];
    let mut i = UNIT_POS as usize;
    while i < vocab {
        let value = logit(f32::cast_from(z[first + i]), scale, softcap, over, capped);
        let log_p = max(value - log_z, -200.0f32);
        let mut pulled = g;
        if comptime!(entropies) {
            pulled += (log_p + entropy[token]) * upstream[tokens + token];
        }
        let mut d = each - log_p.exp() * pulled;
        if i == target {
            d += own;
        }
        d *= scale * over;
        if comptime!(capped) {
            let t = value / (softcap * over);
            d *= 1.0f32 - t * t;
        }
        dz[first + i] = I::cast_from(d);
        i += comptime!(units as usize);
    }
}
