//! Products of four warps (`wgmma`), whose factors lie in shared memory where descriptors say, or the left ones in registers.
//!
//! A product is computed when its group is waited for, and not before: what is written over its factors until then, or
//! read of its sums, is seen to be wrong.

use crate::float::decode;
use crate::instruction::{Operand, Register};
use crate::scalar::Type;

/// Rows of all four warps.
const ROWS: usize = 64;
/// Warps.
const WARPS: usize = 4;
/// Factors of a sum.
pub(crate) const DEPTH: usize = 16;
/// Elements that lie together.
const EIGHT: usize = 8;

/// `D = A B + D` of 64 rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WarpgroupProduct {
    pub(crate) columns: usize,
    pub(crate) ty: Type,
    pub(crate) d: Vec<Register>,
    pub(crate) a: Left,
    pub(crate) b: Operand,
    /// Whether `D` is added.
    pub(crate) add: Operand,
    /// Whether rows of A, or columns of B, lie one behind the other in shared memory.
    pub(crate) across: [bool; 2],
}

/// Where the left factors are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Left {
    /// In shared memory, where the descriptor says.
    Shared(Operand),
    /// Two a register: of a row, of the one eight below, and of both eight columns further.
    Registers(Vec<Register>),
}

/// One that was begun, with what its operands were.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) product: WarpgroupProduct,
    /// The descriptor, where there is one.
    pub(crate) a: Option<u64>,
    pub(crate) b: u64,
    pub(crate) add: bool,
}

/// Factors in shared memory, in lines of 128 bytes whose eighths are swizzled.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    start: u64,
    /// From 64 rows or columns to the next, where they lie one behind the other.
    blocks: u64,
    /// From eight lines to the next.
    lines: u64,
}

impl Descriptor {
    /// Of the swizzle of 128 bytes, and of no other.
    fn read(bits: u64) -> Option<Self> {
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        let known = bits >> 62 == 1 && bits >> 49 & 7 == 0;
        known.then(|| Self { start: field(0), blocks: field(16), lines: field(32) })
    }

    /// Where the eight lies that is number `eight` of a line.
    fn place(self, line: usize, eight: usize) -> u64 {
        let (line, eight) = (line as u64, eight as u64);
        let at =
            self.start + line / 8 * self.lines + line % 8 * 128 + eight / 8 * self.blocks + eight % 8 * 16;
        at ^ (at >> 7 & 7) << 4
    }
}

/// Factors by row or column, then depth: of `count` from `first`. `read` gives the 16 bytes at an address.
fn factors<E>(
    of: Descriptor,
    across: bool,
    (first, count): (usize, usize),
    ty: Type,
    read: &mut impl FnMut(u64) -> Result<[u8; 16], E>,
) -> Result<Vec<f64>, E> {
    let mut out = vec![0.0; count * DEPTH];
    let (lines, eights) = if across {
        (0..DEPTH, first / EIGHT..(first + count) / EIGHT)
    } else {
        (first..first + count, 0..2)
    };
    for line in lines {
        for eight in eights.clone() {
            let bytes = read(of.place(line, eight))?;
            for (i, pair) in bytes.chunks_exact(2).enumerate() {
                let value = decode(ty, u64::from(u16::from_le_bytes([pair[0], pair[1]])), false);
                let element = eight * EIGHT + i;
                let [of_across, of_depth] = if across { [element, line] } else { [line, element] };
                out[(of_across - first) * DEPTH + of_depth] = value;
            }
        }
    }
    Ok(out)
}

/// A warp's left factors, from the registers that hold them.
fn held(registers: &[[u64; 32]], ty: Type) -> Vec<f64> {
    let mut out = vec![0.0; ROWS / WARPS * DEPTH];
    for (at, register) in registers.iter().enumerate() {
        for (lane, &bits) in register.iter().enumerate() {
            let (row, column) = (lane / 4 + at % 2 * 8, lane % 4 * 2 + at / 2 * 8);
            for (i, half) in [bits & 0xffff, bits >> 16 & 0xffff].into_iter().enumerate() {
                out[row * DEPTH + column + i] = decode(ty, half, false);
            }
        }
    }
    out
}

impl Begun {
    /// Whether descriptors are such as this interpreter has.
    pub(crate) fn is_known(&self) -> bool {
        self.a.is_none_or(|a| Descriptor::read(a).is_some()) && Descriptor::read(self.b).is_some()
    }

    /// The registers of a warp's sums: `sums` are what they hold, `lefts` what those of the left factors do, `read` gives the
    /// 16 bytes at an address of shared memory.
    pub(crate) fn multiply<E>(
        &self,
        warp: usize,
        sums: &[[u64; 32]],
        lefts: &[[u64; 32]],
        mut read: impl FnMut(u64) -> Result<[u8; 16], E>,
    ) -> Result<Vec<[u64; 32]>, E> {
        let WarpgroupProduct { columns, ty, across, .. } = self.product;
        let descriptor = |bits| Descriptor::read(bits).expect("invariant: asked before");
        let rows = ROWS / WARPS;
        let a = match self.a {
            Some(a) => factors(descriptor(a), across[0], (warp % WARPS * rows, rows), ty, &mut read)?,
            None => held(lefts, ty),
        };
        let b = factors(descriptor(self.b), across[1], (0, columns), ty, &mut read)?;
        let mut out = sums.to_vec();
        for (at, out) in out.iter_mut().enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                let row = lane / 4 + at / 2 % 2 * 8;
                let column = at / 4 * 8 + lane % 4 * 2 + at % 2;
                let pairs = a[row * DEPTH..][..DEPTH].iter().zip(&b[column * DEPTH..][..DEPTH]);
                let before = if self.add { f64::from(f32::from_bits(*out as u32)) } else { 0.0 };
                let value = before + pairs.map(|(a, b)| a * b).sum::<f64>();
                *out = u64::from((value as f32).to_bits());
            }
        }
        Ok(out)
    }
}
