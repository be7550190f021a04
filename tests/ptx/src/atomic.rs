//! Atomic operations: the value that each stores.

use crate::instruction::{Atomic, Binary, Mode};
use crate::scalar::Type;
use crate::{bits, float};

/// The value that is stored where `old` was.
pub(crate) fn combine(how: Atomic, ty: Type, flush: bool, old: u64, a: u64, b: Option<u64>) -> u64 {
    let with = match how {
        Atomic::Exchange => return a & ty.mask(),
        Atomic::CompareAndSwap => {
            return if old == a & ty.mask() { b.unwrap_or(old) & ty.mask() } else { old };
        }
        Atomic::Increment => return if old >= a & ty.mask() { 0 } else { old + 1 },
        Atomic::Decrement => {
            let top = a & ty.mask();
            return if old == 0 || old > top { top } else { old - 1 };
        }
        Atomic::Add => Binary::Add,
        Atomic::And => Binary::And,
        Atomic::Or => Binary::Or,
        Atomic::Xor => Binary::Xor,
        Atomic::Minimum => Binary::Minimum,
        Atomic::Maximum => Binary::Maximum,
    };
    if ty.is_float() {
        float::binary(with, ty, Mode { flush, ..Mode::default() }, old, a)
    } else {
        bits::binary(with, ty, Mode::default(), old, a)
    }
}
