//! A handful of tokens: dot products straight from the stored weights, nothing packed.
//!
//! In decoding, reading the weights is the work; packing would write and read them once more. Sums run along vectors
//! instead of along the depth, so bits differ from the packed path's (which training and scoring keep to); they do not
//! depend on the other tokens of the call. Where products are of bfloat16 and weights rest in it, they are multiplied as they
//! lie, two to a word.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and token")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use super::input::input_rows;
use super::int8::{self, Int8Rows};
use super::many_tokens::{self, TOKENS};
use super::{Input, Linear, Weight, check, compute, linears_forward};
use crate::operand::{Bf16Dot, Fp32, Product};
use crate::rows::{TileLayout, copy_rows};
use crate::scratch::{Ptr, scratch, uninit};
use crate::simd::{Element, Isa, Lanes, dispatch, isa};
use crate::tasks::{evenly, tasks};
use burnish_core::Compute;
use half::bf16;

/// Tokens up to which weights are read where they lie; with more, packing pays (measured).
pub(super) const FEW: usize = 32;
/// The same of weights whose codes are multiplied: packing would widen them.
const FEW_INT8: usize = 256;
/// Floats of weights that a task reads.
const TASK: usize = 32 << 10;
/// Rows of weights in a tile, at most.
pub(super) const ROWS: usize = 4;

/// Whether `tokens` rows go through `layers` here.
pub(crate) fn applies(tokens: usize, layers: &[Linear<'_>]) -> bool {
    let most = if layers.iter().all(|l| int8::multiplies(l.weight)) { FEW_INT8 } else { FEW };
    (1..=most).contains(&tokens) && layers.iter().all(|l| l.dropout().is_none())
}

/// [`linears_forward`] for decoding: fastest for a few tokens, and nothing is kept for a backward.
///
/// Results equal [`linears_forward`]'s up to rounding.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn linears_decode(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    residual: Option<&[f32]>,
) -> Vec<f32> {
    if !applies(tokens, linears) {
        return linears_forward(tokens, in_dim, input, linears, residual).y;
    }
    check(tokens, in_dim, &input, linears);
    let total: usize = linears.iter().map(|l| l.out).sum();
    assert!(
        residual.is_none_or(|r| r.len() == tokens * total),
        "linears: `residual` is [tokens, sum of out]"
    );
    // SAFETY: `forward` writes every element.
    let mut out = unsafe { uninit(tokens * total) };
    let (isa, y) = (isa(), Ptr(out.as_mut_ptr()));
    let ranks: usize = linears.iter().map(Linear::rank).sum();
    let rows = if matches!(input, Input::Plain(_)) { 0 } else { tokens * in_dim };
    // SAFETY: shapes were checked; the scratch holds the low-rank activations, each token's rstd and the input's rows.
    scratch(tokens * ranks + tokens + rows, |work| unsafe {
        let (rstd, own) = (work.add(tokens * ranks), work.add(tokens * ranks + tokens));
        let place = TileLayout::rows(in_dim);
        let x = match input {
            Input::Plain(x) => x.as_ptr().cast_mut(),
            _ => {
                input_rows(isa, input.reads(), rstd, false, in_dim, 0..in_dim, 0, tokens, own, place);
                own
            }
        };
        forward(isa, tokens, in_dim, Ptr(x), linears, residual, y, Ptr(work));
    });
    out
}

/// One vector at `p`, elements past `n` zero.
#[inline(always)]
pub(super) unsafe fn tail<S: Lanes, E: Element>(p: *const E, n: usize) -> S::V {
    let mut values = [0.0; 16];
    for (i, v) in values.iter_mut().enumerate().take(n) {
        *v = p.add(i).read_unaligned().widen();
    }
    S::load(values.as_ptr())
}

/// `R` rows of weights times `T` tokens; what lies `ahead` rows behind them is called for while these are read.
///
/// Each sum runs along its row in one vector, whatever `R` and `T`: its bits do not depend on them.
#[inline(always)]
unsafe fn tile<S: Lanes, P: Product, E: Element, const R: usize, const T: usize>(
    k: usize,
    w: *const E,
    ahead: usize,
    x: *const f32,
    y: *mut f32,
    ldy: usize,
) {
    let mut acc = [[S::splat(0.0); T]; R];
    // Vectors of weights in a cache line.
    let line = (64 / size_of::<E>() / S::N).max(1);
    let mut j = 0;
    while j + line * S::N <= k {
        for r in 0..R {
            S::prefetch(w.wrapping_add((ahead + r) * k + j).cast());
        }
        for _ in 0..line {
            let w: [S::V; R] = std::array::from_fn(|r| E::load::<S>(w.add(r * k + j)));
            for t in 0..T {
                let x = S::load(x.add(t * k + j));
                for r in 0..R {
                    acc[r][t] = P::add::<S>(w[r], x, acc[r][t]);
                }
            }
            j += S::N;
        }
    }
    while j < k {
        let n = (k - j).min(S::N);
        let mask = S::mask(n);
        for (r, acc) in acc.iter_mut().enumerate() {
            let w = w.add(r * k + j);
            let w = if n == S::N { E::load::<S>(w) } else { tail::<S, E>(w, n) };
            for (t, acc) in acc.iter_mut().enumerate() {
                *acc = P::add::<S>(w, S::load_m(mask, x.add(t * k + j)), *acc);
            }
        }
        j += S::N;
    }
    for t in 0..T {
        let y = y.add(t * ldy);
        if R == ROWS {
            let totals = P::totals::<S>(std::array::from_fn(|r| acc[r][t]));
            y.cast::<[f32; ROWS]>().write_unaligned(totals);
        } else {
            (0..R).for_each(|r| *y.add(r) = P::total::<S>(acc[r][t]));
        }
    }
}

/// `R` rows of weights times all tokens, a few at a time: as many as have their sums in registers. For all but the first few
/// the weights come from the first-level cache, and meanwhile those that follow come from memory.
#[inline(always)]
unsafe fn rows<S: Lanes, P: Product, E: Element, const R: usize>(
    k: usize,
    tokens: usize,
    w: *const E,
    x: *const f32,
    y: *mut f32,
    ldy: usize,
) {
    // Four rows of six tokens fill AVX-512's registers, of three those of other vectors, which have no more here.
    let most = if S::N <= 8 { TOKENS } else { 6 };
    // 16 is 6 + 5 + 5.
    for (t, m) in evenly(tokens, most) {
        let (x, y, ahead) = (x.add(t * k), y.add(t * ldy), if t == 0 { R } else { 0 });
        match m {
            1 => tile::<S, P, E, R, 1>(k, w, ahead, x, y, ldy),
            2 => tile::<S, P, E, R, 2>(k, w, ahead, x, y, ldy),
            3 => tile::<S, P, E, R, 3>(k, w, ahead, x, y, ldy),
            4 if most > 3 => tile::<S, P, E, R, 4>(k, w, ahead, x, y, ldy),
            5 if most > 3 => tile::<S, P, E, R, 5>(k, w, ahead, x, y, ldy),
            6 if most > 3 => tile::<S, P, E, R, 6>(k, w, ahead, x, y, ldy),
            _ => {}
        }
    }
}

/// Rows of an input, of fp32 or of words as a product multiplies them.
#[derive(Clone, Copy)]
pub(super) struct InputRows {
    first: Ptr,
    pub(super) place: TileLayout,
}

impl InputRows {
    /// Rows of `k`, one behind the other.
    pub(super) fn rows(first: Ptr, k: usize) -> Self {
        Self { first, place: TileLayout::rows(k) }
    }

    /// Column `j` of row `t`.
    #[inline(always)]
    pub(super) fn at(self, t: usize, j: usize) -> *const f32 {
        let TileLayout { width, block, row } = self.place;
        self.first.0.wrapping_add(j / width * block + t * row + j % width)
    }
}

/// Rows are taken a few at a time; more tokens than [`FEW`] lie one behind the other, and go by so many.
#[inline(always)]
pub(super) unsafe fn dots_body<S: Lanes, P: Product, E: Element>(
    n: usize,
    k: usize,
    tokens: usize,
    w: *const E,
    x: InputRows,
    y: *mut f32,
    ldy: usize,
) {
    for t in (0..tokens).step_by(FEW) {
        let (m, y) = ((tokens - t).min(FEW), y.add(t * ldy));
        let first = x.at(t, 0);
        if S::N <= 8 && m > TOKENS {
            let x = InputRows { first: Ptr(first.cast_mut()), ..x };
            many_tokens::dots::<S, P, E>(n, k, m, w, x, y, ldy);
            continue;
        }
        debug_assert_eq!(x.place.row, k, "a tile's tokens are rows");
        let x = first;
        let mut r = 0;
        while r + ROWS <= n {
            rows::<S, P, E, ROWS>(k, m, w.add(r * k), x, y.add(r), ldy);
            r += ROWS;
        }
        while r < n {
            rows::<S, P, E, 1>(k, m, w.add(r * k), x, y.add(r), ldy);
            r += 1;
        }
    }
}

dispatch! {
    narrowing
    /// `y[t][i] = w[i] · x[t]` for `n` rows of `w` and `tokens` rows of `x`, all of `k` elements, or words as `P` multiplies
    /// them.
    ///
    /// # Safety
    /// `w` is `[n, k]`, `x` `[tokens, k]` in rows, or as [`many_tokens`] has them where it applies; `y` has `tokens` rows of
    /// `n` at stride `ldy`.
    unsafe fn dots = dots_body [P: Product, E: Element] [P, E] (
        n: usize, k: usize, tokens: usize, w: *const E, x: InputRows, y: *mut f32, ldy: usize
    )
}

/// `n` rows of a weight from row `at` on; `words` are the rows of `x` in pairs of bfloat16, where those are multiplied;
/// `eights` in eight bits, where some weight is multiplied so.
///
/// # Safety
/// As [`dots`]; pairs are of an even `k`.
unsafe fn weight_dots(
    isa: Isa,
    w: Weight<'_>,
    at: usize,
    n: usize,
    k: usize,
    tokens: usize,
    x: InputRows,
    words: Option<InputRows>,
    eights: Int8Rows,
    y: *mut f32,
    ldy: usize,
) {
    match (w, words) {
        (Weight::Packed(part), _) if !eights.is_none() && int8::multiplies(w) => {
            eights.dots(isa, part, at, n, k, tokens, y, ldy);
        }
        (Weight::Bf16(w), Some(words)) => {
            let pairs = w.as_ptr().add(at * k).cast::<f32>();
            dots::<Bf16Dot, _>(isa, n, k / 2, tokens, pairs, words, y, ldy);
        }
        (Weight::F32(w), _) => dots::<Fp32, _>(isa, n, k, tokens, w.as_ptr().add(at * k), x, y, ldy),
        (Weight::Bf16(w), None) => dots::<Fp32, _>(isa, n, k, tokens, w.as_ptr().add(at * k), x, y, ldy),
        (Weight::F16(w), _) => dots::<Fp32, _>(isa, n, k, tokens, w.as_ptr().add(at * k), x, y, ldy),
        (Weight::Packed(_), _) => scratch(ROWS * k, |wide| {
            for first in (0..n).step_by(ROWS) {
                let m = (n - first).min(ROWS);
                (0..m).for_each(|row| w.widen(isa, (at + first + row) * k, k, wide.add(row * k)));
                dots::<Fp32, _>(isa, m, k, tokens, wide, x, y.add(first), ldy);
            }
        }),
    }
}

/// Rows of one layer that a task computes.
struct Span {
    layer: usize,
    /// First row of the layer's weight.
    first: usize,
    n: usize,
    /// The layer's first column in `y`.
    column: usize,
    /// Ranks of the layers before.
    rank: usize,
}

/// Cuts the rows of each layer (`rows(layer)` of them) into tasks.
fn spans(layers: &[Linear<'_>], k: usize, rows: impl Fn(&Linear<'_>) -> usize) -> Vec<Span> {
    let most = (TASK / k).max(1).next_multiple_of(ROWS);
    let mut all = Vec::new();
    let (mut column, mut rank) = (0, 0);
    for (layer, l) in layers.iter().enumerate() {
        let rows = rows(l);
        let span = |first| Span { layer, first, n: (rows - first).min(most), column, rank };
        all.extend((0..rows).step_by(most).map(span));
        column += l.out;
        rank += l.rank();
    }
    all
}

/// `y = x W^T + bias + low-rank part (+ residual)` of every layer, side by side.
///
/// # Safety
/// Shapes were checked: `x` is `[tokens, k]`, `y` (and `residual`) `[tokens, sum of out]`; `t` has room for `[tokens,
/// rank]` of each layer.
pub(crate) unsafe fn forward(
    isa: Isa,
    tokens: usize,
    k: usize,
    x: Ptr,
    layers: &[Linear<'_>],
    residual: Option<&[f32]>,
    y: Ptr,
    t: Ptr,
) {
    let total: usize = layers.iter().map(|l| l.out).sum();
    let (low, all) = (spans(layers, k, |l| l.rank()), spans(layers, k, |l| l.out));
    let pairs = isa.multiplied(compute(layers)) == Compute::Bf16
        && k.is_multiple_of(2)
        && layers.iter().all(|l| matches!(l.weight, Weight::Bf16(_)));
    let eights = layers.iter().any(|l| int8::multiplies(l.weight));
    // Where rows of `k` words lie, a word being so many values.
    let many = many_tokens::applies(isa, tokens);
    let place = |k: usize, values: usize| {
        if many { many_tokens::layout(tokens, values) } else { TileLayout::rows(k * values) }
    };
    let room = |k: usize| if many { many_tokens::room(tokens, k) } else { tokens * k };
    let of_x = if many { room(k) } else { 0 };
    let of_pairs = if pairs { room(k / 2) } else { 0 };
    let of_eights = if eights { Int8Rows::room(tokens, k) } else { 0 };
    scratch(of_x + of_pairs + of_eights, |work| {
        // SAFETY: the scratch holds the rows in each of these forms, and outlives the tasks.
        let (rows, words, eights) = unsafe {
            if many {
                copy_rows(isa, tokens, k, x.at(0), k, work, place(k, 1));
            }
            let rows = InputRows { first: if many { Ptr(work) } else { x }, place: place(k, 1) };
            let work = work.add(of_x);
            let words = pairs.then(|| {
                copy_rows(isa, tokens, k, x.at(0), k, work.cast::<bf16>(), place(k / 2, 2));
                InputRows { first: Ptr(work), place: place(k / 2, 1) }
            });
            let eights = if eights {
                Int8Rows::new(isa, tokens, k, x.at(0), work.add(of_pairs))
            } else {
                Int8Rows::NONE
            };
            (rows, words, eights)
        };
        tasks(low.len(), |i| {
            let s = &low[i];
            if let Some(l) = &layers[s.layer].low_rank {
                // SAFETY: the caller's; these columns of t are this task's.
                unsafe {
                    let (a, to) = (l.a.as_ptr().add(s.first * k), t.at(tokens * s.rank + s.first));
                    dots::<Fp32, _>(isa, s.n, k, tokens, a, rows, to, l.rank);
                }
            }
        });
        tasks(all.len(), |i| {
            let s = &all[i];
            let layer = &layers[s.layer];
            // SAFETY: the caller's; these columns of y are this task's.
            unsafe {
                let to = y.at(s.column + s.first);
                weight_dots(isa, layer.weight, s.first, s.n, k, tokens, rows, words, eights, to, total);
                finish(isa, layer, s, tokens, t.at(tokens * s.rank), residual, to, total);
            }
        });
    });
}

/// Adds what is not the weight's product to a span of the output.
///
/// # Safety
/// As [`forward`]; `to` is the span's first element.
unsafe fn finish(
    isa: Isa,
    layer: &Linear<'_>,
    s: &Span,
    tokens: usize,
    t: *mut f32,
    residual: Option<&[f32]>,
    to: *mut f32,
    total: usize,
) {
    let rows = s.first..s.first + s.n;
    let out = |i: usize| std::slice::from_raw_parts_mut(to.add(i * total), s.n);
    if let Some(low) = &layer.low_rank {
        scratch(tokens * s.n, |product| {
            let b = low.b.as_ptr().add(s.first * low.rank);
            let t = InputRows::rows(Ptr(t), low.rank);
            dots::<Fp32, _>(isa, s.n, low.rank, tokens, b, t, product, s.n);
            for i in 0..tokens {
                let product = std::slice::from_raw_parts(product.add(i * s.n), s.n);
                out(i).iter_mut().zip(product).for_each(|(y, p)| *y += low.scale * p);
            }
        });
        if let Some(bias) = low.b_bias {
            for i in 0..tokens {
                out(i).iter_mut().zip(&bias[rows.clone()]).for_each(|(y, b)| *y += low.scale * b);
            }
        }
    }
    if let Some(magnitude) = layer.magnitude() {
        for i in 0..tokens {
            let factors = magnitude.m[rows.clone()].iter().zip(&magnitude.norm[rows.clone()]);
            out(i).iter_mut().zip(factors).for_each(|(y, (m, n))| *y *= m / n);
        }
    }
    if let Some(bias) = layer.bias {
        for i in 0..tokens {
            out(i).iter_mut().zip(&bias[rows.clone()]).for_each(|(y, b)| *y += b);
        }
    }
    if let Some(residual) = residual {
        for i in 0..tokens {
            let from = i * total + s.column + s.first;
            out(i).iter_mut().zip(&residual[from..from + s.n]).for_each(|(y, r)| *y += r);
        }
    }
}
