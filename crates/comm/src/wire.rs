//! Element types that may travel.

use burnish_core::Dtype;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
    impl Sealed for u8 {}
    impl Sealed for u64 {}
}

/// An element type of a [`Bucket`](crate::Bucket): `f32`, `bf16`, `f16`, `f64` (scalars),
/// `u8` (blocks of quantised values, texts) and `u64` (digests, counts). Sealed.
///
/// Arithmetic happens in [`Wire::Wide`] and is rounded once: `f32` for `f32`, `bf16` and `f16`.
pub trait Wire:
    sealed::Sealed + bytemuck::Pod + Send + Sync + PartialEq + PartialOrd + std::fmt::Debug + 'static
{
    /// The type's name. `u64` travels under [`Dtype::I64`]: eight bytes, no sign on the way.
    const DTYPE: Dtype;

    /// What sums are taken in.
    type Wide: Copy + PartialOrd + Send + Sync + 'static;

    /// Exact widening.
    fn widen(self) -> Self::Wide;

    /// One rounding, to nearest, ties to even.
    fn narrow(wide: Self::Wide) -> Self;

    /// `a + b` in the wide type; integers wrap.
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;

    /// `a / n` in the wide type.
    fn divide(a: Self::Wide, n: usize) -> Self::Wide;

    /// To double, exactly for every float type.
    fn to_f64(self) -> f64;

    /// From double, one rounding (integers saturate).
    fn from_f64(value: f64) -> Self;

    /// Whether the value is not a number; never for integers.
    fn is_nan(self) -> bool;
}

macro_rules! float {
    ($type:ty, $dtype:ident, $wide:ty, $widen:expr, $narrow:expr, $to:expr, $from:expr) => {
        impl Wire for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            #[inline(always)]
            fn add(a: $wide, b: $wide) -> $wide {
                a + b
            }
            #[inline(always)]
            fn divide(a: $wide, n: usize) -> $wide {
                a / n as $wide
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
        }
    };
}

float!(f32, F32, f32, |x| x, |x| x, f64::from, |x| x as f32);
float!(f64, F64, f64, |x| x, |x| x, |x| x, |x| x);
float!(bf16, Bf16, f32, bf16::to_f32, bf16::from_f32, bf16::to_f64, bf16::from_f64);
float!(f16, F16, f32, f16::to_f32, f16::from_f32, f16::to_f64, f16::from_f64);

macro_rules! integer {
    ($type:ty, $dtype:ident) => {
        impl Wire for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(wide: $type) -> Self {
                wide
            }
            #[inline(always)]
            fn add(a: $type, b: $type) -> $type {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn divide(a: $type, n: usize) -> $type {
                a / n as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    };
}

integer!(u8, U8);
integer!(u64, I64);
