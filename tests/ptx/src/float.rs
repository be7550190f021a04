//! Arithmetic of floats: computed in f64, rounded once to the type.

use half::{bf16, f16};

use crate::instruction::{Binary, Comparison, Mode, Rounding, Ternary, Unary};
use crate::scalar::Type;

/// NaN as the hardware gives it.
const F32_NAN: u64 = 0x7fff_ffff;

/// The number of these bits. Of a pair's type the lower half's.
pub(crate) fn decode(ty: Type, bits: u64, flush: bool) -> f64 {
    match ty {
        Type::F32 => {
            let value = f32::from_bits(bits as u32);
            f64::from(if flush && value.is_subnormal() { 0.0_f32.copysign(value) } else { value })
        }
        Type::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Type::F64 => f64::from_bits(bits),
        Type::F16 | Type::F16x2 => f16::from_bits(bits as u16).to_f64(),
        Type::Bf16 | Type::Bf16x2 => bf16::from_bits(bits as u16).to_f64(),
        _ => unreachable!("invariant: only floats are decoded"),
    }
}

fn nearest(ty: Type, value: f64) -> u64 {
    match ty {
        Type::F32 => u64::from((value as f32).to_bits()),
        Type::F64 => value.to_bits(),
        Type::F16 | Type::F16x2 => u64::from(f16::from_f32(to_odd(value)).to_bits()),
        Type::Bf16 | Type::Bf16x2 => u64::from(bf16::from_f32(to_odd(value)).to_bits()),
        _ => unreachable!("invariant: only floats are encoded"),
    }
}

/// The f32 from which fewer bits are rounded as from the number itself: one that is not exact has an odd last bit. `half`'s own
/// conversion drops what an f64 has beyond 20 bits of its mantissa, and with that what tells a number from a tie.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_nan() || near.is_infinite() || f64::from(near) == value {
        return near;
    }
    let away = f64::from(near).abs() > value.abs();
    let toward_zero = if away { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(toward_zero | 1)
}

/// The bits of a number, rounded and bounded as the mode says.
pub(crate) fn encode(ty: Type, value: f64, mode: Mode) -> u64 {
    let mut value = value;
    if mode.saturate {
        value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) };
    }
    if mode.relu && value < 0.0 {
        value = 0.0;
    }
    if value.is_nan() {
        return match ty {
            Type::F32 | Type::Tf32 => F32_NAN,
            Type::F64 => f64::NAN.to_bits(),
            _ => 0x7fff,
        };
    }
    if ty == Type::Tf32 {
        let bits = u64::from((value as f32).to_bits());
        let half = if mode.rounding == Rounding::NearestAway { 0x1000 } else { 0xfff + ((bits >> 13) & 1) };
        return (bits + half) & 0xffff_e000;
    }
    let bits = nearest(ty, value);
    let sign = 1_u64 << (8 * if matches!(ty, Type::F16x2 | Type::Bf16x2) { 2 } else { ty.bytes() } - 1);
    let back = decode(ty, bits, false);
    let bits = match mode.rounding {
        Rounding::Zero if back.abs() > value.abs() => bits - 1,
        Rounding::Down if back > value && bits & sign == 0 && bits != 0 => bits - 1,
        Rounding::Down if back > value => (bits | sign) + 1,
        Rounding::Up if back < value && bits & sign != 0 && bits != sign => bits - 1,
        Rounding::Up if back < value => (bits & !sign) + 1,
        _ => bits,
    };
    let subnormal = ty == Type::F32 && f32::from_bits(bits as u32).is_subnormal();
    if mode.flush && subnormal { bits & sign } else { bits }
}

/// `a + b` rounded to odd, so that another rounding is the only one that counts.
fn sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let bits = sum.to_bits();
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// Of both halves where the type is a pair.
fn halves<const N: usize>(ty: Type, values: [u64; N], of: impl Fn([u64; N]) -> u64) -> u64 {
    if matches!(ty, Type::F16x2 | Type::Bf16x2) {
        of(values.map(|v| v & 0xffff)) & 0xffff | (of(values.map(|v| (v >> 16) & 0xffff)) & 0xffff) << 16
    } else {
        of(values)
    }
}

pub(crate) fn unary(with: Unary, ty: Type, mode: Mode, a: u64) -> u64 {
    let sign = match ty {
        Type::F64 => 1 << 63,
        Type::F32 | Type::Tf32 => 1 << 31,
        _ => 1 << 15,
    };
    halves(ty, [a], |[a]| {
        match with {
            Unary::Move => return a,
            Unary::Absolute => return a & !sign,
            Unary::Negate => return a ^ sign,
            _ => {}
        }
        let x = decode(ty, a, mode.flush);
        let value = match with {
            Unary::TestInfinite => return u64::from(x.is_infinite()),
            Unary::TestNotANumber => return u64::from(x.is_nan()),
            Unary::TestFinite => return u64::from(x.is_finite()),
            Unary::Reciprocal => 1.0 / x,
            Unary::Root => x.sqrt(),
            Unary::ReciprocalRoot => 1.0 / x.sqrt(),
            Unary::PowerOfTwo => x.exp2(),
            Unary::LogarithmOfTwo => x.log2(),
            Unary::Sine => x.sin(),
            Unary::Cosine => x.cos(),
            Unary::Tanh => x.tanh(),
            _ => unreachable!("invariant: whole numbers' operations take no floats"),
        };
        encode(ty, value, mode)
    })
}

pub(crate) fn binary(with: Binary, ty: Type, mode: Mode, a: u64, b: u64) -> u64 {
    halves(ty, [a, b], |[a, b]| {
        let (x, y) = (decode(ty, a, mode.flush), decode(ty, b, mode.flush));
        let value = match with {
            Binary::Add if ty == Type::F64 => x + y,
            Binary::Subtract if ty == Type::F64 => x - y,
            Binary::Add => sum(x, y),
            Binary::Subtract => sum(x, -y),
            Binary::Multiply => x * y,
            Binary::Divide => x / y,
            Binary::Minimum | Binary::Maximum if x.is_nan() || y.is_nan() => {
                if mode.nan || (x.is_nan() && y.is_nan()) {
                    f64::NAN
                } else if x.is_nan() {
                    y
                } else {
                    x
                }
            }
            Binary::Minimum if x == y => {
                if x.is_sign_negative() {
                    x
                } else {
                    y
                }
            }
            Binary::Maximum if x == y => {
                if x.is_sign_negative() {
                    y
                } else {
                    x
                }
            }
            Binary::Minimum => x.min(y),
            Binary::Maximum => x.max(y),
            Binary::CopySign => y.copysign(x),
            _ => unreachable!("invariant: whole numbers' operations take no floats"),
        };
        encode(ty, value, mode)
    })
}

pub(crate) fn multiply_add(ty: Type, mode: Mode, a: u64, b: u64, c: u64) -> u64 {
    halves(ty, [a, b, c], |[a, b, c]| {
        let [x, y, z] = [a, b, c].map(|v| decode(ty, v, mode.flush));
        // Products of two shorter floats are exact in f64.
        let value = if ty == Type::F64 { x.mul_add(y, z) } else { sum(x * y, z) };
        encode(ty, value, mode)
    })
}

/// Whether the operation is one of floats, where `ty` is a float's type.
pub(crate) fn is_arithmetic(with: Ternary) -> bool {
    with == Ternary::MultiplyAdd
}

pub(crate) fn compare(with: Comparison, x: f64, y: f64) -> bool {
    let unordered = x.is_nan() || y.is_nan();
    match with {
        Comparison::Equal => x == y,
        Comparison::NotEqual => x != y && !unordered,
        Comparison::Less => x < y,
        Comparison::LessOrEqual => x <= y,
        Comparison::Greater => x > y,
        Comparison::GreaterOrEqual => x >= y,
        Comparison::EqualOrUnordered => x == y || unordered,
        Comparison::NotEqualOrUnordered => x != y,
        Comparison::LessOrUnordered => x < y || unordered,
        Comparison::LessOrEqualOrUnordered => x <= y || unordered,
        Comparison::GreaterOrUnordered => x > y || unordered,
        Comparison::GreaterOrEqualOrUnordered => x >= y || unordered,
        Comparison::Ordered => !unordered,
        Comparison::Unordered => unordered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_just_above_a_tie_is_rounded_up() {
        let rounded = |bits: u32| nearest(Type::Bf16, f64::from(f32::from_bits(bits)));
        assert_eq!([0x3f80_8000, 0x3f80_8001, 0x3f80_7fff].map(rounded), [0x3f80, 0x3f81, 0x3f80]);
        assert_eq!([0x3f81_8000, 0xbf80_8001].map(rounded), [0x3f82, 0xbf81]);
        // Nearer to 1 than any f32 above it.
        assert_eq!(nearest(Type::F16, 1.0 + f64::EPSILON + 1.0 / 2048.0), 0x3c01);
    }
}
