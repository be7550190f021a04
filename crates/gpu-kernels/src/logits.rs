//! Rows of logits: what a loss needs to know of each, and their gradient where they lie.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::flash::power_of_two;
use crate::row::Units;
use crate::{mma, row};

/// Numbers per row of [`logit_parts`].
pub const PARTS: usize = 7;

/// Bytes that a unit reads at once.
const AT_ONCE: usize = 16;
/// Vectors of a row that a unit has.
const TURNS: usize = 4;

/// Vectors of rows, cut into parts of a cube each: so many that few rows fill a device, of a row's length alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    /// Elements of a vector.
    size: usize,
    /// Vectors of a row.
    vectors: usize,
    /// Parts of a row.
    parts: usize,
    /// Vectors of a part.
    each: usize,
    /// Units of a cube.
    units: Units,
    /// Whether powers are of the device's own instruction.
    native: bool,
}

impl Cut {
    fn new(client: &Client, z: &Buffer, vocab: usize) -> Self {
        let size = vector(vocab, AT_ONCE / z.dtype.bytes(), &[z]);
        let vectors = vocab / size;
        let units = row::units(client, vectors);
        let parts = vectors.div_ceil(units.count as usize * TURNS).max(1);
        let native = mma::multiplies(client, FloatType::Bf16);
        Self { size, vectors, parts, each: vectors.div_ceil(parts), units, native }
    }
}

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
/// Two launches, of a cube for each part of a row, which reads it once, and of one for each row, which joins its parts in order:
/// `rows vocab w_z` bytes, one exponential and about 12 flops for each element.
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
    let cut = Cut::new(client, z, vocab);
    let each = Buffer::empty(client, rows * cut.parts * PARTS, FloatType::F32);
    parts_of::launch(
        client,
        row::cubes(client, rows * cut.parts),
        CubeDim::new_1d(cut.units.count),
        address(&[z]),
        cut.size,
        z.arg(cut.size),
        targets.arg(1),
        each.arg(1),
        scaling.scale,
        scaling.softcap,
        1.0 / scaling.temperature,
        scaling.softcap != 0.0,
        cut,
        z.dtype.elem(),
    );
    let parts = Buffer::empty(client, rows * PARTS, FloatType::F32);
    let units = row::units(client, cut.parts);
    join_parts::launch(
        client,
        row::cubes(client, rows),
        CubeDim::new_1d(units.count),
        address(&[&each]),
        each.arg(1),
        owned.arg(1),
        parts.arg(1),
        cut.parts,
        units,
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
    let cut = Cut::new(client, &z, vocab);
    let in_place = z.handle.can_mut();
    let dz = if in_place { z.clone() } else { Buffer::empty(client, z.len, z.dtype) };
    let out = if in_place { BufferArg::alias(0, z.len / cut.size) } else { dz.arg(cut.size) };
    gradient::launch(
        client,
        row::cubes(client, rows * cut.parts),
        CubeDim::new_1d(cut.units.count),
        address(&[&z]),
        cut.size,
        z.arg(cut.size),
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
        scaling.softcap != 0.0,
        smoothing.entropy,
        cut,
        z.dtype.elem(),
    );
    dz
}

/// Logits of a vector of products.
#[cube]
fn logits<I: Float, N: Size>(
    z: Vector<I, N>,
    scale: f32,
    softcap: f32,
    over: f32,
    #[comptime] capped: bool,
) -> Vector<f32, N> {
    let z = Vector::<f32, N>::cast_from(z);
    if comptime!(capped) {
        (z * Vector::new(scale) / Vector::new(softcap)).tanh() * Vector::new(softcap * over)
    } else {
        z * Vector::new(scale * over)
    }
}

#[cube(launch, address_type = "dynamic")]
fn parts_of<I: Float, N: Size>(
    z: &[Vector<I, N>],
    targets: &[u32],
    parts: &mut [f32],
    scale: f32,
    softcap: f32,
    over: f32,
    #[comptime] capped: bool,
    #[comptime] cut: Cut,
    #[define(I)] _of_z: ElemType,
) {
    let row = CUBE_POS / cut.parts;
    if row >= targets.len() {
        terminate!();
    }
    let first = row * cut.vectors;
    let from = CUBE_POS % cut.parts * cut.each;
    let to = min(from + cut.each, cut.vectors);
    let unit = UNIT_POS as usize;
    let size = N::value();
    // All are asked for before anything is computed.
    let mut raw = Array::<Vector<I, N>>::new(TURNS);
    #[unroll]
    for turn in 0..TURNS {
        let at = from + unit + comptime!(turn * cut.units.count as usize);
        raw[turn] = z[first + min(at, to - 1)];
    }
    let target = targets[row] as usize;
    let around = z[first + target / size];
    let mut values = Array::<Vector<f32, N>>::new(TURNS);
    let mut tops = Array::<f32>::new(TURNS);
    let mut top = f32::new(comptime!(-1e30f32));
    let mut total = 0.0f32;
    #[unroll]
    for turn in 0..TURNS {
        let value = logits::<I, N>(raw[turn], scale, softcap, over, capped);
        values[turn] = value;
        let mut largest = f32::new(comptime!(-1e30f32));
        if from + unit + comptime!(turn * cut.units.count as usize) < to {
            #[unroll]
            for k in 0..size {
                largest = max(largest, value.extract(k));
                total += value.extract(k);
            }
        }
        tops[turn] = largest;
        top = max(top, largest);
    }
    let mut sum = 0.0f32;
    let mut squares = 0.0f32;
    let mut weighted = 0.0f32;
    #[unroll]
    for turn in 0..TURNS {
        if from + unit + comptime!(turn * cut.units.count as usize) < to {
            #[unroll]
            for k in 0..size {
                let below = max(values[turn].extract(k) - top, -200.0f32);
                let e = exponential(below, cut.native);
                sum += e;
                squares += e * e;
                weighted += e * below;
            }
        }
    }
    let around = logits::<I, N>(around, scale, softcap, over, capped);
    let mut of_target = around.extract(0usize);
    #[unroll]
    for k in 1..size {
        of_target = select(target % size == k, around.extract(k), of_target);
    }
    let mut ahead = 0.0f32;
    #[unroll]
    for turn in 0..TURNS {
        let at = from + unit + comptime!(turn * cut.units.count as usize);
        if at < to && tops[turn] >= of_target && ahead == 0.0f32 {
            #[unroll]
            for k in 0..size {
                let one = values[turn].extract(k);
                if one > of_target || (one == of_target && at * size + k < target) {
                    ahead = 1.0f32;
                }
            }
        }
    }
    let mut one = Shared::<[f32]>::new_slice(comptime!(cut.units.count as usize));
    let mut four = Shared::<[Four]>::new_slice(comptime!(cut.units.count as usize));
    let all = row::largest(top, &mut one, cut.units);
    let ahead = row::largest(ahead, &mut one, cut.units);
    let own = shrunk(top, all, sum, squares, weighted, total);
    let own = row::sum(own, &mut four, cut.units);
    if unit == 0 {
        write(parts, CUBE_POS, all, own, of_target, ahead);
    }
}

/// `exp(x)`, of a number below 0 in a unit in the last place for each two of its size where this is the device's own instruction.
#[cube]
fn exponential(x: f32, #[comptime] native: bool) -> f32 {
    if comptime!(native) { power_of_two(x * comptime!(core::f32::consts::LOG2_E)) } else { x.exp() }
}

/// What is summed of parts of a row: `sum e`, `sum e^2`, `sum e (z - m)`, `sum z`.
type Four = Vector<f32, Const<4>>;

/// Sums below `top` as those below `all`.
#[cube]
fn shrunk(top: f32, all: f32, sum: f32, squares: f32, weighted: f32, total: f32) -> Four {
    let down = max(top - all, -200.0f32);
    let shrink = down.exp();
    let mut four = Four::new(sum * shrink);
    four.insert(1usize, squares * shrink * shrink);
    four.insert(2usize, shrink * (weighted + sum * down));
    four.insert(3usize, total);
    four
}

/// Writes the numbers of a row or of a part of it, the last one whether something is before the target.
#[cube]
fn write(parts: &mut [f32], at: usize, top: f32, sums: Four, of_target: f32, last: f32) {
    let at = at * PARTS;
    parts[at] = top;
    #[unroll]
    for k in 0..4usize {
        parts[at + 1 + k] = sums.extract(k);
    }
    parts[at + 5] = of_target;
    parts[at + 6] = last;
}

/// The numbers of rows from those of their parts.
#[cube(launch, address_type = "dynamic")]
fn join_parts(each: &[f32], owned: &[f32], parts: &mut [f32], count: usize, #[comptime] units: Units) {
    let row = CUBE_POS;
    if row >= owned.len() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let mut top = f32::new(comptime!(-1e30f32));
    let mut ahead = 0.0f32;
    for part in range_stepped(unit, count, comptime!(units.count as usize)) {
        let at = (row * count + part) * PARTS;
        top = max(top, each[at]);
        ahead = max(ahead, each[at + 6]);
    }
    let mut one = Shared::<[f32]>::new_slice(comptime!(units.count as usize));
    let mut four = Shared::<[Four]>::new_slice(comptime!(units.count as usize));
    let all = row::largest(top, &mut one, units);
    let ahead = row::largest(ahead, &mut one, units);
    let mut sums = Four::new(0.0f32);
    for part in range_stepped(unit, count, comptime!(units.count as usize)) {
        let at = (row * count + part) * PARTS;
        sums += shrunk(each[at], all, each[at + 1], each[at + 2], each[at + 3], each[at + 4]);
    }
    let sums = row::sum(sums, &mut four, units);
    if unit == 0 {
        let own = owned[row] > 0.5f32;
        let of_target = select(own, each[row * count * PARTS + 5], 0.0f32);
        write(parts, row, all, sums, of_target, select(own && ahead < 0.5f32, 1.0f32, 0.0f32));
    }
}

#[cube(launch, address_type = "dynamic")]
fn gradient<I: Float, N: Size>(
    z: &[Vector<I, N>],
    targets: &[u32],
    owned: &[f32],
    log_z: &[f32],
    entropy: &[f32],
    upstream: &[f32],
    dz: &mut [Vector<I, N>],
    start: usize,
    tokens: usize,
    scale: f32,
    softcap: f32,
    over: f32,
    of_target: f32,
    of_each: f32,
    #[comptime] capped: bool,
    #[comptime] entropies: bool,
    #[comptime] cut: Cut,
    #[define(I)] _of_z: ElemType,
) {
    let row = CUBE_POS / cut.parts;
    if row >= targets.len() {
        terminate!();
    }
    let first = row * cut.vectors;
    let from = CUBE_POS % cut.parts * cut.each;
    let to = min(from + cut.each, cut.vectors);
    let size = N::value();
    let token = start + row;
    let target = targets[row] as usize;
    let g = upstream[token];
    let own = g * owned[row] * of_target;
    let each = g * of_each;
    let log_z = log_z[token];
    for at in range_stepped(from + UNIT_POS as usize, to, comptime!(cut.units.count as usize)) {
        let value = logits::<I, N>(z[first + at], scale, softcap, over, capped);
        let log_p = max(value - Vector::new(log_z), Vector::new(-200.0f32));
        let mut pulled = Vector::<f32, N>::new(g);
        if comptime!(entropies) {
            pulled += (log_p + Vector::new(entropy[token])) * Vector::new(upstream[tokens + token]);
        }
        let mut d = Vector::new(each);
        if at == target / size {
            #[unroll]
            for k in 0..size {
                d.insert(k, select(k == target % size, own + each, each));
            }
        }
        d -= log_p.exp() * pulled;
        d *= Vector::new(scale * over);
        if comptime!(capped) {
            let t = value / Vector::new(softcap * over);
            d *= Vector::new(1.0f32) - t * t;
        }
        dz[first + at] = Vector::cast_from(d);
    }
}
