//! Products of int8: a weight's rows as they rest, times rows of the input rounded to eight bits, a scale for each.
//!
//! As in LLM.int8 (Dettmers et al. 2022) without outliers: codes are multiplied and summed exactly, as integers, and the sum
//! takes both scales. Where an element of the input is not finite, all outputs of its token are NaN.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]

use super::gemv::{InputRows, dots_body};
use super::{PackedPart, Weight};
use crate::operand::Int8Dot;
use crate::scratch::{Ptr, scratch};
use crate::simd::{Isa, Lanes, dispatch};

/// Bytes of a word.
const BYTES: usize = 4;
/// The longest row whose sum of products fits 32 bits: bytes are at most 255 and 127.
const LONGEST: usize = 1 << 16;
/// The largest code.
const MOST: f32 = 127.0;

/// Rows of the input in eight bits.
#[derive(Clone, Copy)]
pub(super) struct Int8Rows {
    /// `[tokens, k / 4]`, four codes to a word; null where nothing is multiplied so.
    words: Ptr,
    /// `[tokens, 2]`: what a code stands for, and the bits of the sum of a row's codes.
    scales: Ptr,
}

impl Int8Rows {
    /// No rows.
    pub(super) const NONE: Self =
        Self { words: Ptr(std::ptr::null_mut()), scales: Ptr(std::ptr::null_mut()) };

    /// Floats of scratch that `tokens` rows of `k` values take.
    pub(super) fn room(tokens: usize, k: usize) -> usize {
        tokens * (k / BYTES + 2)
    }

    /// `tokens` rows of `k` values at `x`, rounded into `room`.
    ///
    /// # Safety
    /// `x` is `[tokens, k]`, `k` a multiple of 4; `room` holds [`Self::room`] floats for as long as the rows are read.
    pub(super) unsafe fn new(isa: Isa, tokens: usize, k: usize, x: *const f32, room: *mut f32) -> Self {
        let rows = Self { words: Ptr(room), scales: Ptr(room.add(tokens * k / BYTES)) };
        for t in 0..tokens {
            let [scale, sum] = round_row(isa, k, x.add(t * k), room.add(t * k / BYTES).cast());
            *rows.scales.at(2 * t) = scale;
            *rows.scales.at(2 * t + 1) = sum;
        }
        rows
    }

    pub(super) fn is_none(&self) -> bool {
        self.words.0.is_null()
    }

    /// `y[t][i] = w[at + i] · x[t]` of `n` rows of a weight that is [`multiplied`](multiplies) so.
    ///
    /// # Safety
    /// There are so many rows of `k` elements, as the input's; `y` has `tokens` rows of `n` at stride `ldy`.
    pub(super) unsafe fn dots(
        &self,
        isa: Isa,
        w: PackedPart<'_>,
        at: usize,
        n: usize,
        k: usize,
        tokens: usize,
        y: *mut f32,
        ldy: usize,
    ) {
        scratch(n, |factors| {
            let mut row = 0;
            while row < n {
                let Some(first) = w.eight_bits(at + row) else { return };
                // Those of a part of a stack follow each other.
                let m = (first.codes.len() / k).min(n - row);
                for i in 0..m {
                    let scales = w.eight_bits(at + row + i).map_or([0.0; 2], |own| own.scales);
                    *factors.add(i) = scales[0] * scales[1];
                }
                let (codes, y) = (first.codes.as_ptr().cast(), y.add(row));
                int8_dots(
                    isa,
                    m,
                    k / BYTES,
                    tokens,
                    codes,
                    factors,
                    self.words.at(0),
                    self.scales.at(0),
                    y,
                    ldy,
                );
                row += m;
            }
        });
    }
}

/// Whether few tokens are multiplied with a weight's codes.
pub(super) fn multiplies(w: Weight<'_>) -> bool {
    let Weight::Packed(part) = w else { return false };
    let k = part.row();
    k.is_multiple_of(BYTES) && k <= LONGEST && part.eight_bits(0).is_some_and(|codes| codes.products)
}

/// Codes of a row; what one stands for, and the bits of their sum.
#[inline(always)]
unsafe fn round_row_body<S: Lanes>(k: usize, x: *const f32, to: *mut i8) -> [f32; 2] {
    let mut most = S::splat(0.0);
    let mut wrong = S::splat(0.0);
    let mut j = 0;
    while j < k {
        let v = S::load_m(S::mask((k - j).min(S::N)), x.add(j));
        most = S::max(most, S::max(v, S::sub(S::splat(0.0), v)));
        // Zero times what is not finite is NaN.
        wrong = S::fma(v, S::splat(0.0), wrong);
        j += S::N;
    }
    let (most, finite) = (S::top(most), S::sum(wrong) == 0.0);
    let inverse = if finite && most > 0.0 { MOST / most } else { 0.0 };
    if !finite || !inverse.is_finite() {
        // Of magnitudes below fp32's normal range nothing is left.
        to.write_bytes(0, k);
        return [if finite { 0.0 } else { f32::NAN }, 0.0];
    }
    let (inverse, mut sum) = (S::splat(inverse), 0_i32);
    let mut codes = [0.0_f32; 16];
    let mut j = 0;
    while j < k {
        let n = (k - j).min(S::N);
        let v = S::round(S::mul(S::load_m(S::mask(n), x.add(j)), inverse));
        S::store(codes.as_mut_ptr(), v);
        for (i, &code) in codes.iter().enumerate().take(n) {
            // SAFETY (of the conversion): finite, and at most 127 after rounding.
            let code = code.to_int_unchecked::<i32>();
            sum += code;
            *to.add(j + i) = code as i8;
        }
        j += S::N;
    }
    [most / MOST, f32::from_bits(sum as u32)]
}

dispatch! {
    /// # Safety
    /// `x` holds `k` floats, `to` as many bytes.
    unsafe fn round_row = round_row_body [] [] (k: usize, x: *const f32, to: *mut i8) -> [f32; 2]
}

#[inline(always)]
unsafe fn int8_dots_body<S: Lanes>(
    n: usize,
    words: usize,
    tokens: usize,
    codes: *const f32,
    factors: *const f32,
    x: *const f32,
    scales: *const f32,
    y: *mut f32,
    ldy: usize,
) {
    dots_body::<S, Int8Dot, f32>(n, words, tokens, codes, InputRows::rows(Ptr(x.cast_mut()), words), y, ldy);
    for t in 0..tokens {
        let (scale, above) = (*scales.add(2 * t), S::ABOVE * (*scales.add(2 * t + 1)).to_bits() as i32);
        for i in 0..n {
            let to = y.add(t * ldy + i);
            let sum = ((*to).to_bits() as i32).wrapping_sub(above);
            *to = sum as f32 * (scale * *factors.add(i));
        }
    }
}

dispatch! {
    narrowing
    /// # Safety
    /// `codes` are `[n, words]` words of four, `x` `[tokens, words]`, `factors` `[n]`, `scales` `[tokens, 2]`; `y` has
    /// `tokens` rows of `n` at stride `ldy`.
    unsafe fn int8_dots = int8_dots_body [] [] (
        n: usize, words: usize, tokens: usize, codes: *const f32, factors: *const f32, x: *const f32, scales: *const f32,
        y: *mut f32, ldy: usize
    )
}
