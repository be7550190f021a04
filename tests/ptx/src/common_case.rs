//! The instructions that most of a kernel is made of, for all lanes at once: the same results as [`bits`](crate::bits) and
//! [`float`](crate::float) give one by one, which the tests hold them to.

use crate::instruction::{Binary, Comparison, Mode, Ternary};
use crate::scalar::Type;

type Lanes = [u64; 32];

fn each2(a: &Lanes, b: &Lanes, of: impl Fn(u64, u64) -> u64) -> Lanes {
    std::array::from_fn(|i| of(a[i], b[i]))
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// As bits, NaN as the hardware has it.
fn bits_of(value: f32) -> u64 {
    if value.is_nan() { 0x7fff_ffff } else { u64::from(value.to_bits()) }
}

/// Of two operands, if it is one of the common ones.
pub(crate) fn binary(with: Binary, ty: Type, mode: Mode, a: &Lanes, b: &Lanes) -> Option<Lanes> {
    if mode != Mode::default() {
        return None;
    }
    Some(match ty {
        Type::F32 => match with {
            Binary::Add => each2(a, b, |a, b| bits_of(f32_of(a) + f32_of(b))),
            Binary::Subtract => each2(a, b, |a, b| bits_of(f32_of(a) - f32_of(b))),
            Binary::Multiply => each2(a, b, |a, b| bits_of(f32_of(a) * f32_of(b))),
            Binary::Divide => each2(a, b, |a, b| bits_of(f32_of(a) / f32_of(b))),
            _ => return None,
        },
        Type::B32 | Type::U32 | Type::S32 => match with {
            Binary::Add => each2(a, b, |a, b| u64::from((a as u32).wrapping_add(b as u32))),
            Binary::Subtract => each2(a, b, |a, b| u64::from((a as u32).wrapping_sub(b as u32))),
            Binary::Multiply => each2(a, b, |a, b| u64::from((a as u32).wrapping_mul(b as u32))),
            Binary::And => each2(a, b, |a, b| u64::from(a as u32 & b as u32)),
            Binary::Or => each2(a, b, |a, b| u64::from(a as u32 | b as u32)),
            Binary::Xor => each2(a, b, |a, b| u64::from(a as u32 ^ b as u32)),
            Binary::ShiftLeft => each2(a, b, |a, b| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0))),
            Binary::MultiplyWide if ty == Type::S32 => {
                each2(a, b, |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64)
            }
            Binary::MultiplyWide => each2(a, b, |a, b| u64::from(a as u32) * u64::from(b as u32)),
            _ => return None,
        },
        Type::B64 | Type::U64 | Type::S64 => match with {
            Binary::Add => each2(a, b, u64::wrapping_add),
            Binary::Subtract => each2(a, b, u64::wrapping_sub),
            Binary::Multiply => each2(a, b, u64::wrapping_mul),
            Binary::And => each2(a, b, |a, b| a & b),
            Binary::Or => each2(a, b, |a, b| a | b),
            Binary::Xor => each2(a, b, |a, b| a ^ b),
            Binary::ShiftLeft => each2(a, b, |a, b| a.checked_shl(b as u32).unwrap_or(0)),
            _ => return None,
        },
        _ => return None,
    })
}

/// Of three operands, if it is one of the common ones.
pub(crate) fn ternary(with: Ternary, ty: Type, mode: Mode, a: &Lanes, b: &Lanes, c: &Lanes) -> Option<Lanes> {
    if mode != Mode::default() {
        return None;
    }
    let each = |of: &dyn Fn(usize) -> u64| -> Lanes { std::array::from_fn(of) };
    Some(match (with, ty) {
        (Ternary::MultiplyAdd, Type::F32) => each(&|i| {
            let product = f64::from(f32_of(a[i])) * f64::from(f32_of(b[i]));
            let term = f64::from(f32_of(c[i]));
            let sum = product + term;
            // What the sum in f64 lost decides only where the sum lies between two floats.
            let between = sum.to_bits() & 0x1fff_ffff;
            if between == 0x1000_0000 || !sum.is_normal() || sum.abs() < 1e-37 {
                return crate::float::multiply_add(ty, mode, a[i], b[i], c[i]);
            }
            bits_of(sum as f32)
        }),
        (Ternary::MultiplyAdd, Type::B32 | Type::U32 | Type::S32) => {
            each(&|i| u64::from((a[i] as u32).wrapping_mul(b[i] as u32).wrapping_add(c[i] as u32)))
        }
        (Ternary::MultiplyAddWide, Type::S32) => {
            each(&|i| ((i64::from(a[i] as i32) * i64::from(b[i] as i32)) as u64).wrapping_add(c[i]))
        }
        (Ternary::MultiplyAddWide, Type::U32) => {
            each(&|i| (u64::from(a[i] as u32) * u64::from(b[i] as u32)).wrapping_add(c[i]))
        }
        _ => return None,
    })
}

/// Whether a comparison of whole numbers of 32 bits holds.
pub(crate) fn compare(with: Comparison, ty: Type, a: &Lanes, b: &Lanes) -> Option<Lanes> {
    let signed = match ty {
        Type::S32 => true,
        Type::U32 | Type::B32 => false,
        _ => return None,
    };
    let key = |bits: u64| if signed { i64::from(bits as i32) } else { i64::from(bits as u32) };
    Some(match with {
        Comparison::Equal => each2(a, b, |a, b| u64::from(a as u32 == b as u32)),
        Comparison::NotEqual => each2(a, b, |a, b| u64::from(a as u32 != b as u32)),
        Comparison::Less => each2(a, b, |a, b| u64::from(key(a) < key(b))),
        Comparison::LessOrEqual => each2(a, b, |a, b| u64::from(key(a) <= key(b))),
        Comparison::Greater => each2(a, b, |a, b| u64::from(key(a) > key(b))),
        Comparison::GreaterOrEqual => each2(a, b, |a, b| u64::from(key(a) >= key(b))),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bits, float};

    const TYPES: [Type; 7] = [Type::F32, Type::B32, Type::U32, Type::S32, Type::B64, Type::U64, Type::S64];

    /// Numbers of all sizes, and those at the ends.
    fn some(seed: u64) -> Lanes {
        let mut state = seed;
        std::array::from_fn(|i| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            match i {
                0 => 0,
                1 => u64::MAX,
                2 => 0x7f80_0000,
                3 => 0x8000_0000,
                4 => 1,
                _ => (state ^ state >> 29) >> (state >> 58),
            }
        })
    }

    #[test]
    fn all_lanes_at_once_are_as_one_by_one() {
        use Binary as B;
        let binaries = [
            B::Add,
            B::Subtract,
            B::Multiply,
            B::Divide,
            B::And,
            B::Or,
            B::Xor,
            B::ShiftLeft,
            B::MultiplyWide,
        ];
        let mode = Mode::default();
        let mut compared = 0;
        for round in 1..200 {
            let [mut a, mut b, c] = [some(round), some(round * 7919), some(round * 104_729)];
            a.rotate_left(round as usize % 32);
            for ty in TYPES {
                for with in binaries {
                    if with == B::ShiftLeft {
                        b = b.map(|by| by & 0xff);
                    }
                    let Some(found) = binary(with, ty, mode, &a, &b) else { continue };
                    for i in 0..32 {
                        let want = match ty.is_float() {
                            true => float::binary(with, ty, mode, a[i], b[i]),
                            false => bits::binary(with, ty, mode, a[i], b[i]),
                        };
                        assert_eq!(found[i], want, "{with:?} {ty:?} {:x} {:x}", a[i], b[i]);
                        compared += 1;
                    }
                }
                for with in [Ternary::MultiplyAdd, Ternary::MultiplyAddWide] {
                    let Some(found) = ternary(with, ty, mode, &a, &b, &c) else { continue };
                    for i in 0..32 {
                        let want = match ty.is_float() {
                            true => float::multiply_add(ty, mode, a[i], b[i], c[i]),
                            false => bits::ternary(with, ty, a[i], b[i], c[i]),
                        };
                        assert_eq!(found[i], want, "{with:?} {ty:?} {:x} {:x} {:x}", a[i], b[i], c[i]);
                        compared += 1;
                    }
                }
                for with in [Comparison::Equal, Comparison::Less, Comparison::GreaterOrEqual] {
                    let Some(found) = compare(with, ty, &a, &b) else { continue };
                    for i in 0..32 {
                        assert_eq!(found[i] == 1, bits::compare(with, ty, a[i], b[i]));
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 100_000, "{compared}");
    }
}
