//! Detection of AMX in this process: the processor's word, the system's, and a product that comes out right.

use super::amx::Amx;
use super::{AmxFault, agrees};
use crate::simd::Isa;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// The state of tile data in XCR0 and in requests for permission.
const TILE_DATA: u32 = 18;
/// The states of tile registers: their shapes, and their data.
const TILES: u64 = 1 << 17 | 1 << TILE_DATA;

/// Whether the processor has bfloat16 products on tile registers.
fn has_unit() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 0x1d || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

/// # Safety
/// The processor has XSAVE, in use by the system.
#[target_feature(enable = "xsave")]
unsafe fn saved_states() -> u64 {
    // SAFETY: register 0 is there where the instruction is.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for tile data, for all threads of the process; denied, the error's number.
fn request() -> Result<(), i64> {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    let result: i64;
    // SAFETY: the call reads and writes no memory of the process; the kernel changes rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") u64::from(TILE_DATA),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, nomem),
        );
    }
    if result == 0 { Ok(()) } else { Err(-result) }
}

/// Whether products of bfloat16 run on AMX in this process: to be asked before threads use it. `vectors` is what runs
/// everything else, and what the first product is compared with.
pub(crate) fn found(vectors: Isa) -> Result<bool, AmxFault> {
    if vectors != Isa::Avx512Bf16 || !has_unit() {
        return Ok(false);
    }
    // SAFETY: `has_unit` has seen OSXSAVE.
    let xcr0 = unsafe { saved_states() };
    if xcr0 & TILES != TILES {
        return Err(AmxFault::NotSaved { xcr0 });
    }
    let palette = __cpuid_count(0x1d, 1);
    let (names, rows, bytes) = (palette.ebx >> 16, palette.ecx & 0xffff, palette.ebx & 0xffff);
    if names < 8 || (rows, bytes) != (16, 64) {
        return Err(AmxFault::Shape { names, rows, bytes });
    }
    request().map_err(|errno| AmxFault::Denied { errno })?;
    // SAFETY: the processor has the unit, and the process may use it.
    if unsafe { agrees::<Amx>(vectors) } { Ok(true) } else { Err(AmxFault::Wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system's answer: a fault number where the processor has no such unit, no crash.
    #[test]
    fn a_processor_without_the_unit_is_denied() {
        if has_unit() {
            return;
        }
        assert_eq!(found(Isa::Avx512Bf16), Ok(false));
        assert!(matches!(request(), Err(errno) if errno > 0));
    }

    #[test]
    fn other_vectors_never_ask() {
        assert_eq!(found(Isa::Portable), Ok(false));
    }
}
