//! The tile registers of x86-64: AMX-TILE and AMX-BF16.

use super::{Shape, TileEngine};
use std::arch::asm;

/// The thread's own registers.
///
/// No instruction but these uses them: the compiler keeps nothing in them, so what one block leaves there the next one finds.
/// Every block names all of them as changed.
#[derive(Clone, Copy)]
pub(crate) struct Amx;

/// What `ldtilecfg` reads: palette 1, bytes of a row and rows of each register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

/// An instruction on tile registers.
macro_rules! tile {
    ($text:literal, [$($operands:tt)*], $($options:ident),* $(,)?) => {
        asm!(
            $text,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags $(, $options)*),
        )
    };
}

impl TileEngine for Amx {
    fn new() -> Self {
        Self
    }
    #[inline(always)]
    unsafe fn configure(&mut self, shape: Shape) {
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for register in 0..8 {
            let (rows, bytes) = shape.register(register);
            config.rows[register] = rows as u8;
            config.bytes[register] = bytes as u16;
        }
        // SAFETY: the caller has the unit; 64 bytes are read, of a palette and shapes that it has.
        unsafe { tile!("ldtilecfg [{at}]", [at = in(reg) &raw const config,], readonly) }
    }
    #[inline(always)]
    unsafe fn zero<const T: u8>(&mut self) {
        // SAFETY: the caller has the unit, configured; memory is not touched.
        unsafe { tile!("tilezero tmm{t}", [t = const T,], nomem) }
    }
    #[inline(always)]
    unsafe fn load<const T: u8>(&mut self, from: *const f32, stride: usize) {
        // SAFETY: the caller has the unit, configured, and vouches for the register's rows at this stride.
        unsafe {
            tile!(
                "tileloadd tmm{t}, [{from} + {stride}*1]",
                [t = const T, from = in(reg) from, stride = in(reg) 4 * stride,],
                readonly
            );
        }
    }
    #[inline(always)]
    unsafe fn store<const T: u8>(&mut self, to: *mut f32, stride: usize) {
        // SAFETY: the caller has the unit, configured, and vouches for the register's rows at this stride.
        unsafe {
            tile!(
                "tilestored [{to} + {stride}*1], tmm{t}",
                [t = const T, to = in(reg) to, stride = in(reg) 4 * stride,],
            );
        }
    }
    #[inline(always)]
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: the caller has the unit, configured so that the three shapes agree; memory is not touched.
        unsafe { tile!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", [c = const C, a = const A, b = const B,], nomem) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: the caller has the unit; registers go back to their first state.
        unsafe { tile!("tilerelease", [], nomem) }
    }
}
