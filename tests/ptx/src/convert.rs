//! `cvt`.

use crate::float::{decode, encode};
use crate::instruction::{Mode, Rounding};
use crate::scalar::Type;

fn rounded(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// The number of the whole number's bits, exact in f64 up to 53 bits, and rounded to odd beyond.
fn wide(ty: Type, bits: u64) -> f64 {
    let value = ty.widen(bits);
    let (negative, size) =
        if ty.is_signed() { ((value as i64) < 0, (value as i64).unsigned_abs()) } else { (false, value) };
    let spare = 11_u32.saturating_sub(size.leading_zeros());
    let lost = size & ((1 << spare) - 1);
    let kept = (size >> spare) << spare;
    let odd = if lost == 0 { 0 } else { 1 << spare };
    let size = (kept | odd) as f64;
    if negative { -size } else { size }
}

/// From one type to another. `whole` rounds a float to a whole number that stays a float.
pub(crate) fn convert(to: Type, from: Type, whole: bool, mode: Mode, bits: u64) -> u64 {
    match (from.is_float(), to.is_float()) {
        (true, true) => {
            let value = decode(from, bits, mode.flush);
            if whole {
                return encode(
                    to,
                    rounded(value, mode.rounding),
                    Mode { rounding: Rounding::Nearest, ..mode },
                );
            }
            if to == from {
                return encode(to, value, Mode { rounding: Rounding::Nearest, ..mode });
            }
            encode(to, value, mode)
        }
        (true, false) => {
            let value = decode(from, bits, mode.flush);
            if value.is_nan() {
                // NaN is 0, but for 64 bits.
                return if to.bytes() == 8 { 1 << 63 } else { 0 };
            }
            let value = rounded(value, mode.rounding);
            let whole = match to {
                Type::S64 => value as i64 as u64,
                Type::U64 | Type::B64 => value as u64,
                Type::S32 => value as i32 as u64,
                Type::U32 | Type::B32 => u64::from(value as u32),
                Type::S16 => value as i16 as u64,
                Type::U16 | Type::B16 => u64::from(value as u16),
                Type::S8 => value as i8 as u64,
                _ => u64::from(value as u8),
            };
            to.widen(whole)
        }
        (false, true) if to == Type::F64 => {
            let value = from.widen(bits);
            if from.is_signed() { (value as i64 as f64).to_bits() } else { (value as f64).to_bits() }
        }
        (false, true) => encode(to, wide(from, bits), mode),
        (false, false) => {
            let value = from.widen(bits);
            if mode.saturate {
                return saturated(to, from, value);
            }
            // A narrower number keeps its sign in the register's type.
            to.widen(value)
        }
    }
}

fn saturated(to: Type, from: Type, value: u64) -> u64 {
    let value = if from.is_signed() { i128::from(value as i64) } else { i128::from(value) };
    let bits = 8 * to.bytes() as u32;
    let (least, most) = if to.is_signed() {
        (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1)
    } else {
        (0, (1_i128 << bits) - 1)
    };
    value.clamp(least, most) as u64 & to.mask()
}
