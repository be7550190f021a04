//! Queries and keys before attention: a norm of each head, a rotation of it, and their gradient.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
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
}

/// The widest vectors in which heads are read.
const WIDEST: usize = 4;

/// How a head's units hold it: each some pairs of vectors, of which those that turn stand first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Split {
    /// Elements of a vector.
    size: usize,
    /// Vectors of a head.
    vectors: usize,
    /// Pairs that turn.
    turning: usize,
    /// All pairs; the last one may be of one vector.
    pairs: usize,
    /// Units of a head, a power of two.
    units: usize,
    /// Units of a cube, whole heads.
    cube: usize,
    /// Whether a head's units are of one plane that hands numbers about.
    shuffled: bool,
}

impl Split {
    fn new(client: &Client, shape: HeadShape, half: usize, buffers: &[&Buffer]) -> Self {
        let HeadShape { dim, .. } = shape;
        let fits = |size: &usize| half.is_multiple_of(*size) && (dim - 2 * half).is_multiple_of(2 * size);
        let widest = vector(dim, WIDEST, buffers);
        let size = [4, 2].into_iter().filter(|&size| size <= widest).find(fits).unwrap_or(1);
        let (vectors, turning) = (dim / size, half / size);
        let pairs = turning + (vectors - 2 * turning).div_ceil(2);
        let cube = row::most_units(client);
        let units = pairs.next_power_of_two().min(cube);
        Self { size, vectors, turning, pairs, units, cube, shuffled: row::shuffles(client, units) }
    }

    /// Heads of a cube.
    fn heads(self) -> usize {
        self.cube / self.units
    }

    /// Pairs of a unit at the most.
    fn each(self) -> usize {
        self.pairs.div_ceil(self.units)
    }

    /// Whether a pair has two vectors wherever it stands.
    fn even(self) -> bool {
        self.vectors.is_multiple_of(2)
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
        let half = if turns.is_some() { shape.half } else { 0 };
        let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
        let (cos, sin) = turns.map_or((&nothing, &nothing), |t| (&t.cos, &t.sin));
        let (gain_q, gain_k) = norms.map_or((&nothing, &nothing), |n| (&n.q, &n.k));
        let split = Split::new(client, shape, half, &[qkv, cos, sin, gain_q, gain_k]);
        let size = split.size;
        place::launch(
            client,
            row::cubes(client, (tokens * shape.all()).div_ceil(split.heads())),
            CubeDim::new_1d(split.cube as u32),
            address(&[qkv]),
            size,
            qkv.arg(size),
            cos.arg(size),
            sin.arg(size),
            gain_q.arg(size),
            gain_k.arg(size),
            heads.q.arg(size),
            heads.k.arg(size),
            heads.v.arg(size),
            tokens,
            norms.map_or(0.0, |n| n.eps),
            scale,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            norms.is_some(),
            split,
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
    let half = if turns.is_some() { shape.half } else { 0 };
    let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
    let partial = |heads: usize| {
        let len = if want_gains { groups * heads * shape.dim } else { WIDEST };
        Buffer::empty(client, len, FloatType::F32)
    };
    let (of_q, of_k) = (partial(shape.heads), partial(shape.kv_heads));
    let (cos, sin) = turns.map_or((&nothing, &nothing), |t| (&t.cos, &t.sin));
    let (gain_q, gain_k) = norms.map_or((&nothing, &nothing), |n| (&n.q, &n.k));
    let split = Split::new(client, shape, half, &[qkv, &d.q, &d.k, &d.v, cos, sin, gain_q, gain_k]);
    let size = split.size;
    unplace::launch(
        client,
        row::cubes(client, (groups * shape.all()).div_ceil(split.heads())),
        CubeDim::new_1d(split.cube as u32),
        address(&[qkv]),
        size,
        qkv.arg(size),
        d.q.arg(size),
        d.k.arg(size),
        d.v.arg(size),
        cos.arg(size),
        sin.arg(size),
        gain_q.arg(size),
        gain_k.arg(size),
        dqkv.arg(size),
        of_q.arg(size),
        of_k.arg(size),
        tokens,
        each,
        norms.map_or(0.0, |n| n.eps),
        shape.heads,
        shape.kv_heads,
        shape.dim,
        norms.is_some(),
        want_gains,
        split,
        qkv.dtype.elem(),
        d.q.dtype.elem(),
    );
    let gains = want_gains
        .then(|| (sums::over_rows(client, &of_q, shape.dim), sums::over_rows(client, &of_k, shape.dim)));
    PlacedGrad { qkv: dqkv, gains }
}

/// Where in a head the vectors of a pair stand, and whether both do.
#[cube]
fn places(pair: usize, #[comptime] split: Split) -> (usize, usize, bool) {
    let mut first = pair;
    let mut second = pair + split.turning;
    if pair >= split.turning {
        first = pair + split.turning;
        second = pair + split.pairs;
    }
    (first, second, comptime!(split.even()) || second < split.vectors)
}

/// Which head of which token a unit has, or of which group of tokens, and what the head is.
#[derive(CubeType, Clone, Copy)]
struct Item {
    /// The token, or group.
    of: usize,
    head: usize,
    /// The head among those of its kind.
    own: usize,
    is_query: bool,
    is_value: bool,
}

#[cube]
fn item(#[comptime] heads: usize, #[comptime] kv_heads: usize, #[comptime] split: Split) -> Item {
    let all = comptime!(heads + 2 * kv_heads);
    let item = CUBE_POS * comptime!(split.heads()) + UNIT_POS as usize / split.units;
    let head = item % all;
    let is_query = head < heads;
    let is_value = head >= comptime!(heads + kv_heads);
    let mut own = head;
    if is_value {
        own = head - comptime!(heads + kv_heads);
    } else if !is_query {
        own = head - heads;
    }
    Item { of: item / all, head, own, is_query, is_value }
}

/// A vector of queries', keys' or values' heads.
#[cube]
fn of_kind<T: CubePrimitive>(item: &Item, q: &[T], k: &[T], v: &[T], at: usize) -> T {
    if item.is_query {
        q[at]
    } else if item.is_value {
        v[at]
    } else {
        k[at]
    }
}

/// `1 / sqrt(mean(x^2) + eps)` of a head from a unit's squares.
#[cube]
fn reciprocal<N: Size>(
    squares: Vector<f32, N>,
    eps: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] dim: usize,
    #[comptime] split: Split,
) -> f32 {
    let mean = sum_of_head(squares, shared, split) / (comptime!(dim as u32) as f32);
    1.0f32 / (mean + eps).sqrt()
}

/// The sum over a head of what its units have.
#[cube]
fn sum_of_head<N: Size>(value: Vector<f32, N>, shared: &mut Shared<[f32]>, #[comptime] split: Split) -> f32 {
    row::sum_of_groups(row::sum_of_vector(value), shared, comptime!(split.units as u32), split.shuffled)
}

#[cube(launch, address_type = "dynamic")]
fn place<I: Float, N: Size>(
    qkv: &[Vector<I, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    gain_q: &[Vector<f32, N>],
    gain_k: &[Vector<f32, N>],
    q: &mut [Vector<I, N>],
    k: &mut [Vector<I, N>],
    v: &mut [Vector<I, N>],
    tokens: usize,
    eps: f32,
    scale: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] dim: usize,
    #[comptime] normed: bool,
    #[comptime] split: Split,
    #[define(I)] _of_qkv: ElemType,
) {
    let item = item(heads, kv_heads, split);
    let token = item.of;
    let there = token < tokens;
    let from = (token * comptime!(heads + 2 * kv_heads) + item.head) * split.vectors;
    let to = (item.own * tokens + token) * split.vectors;
    let lane = UNIT_POS as usize % split.units;
    let mut x = Array::<Vector<f32, N>>::new(comptime!(2 * split.each()));
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..comptime!(split.each()) {
        let pair = lane + comptime!(j * split.units);
        let (first, second, both) = places(pair, split);
        let mut here = Vector::<f32, N>::new(0.0f32);
        let mut other = Vector::<f32, N>::new(0.0f32);
        if there && pair < split.pairs {
            here = Vector::cast_from(qkv[from + first]);
            if both {
                other = Vector::cast_from(qkv[from + second]);
            }
        }
        x[2 * j] = here;
        x[2 * j + 1] = other;
        squares += here * here;
        squares += other * other;
    }
    let mut shared = Shared::<[f32]>::new_slice(split.cube);
    let mut rstd = 1.0f32;
    if comptime!(normed) {
        rstd = reciprocal::<N>(squares, eps, &mut shared, dim, split);
    }
    #[unroll]
    for j in 0..comptime!(split.each()) {
        let pair = lane + comptime!(j * split.units);
        let (first, second, both) = places(pair, split);
        if there && pair < split.pairs {
            let mut here = x[2 * j];
            let mut other = x[2 * j + 1];
            if item.is_value {
                v[to + first] = Vector::cast_from(here);
                if both {
                    v[to + second] = Vector::cast_from(other);
                }
            } else {
                if comptime!(normed) {
                    let rstd = Vector::<f32, N>::new(rstd);
                    here *= rstd * of_kind(&item, gain_q, gain_k, gain_k, first);
                    if both {
                        other *= rstd * of_kind(&item, gain_q, gain_k, gain_k, second);
                    }
                }
                if comptime!(split.turning > 0) {
                    if pair < split.turning {
                        let at = token * split.turning + pair;
                        let (cos, sin) = (cos[at], sin[at]);
                        let turned = here * cos - other * sin;
                        other = other * cos + here * sin;
                        here = turned;
                    }
                }
                if item.is_query {
                    q[to + first] = Vector::cast_from(here * Vector::new(scale));
                    if both {
                        q[to + second] = Vector::cast_from(other * Vector::new(scale));
                    }
                } else {
                    k[to + first] = Vector::cast_from(here);
                    if both {
                        k[to + second] = Vector::cast_from(other);
                    }
                }
            }
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn unplace<I: Float, D: Float, N: Size>(
    qkv: &[Vector<I, N>],
    dq: &[Vector<D, N>],
    dk: &[Vector<D, N>],
    dv: &[Vector<D, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    gain_q: &[Vector<f32, N>],
    gain_k: &[Vector<f32, N>],
    dqkv: &mut [Vector<I, N>],
    of_q: &mut [Vector<f32, N>],
    of_k: &mut [Vector<f32, N>],
    tokens: usize,
    each: usize,
    eps: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] dim: usize,
    #[comptime] normed: bool,
    #[comptime] want_gains: bool,
    #[comptime] split: Split,
    #[define(I)] _of_qkv: ElemType,
    #[define(D)] _of_d: ElemType,
) {
    let all = comptime!(heads + 2 * kv_heads);
    let mine = comptime!(split.each());
    let item = item(heads, kv_heads, split);
    let lane = UNIT_POS as usize % split.units;
    let mut shared = Shared::<[f32]>::new_slice(split.cube);
    let mut gains = Array::<Vector<f32, N>>::new(comptime!(2 * mine));
    #[unroll]
    for j in 0..comptime!(2 * mine) {
        gains[j] = Vector::new(0.0f32);
    }
    // As many turns for every unit: a sum may be of the whole cube's.
    for turn in 0..each {
        let token = item.of * each + turn;
        let there = token < tokens;
        let at = (token * all + item.head) * split.vectors;
        let from = (item.own * tokens + token) * split.vectors;
        // The gradient behind the rotation, and the elements themselves.
        let mut turned = Array::<Vector<f32, N>>::new(comptime!(2 * mine));
        let mut x = Array::<Vector<f32, N>>::new(comptime!(2 * mine));
        let mut squares = Vector::<f32, N>::new(0.0f32);
        let mut dots = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..mine {
            let pair = lane + comptime!(j * split.units);
            let (first, second, both) = places(pair, split);
            let mut here = Vector::<f32, N>::new(0.0f32);
            let mut other = Vector::<f32, N>::new(0.0f32);
            x[2 * j] = Vector::new(0.0f32);
            x[2 * j + 1] = Vector::new(0.0f32);
            if there && pair < split.pairs {
                here = Vector::cast_from(of_kind(&item, dq, dk, dv, from + first));
                if both {
                    other = Vector::cast_from(of_kind(&item, dq, dk, dv, from + second));
                }
                if !item.is_value {
                    if comptime!(normed) {
                        x[2 * j] = Vector::cast_from(qkv[at + first]);
                        if both {
                            x[2 * j + 1] = Vector::cast_from(qkv[at + second]);
                        }
                    }
                    if comptime!(split.turning > 0) {
                        if pair < split.turning {
                            let at = token * split.turning + pair;
                            let (cos, sin) = (cos[at], sin[at]);
                            let back = here * cos + other * sin;
                            other = other * cos - here * sin;
                            here = back;
                        }
                    }
                }
            }
            turned[2 * j] = here;
            turned[2 * j + 1] = other;
            if comptime!(normed) {
                if there && pair < split.pairs && !item.is_value {
                    squares += x[2 * j] * x[2 * j];
                    dots += here * of_kind(&item, gain_q, gain_k, gain_k, first) * x[2 * j];
                    if both {
                        squares += x[2 * j + 1] * x[2 * j + 1];
                        dots += other * of_kind(&item, gain_q, gain_k, gain_k, second) * x[2 * j + 1];
                    }
                }
            }
        }
        let mut rstd = 1.0f32;
        let mut pull = 0.0f32;
        if comptime!(normed) {
            rstd = reciprocal::<N>(squares, eps, &mut shared, dim, split);
            pull = sum_of_head::<N>(dots, &mut shared, split) * rstd / (comptime!(dim as u32) as f32);
        }
        let (rstd, pull) = (Vector::<f32, N>::new(rstd), Vector::<f32, N>::new(pull));
        #[unroll]
        for j in 0..mine {
            let pair = lane + comptime!(j * split.units);
            let (first, second, both) = places(pair, split);
            if there && pair < split.pairs {
                #[unroll]
                for side in 0..2usize {
                    let place = if comptime!(side == 0) { first } else { second };
                    if comptime!(side == 0) || both {
                        let mut d = turned[2 * j + side];
                        if comptime!(normed) {
                            if !item.is_value {
                                let u = x[2 * j + side] * rstd;
                                if comptime!(want_gains) {
                                    gains[2 * j + side] += d * u;
                                }
                                let gain = of_kind(&item, gain_q, gain_k, gain_k, place);
                                d = (d * gain - u * pull) * rstd;
                            }
                        }
                        dqkv[at + place] = Vector::cast_from(d);
                    }
                }
            }
        }
    }
    if comptime!(want_gains) {
        let there = item.of * each < tokens;
        #[unroll]
        for j in 0..mine {
            let pair = lane + comptime!(j * split.units);
            let (first, second, both) = places(pair, split);
            if there && pair < split.pairs {
                #[unroll]
                for side in 0..2usize {
                    let place = if comptime!(side == 0) { first } else { second };
                    if comptime!(side == 0) || both {
                        if item.is_query {
                            of_q[(item.of * heads + item.own) * split.vectors + place] = gains[2 * j + side];
                        } else if !item.is_value {
                            of_k[(item.of * kv_heads + item.own) * split.vectors + place] =
                                gains[2 * j + side];
                        }
                    }
                }
            }
        }
    }
}
