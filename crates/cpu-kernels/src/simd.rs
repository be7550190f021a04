//! Portable vector lanes, chosen at run time.
//!
//! A kernel body is written once, generic over [`Lanes`], with `#[inline(always)]`; [`dispatch!`] makes it
//! callable: one copy per instruction set under `#[target_feature]`, and a choice by [`Isa`].
//! An entry point asks [`isa`] once, on the caller's thread, and passes the answer down to its tasks.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::operand::Product;
use crate::tiles::AmxFault;
use burnish_core::Compute;
use std::cell::Cell;
use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use plain::Plain;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// The instruction sets the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// As the next, and products of bfloat16 on tile registers: x86-64 Linux with AMX-TILE and AMX-BF16.
    Amx,
    /// 16 lanes and dot products of bfloat16 and int8: x86-64 with AVX-512 F, BW, VL, BF16 and VNNI.
    Avx512Bf16,
    /// 16 lanes: x86-64 with AVX-512F.
    Avx512,
    /// 8 lanes: x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 8 lanes and dot products of bfloat16: aarch64 with BF16.
    NeonBf16,
    /// 8 lanes: aarch64.
    Neon,
    /// 8 lanes of plain code, vectorised by the compiler for the target's baseline.
    Portable,
    /// The fastest vectors there are, and products of bfloat16 on tile registers in plain Rust.
    #[cfg(test)]
    EmulatedAmx,
}

impl Isa {
    /// Every instruction set this process can run, the fastest first.
    #[must_use]
    pub fn available() -> &'static [Isa] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            let found: Vec<Isa> =
                amx().ok().into_iter().flatten().chain(Self::vectors().iter().copied()).collect();
            #[cfg(test)]
            let found = [found, vec![Isa::EmulatedAmx]].concat();
            found
        })
    }

    /// What runs all but products of bfloat16.
    pub(crate) fn lanes(self) -> Self {
        match self {
            Isa::Amx => Isa::Avx512Bf16,
            #[cfg(test)]
            Isa::EmulatedAmx => Self::vectors()[0],
            other => other,
        }
    }

    /// Whether it multiplies bfloat16 faster than fp32.
    #[must_use]
    pub fn has_bf16_dots(self) -> bool {
        #[cfg(test)]
        if self == Isa::EmulatedAmx {
            return true;
        }
        matches!(self, Isa::Amx | Isa::Avx512Bf16 | Isa::NeonBf16)
    }

    /// What products of `compute` multiply here. Without instructions for bfloat16 its values would only be rounded and
    /// widened again, in 1.6 times the time of fp32.
    pub(crate) fn multiplied(self, compute: Compute) -> Compute {
        if self.has_bf16_dots() { compute } else { Compute::Fp32 }
    }

    /// Those of vectors.
    fn vectors() -> &'static [Isa] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            let found = vec![Isa::Portable];
            #[cfg(target_arch = "x86_64")]
            let found = {
                let avx2 = is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c");
                let avx512 = avx2 && is_x86_feature_detected!("avx512f");
                let dots = avx512
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vnni");
                let fast = [
                    dots.then_some(Isa::Avx512Bf16),
                    avx512.then_some(Isa::Avx512),
                    avx2.then_some(Isa::Avx2),
                ];
                fast.into_iter().flatten().chain(found).collect()
            };
            #[cfg(target_arch = "aarch64")]
            let found = {
                let dots = std::arch::is_aarch64_feature_detected!("bf16").then_some(Isa::NeonBf16);
                dots.into_iter().chain([Isa::Neon]).chain(found).collect()
            };
            found
        })
    }
}

/// Whether AMX is wanted: who asks or says first decides for the process, as the system's permission is for all of it.
static AMX_WANTED: OnceLock<bool> = OnceLock::new();

/// Leaves a processor's tile registers alone, in this process. To be called before the first kernel; whether it was.
pub fn forgo_amx() -> bool {
    !*AMX_WANTED.get_or_init(|| false)
}

/// [`Isa::Amx`] where the processor has it and it works.
fn amx() -> &'static Result<Option<Isa>, AmxFault> {
    static FOUND: OnceLock<Result<Option<Isa>, AmxFault>> = OnceLock::new();
    FOUND.get_or_init(|| {
        if !*AMX_WANTED.get_or_init(|| true) {
            return Ok(None);
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        return Ok(crate::tiles::detection::found(Isa::vectors()[0])?.then_some(Isa::Amx));
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        Ok(None)
    })
}

/// Why the processor's tile registers are left alone although it has them; [`Isa::Avx512Bf16`] is used then.
#[must_use]
pub fn amx_fault() -> Option<AmxFault> {
    amx().as_ref().err().copied()
}

thread_local! { static CHOSEN: Cell<Option<Isa>> = const { Cell::new(None) }; }

/// The instruction set that kernels called on this thread use: the fastest, or that of [`with_isa`].
#[must_use]
pub fn isa() -> Isa {
    CHOSEN.get().unwrap_or(Isa::available()[0])
}

/// Runs `work` with the kernels it calls on this thread confined to `isa` (tests compare paths with it).
///
/// An instruction set that the processor lacks is replaced by [`Isa::Portable`].
pub fn with_isa<R>(isa: Isa, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Isa>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let isa = if Isa::available().contains(&isa) { isa } else { Isa::Portable };
    let _restore = Restore(CHOSEN.replace(Some(isa)));
    work()
}

/// A vector of `N` floats and the operations on it.
///
/// # Safety
/// Every method may be called only where the processor has the implementor's instruction set; pointers must be
/// valid for the lanes read or written (no alignment needed).
pub(crate) trait Lanes: Copy + 'static {
    /// Lanes of a vector.
    const N: usize;
    /// Rows of the micro-kernel's tile.
    const ROWS: usize;
    /// Vectors in a row of the micro-kernel's tile (1 or 2).
    const COLS: usize;
    /// The vector.
    type V: Copy;
    /// The first so many lanes.
    type M: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The mask of the first `n` lanes, `n <= N`.
    unsafe fn mask(n: usize) -> Self::M;
    /// Masked lanes from memory, the others zero and their memory untouched.
    unsafe fn load_m(m: Self::M, p: *const f32) -> Self::V;
    unsafe fn store_m(m: Self::M, p: *mut f32, v: Self::V);
    /// `v` in the masked lanes, zero in the others.
    unsafe fn keep(m: Self::M, v: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each lane; `b` where a lane is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of each lane; `b` where a lane is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `a * 2^n` for `n` integral in `[-150, 127]`; results below the normal range may become zero.
    unsafe fn scale2(a: Self::V, n: Self::V) -> Self::V;
    /// The sum of the lanes.
    unsafe fn sum(v: Self::V) -> f32;
    /// [`Self::sum`] of four vectors, to the bit.
    #[inline(always)]
    unsafe fn sums(v: [Self::V; 4]) -> [f32; 4] {
        v.map(|v| Self::sum(v))
    }
    /// The largest lane.
    unsafe fn top(v: Self::V) -> f32;
    /// `1 / a` to about 1 ulp, for `a >= 1`.
    #[inline(always)]
    unsafe fn recip(a: Self::V) -> Self::V {
        Self::div(Self::splat(1.0), a)
    }
    /// bfloat16 bits, widened.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// IEEE half bits, widened.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Signed bytes as floats.
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::V {
        let values: [f32; 16] =
            std::array::from_fn(|lane| if lane < Self::N { f32::from(*p.add(lane)) } else { 0.0 });
        Self::load(values.as_ptr())
    }
    /// What `table` (16 values, in one vector or two) has for `2 N` codes, two a byte, the first in the upper half.
    #[inline(always)]
    unsafe fn look_up(codes: *const u8, table: &[Self::V; 2], to: *mut f32) {
        let mut values = [0.0; 32];
        Self::store(values.as_mut_ptr(), table[0]);
        Self::store(values.as_mut_ptr().add(Self::N), table[1]);
        for i in 0..Self::N {
            let code = usize::from(*codes.add(i));
            *to.add(2 * i) = values[code >> 4];
            *to.add(2 * i + 1) = values[code & 15];
        }
    }
    /// Narrowed to bfloat16, to nearest even.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// [`Self::store_bf16`] of the masked lanes; the others' memory is untouched.
    unsafe fn store_bf16_m(m: Self::M, p: *mut u16, v: Self::V);
    /// Per lane the 32 bits of two bfloat16 values, `low` in the lower half; each to nearest even.
    unsafe fn pair(low: Self::V, high: Self::V) -> Self::V;
    /// The bfloat16 value in the lower half of each lane, widened.
    unsafe fn low_half(v: Self::V) -> Self::V;
    /// The bfloat16 value in the upper half of each lane, widened.
    unsafe fn high_half(v: Self::V) -> Self::V;
    /// `sum` and the products of both halves of each lane; by the processor's instruction where it has one.
    #[inline(always)]
    unsafe fn dot_bf16(a: Self::V, b: Self::V, sum: Self::V) -> Self::V {
        let sum = Self::fma(Self::low_half(a), Self::low_half(b), sum);
        Self::fma(Self::high_half(a), Self::high_half(b), sum)
    }
    /// What [`Self::dot_i8`] adds to each byte of `a`.
    const ABOVE: i32 = 0;
    /// `sum`, integers, and the products of the four signed bytes of each lane; which lane holds which part of the sum is
    /// the processor's to say. See [`Self::ABOVE`].
    #[inline(always)]
    unsafe fn dot_i8(a: Self::V, b: Self::V, sum: Self::V) -> Self::V {
        let mut lanes = [[0.0_f32; 16]; 3];
        lanes.iter_mut().zip([a, b, sum]).for_each(|(lanes, v)| Self::store(lanes.as_mut_ptr(), v));
        let [a, b, mut sum] = lanes;
        for (sum, (a, b)) in sum.iter_mut().zip(a.iter().zip(&b)) {
            let bytes = |word: &f32| word.to_bits().to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
            let products: i32 = bytes(a).iter().zip(bytes(b)).map(|(a, b)| a * b).sum();
            *sum = f32::from_bits(sum.to_bits().wrapping_add(products.cast_unsigned()));
        }
        Self::load(sum.as_ptr())
    }
    /// The sum of the lanes, integers.
    #[inline(always)]
    unsafe fn sum_i32(v: Self::V) -> i32 {
        let mut lanes = [0.0_f32; 16];
        Self::store(lanes.as_mut_ptr(), v);
        lanes.iter().fold(0, |sum, lane| sum.wrapping_add(lane.to_bits().cast_signed()))
    }
    /// [`Self::pair`] of bfloat16 bits.
    #[inline(always)]
    unsafe fn pair_bf16(low: *const u16, high: *const u16) -> Self::V {
        Self::pair(Self::load_bf16(low), Self::load_bf16(high))
    }
    /// Narrowed to IEEE half, to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// `N` rows of `N` values at row stride `ld` to `N` columns: `dst[j * ldd + i] = src[i * ld + j]`.
    unsafe fn transpose<E: Element>(src: *const E, ld: usize, dst: *mut f32, ldd: usize);
    /// `keep` where `dropout_bits(row, col + lane) >= threshold`, else zero (`burnish_core::random`).
    unsafe fn dropout(row: u32, col: u32, threshold: u32, keep: f32) -> Self::V;
    /// Hints that the line at `p` will be read or written.
    #[inline(always)]
    unsafe fn prefetch(_p: *const f32) {}
    /// The micro-kernel in a function of its own; see [`crate::micro`].
    unsafe fn tile<P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
        t: &crate::micro::Tile,
        kept: *mut f32,
    );

    /// `e^v`, relative error below 2 ulp; zero below -104, `e^88` above 88, NaN stays.
    ///
    /// Cephes' `expf`: `v = n ln 2 + r`, a polynomial of degree 6 in `r`.
    #[inline(always)]
    unsafe fn exp(v: Self::V) -> Self::V {
        let x = Self::max(Self::splat(-104.0), Self::min(Self::splat(88.0), v));
        let n = Self::round(Self::mul(x, Self::splat(std::f32::consts::LOG2_E)));
        let r = Self::fnma(n, Self::splat(0.693_359_4), x);
        let r = Self::fnma(n, Self::splat(-2.121_944_4e-4), r);
        let mut p = Self::splat(1.987_569_1e-4);
        p = Self::fma(p, r, Self::splat(1.398_199_9e-3));
        p = Self::fma(p, r, Self::splat(8.333_452e-3));
        p = Self::fma(p, r, Self::splat(4.166_579_6e-2));
        p = Self::fma(p, r, Self::splat(1.666_666_5e-1));
        p = Self::fma(p, r, Self::splat(0.5));
        let p = Self::add(Self::fma(p, Self::mul(r, r), r), Self::splat(1.0));
        Self::scale2(p, n)
    }

    /// `2^v` for what is rounded to bfloat16: relative error below 1e-5; zero below -150, `v` at most 127, NaN stays.
    #[inline(always)]
    unsafe fn exp2_short(v: Self::V) -> Self::V {
        let x = Self::max(Self::splat(-150.0), v);
        let n = Self::round(x);
        let f = Self::sub(x, n);
        let mut p = Self::splat(EXP2[4]);
        for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0]] {
            p = Self::fma(p, f, Self::splat(c));
        }
        Self::scale2(p, n)
    }

    /// `1 / (1 + e^-v)`.
    #[inline(always)]
    unsafe fn sigmoid(v: Self::V) -> Self::V {
        let one = Self::splat(1.0);
        Self::recip(Self::add(one, Self::exp(Self::sub(Self::splat(0.0), v))))
    }
}

/// `2^f = sum EXP2[i] f^i` for `|f| <= 1/2`, relative error below 3e-6.
const EXP2: [f32; 5] = [0.999_999_3, 0.693_121_8, 0.240_247_44, 0.055_917_86, 0.009_570_101];

/// A storage type that widens to `f32`.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// # Safety
    /// As [`Lanes`]: `N` values are read at `p`.
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V;
    /// `2 N` values as bfloat16, to nearest even.
    ///
    /// # Safety
    /// As [`Lanes`]: `2 N` values are read at `p` and written at `to`.
    #[inline(always)]
    unsafe fn halve<S: Lanes>(p: *const Self, to: *mut u16) {
        S::store_bf16(to, Self::load::<S>(p));
        S::store_bf16(to.add(S::N), Self::load::<S>(p.add(S::N)));
    }
    /// Words of bfloat16 ([`Lanes::pair`]) of `N` values at each place.
    ///
    /// # Safety
    /// As [`Lanes`]: `N` values are read at `low` and at `high`.
    #[inline(always)]
    unsafe fn pair<S: Lanes>(low: *const Self, high: *const Self) -> S::V {
        S::pair(Self::load::<S>(low), Self::load::<S>(high))
    }
    /// The value as `f32`.
    fn widen(self) -> f32;
}

/// A storage type that `f32` narrows to.
pub(crate) trait Store: Element {
    /// To nearest even.
    ///
    /// # Safety
    /// As [`Lanes`]: `N` values are written at `p`.
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V);
    /// # Safety
    /// As [`Lanes`]: the masked lanes are written at `p`.
    unsafe fn store_m<S: Lanes>(m: S::M, p: *mut Self, v: S::V);
    /// To nearest even.
    fn narrow(x: f32) -> Self;
}

impl Store for f32 {
    #[inline(always)]
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V) {
        S::store(p, v);
    }
    #[inline(always)]
    unsafe fn store_m<S: Lanes>(m: S::M, p: *mut Self, v: S::V) {
        S::store_m(m, p, v);
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

impl Store for half::bf16 {
    #[inline(always)]
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V) {
        S::store_bf16(p.cast(), v);
    }
    #[inline(always)]
    unsafe fn store_m<S: Lanes>(m: S::M, p: *mut Self, v: S::V) {
        S::store_bf16_m(m, p.cast(), v);
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        S::load(p)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for half::bf16 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        S::load_bf16(p.cast())
    }
    #[inline(always)]
    unsafe fn halve<S: Lanes>(p: *const Self, to: *mut u16) {
        std::ptr::copy_nonoverlapping(p.cast(), to, 2 * S::N);
    }
    #[inline(always)]
    unsafe fn pair<S: Lanes>(low: *const Self, high: *const Self) -> S::V {
        S::pair_bf16(low.cast(), high.cast())
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Element for half::f16 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        S::load_f16(p.cast())
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// `dispatch!(vis unsafe fn name = body [generics] [their names] (args) -> result)`: makes `name(isa, args)`
/// from `body::<S: Lanes, generics>(args)`. `dispatch!(narrowing ...)` for bodies that make bfloat16 of `f32`: they have a
/// copy for processors with an instruction for it.
macro_rules! dispatch {
    (narrowing $($function:tt)*) => { $crate::simd::dispatch_by_isa! { [avx512_bf16] $($function)* } };
    ($($function:tt)*) => { $crate::simd::dispatch_by_isa! { [avx512] $($function)* } };
}
pub(crate) use dispatch;

/// [`dispatch!`], with the name of the copy for [`Isa::Avx512Bf16`].
macro_rules! dispatch_by_isa {
    ([$dots:ident] $(#[$meta:meta])* $vis:vis unsafe fn $name:ident = $body:ident [$($gen:tt)*] [$($use:tt)*]
        ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
        $vis unsafe fn $name<$($gen)*>(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[allow(dead_code, reason = "only bodies that narrow have it")]
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512_bf16<$($gen)*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller vouches for the arguments, the attribute for the instructions.
                unsafe { $body::<$crate::simd::Avx512<true>, $($use)*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            unsafe fn avx512<$($gen)*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Avx512, $($use)*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$($gen)*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Avx2, $($use)*>($($arg),*) }
            }
            match isa.lanes() {
                // SAFETY: an `Isa` comes from `isa()`, which names only what was detected.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512Bf16 => unsafe { $dots::<$($use)*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512::<$($use)*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { avx2::<$($use)*>($($arg),*) },
                // SAFETY: every aarch64 has NEON; the caller vouches for the arguments.
                #[cfg(target_arch = "aarch64")]
                $crate::simd::Isa::Neon | $crate::simd::Isa::NeonBf16 => unsafe {
                    $body::<$crate::simd::Neon, $($use)*>($($arg),*)
                },
                // SAFETY: plain code; the caller vouches for the arguments.
                _ => unsafe { $body::<$crate::simd::Plain, $($use)*>($($arg),*) },
            }
        }
    };
}
pub(crate) use dispatch_by_isa;

#[cfg(test)]
mod tests;
