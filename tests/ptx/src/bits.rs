//! Arithmetic of whole numbers and bits.

use crate::instruction::{Binary, Comparison, Mode, Ternary, Unary};
use crate::scalar::Type;

pub(crate) fn unary(with: Unary, ty: Type, a: u64) -> u64 {
    let bits = 8 * ty.bytes() as u32;
    let a = a & ty.mask();
    let value = match with {
        Unary::Move => a,
        Unary::Absolute => (ty.widen(a) as i64).unsigned_abs(),
        Unary::Negate => a.wrapping_neg(),
        Unary::Not if ty == Type::Pred => a ^ 1,
        Unary::Not => !a,
        Unary::LogicalNot => u64::from(a == 0),
        Unary::Reverse => a.reverse_bits() >> (64 - bits),
        Unary::LeadingZeros => u64::from(a.leading_zeros() - (64 - bits)),
        Unary::Ones => u64::from(a.count_ones()),
        Unary::HighestBit { shift } => {
            let wide = ty.widen(a);
            let of = if ty.is_signed() && (wide as i64) < 0 { !wide & ty.mask() } else { a };
            match of {
                0 => u64::from(u32::MAX),
                of if shift => u64::from(of.leading_zeros() - (64 - bits)),
                of => u64::from(63 - of.leading_zeros()),
            }
        }
        _ => unreachable!("invariant: floats' operations take no whole numbers"),
    };
    // Counts of bits are 32-bit numbers of any type.
    if matches!(with, Unary::LeadingZeros | Unary::Ones | Unary::HighestBit { .. }) {
        value
    } else {
        value & ty.mask()
    }
}

pub(crate) fn binary(with: Binary, ty: Type, mode: Mode, a: u64, b: u64) -> u64 {
    let (a, b) = (ty.widen(a), ty.widen(b));
    let bits = 8 * ty.bytes() as u32;
    let signed = ty.is_signed();
    let value = match with {
        Binary::Add | Binary::Subtract if mode.saturate && ty == Type::S32 => {
            let of = if with == Binary::Add { (a as i64) + (b as i64) } else { (a as i64) - (b as i64) };
            of.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u64
        }
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        Binary::MultiplyHigh if signed => ((i128::from(a as i64) * i128::from(b as i64)) >> bits) as u64,
        Binary::MultiplyHigh => ((u128::from(a) * u128::from(b)) >> bits) as u64,
        Binary::MultiplyWide => {
            let wide = if bits == 32 { u64::MAX } else { 0xffff_ffff };
            return a.wrapping_mul(b) & wide;
        }
        // The result of a division by 0 is all ones.
        Binary::Divide if b == 0 => u64::MAX,
        Binary::Remainder if b == 0 => a,
        Binary::Divide if signed => (a as i64).wrapping_div(b as i64) as u64,
        Binary::Divide => a / b,
        Binary::Remainder if signed => (a as i64).wrapping_rem(b as i64) as u64,
        Binary::Remainder => a % b,
        Binary::Minimum if signed => (a as i64).min(b as i64) as u64,
        Binary::Minimum => a.min(b),
        Binary::Maximum if signed => (a as i64).max(b as i64) as u64,
        Binary::Maximum => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        // Shifts are by a whole 32-bit number, and by no more than all bits.
        Binary::ShiftLeft => {
            let by = b & 0xffff_ffff;
            if by >= u64::from(bits) { 0 } else { a << by }
        }
        Binary::ShiftRight => {
            let by = (b & 0xffff_ffff).min(u64::from(bits));
            if signed { ((a as i64) >> by.min(63)) as u64 } else { a.checked_shr(by as u32).unwrap_or(0) }
        }
        Binary::CopySign => unreachable!("invariant: floats' operations take no whole numbers"),
    };
    value & ty.mask()
}

pub(crate) fn ternary(with: Ternary, ty: Type, a: u64, b: u64, c: u64) -> u64 {
    let mode = Mode::default();
    match with {
        Ternary::MultiplyAdd => ty.widen(a).wrapping_mul(ty.widen(b)).wrapping_add(ty.widen(c)) & ty.mask(),
        Ternary::MultiplyAddHigh => binary(Binary::MultiplyHigh, ty, mode, a, b).wrapping_add(c) & ty.mask(),
        Ternary::MultiplyAddWide => {
            let wide = if ty.bytes() == 4 { u64::MAX } else { 0xffff_ffff };
            binary(Binary::MultiplyWide, ty, mode, a, b).wrapping_add(c) & wide
        }
        Ternary::Select => (if c & 1 == 1 { a } else { b }) & ty.mask(),
        Ternary::Logic(table) => {
            let mut out = 0;
            for row in 0..8_u8 {
                if table >> row & 1 == 1 {
                    let of = |value: u64, bit: u8| if row >> bit & 1 == 1 { value } else { !value };
                    out |= of(a, 2) & of(b, 1) & of(c, 0);
                }
            }
            out & 0xffff_ffff
        }
        Ternary::Permute => permute(a as u32, b as u32, c as u32),
        Ternary::FunnelLeft { wrap } | Ternary::FunnelRight { wrap } => {
            let both = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
            let by = if wrap { c & 31 } else { (c & 0xffff_ffff).min(32) };
            match with {
                Ternary::FunnelLeft { .. } => ((u128::from(both) << by) >> 32) as u64 & 0xffff_ffff,
                _ => (both >> by) & 0xffff_ffff,
            }
        }
        Ternary::ExtractBits => extract(ty, a, b & 0xff, c & 0xff),
        Ternary::AbsoluteDifference => {
            let (x, y) = (ty.widen(a) as i64, ty.widen(b) as i64);
            u64::from(x.abs_diff(y) as u32).wrapping_add(c) & ty.mask()
        }
        Ternary::DotBytes { signed } => {
            let byte = |value: u64, at: u32, signed: bool| {
                let byte = (value >> (8 * at)) as u8;
                if signed { i64::from(byte as i8) } else { i64::from(byte) }
            };
            let sum: i64 = (0..4).map(|at| byte(a, at, signed[0]) * byte(b, at, signed[1])).sum();
            (sum as u64).wrapping_add(c) & 0xffff_ffff
        }
    }
}

/// Bytes of two words, chosen by four digits; a digit's highest bit stands for a byte of its sign.
fn permute(a: u32, b: u32, selection: u32) -> u64 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let byte = |at: u32| {
        let digit = selection >> (4 * at) & 0xf;
        let byte = bytes[(digit & 7) as usize];
        let byte = if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        u64::from(byte) << (8 * at)
    };
    (0..4).map(byte).sum()
}

fn extract(ty: Type, a: u64, at: u64, count: u64) -> u64 {
    let bits = 8 * ty.bytes() as u64;
    let wide = ty.widen(a);
    let sign = if ty.is_signed() && count > 0 { wide >> (at + count - 1).min(bits - 1) & 1 } else { 0 };
    let shifted = if at >= bits { 0 } else { (wide & ty.mask()) >> at };
    let there = count.min(bits.saturating_sub(at));
    let low = if there >= 64 { u64::MAX } else { (1 << there) - 1 };
    let value = shifted & low;
    (if sign == 1 { value | !low } else { value }) & ty.mask()
}

pub(crate) fn insert(ty: Type, from: u64, into: u64, at: u64, count: u64) -> u64 {
    let bits = 8 * ty.bytes() as u64;
    let (at, count) = (at & 0xff, count & 0xff);
    if at >= bits || count == 0 {
        return into & ty.mask();
    }
    let low = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    let mask = low << at;
    (into & !mask | (from << at) & mask) & ty.mask()
}

pub(crate) fn compare(with: Comparison, ty: Type, a: u64, b: u64) -> bool {
    let (a, b) = (ty.widen(a), ty.widen(b));
    let order = if ty.is_signed() { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
    match with {
        Comparison::Equal | Comparison::EqualOrUnordered => order.is_eq(),
        Comparison::NotEqual | Comparison::NotEqualOrUnordered => order.is_ne(),
        Comparison::Less | Comparison::LessOrUnordered => order.is_lt(),
        Comparison::LessOrEqual | Comparison::LessOrEqualOrUnordered => order.is_le(),
        Comparison::Greater | Comparison::GreaterOrUnordered => order.is_gt(),
        Comparison::GreaterOrEqual | Comparison::GreaterOrEqualOrUnordered => order.is_ge(),
        Comparison::Ordered => true,
        Comparison::Unordered => false,
    }
}
