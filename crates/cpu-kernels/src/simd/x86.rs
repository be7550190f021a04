//! Lanes of x86-64: AVX-512F (16 floats) and AVX2 with FMA and F16C (8 floats).

use super::{Element, Lanes};
use crate::micro::{APART, Tile, tile};
use crate::operand::{Bf16Dot, Product};
use std::arch::x86_64::*;
use std::ptr::null_mut;

/// 16 lanes of AVX-512F; with `BF16` bfloat16 is made by AVX512_BF16's instructions, which take denormals for zeros as its
/// products do.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool = false>;

/// 8 lanes of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

const COLUMN_MIX: i32 = 0x9E37_79B9_u32 as i32;
const MIX_1: i32 = 0x7feb_352d;
const MIX_2: i32 = 0x846c_a68b_u32 as i32;

/// `tile` in a function of its own: 28 accumulators leave no register for a caller.
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn tile_avx512<P: Product, const M: usize, const V: usize, const RS: usize>(t: &Tile) {
    tile::<Avx512, P, M, V, RS, APART>(t, null_mut());
}

#[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
unsafe fn tile_avx512_bf16<const M: usize, const V: usize, const RS: usize>(t: &Tile) {
    tile::<Avx512<true>, Bf16Dot, M, V, RS, APART>(t, null_mut());
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_avx2<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
    t: &Tile,
    kept: *mut f32,
) {
    tile::<Avx2, P, M, V, RS, B>(t, kept);
}

/// Each lane with its upper half rounded to bfloat16, to nearest even; the lower half is anything.
#[inline(always)]
unsafe fn rounded_avx512(v: __m512) -> __m512i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
}

/// As [`rounded_avx512`].
#[inline(always)]
unsafe fn rounded_avx2(v: __m256) -> __m256i {
    let bits = _mm256_castps_si256(v);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    _mm256_blendv_epi8(rounded, quiet, nan)
}

/// Products of 32 signed bytes, in pairs of pairs, added to eight integers.
#[inline(always)]
unsafe fn dot_i8_avx2(a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
    let half = |v: __m128i| _mm256_cvtepi8_epi16(v);
    let low = _mm256_madd_epi16(half(_mm256_castsi256_si128(a)), half(_mm256_castsi256_si128(b)));
    let (a, b) = (_mm256_extracti128_si256::<1>(a), _mm256_extracti128_si256::<1>(b));
    _mm256_add_epi32(_mm256_add_epi32(sum, low), _mm256_madd_epi16(half(a), half(b)))
}

/// The values of two vectors of sixteen in turn.
static IN_TURN: [u16; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i as u16 & 1) * 16 + i as u16 / 2;
        i += 1;
    }
    order
};

impl<const BF16: bool> Lanes for Avx512<BF16> {
    const N: usize = 16;
    const ROWS: usize = 14;
    const COLS: usize = 2;
    type V = __m512;
    type M = __mmask16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> __mmask16 {
        ((1_u32 << n) - 1) as u16
    }
    #[inline(always)]
    unsafe fn load_m(m: __mmask16, p: *const f32) -> __m512 {
        _mm512_maskz_loadu_ps(m, p)
    }
    #[inline(always)]
    unsafe fn store_m(m: __mmask16, p: *mut f32, v: __m512) {
        _mm512_mask_storeu_ps(p, m, v);
    }
    #[inline(always)]
    unsafe fn keep(m: __mmask16, v: __m512) -> __m512 {
        _mm512_maskz_mov_ps(m, v)
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m512) -> __m512 {
        _mm512_sqrt_ps(a)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<8>(a)
    }
    #[inline(always)]
    unsafe fn scale2(a: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(a, n)
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        _mm512_reduce_add_ps(v)
    }
    /// Halves are added as one vector's are, of two vectors at once, then of four.
    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let halves = |a, b| {
            _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            )
        };
        let (ab, cd) = (halves(a, b), halves(c, d));
        let (low, high) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd), _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
        let quarters = _mm512_add_ps(low, high);
        let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0b01_00_11_10>(quarters));
        let all = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
        let first = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all));
        std::mem::transmute::<__m128, [f32; 4]>(first)
    }
    #[inline(always)]
    unsafe fn top(v: __m512) -> f32 {
        _mm512_reduce_max_ps(v)
    }
    /// The 14-bit estimate and one step of Newton's method.
    #[inline(always)]
    unsafe fn recip(a: __m512) -> __m512 {
        let r = _mm512_rcp14_ps(a);
        _mm512_mul_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0)))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn look_up(codes: *const u8, table: &[__m512; 2], to: *mut f32) {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
        // Of an index the lower four bits count.
        let first = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), table[0]);
        let second = _mm512_permutexvar_ps(bytes, table[0]);
        let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        _mm512_storeu_ps(to, _mm512_permutex2var_ps(first, low, second));
        _mm512_storeu_ps(to.add(16), _mm512_permutex2var_ps(first, high, second));
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        if BF16 {
            let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
            return _mm256_storeu_si256(p.cast(), bits);
        }
        let bits = _mm512_srli_epi32::<16>(rounded_avx512(v));
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(bits));
    }
    #[inline(always)]
    unsafe fn store_bf16_m(m: __mmask16, p: *mut u16, v: __m512) {
        if BF16 {
            let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
            return _mm256_mask_storeu_epi16(p.cast(), m, bits);
        }
        let bits = _mm512_srli_epi32::<16>(rounded_avx512(v));
        _mm512_mask_cvtepi32_storeu_epi16(p.cast(), m, bits);
    }
    #[inline(always)]
    unsafe fn pair(low: __m512, high: __m512) -> __m512 {
        if BF16 {
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            let order = _mm512_loadu_si512(IN_TURN.as_ptr().cast());
            return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
        }
        let low = _mm512_srli_epi32::<16>(rounded_avx512(low));
        let high = _mm512_and_si512(rounded_avx512(high), _mm512_set1_epi32(!0xffff));
        _mm512_castsi512_ps(_mm512_or_si512(low, high))
    }
    #[inline(always)]
    unsafe fn pair_bf16(low: *const u16, high: *const u16) -> __m512 {
        let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(low.cast()));
        let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(high.cast()));
        _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
    }
    #[inline(always)]
    unsafe fn low_half(v: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(v)))
    }
    #[inline(always)]
    unsafe fn high_half(v: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(!0xffff)))
    }
    #[inline(always)]
    unsafe fn dot_bf16(a: __m512, b: __m512, sum: __m512) -> __m512 {
        if !BF16 {
            let sum = Self::fma(Self::low_half(a), Self::low_half(b), sum);
            return Self::fma(Self::high_half(a), Self::high_half(b), sum);
        }
        let pairs = |v: __m512| std::mem::transmute::<__m512, __m512bh>(v);
        _mm512_dpbf16_ps(sum, pairs(a), pairs(b))
    }
    const ABOVE: i32 = if BF16 { 128 } else { 0 };
    #[inline(always)]
    unsafe fn dot_i8(a: __m512, b: __m512, sum: __m512) -> __m512 {
        let [a, b, sum] = [a, b, sum].map(|v| _mm512_castps_si512(v));
        if BF16 {
            // The instruction takes one of its operands as bytes without a sign.
            let above = _mm512_xor_si512(a, _mm512_set1_epi8(-128));
            return _mm512_castsi512_ps(_mm512_dpbusd_epi32(sum, above, b));
        }
        let halves = |v: __m512i| [_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)];
        let [(a, b, sum), upper] = [0, 1].map(|half| (halves(a)[half], halves(b)[half], halves(sum)[half]));
        let (low, high) = (dot_i8_avx2(a, b, sum), dot_i8_avx2(upper.0, upper.1, upper.2));
        _mm512_castsi512_ps(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
    }
    #[inline(always)]
    unsafe fn sum_i32(v: __m512) -> i32 {
        _mm512_reduce_add_epi32(_mm512_castps_si512(v))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        let bits = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
        _mm256_storeu_si256(p.cast(), bits);
    }
    #[inline(always)]
    unsafe fn transpose<E: Element>(src: *const E, ld: usize, dst: *mut f32, ldd: usize) {
        // Pairs of rows, then fours, within 128-bit lanes; then the lanes themselves.
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = E::load::<Self>(src.add(i * ld));
        }
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            let pd = |v| _mm512_castps_pd(v);
            let ps = |v| _mm512_castpd_ps(v);
            r[4 * i] = ps(_mm512_unpacklo_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
            r[4 * i + 1] = ps(_mm512_unpackhi_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
            r[4 * i + 2] = ps(_mm512_unpacklo_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
            r[4 * i + 3] = ps(_mm512_unpackhi_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
        }
        for i in 0..4 {
            t[i] = _mm512_shuffle_f32x4::<0x88>(r[i], r[i + 4]);
            t[i + 4] = _mm512_shuffle_f32x4::<0xdd>(r[i], r[i + 4]);
            t[i + 8] = _mm512_shuffle_f32x4::<0x88>(r[i + 8], r[i + 12]);
            t[i + 12] = _mm512_shuffle_f32x4::<0xdd>(r[i + 8], r[i + 12]);
        }
        for i in 0..4 {
            _mm512_storeu_ps(dst.add(i * ldd), _mm512_shuffle_f32x4::<0x88>(t[i], t[i + 8]));
            _mm512_storeu_ps(dst.add((i + 8) * ldd), _mm512_shuffle_f32x4::<0xdd>(t[i], t[i + 8]));
            _mm512_storeu_ps(dst.add((i + 4) * ldd), _mm512_shuffle_f32x4::<0x88>(t[i + 4], t[i + 12]));
            _mm512_storeu_ps(dst.add((i + 12) * ldd), _mm512_shuffle_f32x4::<0xdd>(t[i + 4], t[i + 12]));
        }
    }
    #[inline(always)]
    unsafe fn dropout(row: u32, col: u32, threshold: u32, keep: f32) -> __m512 {
        let lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let col = _mm512_add_epi32(_mm512_set1_epi32(col as i32), lane);
        let mixed = _mm512_mullo_epi32(col, _mm512_set1_epi32(COLUMN_MIX));
        let mut x = _mm512_xor_si512(_mm512_set1_epi32(row as i32), mixed);
        x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
        x = _mm512_mullo_epi32(x, _mm512_set1_epi32(MIX_1));
        x = _mm512_xor_si512(x, _mm512_srli_epi32::<15>(x));
        x = _mm512_mullo_epi32(x, _mm512_set1_epi32(MIX_2));
        x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
        let kept = _mm512_cmpge_epu32_mask(x, _mm512_set1_epi32(threshold as i32));
        _mm512_maskz_mov_ps(kept, _mm512_set1_ps(keep))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn tile<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
        t: &Tile,
        _kept: *mut f32,
    ) {
        debug_assert!(B == APART, "a tile is as wide as a panel");
        if P::DOT {
            tile_avx512_bf16::<M, V, RS>(t);
        } else {
            tile_avx512::<P, M, V, RS>(t);
        }
    }
}

impl Lanes for Avx2 {
    const N: usize = 8;
    const ROWS: usize = 6;
    const COLS: usize = 2;
    type V = __m256;
    type M = __m256i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0))
    }
    #[inline(always)]
    unsafe fn load_m(m: __m256i, p: *const f32) -> __m256 {
        _mm256_maskload_ps(p, m)
    }
    #[inline(always)]
    unsafe fn store_m(m: __m256i, p: *mut f32, v: __m256) {
        // AMD's processors take 42 operations for a masked store, of all lanes too.
        if _mm256_movemask_ps(_mm256_castsi256_ps(m)) == 0xff {
            return Self::store(p, v);
        }
        _mm256_maskstore_ps(p, m, v);
    }
    #[inline(always)]
    unsafe fn keep(m: __m256i, v: __m256) -> __m256 {
        _mm256_and_ps(_mm256_castsi256_ps(m), v)
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m256) -> __m256 {
        _mm256_sqrt_ps(a)
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn scale2(a: __m256, n: __m256) -> __m256 {
        let normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(n, _mm256_set1_ps(-126.0));
        let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
        _mm256_and_ps(normal, _mm256_mul_ps(a, _mm256_and_ps(normal, _mm256_castsi256_ps(power))))
    }
    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        let h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let h = _mm_add_ps(h, _mm_movehl_ps(h, h));
        _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps::<1>(h, h)))
    }
    #[inline(always)]
    unsafe fn top(v: __m256) -> f32 {
        let h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let h = _mm_max_ps(h, _mm_movehl_ps(h, h));
        _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps::<1>(h, h)))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
    }
    #[inline(always)]
    unsafe fn look_up(codes: *const u8, table: &[__m256; 2], to: *mut f32) {
        // Of an index the lower three bits count; the fourth, as a sign, chooses the half.
        let of = |index: __m256i| {
            let halves = table.map(|half| _mm256_permutevar8x32_ps(half, index));
            _mm256_blendv_ps(halves[0], halves[1], _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
        };
        let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
        let (first, second) = (of(_mm256_srli_epi32::<4>(bytes)), of(bytes));
        let (low, high) = (_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
        _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(low, high));
        _mm256_storeu_ps(to.add(8), _mm256_permute2f128_ps::<0x31>(low, high));
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m256) {
        let bits = _mm256_srli_epi32::<16>(rounded_avx2(v));
        let packed = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits));
        _mm_storeu_si128(p.cast(), packed);
    }
    #[inline(always)]
    unsafe fn store_bf16_m(m: __m256i, p: *mut u16, v: __m256) {
        let mut all = [0_u16; 8];
        Self::store_bf16(all.as_mut_ptr(), v);
        let n = _mm256_movemask_ps(_mm256_castsi256_ps(m)).count_ones() as usize;
        std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
    }
    #[inline(always)]
    unsafe fn pair(low: __m256, high: __m256) -> __m256 {
        let low = _mm256_srli_epi32::<16>(rounded_avx2(low));
        let high = _mm256_and_si256(rounded_avx2(high), _mm256_set1_epi32(!0xffff));
        _mm256_castsi256_ps(_mm256_or_si256(low, high))
    }
    #[inline(always)]
    unsafe fn pair_bf16(low: *const u16, high: *const u16) -> __m256 {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(low.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(high.cast()));
        _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32::<16>(high)))
    }
    #[inline(always)]
    unsafe fn low_half(v: __m256) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(v)))
    }
    #[inline(always)]
    unsafe fn high_half(v: __m256) -> __m256 {
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(!0xffff)))
    }
    #[inline(always)]
    unsafe fn dot_i8(a: __m256, b: __m256, sum: __m256) -> __m256 {
        let [a, b, sum] = [a, b, sum].map(|v| _mm256_castps_si256(v));
        _mm256_castsi256_ps(dot_i8_avx2(a, b, sum))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        let bits = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
        _mm_storeu_si128(p.cast(), bits);
    }
    #[inline(always)]
    unsafe fn transpose<E: Element>(src: *const E, ld: usize, dst: *mut f32, ldd: usize) {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            *r = E::load::<Self>(src.add(i * ld));
        }
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            r[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
            r[4 * i + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
            r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
            r[4 * i + 3] = _mm256_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
        }
        for i in 0..4 {
            _mm256_storeu_ps(dst.add(i * ldd), _mm256_permute2f128_ps::<0x20>(r[i], r[i + 4]));
            _mm256_storeu_ps(dst.add((i + 4) * ldd), _mm256_permute2f128_ps::<0x31>(r[i], r[i + 4]));
        }
    }
    #[inline(always)]
    unsafe fn dropout(row: u32, col: u32, threshold: u32, keep: f32) -> __m256 {
        let lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
        let col = _mm256_add_epi32(_mm256_set1_epi32(col as i32), lane);
        let mixed = _mm256_mullo_epi32(col, _mm256_set1_epi32(COLUMN_MIX));
        let mut x = _mm256_xor_si256(_mm256_set1_epi32(row as i32), mixed);
        x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(MIX_1));
        x = _mm256_xor_si256(x, _mm256_srli_epi32::<15>(x));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(MIX_2));
        x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
        // x >= threshold, unsigned: the larger of the two is x.
        let kept = _mm256_cmpeq_epi32(_mm256_max_epu32(x, _mm256_set1_epi32(threshold as i32)), x);
        _mm256_and_ps(_mm256_castsi256_ps(kept), _mm256_set1_ps(keep))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn tile<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
        t: &Tile,
        kept: *mut f32,
    ) {
        tile_avx2::<P, M, V, RS, B>(t, kept);
    }
}
