//! Lanes of aarch64: two vectors of NEON (8 floats), which every such processor has.
//!
//! Conversions of IEEE half and dot products of bfloat16 are written as the instructions they are: the compiler has no names
//! for them.

use super::{Element, Lanes};
use crate::micro::{Tile, tile};
use crate::operand::{Bf16Dot, Product};
use std::arch::aarch64::*;
use std::arch::asm;

/// 8 lanes of NEON; with `BF16` products of bfloat16 are its instruction.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const BF16: bool = false>;

/// Eight floats.
#[derive(Clone, Copy)]
pub(crate) struct Eight(float32x4_t, float32x4_t);

const N: usize = 8;
const COLUMN_MIX: u32 = 0x9E37_79B9;
const MIX_1: u32 = 0x7feb_352d;
const MIX_2: u32 = 0x846c_a68b;
static LANES: [u32; N] = [0, 1, 2, 3, 4, 5, 6, 7];

/// `tile` in a function of its own, as the instruction needs it.
#[target_feature(enable = "neon,bf16")]
unsafe fn tile_bf16<const M: usize, const V: usize, const RS: usize, const B: u8>(t: &Tile, kept: *mut f32) {
    tile::<Neon<true>, Bf16Dot, M, V, RS, B>(t, kept);
}

/// `f` of both halves.
macro_rules! both {
    (|$($v:ident),+| $f:expr) => {{
        let low = { $(let $v = $v.0;)+ $f };
        let high = { $(let $v = $v.1;)+ $f };
        Eight(low, high)
    }};
}

/// Each lane with its upper half rounded to bfloat16, to nearest even; the lower half is anything.
#[inline(always)]
unsafe fn rounded(v: float32x4_t) -> uint32x4_t {
    let bits = vreinterpretq_u32_f32(v);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    vbslq_u32(vceqq_f32(v, v), up, vorrq_u32(bits, vdupq_n_u32(0x0040_0000)))
}

#[inline(always)]
unsafe fn power(n: float32x4_t) -> float32x4_t {
    let normal = vmvnq_u32(vcltq_f32(n, vdupq_n_f32(-126.0)));
    let bits = vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)));
    vreinterpretq_f32_u32(vandq_u32(normal, vreinterpretq_u32_s32(bits)))
}

#[inline(always)]
unsafe fn wide_half(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) bits, options(pure, nomem, nostack));
    wide
}

#[inline(always)]
unsafe fn narrow_half(v: float32x4_t) -> uint16x4_t {
    let bits: uint16x4_t;
    asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) bits, in(vreg) v, options(pure, nomem, nostack));
    bits
}

#[inline(always)]
unsafe fn dots(a: float32x4_t, b: float32x4_t, sum: float32x4_t) -> float32x4_t {
    let mut sum = sum;
    asm!("bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h", inout(vreg) sum, in(vreg) a, in(vreg) b,
        options(pure, nomem, nostack));
    sum
}

/// Four rows of four to columns.
#[inline(always)]
unsafe fn four(r: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let (a, b) = (vtrn1q_f32(r[0], r[1]), vtrn2q_f32(r[0], r[1]));
    let (c, d) = (vtrn1q_f32(r[2], r[3]), vtrn2q_f32(r[2], r[3]));
    let wide = |v| vreinterpretq_f64_f32(v);
    let thin = |v| vreinterpretq_f32_f64(v);
    [
        thin(vtrn1q_f64(wide(a), wide(c))),
        thin(vtrn1q_f64(wide(b), wide(d))),
        thin(vtrn2q_f64(wide(a), wide(c))),
        thin(vtrn2q_f64(wide(b), wide(d))),
    ]
}

/// Whether the mask keeps elements, from a counter-based hash of row and column.
#[inline(always)]
unsafe fn kept(row: u32, col: uint32x4_t, threshold: u32) -> uint32x4_t {
    let mut x = veorq_u32(vdupq_n_u32(row), vmulq_u32(col, vdupq_n_u32(COLUMN_MIX)));
    x = veorq_u32(x, vshrq_n_u32::<16>(x));
    x = vmulq_u32(x, vdupq_n_u32(MIX_1));
    x = veorq_u32(x, vshrq_n_u32::<15>(x));
    x = vmulq_u32(x, vdupq_n_u32(MIX_2));
    x = veorq_u32(x, vshrq_n_u32::<16>(x));
    vcgeq_u32(x, vdupq_n_u32(threshold))
}

impl<const BF16: bool> Lanes for Neon<BF16> {
    const N: usize = N;
    const ROWS: usize = 6;
    const COLS: usize = 2;
    type V = Eight;
    type M = usize;

    #[inline(always)]
    unsafe fn dot_i8(a: Eight, b: Eight, sum: Eight) -> Eight {
        both!(|a, b, sum| {
            let (a, b) = (vreinterpretq_s8_f32(a), vreinterpretq_s8_f32(b));
            let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
            let sum = vpadalq_s16(vreinterpretq_s32_f32(sum), low);
            vreinterpretq_f32_s32(vpadalq_s16(sum, vmull_high_s8(a, b)))
        })
    }
    #[inline(always)]
    unsafe fn sum_i32(v: Eight) -> i32 {
        let lanes = |v| vaddvq_s32(vreinterpretq_s32_f32(v));
        lanes(v.0).wrapping_add(lanes(v.1))
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Eight {
        Eight(vdupq_n_f32(x), vdupq_n_f32(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Eight {
        Eight(vld1q_f32(p), vld1q_f32(p.add(4)))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Eight) {
        vst1q_f32(p, v.0);
        vst1q_f32(p.add(4), v.1);
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> usize {
        n
    }
    #[inline(always)]
    unsafe fn load_m(m: usize, p: *const f32) -> Eight {
        if m == N {
            return Self::load(p);
        }
        let mut all = [0.0_f32; N];
        std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), m);
        Self::load(all.as_ptr())
    }
    #[inline(always)]
    unsafe fn store_m(m: usize, p: *mut f32, v: Eight) {
        if m == N {
            return Self::store(p, v);
        }
        let mut all = [0.0_f32; N];
        Self::store(all.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(all.as_ptr(), p, m);
    }
    #[inline(always)]
    unsafe fn keep(m: usize, v: Eight) -> Eight {
        let end = vdupq_n_u32(m as u32);
        let half = |lanes: *const u32, v: float32x4_t| {
            let inside = vcltq_u32(vld1q_u32(lanes), end);
            vreinterpretq_f32_u32(vandq_u32(inside, vreinterpretq_u32_f32(v)))
        };
        Eight(half(LANES.as_ptr(), v.0), half(LANES.as_ptr().add(4), v.1))
    }
    #[inline(always)]
    unsafe fn add(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sqrt(a: Eight) -> Eight {
        both!(|a| vsqrtq_f32(a))
    }
    #[inline(always)]
    unsafe fn fma(a: Eight, b: Eight, c: Eight) -> Eight {
        both!(|a, b, c| vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn fnma(a: Eight, b: Eight, c: Eight) -> Eight {
        both!(|a, b, c| vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Eight, b: Eight) -> Eight {
        both!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    unsafe fn round(a: Eight) -> Eight {
        both!(|a| vrndnq_f32(a))
    }
    #[inline(always)]
    unsafe fn scale2(a: Eight, n: Eight) -> Eight {
        both!(|a, n| vmulq_f32(a, power(n)))
    }
    #[inline(always)]
    unsafe fn sum(v: Eight) -> f32 {
        vaddvq_f32(vaddq_f32(v.0, v.1))
    }
    #[inline(always)]
    unsafe fn top(v: Eight) -> f32 {
        vmaxvq_f32(vmaxq_f32(v.0, v.1))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Eight {
        let bits = vld1q_u16(p);
        Eight(
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(bits))),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(bits))),
        )
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Eight {
        Eight(wide_half(vld1_u16(p)), wide_half(vld1_u16(p.add(4))))
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Eight) {
        let (low, high) = (vshrn_n_u32::<16>(rounded(v.0)), vshrn_n_u32::<16>(rounded(v.1)));
        vst1q_u16(p, vcombine_u16(low, high));
    }
    #[inline(always)]
    unsafe fn store_bf16_m(m: usize, p: *mut u16, v: Eight) {
        let mut all = [0_u16; N];
        Self::store_bf16(all.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(all.as_ptr(), p, m);
    }
    #[inline(always)]
    unsafe fn pair(low: Eight, high: Eight) -> Eight {
        // The lower half's bits go under the upper half's.
        both!(|low, high| vreinterpretq_f32_u32(vsriq_n_u32::<16>(rounded(high), rounded(low))))
    }
    #[inline(always)]
    unsafe fn low_half(v: Eight) -> Eight {
        both!(|v| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(v))))
    }
    #[inline(always)]
    unsafe fn high_half(v: Eight) -> Eight {
        both!(|v| vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0xffff_0000))))
    }
    #[inline(always)]
    unsafe fn dot_bf16(a: Eight, b: Eight, sum: Eight) -> Eight {
        if !BF16 {
            let sum = Self::fma(Self::low_half(a), Self::low_half(b), sum);
            return Self::fma(Self::high_half(a), Self::high_half(b), sum);
        }
        both!(|a, b, sum| dots(a, b, sum))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Eight) {
        vst1_u16(p, narrow_half(v.0));
        vst1_u16(p.add(4), narrow_half(v.1));
    }
    #[inline(always)]
    unsafe fn transpose<E: Element>(src: *const E, ld: usize, dst: *mut f32, ldd: usize) {
        let mut rows = [Self::splat(0.0); N];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = E::load::<Self>(src.add(i * ld));
        }
        for first in [0, 4] {
            let r = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
            for (j, column) in four(r.map(|v| v.0)).into_iter().enumerate() {
                vst1q_f32(dst.add(j * ldd + first), column);
            }
            for (j, column) in four(r.map(|v| v.1)).into_iter().enumerate() {
                vst1q_f32(dst.add((j + 4) * ldd + first), column);
            }
        }
    }
    #[inline(always)]
    unsafe fn dropout(row: u32, col: u32, threshold: u32, keep: f32) -> Eight {
        let first = vdupq_n_u32(col);
        let half = |lanes: *const u32| {
            let kept = kept(row, vaddq_u32(first, vld1q_u32(lanes)), threshold);
            vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(vdupq_n_f32(keep))))
        };
        Eight(half(LANES.as_ptr()), half(LANES.as_ptr().add(4)))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[inline(always)]
    unsafe fn tile<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
        t: &Tile,
        kept: *mut f32,
    ) {
        if P::DOT {
            tile_bf16::<M, V, RS, B>(t, kept);
        } else {
            tile::<Self, P, M, V, RS, B>(t, kept);
        }
    }
}
