//! Lanes of plain code: eight floats in an array, left to the compiler's vectoriser.

use super::{Element, Lanes};
use crate::micro::{Tile, tile};
use crate::operand::Product;
use burnish_core::random::dropout_bits;
use half::{bf16, f16};

/// Eight lanes for any target.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

const N: usize = 8;
type V8 = [f32; N];

#[inline(always)]
fn map2(a: V8, b: V8, f: impl Fn(f32, f32) -> f32) -> V8 {
    let mut out = a;
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// `a * b + c`, fused where the target has the instruction (a call into libm is many times slower).
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

impl Lanes for Plain {
    const N: usize = N;
    const ROWS: usize = 4;
    const COLS: usize = 1;
    type V = V8;
    type M = usize;

    #[inline(always)]
    unsafe fn splat(x: f32) -> V8 {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V8 {
        p.cast::<V8>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V8) {
        p.cast::<V8>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> usize {
        n
    }
    #[inline(always)]
    unsafe fn load_m(m: usize, p: *const f32) -> V8 {
        if m == N {
            return Self::load(p);
        }
        let mut v = [0.0; N];
        for (i, x) in v.iter_mut().enumerate().take(m) {
            *x = *p.add(i);
        }
        v
    }
    #[inline(always)]
    unsafe fn store_m(m: usize, p: *mut f32, v: V8) {
        if m == N {
            return Self::store(p, v);
        }
        for (i, x) in v.iter().enumerate().take(m) {
            *p.add(i) = *x;
        }
    }
    #[inline(always)]
    unsafe fn keep(m: usize, v: V8) -> V8 {
        let mut out = v;
        for (i, x) in out.iter_mut().enumerate() {
            *x = if i < m { *x } else { 0.0 };
        }
        out
    }
    #[inline(always)]
    unsafe fn add(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: V8) -> V8 {
        map2(a, a, |a, _| a.sqrt())
    }
    #[inline(always)]
    unsafe fn fma(a: V8, b: V8, c: V8) -> V8 {
        let mut out = c;
        for i in 0..N {
            out[i] = mul_add(a[i], b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    unsafe fn fnma(a: V8, b: V8, c: V8) -> V8 {
        let mut out = c;
        for i in 0..N {
            out[i] = mul_add(-a[i], b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    unsafe fn max(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: V8, b: V8) -> V8 {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn round(a: V8) -> V8 {
        // Adding 1.5 * 2^23 leaves no room for a fraction: right for |a| < 2^22, as in `exp`.
        map2(a, a, |a, _| if a.abs() < 4_194_304.0 { (a + 12_582_912.0) - 12_582_912.0 } else { a })
    }
    #[inline(always)]
    unsafe fn scale2(a: V8, n: V8) -> V8 {
        map2(a, n, |a, n| {
            let power = f32::from_bits(((n as i32 + 127).clamp(1, 254) as u32) << 23);
            if n < -126.0 { 0.0 } else { a * power }
        })
    }
    #[inline(always)]
    unsafe fn sum(v: V8) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn top(v: V8) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> V8 {
        let bits = p.cast::<[u16; N]>().read_unaligned();
        bits.map(|b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V8 {
        let bits = p.cast::<[u16; N]>().read_unaligned();
        bits.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: V8) {
        p.cast::<[u16; N]>().write_unaligned(v.map(|x| bf16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn store_bf16_m(m: usize, p: *mut u16, v: V8) {
        for (i, x) in v.iter().enumerate().take(m) {
            *p.add(i) = bf16::from_f32(*x).to_bits();
        }
    }
    #[inline(always)]
    unsafe fn pair(low: V8, high: V8) -> V8 {
        let bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
        map2(low, high, |low, high| f32::from_bits(bits(low) | bits(high) << 16))
    }
    #[inline(always)]
    unsafe fn low_half(v: V8) -> V8 {
        v.map(|x| f32::from_bits(x.to_bits() << 16))
    }
    #[inline(always)]
    unsafe fn high_half(v: V8) -> V8 {
        v.map(|x| f32::from_bits(x.to_bits() & !0xffff))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: V8) {
        p.cast::<[u16; N]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn transpose<E: Element>(src: *const E, ld: usize, dst: *mut f32, ldd: usize) {
        for j in 0..N {
            for i in 0..N {
                *dst.add(j * ldd + i) = (*src.add(i * ld + j)).widen();
            }
        }
    }
    #[inline(always)]
    unsafe fn dropout(row: u32, col: u32, threshold: u32, keep: f32) -> V8 {
        let mut out = [0.0; N];
        for (i, x) in out.iter_mut().enumerate() {
            let bits = dropout_bits(row, col.wrapping_add(i as u32));
            *x = if bits >= threshold { keep } else { 0.0 };
        }
        out
    }
    #[inline(never)]
    unsafe fn tile<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
        t: &Tile,
        kept: *mut f32,
    ) {
        tile::<Self, P, M, V, RS, B>(t, kept);
    }
}
