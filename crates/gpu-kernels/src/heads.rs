//! Queries and keys before attention: a norm of each head, a rotation of it, and their gradient.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::{row, sums};

/// Heads side by side in a row: queries, keys, values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys, and of values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Half of the elements that are rotated, 0 where none is: element `i` turns with `i + half`.
    pub half: usize,
}

impl HeadShape {
    fn all(self) -> usize {
        self.heads + 2 * self.kv_heads
    }

    fn width(self) -> usize {
        self.all() * self.dim
    }

    fn units(self, client: &Client) -> u32 {
        row::units(client, self.dim)
    }
}

/// Rotations of tokens: `[tokens, half]` each, f32.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Cosines.
    pub cos: Buffer,
    /// Sines.
    pub sin: Buffer,
}

/// RMSNorm of each head before its rotation; the gains are `[dim]`, f32.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// Of queries.
    pub q: Buffer,
    /// Of keys.
    pub k: Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

/// Queries `[heads, tokens, dim]`, keys and values `[kv_heads, tokens, dim]`.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Normed, rotated, and times the scale.
    pub q: Buffer,
    /// Normed and rotated.
    pub k: Buffer,
    /// As they came.
    pub v: Buffer,
}

/// Norm, rotation and order by head of `qkv` `[tokens, (heads + 2 kv_heads) dim]`, in its dtype.
///
/// One launch, which reads `qkv` once and writes it once: `2 tokens width w` bytes, 10 flops for each element.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn place_heads(
    client: &Client,
    qkv: &Buffer,
    shape: HeadShape,
    turns: Option<&Turns>,
    norms: Option<&HeadNorms>,
    scale: f32,
) -> Heads {
    let tokens = qkv.len / shape.width();
    assert_eq!(tokens * shape.width(), qkv.len, "invariant: qkv is rows of heads");
    let of = |heads: usize| Buffer::empty(client, heads * tokens * shape.dim, qkv.dtype);
    let heads = Heads { q: of(shape.heads), k: of(shape.kv_heads), v: of(shape.kv_heads) };
    if tokens > 0 {
        let nothing = Buffer::empty(client, 1, FloatType::F32);
        let turn = |of: fn(&Turns) -> &Buffer| turns.map_or(&nothing, of).arg(1);
        let gain = |of: fn(&HeadNorms) -> &Buffer| norms.map_or(&nothing, of).arg(1);
        let units = shape.units(client);
        place::launch(
            client,
            row::cubes(client, tokens * shape.all()),
            CubeDim::new_1d(units),
            address(&[qkv]),
            qkv.arg(1),
            turn(|t| &t.cos),
            turn(|t| &t.sin),
            gain(|n| &n.q),
            gain(|n| &n.k),
            heads.q.arg(1),
            heads.k.arg(1),
            heads.v.arg(1),
            tokens,
            norms.map_or(0.0, |n| n.eps),
            scale,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            if turns.is_some() { shape.half } else { 0 },
            norms.is_some(),
            units,
            qkv.dtype.elem(),
        );
    }
    heads
}

/// The gradients of what [`place_heads`] got.
#[derive(Clone, Debug)]
pub struct PlacedGrad {
    /// `[tokens, width]`, in the dtype of `qkv`.
    pub qkv: Buffer,
    /// Of both gains, `[dim]` in f32, where they are wanted.
    pub gains: Option<(Buffer, Buffer)>,
}

/// The gradient of `qkv` from those of queries (before the scale), keys and values, by head as [`place_heads`] gives them.
///
/// Reads `qkv` (where there are norms) and the gradients once and writes one of `qkv` once: `tokens width (2 w + w_d)` bytes, 20
/// flops for each element. Gains' gradients are summed over groups of successive tokens, then over groups.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn place_heads_backward(
    client: &Client,
    qkv: &Buffer,
    d: &Heads,
    shape: HeadShape,
    turns: Option<&Turns>,
    norms: Option<&HeadNorms>,
    want_gains: bool,
) -> PlacedGrad {
    let tokens = qkv.len / shape.width();
    assert!(tokens > 0 && tokens * shape.width() == qkv.len, "invariant: qkv is rows of heads");
    let each = if want_gains { sums::rows_each(tokens) } else { 1 };
    let groups = tokens.div_ceil(each);
    let dqkv = Buffer::empty(client, qkv.len, qkv.dtype);
    let nothing = Buffer::empty(client, 1, FloatType::F32);
    let partial = |heads: usize| {
        let len = if want_gains { groups * heads * shape.dim } else { 1 };
        Buffer::empty(client, len, FloatType::F32)
    };
    let (of_q, of_k) = (partial(shape.heads), partial(shape.kv_heads));
    let turn = |of: fn(&Turns) -> &Buffer| turns.map_or(&nothing, of).arg(1);
    let gain = |of: fn(&HeadNorms) -> &Buffer| norms.map_or(&nothing, of).arg(1);
    let units = shape.units(client);
    unplace::launch(
        client,
        row::cubes(client, groups * shape.all()),
        CubeDim::new_1d(units),
        address(&[qkv]),
        qkv.arg(1),
        d.q.arg(1),
        d.k.arg(1),
        d.v.arg(1),
        turn(|t| &t.cos),
        turn(|t| &t.sin),
        gain(|n| &n.q),
        gain(|n| &n.k),
        dqkv.arg(1),
        of_q.arg(1),
        of_k.arg(1),
        tokens,
        each,
        norms.map_or(0.0, |n| n.eps),
        shape.heads,
        shape.kv_heads,
        shape.dim,
        if turns.is_some() { shape.half } else { 0 },
        norms.is_some(),
        want_gains,
        units,
        qkv.dtype.elem(),
        d.q.dtype.elem(),
    );
    let gains = want_gains
        .then(|| (sums::over_rows(client, &of_q, shape.dim), sums::over_rows(client, &of_k, shape.dim)));
    PlacedGrad { qkv: dqkv, gains }
}

/// The other element of `i`'s pair, and the sign of the sine in its rotation.
#[cube]
fn partner(i: usize, #[comptime] half: usize) -> usize {
    if i < half { i + half } else { i - half }
}

#[cube(launch, address_type = "dynamic")]
fn place<I: Float>(
    qkv: &[I],
    cos: &[f32],
    sin: &[f32],
    gain_q: &[f32],
    gain_k: &[f32],
    q: &mut [I],
    k: &mut [I],
    v: &mut [I],
    tokens: usize,
    eps: f32,
    scale: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] dim: usize,
    #[comptime] half: usize,
    #[comptime] normed: bool,
    #[comptime] units: u32,
    #[define(I)] _of_qkv: ElemType,
) {
    let all = comptime!(heads + 2 * kv_heads);
    let token = CUBE_POS / all;
    let head = CUBE_POS % all;
    if token >= tokens {
        terminate!();
    }
    let first = (token * all + head) * dim;
    let unit = UNIT_POS as usize;
    let step = comptime!(units as usize);
    let is_query = head < heads;
    let is_value = head >= comptime!(heads + kv_heads);
    let mut rstd = 1.0f32;
    if comptime!(normed) {
        let mut shared = Shared::<[f32]>::new_slice(comptime!(units as usize));
        let mut squares = 0.0f32;
        let mut i = unit;
        while i < dim {
            let x = f32::cast_from(qkv[first + i]);
            squares += x * x;
            i += step;
        }
        let mean = row::sum(squares, &mut shared, units) / (comptime!(dim as u32) as f32);
        rstd = 1.0f32 / (mean + eps).sqrt();
    }
    let mut i = unit;
    while i < dim {
        if is_value {
            let to = ((head - comptime!(heads + kv_heads)) * tokens + token) * dim + i;
            v[to] = qkv[first + i];
        } else {
            let mut x = f32::cast_from(qkv[first + i]);
            if comptime!(normed) {
                let gain = if is_query { gain_q[i] } else { gain_k[i] };
                x *= rstd * gain;
            }
            if comptime!(half > 0) {
                if i < comptime!(2 * half) {
                    let other = partner(i, half);
                    let mut y = f32::cast_from(qkv[first + other]);
                    if comptime!(normed) {
                        let gain = if is_query { gain_q[other] } else { gain_k[other] };
                        y *= rstd * gain;
                    }
                    let at = token * half + i % half;
                    let sine = select(i < half, -sin[at], sin[at]);
                    x = x * cos[at] + y * sine;
                }
            }
            if is_query {
                q[(head * tokens + token) * dim + i] = I::cast_from(x * scale);
            } else {
                k[((head - heads) * tokens + token) * dim + i] = I::cast_from(x);
            }
        }
        i += step;
    }
}

#[cube(launch, address_type = "dynamic")]
fn unplace<I: Float, D: Float>(
    qkv: &[I],
    dq: &[D],
    dk: &[D],
    dv: &[D],
    cos: &[f32],
    sin: &[f32],
    gain_q: &[f32],
    gain_k: &[f32],
    dqkv: &mut [I],
    of_q: &mut [f32],
    of_k: &mut [f32],
    tokens: usize,
    each: usize,
    eps: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] dim: usize,
    #[comptime] half: usize,
    #[comptime] normed: bool,
    #[comptime] want_gains: bool,
    #[comptime] units: u32,
    #[define(I)] _of_qkv: ElemType,
    #[define(D)] _of_d: ElemType,
) {
    let all = comptime!(heads + 2 * kv_heads);
    let group = CUBE_POS / all;
    let head = CUBE_POS % all;
    let begin = group * each;
    if begin >= tokens {
        terminate!();
    }
    let end = min(begin + each, tokens);
    let unit = UNIT_POS as usize;
    let step = comptime!(units as usize);
    let mine = comptime!(dim.div_ceil(units as usize));
    let is_query = head < heads;
    let is_value = head >= comptime!(heads + kv_heads);
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units as usize));
    let mut gains = Array::<f32>::new(mine);
    // The gradient behind the rotation, element by element.
    let mut turned = Array::<f32>::new(mine);
    #[unroll]
    for j in 0..mine {
        gains[j] = 0.0f32;
    }
    for token in begin..end {
        let first = (token * all + head) * dim;
        if is_value {
            let from = ((head - comptime!(heads + kv_heads)) * tokens + token) * dim;
            let mut i = unit;
            while i < dim {
                dqkv[first + i] = I::cast_from(dv[from + i]);
                i += step;
            }
        } else {
            let from = if is_query {
                (head * tokens + token) * dim
            } else {
                ((head - heads) * tokens + token) * dim
            };
            let mut squares = 0.0f32;
            let mut dots = 0.0f32;
            #[unroll]
            for j in 0..mine {
                let i = unit + comptime!(j * units as usize);
                if i < dim {
                    let mut d =
                        if is_query { f32::cast_from(dq[from + i]) } else { f32::cast_from(dk[from + i]) };
                    if comptime!(half > 0) {
                        if i < comptime!(2 * half) {
                            let other = from + partner(i, half);
                            let y =
                                if is_query { f32::cast_from(dq[other]) } else { f32::cast_from(dk[other]) };
                            let at = token * half + i % half;
                            let sine = select(i < half, sin[at], -sin[at]);
                            d = d * cos[at] + y * sine;
                        }
                    }
                    turned[j] = d;
                    if comptime!(normed) {
                        let x = f32::cast_from(qkv[first + i]);
                        let gain = if is_query { gain_q[i] } else { gain_k[i] };
                        squares += x * x;
                        dots += d * gain * x;
                    } else {
                        dqkv[first + i] = I::cast_from(d);
                    }
                }
            }
            if comptime!(normed) {
                let width = comptime!(dim as u32) as f32;
                let mean = row::sum(squares, &mut shared, units) / width;
                let rstd = 1.0f32 / (mean + eps).sqrt();
                let pull = row::sum(dots, &mut shared, units) * rstd / width;
                #[unroll]
                for j in 0..mine {
                    let i = unit + comptime!(j * units as usize);
                    if i < dim {
                        let u = f32::cast_from(qkv[first + i]) * rstd;
                        let gain = if is_query { gain_q[i] } else { gain_k[i] };
                        dqkv[first + i] = I::cast_from((turned[j] * gain - u * pull) * rstd);
                        if comptime!(want_gains) {
                            gains[j] += turned[j] * u;
                        }
                    }
                }
            }
        }
    }
    if comptime!(want_gains) {
        #[unroll]
        for j in 0..mine {
            let i = unit + comptime!(j * units as usize);
            if i < dim {
                if is_query {
                    of_q[(group * heads + head) * dim + i] = gains[j];
                } else if !is_value {
                    of_k[(group * kv_heads + head - heads) * dim + i] = gains[j];
                }
            }
        }
    }
}
