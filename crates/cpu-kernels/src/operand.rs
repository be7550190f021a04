//! Operands of products: `f32`, or bfloat16 in pairs.
//!
//! A packed operand is made of 32-bit words. A word is one `f32`, or two bfloat16 values that follow each other in the
//! sum, the first in the lower half: `[k/2][n]` words, as a dot-product instruction reads them. So both kinds have the
//! same geometry, the sum of one counted in words; a value that is missing at the end of a sum is zero in both operands.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::rows::{TileLayout, copy_rows, prefetch_row};
use crate::simd::{Element, Isa, Lanes, Store, dispatch};
use half::bf16;

/// What a product's operands are made of.
pub(crate) trait Operand: Copy + Send + Sync + 'static {
    /// A value in a packed operand.
    type Value: Store;
    /// How words are multiplied where there is no instruction for it.
    type Product: Product;
    /// Values of a word.
    const VALUES: usize;

    /// Words of `k` values.
    #[inline(always)]
    fn words(k: usize) -> usize {
        k.div_ceil(Self::VALUES)
    }

    /// The word of two values that follow each other; of the first alone where there is one to a word.
    fn word(first: f32, second: f32) -> f32;
    /// The word which multiplies [`Self::constant`].
    fn ones() -> f32;
    /// A word whose product with [`Self::ones`] is `x`: of both values together where there are two.
    fn constant(x: f32) -> f32;
    /// Packs `n <= 32` rows of `k` values as the columns of a panel.
    ///
    /// # Safety
    /// As [`crate::pack::pack_nk`].
    unsafe fn columns<S: Lanes, E: Element>(w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32);
    /// `m` rows of `n` values as words of the sum over rows, `dst[i / VALUES][c]`.
    ///
    /// # Safety
    /// `x` has `m` rows of `n` at stride `ldx`, `dst` `words(m)` of `n` at stride `ldd`.
    unsafe fn stack<E: Element>(
        isa: Isa,
        m: usize,
        n: usize,
        x: *const E,
        ldx: usize,
        dst: *mut f32,
        ldd: usize,
    );
    /// [`Self::stack`] where the rows have to be changed for it, into `room` (of [`Self::room`] floats); else the rows
    /// where they are. The words and their stride.
    ///
    /// # Safety
    /// As [`Self::stack`].
    unsafe fn stacked<E: Element>(
        isa: Isa,
        m: usize,
        n: usize,
        x: *const E,
        ldx: usize,
        room: *mut f32,
    ) -> (*const f32, usize);
    /// Floats that [`Self::stacked`] may need.
    fn room(m: usize, n: usize) -> usize;
    /// `e^(v - shift)` of what becomes values of an operand; `v` is at most `shift`.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn exp<S: Lanes>(v: S::V, shift: f32) -> S::V;
}

/// How the words of a tile are multiplied and added: as `f32`, where an implementation says nothing else.
pub(crate) trait Product: Copy + 'static {
    /// Parts of a word that are multiplied one after the other.
    const PARTS: usize = 1;
    /// Whether the processor has an instruction for it that [`Lanes::dot_bf16`] stands for.
    const DOT: bool = false;
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn part<S: Lanes>(v: S::V, _part: usize) -> S::V {
        v
    }
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn add<S: Lanes>(a: S::V, b: S::V, sum: S::V) -> S::V {
        S::fma(a, b, sum)
    }
    /// What is stored of a sum's lanes.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn total<S: Lanes>(sum: S::V) -> f32 {
        S::sum(sum)
    }
    /// [`Self::total`] of four sums.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn totals<S: Lanes>(sums: [S::V; 4]) -> [f32; 4] {
        S::sums(sums)
    }
}

/// fp32.
#[derive(Clone, Copy)]
pub(crate) struct Fp32;

/// Pairs of bfloat16; as a product, each value widened and multiplied in fp32.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

/// Pairs of bfloat16 by the dot-product instruction.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dot;

/// Signed bytes, four to a word, and their exact sum: the bits of an integer that is [`Lanes::ABOVE`] times the sum of the
/// second operand's bytes too large.
#[derive(Clone, Copy)]
pub(crate) struct Int8Dot;

/// An expression for the operand that a [`burnish_core::Compute`] names, as a processor of an [`Isa`] multiplies it.
macro_rules! with_operand {
    ($isa:expr, $compute:expr, $operand:ident => $call:expr) => {
        match $isa.multiplied($compute) {
            burnish_core::Compute::Fp32 => {
                type $operand = $crate::operand::Fp32;
                $call
            }
            burnish_core::Compute::Bf16 => {
                type $operand = $crate::operand::Bf16;
                $call
            }
        }
    };
}
pub(crate) use with_operand;

impl Product for Fp32 {}

impl Product for Bf16 {
    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn part<S: Lanes>(v: S::V, part: usize) -> S::V {
        if part == 0 { S::low_half(v) } else { S::high_half(v) }
    }
}

impl Product for Bf16Dot {
    const DOT: bool = true;

    #[inline(always)]
    unsafe fn add<S: Lanes>(a: S::V, b: S::V, sum: S::V) -> S::V {
        S::dot_bf16(a, b, sum)
    }
}

impl Product for Int8Dot {
    #[inline(always)]
    unsafe fn add<S: Lanes>(a: S::V, b: S::V, sum: S::V) -> S::V {
        S::dot_i8(a, b, sum)
    }
    #[inline(always)]
    unsafe fn total<S: Lanes>(sum: S::V) -> f32 {
        f32::from_bits(S::sum_i32(sum).cast_unsigned())
    }
    #[inline(always)]
    unsafe fn totals<S: Lanes>(sums: [S::V; 4]) -> [f32; 4] {
        sums.map(|sum| Self::total::<S>(sum))
    }
}

impl Operand for Fp32 {
    type Value = f32;
    type Product = Self;
    const VALUES: usize = 1;

    #[inline(always)]
    fn word(first: f32, _: f32) -> f32 {
        first
    }
    fn ones() -> f32 {
        1.0
    }
    fn constant(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    unsafe fn columns<S: Lanes, E: Element>(w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32) {
        crate::pack::columns_of_values::<S, E>(w, ldw, k, n, panel);
    }
    unsafe fn stack<E: Element>(
        isa: Isa,
        m: usize,
        n: usize,
        x: *const E,
        ldx: usize,
        dst: *mut f32,
        ldd: usize,
    ) {
        copy_rows(isa, m, n, x, ldx, dst, TileLayout::rows(ldd));
    }
    unsafe fn stacked<E: Element>(
        _: Isa,
        _: usize,
        _: usize,
        x: *const E,
        ldx: usize,
        _: *mut f32,
    ) -> (*const f32, usize) {
        debug_assert_eq!(size_of::<E>(), 4, "rows of fp32 are fp32");
        (x.cast(), ldx)
    }
    fn room(_: usize, _: usize) -> usize {
        0
    }
    #[inline(always)]
    unsafe fn exp<S: Lanes>(v: S::V, shift: f32) -> S::V {
        S::exp(S::sub(v, S::splat(shift)))
    }
}

impl Operand for Bf16 {
    type Value = bf16;
    type Product = Self;
    const VALUES: usize = 2;

    #[inline(always)]
    fn word(first: f32, second: f32) -> f32 {
        let bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
        f32::from_bits(bits(first) | bits(second) << 16)
    }
    fn ones() -> f32 {
        Self::word(1.0, 1.0)
    }
    /// The value rounded, and what rounding took: a bias is added with 16 bits of precision.
    fn constant(x: f32) -> f32 {
        let high = bf16::from_f32(x).to_f32();
        let rest = x - high;
        Self::word(high, if rest.is_finite() { rest } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn columns<S: Lanes, E: Element>(w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32) {
        crate::pack::columns_of_pairs::<S, E>(w, ldw, k, n, panel);
    }
    unsafe fn stack<E: Element>(
        isa: Isa,
        m: usize,
        n: usize,
        x: *const E,
        ldx: usize,
        dst: *mut f32,
        ldd: usize,
    ) {
        pair_rows(isa, m, n, x, ldx, dst, ldd);
    }
    unsafe fn stacked<E: Element>(
        isa: Isa,
        m: usize,
        n: usize,
        x: *const E,
        ldx: usize,
        room: *mut f32,
    ) -> (*const f32, usize) {
        pair_rows(isa, m, n, x, ldx, room, n);
        (room, n)
    }
    fn room(m: usize, n: usize) -> usize {
        Self::words(m) * n
    }
    #[inline(always)]
    unsafe fn exp<S: Lanes>(v: S::V, shift: f32) -> S::V {
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        S::exp2_short(S::fma(v, S::splat(LOG2_E), S::splat(-shift * LOG2_E)))
    }
}

#[inline(always)]
unsafe fn pair_rows_body<S: Lanes, E: Element>(
    m: usize,
    n: usize,
    x: *const E,
    ldx: usize,
    dst: *mut f32,
    ldd: usize,
) {
    for i in 0..m.div_ceil(2) {
        let (first, to) = (x.add(2 * i * ldx), dst.add(i * ldd));
        let second = first.wrapping_add(ldx);
        prefetch_row::<S, E>(first, n, ldx);
        prefetch_row::<S, E>(second, n, ldx);
        let paired = 2 * i + 1 < m;
        let mut c = 0;
        while c + S::N <= n {
            let words = if paired {
                E::pair::<S>(first.add(c), second.wrapping_add(c))
            } else {
                S::pair(E::load::<S>(first.add(c)), S::splat(0.0))
            };
            S::store(to.add(c), words);
            c += S::N;
        }
        for c in c..n {
            let high = if paired { (*second.wrapping_add(c)).widen() } else { 0.0 };
            *to.add(c) = Bf16::word((*first.add(c)).widen(), high);
        }
    }
}

dispatch! {
    narrowing
    /// Pairs of rows: the words `(x[2 i][c], x[2 i + 1][c])`; an odd last row is paired with zeros. `dst` may be `x`
    /// where the stride of its words is at most that of the rows.
    ///
    /// # Safety
    /// As [`Operand::stack`].
    pub(crate) unsafe fn pair_rows = pair_rows_body [E: Element] [E]
        (m: usize, n: usize, x: *const E, ldx: usize, dst: *mut f32, ldd: usize)
}
