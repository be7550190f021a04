//! Causal convolution over rows, SiLU, and unit length of the first heads: what a gated delta rule (Qwen3.5) or Mamba-2
//! reads.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use std::ops::Range;

use crate::activation::{SILU, value_and_slope};
use crate::rows::sum_slots;
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::{Slots, few_tasks, tasks};

/// Channels of a task, about: whole heads where they are scaled.
const CHANNELS: usize = 256;
/// Tokens of a task, and rows whose gradient it has.
const TOKENS: usize = 64;
/// What a token's channel costs beside its taps, in multiplications.
const SILU_COST: usize = 16;

/// A convolution over `tokens`, each of which reads rows of `x`.
#[derive(Clone, Copy, Debug)]
pub struct ConvHeads<'a> {
    /// `[rows, channels]`; as a rule a row for each token.
    pub x: &'a [f32],
    /// `[taps, channels]`.
    pub kernel: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// For each tap the row that each token reads: `[taps][tokens]`; negative where there is none.
    pub rows: &'a [Vec<i32>],
    /// Channels of a head.
    pub head_dim: usize,
    /// The lengths that the first heads get, from channel 0 on.
    pub scales: &'a [f32],
    /// Added to the sum of a head's squares.
    pub eps: f32,
}

/// Gradients of [`conv_heads_forward`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConvHeadsGrad {
    /// `[rows, channels]`.
    pub x: Vec<f32>,
    /// `[taps, channels]`; empty where it is not wanted.
    pub kernel: Vec<f32>,
    /// `[channels]`; empty where it is not wanted or not there.
    pub bias: Vec<f32>,
}

/// Sizes that were checked, and how channels are cut.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    /// Rows of `x`.
    rows: usize,
    channels: usize,
    /// Channels of heads that are scaled.
    scaled: usize,
    /// Channels of a piece of them.
    piece: usize,
}

/// Neighbouring channels: whole heads that are scaled, or others.
#[derive(Clone, Copy)]
struct Piece {
    first: usize,
    n: usize,
    /// Channels of a head, all where they are not scaled.
    head: usize,
    scaled: bool,
}

impl ConvHeads<'_> {
    fn sizes(&self) -> Sizes {
        let taps = self.rows.len();
        assert!(
            taps > 0 && self.kernel.len().is_multiple_of(taps),
            "conv heads: `kernel` is [taps, channels]"
        );
        let channels = self.kernel.len() / taps;
        let whole = channels > 0 && self.x.len().is_multiple_of(channels);
        assert!(
            whole && self.bias.is_none_or(|b| b.len() == channels),
            "conv heads: `x` is [rows, channels]"
        );
        let (rows, tokens) = (self.x.len() / channels, self.rows[0].len());
        let inside = |of: &Vec<i32>| of.len() == tokens && of.iter().all(|&row| row < rows as i32);
        assert!(self.rows.iter().all(inside), "conv heads: a row for each token and tap, inside `x`");
        let scaled = self.scales.len() * self.head_dim;
        assert!(
            scaled <= channels && (self.scales.is_empty() || self.head_dim > 0),
            "conv heads: heads of {} channels",
            self.head_dim
        );
        let piece = if scaled > 0 { (CHANNELS / self.head_dim).max(1) * self.head_dim } else { CHANNELS };
        Sizes { tokens, rows, channels, scaled, piece }
    }
}

impl Sizes {
    fn pieces(self) -> usize {
        self.scaled.div_ceil(self.piece) + (self.channels - self.scaled).div_ceil(CHANNELS)
    }

    fn piece(self, piece: usize, head: usize) -> Piece {
        let of_scaled = self.scaled.div_ceil(self.piece);
        if piece < of_scaled {
            let first = piece * self.piece;
            Piece { first, n: (self.scaled - first).min(self.piece), head, scaled: true }
        } else {
            let first = self.scaled + (piece - of_scaled) * CHANNELS;
            let n = (self.channels - first).min(CHANNELS);
            Piece { first, n, head: n, scaled: false }
        }
    }
}

/// What a token reads through one tap.
#[derive(Clone, Copy)]
struct Read {
    x: *const f32,
    kernel: *const f32,
    tap: usize,
}

impl Piece {
    /// What `token` reads, to `reads`; returns where the row lies that the next token will probably read first.
    unsafe fn reads(
        self,
        conv: &ConvHeads<'_>,
        channels: usize,
        token: usize,
        reads: &mut Vec<Read>,
    ) -> *const f32 {
        reads.clear();
        let mut last = 0;
        for (tap, rows) in conv.rows.iter().enumerate() {
            let row = *rows.get_unchecked(token);
            if row >= 0 {
                let x = conv.x.as_ptr().add(row as usize * channels + self.first);
                reads.push(Read { x, kernel: conv.kernel.as_ptr().add(tap * channels + self.first), tap });
                last = last.max(row as usize);
            }
        }
        conv.x.as_ptr().wrapping_add((last + 1) * channels + self.first)
    }

    /// The head at channel `at` of the piece.
    fn scale(self, conv: &ConvHeads<'_>, at: usize) -> f32 {
        conv.scales[(self.first + at) / self.head]
    }
}

/// The convolution at channel `c` of a piece; `bias` may be null.
#[inline(always)]
unsafe fn convolved<S: Lanes>(reads: &[Read], bias: *const f32, c: usize, mask: S::M) -> S::V {
    let mut sum = if bias.is_null() { S::splat(0.0) } else { S::load_m(mask, bias.add(c)) };
    for read in reads {
        sum = S::fma(S::load_m(mask, read.x.add(c)), S::load_m(mask, read.kernel.add(c)), sum);
    }
    sum
}

/// `[tokens, channels]`: `s = silu(sum over taps of kernel * x of earlier rows + bias)`, and of a head that has a scale
/// `s * scale / sqrt(sum(s^2) + eps)`.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn conv_heads_forward(conv: &ConvHeads<'_>) -> Vec<f32> {
    let (sizes, isa) = (conv.sizes(), isa());
    let Sizes { tokens, channels, .. } = sizes;
    // SAFETY: the tasks cover every token's channels.
    let mut y = unsafe { uninit(tokens * channels) };
    let (to, pieces) = (Ptr(y.as_mut_ptr()), sizes.pieces());
    let work = tokens * channels * (conv.rows.len() + SILU_COST);
    few_tasks(tokens.div_ceil(TOKENS) * pieces, work, |task| {
        let (first, piece) = (task / pieces * TOKENS, sizes.piece(task % pieces, conv.head_dim));
        let of = first..tokens.min(first + TOKENS);
        // SAFETY: shapes were checked; the tokens' channels are this task's.
        unsafe { forward_piece(isa, conv, channels, of, piece, to.at(0)) };
    });
    y
}

#[inline(always)]
unsafe fn forward_body<S: Lanes>(
    conv: &ConvHeads<'_>,
    channels: usize,
    tokens: Range<usize>,
    piece: Piece,
    y: *mut f32,
) {
    let bias = conv.bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(piece.first));
    let mut reads = Vec::with_capacity(conv.rows.len());
    for token in tokens {
        let next = piece.reads(conv, channels, token, &mut reads);
        let y = y.add(token * channels + piece.first);
        let mut at = 0;
        while at < piece.n {
            let (end, mut c, mut squares) = (at + piece.head, at, S::splat(0.0));
            while c < end {
                let mask = S::mask((end - c).min(S::N));
                S::prefetch(next.wrapping_add(c));
                let s = value_and_slope::<S, SILU>(convolved::<S>(&reads, bias, c, mask)).0;
                S::store_m(mask, y.add(c), s);
                squares = S::fma(s, s, squares);
                c += S::N;
            }
            if piece.scaled {
                let by = S::splat(piece.scale(conv, at) / (S::sum(squares) + conv.eps).sqrt());
                c = at;
                while c < end {
                    let mask = S::mask((end - c).min(S::N));
                    S::store_m(mask, y.add(c), S::mul(S::load_m(mask, y.add(c)), by));
                    c += S::N;
                }
            }
            at = end;
        }
    }
}

dispatch! {
    /// # Safety
    /// `conv` was checked; `tokens` and the piece's channels are there, `y` is `[tokens, channels]`.
    unsafe fn forward_piece = forward_body [] []
        (conv: &ConvHeads<'_>, channels: usize, tokens: Range<usize>, piece: Piece, y: *mut f32)
}

/// A token that reads a row.
#[derive(Clone, Copy, Default)]
struct Reader {
    /// The token, then its place among those of its chunk.
    token: u32,
    tap: u32,
}

/// For each chunk of rows the tokens whose gradient it needs.
struct Readers {
    /// `[rows + 1]`: where a row's readers begin.
    offsets: Vec<u32>,
    all: Vec<Reader>,
    /// Of each chunk, ascending: those that read its rows and, where weights are wanted, those of its own number.
    tokens: Vec<Vec<u32>>,
}

impl Readers {
    fn new(rows: &[Vec<i32>], sizes: Sizes, wants_weights: bool) -> Self {
        let mut offsets = vec![0; sizes.rows + 1];
        let read = || rows.iter().flatten().filter(|&&row| row >= 0);
        for &row in read() {
            offsets[row as usize + 1] += 1;
        }
        for row in 0..sizes.rows {
            offsets[row + 1] += offsets[row];
        }
        let mut next = offsets.clone();
        let mut all = vec![Reader::default(); read().count()];
        for (tap, rows) in rows.iter().enumerate() {
            for (token, &row) in rows.iter().enumerate().filter(|&(_, &row)| row >= 0) {
                let at = &mut next[row as usize];
                all[*at as usize] = Reader { token: token as u32, tap: tap as u32 };
                *at += 1;
            }
        }
        let chunk = |chunk: usize| {
            let of = |n: usize| n.min(chunk * TOKENS)..n.min((chunk + 1) * TOKENS);
            let (own, rows) = (if wants_weights { of(sizes.tokens) } else { 0..0 }, of(sizes.rows));
            let readers = &mut all[offsets[rows.start] as usize..offsets[rows.end] as usize];
            let mut tokens: Vec<u32> = readers.iter().map(|reader| reader.token).collect();
            tokens.extend(own.map(|token| token as u32));
            tokens.sort_unstable();
            tokens.dedup();
            for reader in readers {
                reader.token = tokens.partition_point(|&token| token < reader.token) as u32;
            }
            tokens
        };
        let tokens = (0..sizes.tokens.max(sizes.rows).div_ceil(TOKENS)).map(chunk).collect();
        Self { offsets, all, tokens }
    }
}

/// Gradients from `dy` `[tokens, channels]`; those of kernel and bias where they are wanted.
///
/// Convolution and SiLU are computed again, also for the few tokens whose rows are of another task.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn conv_heads_backward(conv: &ConvHeads<'_>, dy: &[f32], wants_weights: bool) -> ConvHeadsGrad {
    let (sizes, isa) = (conv.sizes(), isa());
    let Sizes { tokens, channels, .. } = sizes;
    assert_eq!(dy.len(), tokens * channels, "conv heads: `dy` is [tokens, channels]");
    let readers = Readers::new(conv.rows, sizes, wants_weights);
    let (chunks, pieces) = (readers.tokens.len(), sizes.pieces());
    let most = readers.tokens.iter().map(Vec::len).max().unwrap_or(0);
    // The kernel's gradient and the bias's.
    let weights = if wants_weights { (conv.rows.len() + 1) * channels } else { 0 };
    // SAFETY: the tasks cover every row's channels.
    let mut dx = unsafe { uninit(conv.x.len()) };
    let slots = if wants_weights { Slots::new(chunks, weights) } else { Slots { chunks, count: chunks } };
    let buffer = Pooled::take(slots.count * weights);
    let (to, sums) = (Ptr(dx.as_mut_ptr()), buffer.ptr());
    tasks(slots.count * pieces, |task| {
        let (slot, piece) = (task / pieces, sizes.piece(task % pieces, conv.head_dim));
        scratch((most + 2) * piece.n, |held| {
            // SAFETY: shapes were checked; the rows' channels and the slot's are this task's, `held` has room.
            unsafe {
                let own = if wants_weights { sums.at(slot * weights) } else { std::ptr::null_mut() };
                backward_piece(
                    isa,
                    conv,
                    sizes,
                    &readers,
                    slots.of(slot),
                    piece,
                    dy.as_ptr(),
                    held,
                    to.at(0),
                    own,
                );
            }
        });
    });
    let sum = |at: usize, n: usize| {
        let mut sum = vec![0.0; n];
        if slots.count > 0 {
            // SAFETY: every slot was written.
            unsafe { sum_slots(isa, slots.count, weights, n, sums.at(at), sum.as_mut_ptr()) };
        }
        sum
    };
    let of_kernel = conv.kernel.len();
    ConvHeadsGrad {
        x: dx,
        kernel: if wants_weights { sum(0, of_kernel) } else { Vec::new() },
        bias: if wants_weights && conv.bias.is_some() { sum(of_kernel, channels) } else { Vec::new() },
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn backward_body<S: Lanes>(
    conv: &ConvHeads<'_>,
    sizes: Sizes,
    readers: &Readers,
    chunks: Range<usize>,
    piece: Piece,
    dy: *const f32,
    held: *mut f32,
    dx: *mut f32,
    sums: *mut f32,
) {
    let (channels, n, taps) = (sizes.channels, piece.n, conv.rows.len());
    let bias = conv.bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(piece.first));
    let (values, slopes, dc) = (held, held.add(n), held.add(2 * n));
    let sums = sums.wrapping_add(if sums.is_null() { 0 } else { piece.first });
    if !sums.is_null() {
        for tap in 0..=taps {
            std::ptr::write_bytes(sums.add(tap * channels), 0, n);
        }
    }
    let mut reads = Vec::with_capacity(taps);
    for chunk in chunks {
        let first = chunk * TOKENS;
        for (place, &token) in readers.tokens[chunk].iter().enumerate() {
            let token = token as usize;
            let next = piece.reads(conv, channels, token, &mut reads);
            let (dc, dy) = (dc.add(place * n), dy.add(token * channels + piece.first));
            let mut at = 0;
            while at < n {
                let (end, mut c) = (at + piece.head, at);
                let (mut squares, mut dots) = (S::splat(0.0), S::splat(0.0));
                while c < end {
                    let mask = S::mask((end - c).min(S::N));
                    S::prefetch(next.wrapping_add(c));
                    S::prefetch(dy.wrapping_add(channels + c));
                    let (s, slope) = value_and_slope::<S, SILU>(convolved::<S>(&reads, bias, c, mask));
                    let d = S::load_m(mask, dy.add(c));
                    if piece.scaled {
                        squares = S::fma(s, s, squares);
                        dots = S::fma(s, d, dots);
                        S::store_m(mask, values.add(c), s);
                        S::store_m(mask, slopes.add(c), slope);
                    } else {
                        S::store_m(mask, dc.add(c), S::mul(d, slope));
                    }
                    c += S::N;
                }
                if piece.scaled {
                    let r = 1.0 / (S::sum(squares) + conv.eps).sqrt();
                    let pull = S::splat(S::sum(dots) * r * r);
                    let by = S::splat(piece.scale(conv, at) * r);
                    c = at;
                    while c < end {
                        let mask = S::mask((end - c).min(S::N));
                        let (s, slope) = (S::load_m(mask, values.add(c)), S::load_m(mask, slopes.add(c)));
                        let d = S::fnma(s, pull, S::load_m(mask, dy.add(c)));
                        S::store_m(mask, dc.add(c), S::mul(S::mul(d, by), slope));
                        c += S::N;
                    }
                }
                at = end;
            }
            if !sums.is_null() && (first..first + TOKENS).contains(&token) {
                let mut c = 0;
                while c < n {
                    let mask = S::mask((n - c).min(S::N));
                    let d = S::load_m(mask, dc.add(c));
                    for read in &reads {
                        let sum = sums.add(read.tap * channels + c);
                        S::store_m(
                            mask,
                            sum,
                            S::fma(d, S::load_m(mask, read.x.add(c)), S::load_m(mask, sum)),
                        );
                    }
                    let sum = sums.add(taps * channels + c);
                    S::store_m(mask, sum, S::add(S::load_m(mask, sum), d));
                    c += S::N;
                }
            }
        }
        for row in first..sizes.rows.min(first + TOKENS) {
            let of = &readers.all[readers.offsets[row] as usize..readers.offsets[row + 1] as usize];
            let dx = dx.add(row * channels + piece.first);
            let mut c = 0;
            while c < n {
                let mask = S::mask((n - c).min(S::N));
                let mut sum = S::splat(0.0);
                for reader in of {
                    let d = S::load_m(mask, dc.add(reader.token as usize * n + c));
                    let kernel = conv.kernel.as_ptr().add(reader.tap as usize * channels + piece.first + c);
                    sum = S::fma(d, S::load_m(mask, kernel), sum);
                }
                S::store_m(mask, dx.add(c), sum);
                c += S::N;
            }
        }
    }
}

dispatch! {
    /// # Safety
    /// `conv` was checked, `readers` are its own; `dy` is `[tokens, channels]`, `dx` as `conv.x`, `sums`
    /// `[taps + 1, channels]` or null; `held` has room for two tokens more of the piece than the longest chunk needs.
    unsafe fn backward_piece = backward_body [] [] (
        conv: &ConvHeads<'_>, sizes: Sizes, readers: &Readers, chunks: Range<usize>, piece: Piece, dy: *const f32,
        held: *mut f32, dx: *mut f32, sums: *mut f32
    )
}

#[cfg(test)]
mod tests;
