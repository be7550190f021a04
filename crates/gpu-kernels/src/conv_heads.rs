//! Causal convolution over rows, SiLU, and unit length of the first heads: what a gated delta rule (Qwen3.5) or Mamba-2
//! reads.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::gated_norm::{Shares, WIDEST, silu, sum_of_group};
use crate::{elements, row, sums};

/// Vectors of a piece of channels where no head is scaled.
const PIECE: usize = 32;
/// The most groups of tokens whose gradients of the kernel are summed in a second pass, and the least tokens of one.
const GROUPS: usize = 128;
const LEAST: usize = 16;

/// What is convolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvHeadsShape {
    /// Tokens.
    pub tokens: usize,
    /// Channels of a token.
    pub channels: usize,
    /// Taps of the kernel.
    pub taps: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Heads that are scaled, from channel 0 on; an even number.
    pub unit_heads: usize,
}

/// What the compiler knows of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Of a head, or of as many channels that are not scaled.
    shares: Shares,
    /// Vectors of a row.
    width: usize,
    taps: usize,
    biased: bool,
    /// Heads that are scaled.
    heads: usize,
}

impl Form {
    /// Heads and pieces of a row.
    fn pieces(self) -> usize {
        self.width.div_ceil(self.shares.vectors)
    }
}

/// The rows of `x`, the form, and the size of vectors.
fn form(
    client: &Client,
    x: &Buffer,
    kernel: &Buffer,
    bias: Option<&Buffer>,
    rows: &Buffer,
    shape: ConvHeadsShape,
    more: &[&Buffer],
) -> (Form, usize) {
    let ConvHeadsShape { tokens, channels, taps, head_dim, unit_heads } = shape;
    assert!(channels > 0 && x.len.is_multiple_of(channels), "invariant: x is rows of {channels}");
    assert!(tokens == 0 || x.len > 0, "invariant: rows to read");
    assert!(taps > 0 && kernel.len == taps * channels, "invariant: kernel is [taps, channels]");
    assert!(rows.len == taps * tokens, "invariant: rows are [taps, tokens]");
    assert!(
        bias.is_none_or(|b| b.len == channels && b.dtype == FloatType::F32),
        "invariant: bias is [channels]"
    );
    assert_eq!(kernel.dtype, FloatType::F32, "invariant: the kernel is f32");
    assert!(
        unit_heads.is_multiple_of(2)
            && unit_heads * head_dim <= channels
            && (unit_heads == 0 || head_dim > 0),
        "invariant: {unit_heads} heads of {head_dim} in {channels} channels"
    );
    let all: Vec<&Buffer> = [x, kernel].into_iter().chain(bias).chain(more.iter().copied()).collect();
    let widest = vector(channels, WIDEST, &all);
    let size = if unit_heads > 0 { vector(head_dim, widest, &[]) } else { widest };
    let shares = Shares::new(client, if unit_heads > 0 { head_dim / size } else { PIECE });
    (Form { shares, width: channels / size, taps, biased: bias.is_some(), heads: unit_heads }, size)
}

/// `s = silu(sum over taps of kernel x of the tap's row + bias)`, `[tokens, channels]` in f32; of a head that is scaled
/// `s scale / sqrt(sum(s^2) + eps)`, by the first of `scales` in the first half of them and by the second in the other.
///
/// `x` is `[_, channels]` in f32 or bfloat16, `kernel` `[taps, channels]` and `bias` `[channels]` in f32, `rows` `[taps, tokens]`
/// 32-bit integers: rows of `x`, negative where there is none.
///
/// One launch. Successive tokens share a cube, so where they read neighbouring rows those come from memory once:
/// `tokens channels (w_x + 4)` bytes, `2 taps + 12` flops for each element.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn conv_heads(
    client: &Client,
    x: &Buffer,
    kernel: &Buffer,
    bias: Option<&Buffer>,
    rows: &Buffer,
    shape: ConvHeadsShape,
    scales: [f32; 2],
    eps: f32,
) -> Buffer {
    let (form, size) = form(client, x, kernel, bias, rows, shape, &[]);
    let y = Buffer::empty(client, shape.tokens * shape.channels, FloatType::F32);
    if y.len > 0 {
        let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
        forward::launch(
            client,
            row::cubes(client, shape.tokens.div_ceil(form.shares.groups()) * form.pieces()),
            CubeDim::new_1d(form.shares.cube as u32),
            address(&[x, &y]),
            size,
            x.arg(size),
            kernel.arg(size),
            bias.unwrap_or(&nothing).arg(size),
            rows.arg(1),
            y.arg(size),
            shape.tokens,
            scales[0],
            scales[1],
            eps,
            form,
            x.dtype.elem(),
        );
    }
    y
}

/// A unit's token and which of its heads or pieces: a cube has successive tokens.
#[cube]
fn place(#[comptime] form: Form) -> (usize, usize) {
    let pieces = comptime!(form.pieces());
    let groups = comptime!(form.shares.groups());
    ((CUBE_POS / pieces) * groups + UNIT_POS as usize / form.shares.lanes, CUBE_POS % pieces)
}

/// The convolution of a vector of a token's channels.
#[cube]
fn convolved<I: Float, N: Size>(
    x: &[Vector<I, N>],
    kernel: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    rows: &[i32],
    token: usize,
    tokens: usize,
    column: usize,
    #[comptime] form: Form,
) -> Vector<f32, N> {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if comptime!(form.biased) {
        sum = bias[column];
    }
    // All are asked for together.
    let mut read = Array::<Vector<f32, N>>::new(form.taps);
    #[unroll]
    for tap in 0..form.taps {
        let row = max(rows[tap * tokens + token], 0i32);
        read[tap] = Vector::cast_from(x[row as usize * form.width + column]);
    }
    #[unroll]
    for tap in 0..form.taps {
        if rows[tap * tokens + token] >= 0i32 {
            sum += read[tap] * kernel[comptime!(tap * form.width) + column];
        }
    }
    sum
}

/// What a head's values are multiplied by, or 1, from the sum of their squares.
#[cube]
fn factor(sum: f32, first: f32, second: f32, eps: f32, piece: usize, #[comptime] form: Form) -> f32 {
    let mut factor = 1.0f32;
    if piece < comptime!(form.heads / 2) {
        factor = first / (sum + eps).sqrt();
    } else if piece < form.heads {
        factor = second / (sum + eps).sqrt();
    }
    factor
}

#[cube(launch, address_type = "dynamic")]
fn forward<I: Float, N: Size>(
    x: &[Vector<I, N>],
    kernel: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    rows: &[i32],
    y: &mut [Vector<f32, N>],
    tokens: usize,
    scale_of_first: f32,
    scale_of_second: f32,
    eps: f32,
    #[comptime] form: Form,
    #[define(I)] _of_x: ElemType,
) {
    let shares = comptime!(form.shares);
    let (token, piece) = place(form);
    let lane = UNIT_POS as usize % shares.lanes;
    let first = piece * shares.vectors;
    let mut values = Array::<Vector<f32, N>>::new(comptime!(shares.each()));
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..comptime!(shares.each()) {
        let i = lane + comptime!(j * shares.lanes);
        let mut s = Vector::<f32, N>::new(0.0f32);
        if token < tokens && i < shares.vectors && first + i < form.width {
            s = silu::<N>(convolved::<I, N>(x, kernel, bias, rows, token, tokens, first + i, form)).0;
        }
        values[j] = s;
        squares += s * s;
    }
    let mut by = 1.0f32;
    if comptime!(form.heads > 0) {
        let mut shared = Shared::<[f32]>::new_slice(shares.cube);
        let sum = sum_of_group::<N>(squares, &mut shared, shares);
        by = factor(sum, scale_of_first, scale_of_second, eps, piece, form);
    }
    #[unroll]
    for j in 0..comptime!(shares.each()) {
        let i = lane + comptime!(j * shares.lanes);
        if token < tokens && i < shares.vectors && first + i < form.width {
            y[token * form.width + first + i] = values[j] * Vector::new(by);
        }
    }
}

/// Which tokens read a row, by which tap, as 32-bit integers.
#[derive(Clone, Debug)]
pub struct ConvReaders {
    /// For each row of `x`, and once more, where its readers begin.
    pub offsets: Buffer,
    /// Tokens, row after row; at least one element.
    pub readers: Buffer,
    /// The tap of each.
    pub taps: Buffer,
}

impl ConvReaders {
    /// Those of `rows` `[taps, tokens]`, of `of` rows of `x`: tap after tap for each row.
    ///
    /// # Panics
    /// If a row is not below `of`.
    #[must_use]
    pub fn of_rows(client: &Client, rows: &[i32], tokens: usize, of: usize) -> Self {
        let read = || rows.iter().enumerate().filter_map(|(at, &row)| Some((at, usize::try_from(row).ok()?)));
        let mut offsets = vec![0; of + 1];
        for (_, row) in read() {
            offsets[row + 1] += 1;
        }
        for row in 0..of {
            offsets[row + 1] += offsets[row];
        }
        let mut next = offsets.clone();
        let mut readers = vec![[0; 2]; read().count().max(1)];
        for (at, row) in read() {
            readers[next[row] as usize] = [at % tokens, at / tokens].map(|n| n as u32);
            next[row] += 1;
        }
        let words = |side: usize| Buffer::of_words(client, readers.iter().map(|pair| pair[side]).collect());
        Self { offsets: Buffer::of_words(client, offsets), readers: words(0), taps: words(1) }
    }
}

/// The gradients of what [`conv_heads`] got.
#[derive(Clone, Debug)]
pub struct ConvHeadsGrad {
    /// In the shape and dtype of `x`.
    pub x: Buffer,
    /// `[taps, channels]` in f32, where it is wanted.
    pub kernel: Option<Buffer>,
    /// `[channels]` in f32, where it is wanted and there.
    pub bias: Option<Buffer>,
}

/// The gradients of [`conv_heads`]'s `x` and, where they are wanted, of kernel and bias, from `dy` `[tokens, channels]` in f32.
///
/// Two launches. One computes convolution and SiLU again and writes their gradient, `tokens channels (w_x + 8)` bytes and
/// `2 taps + 25` flops for each element; the other sums over each row's readers, which come from memory once where they
/// are neighbours: `tokens channels (4 + w_x)` bytes, `2 taps` flops. Gradients of weights take a third, with as much to read and
/// do, over at most 128 groups of successive tokens, whose sums are summed then.
///
/// # Panics
/// If the buffers are not of these shapes, or there are no tokens.
#[must_use]
pub fn conv_heads_backward(
    client: &Client,
    x: &Buffer,
    kernel: &Buffer,
    bias: Option<&Buffer>,
    rows: &Buffer,
    readers: &ConvReaders,
    dy: &Buffer,
    shape: ConvHeadsShape,
    scales: [f32; 2],
    eps: f32,
    wants_weights: bool,
) -> ConvHeadsGrad {
    let ConvHeadsShape { tokens, channels, taps, .. } = shape;
    let (form, size) = form(client, x, kernel, bias, rows, shape, &[dy]);
    assert!(tokens > 0, "invariant: some tokens");
    assert!(dy.len == tokens * channels && dy.dtype == FloatType::F32, "invariant: dy is [tokens, channels]");
    assert!(readers.offsets.len == x.len / channels + 1, "invariant: readers of each row of x");
    assert!(readers.readers.len == readers.taps.len, "invariant: a tap of each reader");
    let dc = Buffer::empty(client, dy.len, FloatType::F32);
    let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
    through_silu::launch(
        client,
        row::cubes(client, tokens.div_ceil(form.shares.groups()) * form.pieces()),
        CubeDim::new_1d(form.shares.cube as u32),
        address(&[x, dy]),
        size,
        x.arg(size),
        kernel.arg(size),
        bias.unwrap_or(&nothing).arg(size),
        rows.arg(1),
        dy.arg(size),
        dc.arg(size),
        tokens,
        scales[0],
        scales[1],
        eps,
        form,
        x.dtype.elem(),
    );
    let dx = Buffer::empty(client, x.len, x.dtype);
    let (count, dim) = elements::launch(client, dx.len / size);
    of_rows::launch(
        client,
        count,
        dim,
        address(&[x, dy]),
        size,
        dc.arg(size),
        kernel.arg(size),
        readers.offsets.arg(1),
        readers.readers.arg(1),
        readers.taps.arg(1),
        dx.arg(size),
        x.len / size,
        form,
        x.dtype.elem(),
    );
    let sums = wants_weights.then(|| {
        let each = tokens.div_ceil(GROUPS).max(LEAST);
        let groups = tokens.div_ceil(each);
        let of_kernel = Buffer::empty(client, groups * taps * channels, FloatType::F32);
        // Without a bias there is nothing to write: one vector stands for the argument.
        let of_bias = if form.biased { groups * channels } else { WIDEST };
        let of_bias = Buffer::empty(client, of_bias, FloatType::F32);
        let (count, dim) = elements::launch(client, groups * form.width);
        of_weights::launch(
            client,
            count,
            dim,
            address(&[x, dy, &of_kernel]),
            size,
            x.arg(size),
            rows.arg(1),
            dc.arg(size),
            of_kernel.arg(size),
            of_bias.arg(size),
            tokens,
            groups,
            each,
            form,
            x.dtype.elem(),
        );
        let bias = form.biased.then(|| sums::over_rows(client, &of_bias, channels));
        (sums::over_rows(client, &of_kernel, taps * channels), bias)
    });
    let (kernel, bias) = sums.unzip();
    ConvHeadsGrad { x: dx, kernel, bias: bias.flatten() }
}

#[cube(launch, address_type = "dynamic")]
fn through_silu<I: Float, N: Size>(
    x: &[Vector<I, N>],
    kernel: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    rows: &[i32],
    dy: &[Vector<f32, N>],
    dc: &mut [Vector<f32, N>],
    tokens: usize,
    scale_of_first: f32,
    scale_of_second: f32,
    eps: f32,
    #[comptime] form: Form,
    #[define(I)] _of_x: ElemType,
) {
    let shares = comptime!(form.shares);
    let mine = comptime!(shares.each());
    let (token, piece) = place(form);
    let lane = UNIT_POS as usize % shares.lanes;
    let first = piece * shares.vectors;
    let at = token * form.width + first;
    let mut values = Array::<Vector<f32, N>>::new(mine);
    let mut slopes = Array::<Vector<f32, N>>::new(mine);
    let mut ds = Array::<Vector<f32, N>>::new(mine);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    let mut dots = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..mine {
        let i = lane + comptime!(j * shares.lanes);
        values[j] = Vector::new(0.0f32);
        slopes[j] = Vector::new(0.0f32);
        ds[j] = Vector::new(0.0f32);
        if token < tokens && i < shares.vectors && first + i < form.width {
            let c = convolved::<I, N>(x, kernel, bias, rows, token, tokens, first + i, form);
            let (s, slope) = silu::<N>(c);
            let d = dy[at + i];
            values[j] = s;
            slopes[j] = slope;
            ds[j] = d;
            squares += s * s;
            dots += s * d;
        }
    }
    let mut by = 1.0f32;
    let mut pull = 0.0f32;
    if comptime!(form.heads > 0) {
        let mut shared = Shared::<[f32]>::new_slice(shares.cube);
        let sum = sum_of_group::<N>(squares, &mut shared, shares);
        let dot = sum_of_group::<N>(dots, &mut shared, shares);
        by = factor(sum, scale_of_first, scale_of_second, eps, piece, form);
        if piece < form.heads {
            pull = dot / (sum + eps);
        }
    }
    #[unroll]
    for j in 0..mine {
        let i = lane + comptime!(j * shares.lanes);
        if token < tokens && i < shares.vectors && first + i < form.width {
            let d = ds[j] - values[j] * Vector::new(pull);
            dc[at + i] = d * Vector::new(by) * slopes[j];
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn of_rows<I: Float, N: Size>(
    dc: &[Vector<f32, N>],
    kernel: &[Vector<f32, N>],
    offsets: &[u32],
    readers: &[u32],
    taps: &[u32],
    dx: &mut [Vector<I, N>],
    vectors: usize,
    #[comptime] form: Form,
    #[define(I)] _of_x: ElemType,
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let row = ABSOLUTE_POS / form.width;
    let column = ABSOLUTE_POS % form.width;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut at = offsets[row] as usize;
    let end = offsets[row + 1] as usize;
    while at < end {
        let d = dc[readers[at] as usize * form.width + column];
        sum += d * kernel[taps[at] as usize * form.width + column];
        at += 1;
    }
    dx[ABSOLUTE_POS] = Vector::cast_from(sum);
}

#[cube(launch, address_type = "dynamic")]
fn of_weights<I: Float, N: Size>(
    x: &[Vector<I, N>],
    rows: &[i32],
    dc: &[Vector<f32, N>],
    of_kernel: &mut [Vector<f32, N>],
    of_bias: &mut [Vector<f32, N>],
    tokens: usize,
    groups: usize,
    each: usize,
    #[comptime] form: Form,
    #[define(I)] _of_x: ElemType,
) {
    let group = ABSOLUTE_POS / form.width;
    let column = ABSOLUTE_POS % form.width;
    if group >= groups {
        terminate!();
    }
    let mut sums = Array::<Vector<f32, N>>::new(form.taps);
    #[unroll]
    for tap in 0..form.taps {
        sums[tap] = Vector::new(0.0f32);
    }
    let mut all = Vector::<f32, N>::new(0.0f32);
    let begin = group * each;
    for token in begin..min(begin + each, tokens) {
        let d = dc[token * form.width + column];
        #[unroll]
        for tap in 0..form.taps {
            let row = rows[tap * tokens + token];
            if row >= 0i32 {
                sums[tap] += d * Vector::<f32, N>::cast_from(x[row as usize * form.width + column]);
            }
        }
        all += d;
    }
    #[unroll]
    for tap in 0..form.taps {
        of_kernel[(group * form.taps + tap) * form.width + column] = sums[tap];
    }
    if comptime!(form.biased) {
        of_bias[group * form.width + column] = all;
    }
}
