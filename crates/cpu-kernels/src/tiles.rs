//! Products of bfloat16 on tile registers (AMX): the micro-kernel of [`crate::micro`] on a processor's matrix unit.
//!
//! A register holds sixteen rows of sixteen words. Rows of packed A are rows of a register, and rows of a panel of B are the
//! pairs that `tdpbf16ps` reads ([`crate::operand`]), so both are read where the other paths read them; A by columns
//! (row stride 1) is turned first, once for all strips that share it. A block of C is 32 x 32: four registers of sums, two of
//! A, two of B.
//!
//! Registers take the strip's shape: its rows where they are fewer than sixteen, its columns in the last two. The last
//! rows of more than sixteen are a tile that begins early and makes some rows again, to the same bits. A sum's last words are
//! copied beside zeros. So an element's sum is the same whatever rows and columns stand beside it.
//!
//! The same code runs on [`amx::Amx`] and, in tests, on a copy of the unit in plain Rust.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![cfg_attr(
    not(any(test, all(target_arch = "x86_64", target_os = "linux"))),
    allow(dead_code, reason = "no such unit is used there")
)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod detection;
#[cfg(test)]
pub(crate) mod emulated;

use crate::micro::Tile;
use crate::pack::transpose;
use crate::scratch::Held;
use crate::simd::{Isa, Lanes, dispatch};
use std::mem::MaybeUninit;

/// Why a processor's tile registers are left alone; products of bfloat16 are then those of AVX-512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmxFault {
    /// The system does not keep their state.
    #[error("the system does not save AMX's registers (XCR0 is {xcr0:#x}): Linux 5.16 or newer does")]
    NotSaved {
        /// The states that it saves.
        xcr0: u64,
    },
    /// Registers of another shape than those that the kernels know.
    #[error(
        "AMX's registers have {rows} rows of {bytes} bytes, {names} of them; expected 8 of 16 rows of 64 bytes"
    )]
    Shape {
        /// Registers.
        names: u32,
        /// Rows of each.
        rows: u32,
        /// Bytes of a row.
        bytes: u32,
    },
    /// The system denied them to the process.
    #[error("the system denies AMX's registers to this process (arch_prctl gave errno {errno})")]
    Denied {
        /// The system's number of the error.
        errno: i64,
    },
    /// A product came out wrong.
    #[error("a product on AMX's registers differs from that of AVX-512")]
    Wrong,
}

/// Rows of a register, and words of a row.
pub(crate) const SIDE: usize = 16;

/// The registers of A.
const A: [u8; 2] = [4, 5];
/// The registers of B; those of C are 0 to 3, by rows.
const B: [u8; 2] = [6, 7];

/// The part of the registers that a strip uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rows of A and C, at most sixteen.
    pub(crate) rows: usize,
    /// Columns of the first and the second register of B, and of C beside each other.
    pub(crate) columns: [usize; 2],
}

impl Shape {
    /// Of a strip of `m` rows and `n` columns.
    fn of(m: usize, n: usize) -> Self {
        let first = n.min(SIDE);
        // A register that is not used has a shape too.
        Self { rows: m.min(SIDE), columns: [first, if n > SIDE { n - SIDE } else { first }] }
    }

    /// Rows of register `register`, and bytes of each.
    pub(crate) fn register(self, register: usize) -> (usize, usize) {
        match register {
            0..4 => (self.rows, 4 * self.columns[register % 2]),
            4..6 => (self.rows, 4 * SIDE),
            _ => (SIDE, 4 * self.columns[register - 6]),
        }
    }
}

/// Eight tile registers and what can be done with them.
///
/// # Safety
/// Every method may be called only where the processor has the unit and the system lets the process use it; between
/// [`Self::configure`] and [`Self::release`], but for these two. Registers belong to the thread.
pub(crate) trait TileEngine {
    fn new() -> Self;
    /// Gives registers their shapes; all of them are zero then.
    unsafe fn configure(&mut self, shape: Shape);
    unsafe fn zero<const T: u8>(&mut self);
    /// Loads a register's rows, `stride` words apart.
    ///
    /// # Safety
    /// Its rows and columns are there.
    unsafe fn load<const T: u8>(&mut self, from: *const f32, stride: usize);
    /// Stores a register's rows, `stride` floats apart.
    ///
    /// # Safety
    /// Its rows and columns are there.
    unsafe fn store<const T: u8>(&mut self, to: *mut f32, stride: usize);
    /// `C += A B` of registers: per element, over the words of a row of A, the products of the first values and those of the
    /// second are summed apart, and the sum of the two is added; denormals are zero before and after each operation.
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self);
    /// Ends the use of the registers.
    unsafe fn release(&mut self);
}

/// What a strip copies: the last words of A and B, and C.
#[repr(C, align(64))]
struct Room {
    a: [[f32; SIDE]; 2 * SIDE],
    b: [[f32; 2 * SIDE]; SIDE],
    c: [[f32; 2 * SIDE]; 2 * SIDE],
}

/// Registers in use by this thread: their shape is kept from strip to strip.
struct Session<E: TileEngine> {
    engine: E,
    shape: Option<Shape>,
    room: MaybeUninit<Room>,
}

impl<E: TileEngine> Drop for Session<E> {
    fn drop(&mut self) {
        if self.shape.is_some() {
            // SAFETY: who made the session has the unit.
            unsafe { self.engine.release() };
        }
    }
}

/// Whether a block writes C as it is.
fn plain(t: &Tile) -> bool {
    t.alpha == 1.0 && !t.add
}

/// One step of a block: `DOWN` registers of A by `ACROSS` of B.
#[inline(always)]
unsafe fn step<E: TileEngine, const DOWN: usize, const ACROSS: usize>(
    engine: &mut E,
    a: [*const f32; 2],
    lda: usize,
    b: *const f32,
    ldb: usize,
) {
    engine.load::<{ B[0] }>(b, ldb);
    if ACROSS == 2 {
        engine.load::<{ B[1] }>(b.add(SIDE), ldb);
    }
    engine.load::<{ A[0] }>(a[0], lda);
    engine.dot::<0, { A[0] }, { B[0] }>();
    if ACROSS == 2 {
        engine.dot::<1, { A[0] }, { B[1] }>();
    }
    if DOWN == 2 {
        engine.load::<{ A[1] }>(a[1], lda);
        engine.dot::<2, { A[1] }, { B[0] }>();
        if ACROSS == 2 {
            engine.dot::<3, { A[1] }, { B[1] }>();
        }
    }
}

/// The block of the register rows that begin at the rows `at` of `t`; A has row stride `lda`, and the words of the sum
/// that fill no register lie in `last` (stride [`SIDE`]) and `room.b`.
#[inline(always)]
unsafe fn block<E: TileEngine, const DOWN: usize, const ACROSS: usize>(
    engine: &mut E,
    room: *mut Room,
    t: &Tile,
    lda: usize,
    at: [usize; 2],
) {
    engine.zero::<0>();
    engine.zero::<1>();
    if DOWN == 2 {
        engine.zero::<2>();
        engine.zero::<3>();
    }
    let rows = at.map(|row| t.a.wrapping_add(row * lda));
    let whole = t.k / SIDE * SIDE;
    let mut k = 0;
    while k < whole {
        let a = rows.map(|row| row.wrapping_add(k));
        step::<E, DOWN, ACROSS>(engine, a, lda, t.b.add(k * t.ldb), t.ldb);
        k += SIDE;
    }
    if whole < t.k {
        let a = (&raw const (*room).a).cast::<f32>();
        let b = (&raw const (*room).b).cast::<f32>();
        step::<E, DOWN, ACROSS>(engine, [a, a.add(SIDE * SIDE)], SIDE, b, 2 * SIDE);
    }
    let (to, ldc) = if plain(t) {
        (at.map(|row| t.c.wrapping_add(row * t.ldc)), t.ldc)
    } else {
        let c = (&raw mut (*room).c).cast::<f32>();
        ([c, c.add(SIDE * 2 * SIDE)], 2 * SIDE)
    };
    engine.store::<0>(to[0], ldc);
    if ACROSS == 2 {
        engine.store::<1>(to[0].add(SIDE), ldc);
    }
    if DOWN == 2 {
        engine.store::<2>(to[1], ldc);
        if ACROSS == 2 {
            engine.store::<3>(to[1].add(SIDE), ldc);
        }
    }
}

/// Copies `rows` rows of `n` words, with zeros up to `width`.
#[inline(always)]
unsafe fn widened<S: Lanes>(
    rows: usize,
    n: usize,
    width: usize,
    from: *const f32,
    ld: usize,
    to: *mut f32,
    ldt: usize,
) {
    for i in 0..rows {
        let mut c = 0;
        while c < width {
            let mask = S::mask(n.saturating_sub(c).min(S::N));
            S::store(to.add(i * ldt + c), S::load_m(mask, from.wrapping_add(i * ld + c)));
            c += S::N;
        }
    }
}

/// Adds `alpha` times rows of the room to rows of C, or writes them.
#[inline(always)]
unsafe fn finish<S: Lanes>(t: &Tile, from: *const f32, row: usize, rows: usize) {
    let alpha = S::splat(t.alpha);
    for i in 0..rows {
        let (from, to) = (from.add(i * 2 * SIDE), t.c.add((row + i) * t.ldc));
        let mut c = 0;
        while c < t.n {
            let mask = S::mask((t.n - c).min(S::N));
            let v = S::mul(alpha, S::load_m(mask, from.add(c)));
            let v = if t.add { S::add(v, S::load_m(mask, to.add(c))) } else { v };
            S::store_m(mask, to.add(c), v);
            c += S::N;
        }
    }
}

#[inline(always)]
unsafe fn strip_body<S: Lanes, E: TileEngine>(session: &mut Session<E>, t: &Tile, lda: usize) {
    if t.m == 0 || t.n == 0 {
        return;
    }
    let shape = Shape::of(t.m, t.n);
    if session.shape != Some(shape) {
        session.engine.configure(shape);
        session.shape = Some(shape);
    }
    let (engine, room) = (&mut session.engine, session.room.as_mut_ptr());
    let (whole, last) = (t.k / SIDE * SIDE, t.k % SIDE);
    if last > 0 {
        let to = (&raw mut (*room).b).cast::<f32>();
        widened::<S>(last, t.n, 2 * SIDE, t.b.add(whole * t.ldb), t.ldb, to, 2 * SIDE);
        widened::<S>(SIDE - last, 0, 2 * SIDE, t.b, 0, to.add(last * 2 * SIDE), 2 * SIDE);
    }
    let begins = |row: usize| row.min(t.m - shape.rows);
    let mut row = 0;
    while row < t.m {
        let down = if t.m - row > SIDE { 2 } else { 1 };
        let at = [begins(row), begins(row + SIDE)];
        if last > 0 {
            for (i, at) in at[..down].iter().enumerate() {
                let to = (&raw mut (*room).a[i * SIDE]).cast::<f32>();
                widened::<S>(shape.rows, last, SIDE, t.a.add(at * lda + whole), lda, to, SIDE);
            }
        }
        match (down, t.n > SIDE) {
            (2, true) => block::<E, 2, 2>(engine, room, t, lda, at),
            (2, false) => block::<E, 2, 1>(engine, room, t, lda, at),
            (_, true) => block::<E, 1, 2>(engine, room, t, lda, at),
            (_, false) => block::<E, 1, 1>(engine, room, t, lda, at),
        }
        if !plain(t) {
            for (i, at) in at[..down].iter().enumerate() {
                // Rows that an earlier tile has made are not added again.
                let first = row + i * SIDE;
                let from = (&raw const (*room).c[i * SIDE + first - at]).cast::<f32>();
                finish::<S>(t, from, first, (t.m - first).min(SIDE));
            }
        }
        row += down * SIDE;
    }
}

dispatch! {
    /// One strip; A has row stride `lda`.
    ///
    /// # Safety
    /// As [`crate::micro::strip`]; the processor has the engine's unit, and the process may use it.
    unsafe fn strip = strip_body [E: TileEngine] [E] (session: &mut Session<E>, t: &Tile, lda: usize)
}

/// An A by columns, turned.
struct Turned {
    a: *const f32,
    a_step: usize,
    m: usize,
    k: usize,
    rows: Held,
}

/// Strips on the engine's registers, which are configured once where the strips' shapes agree.
///
/// # Safety
/// As [`crate::micro::strips`]; the processor has the engine's unit, and the process may use it.
pub(crate) unsafe fn strips<E: TileEngine, const RS: usize>(isa: Isa, strips: impl Iterator<Item = Tile>) {
    let mut session = Session::<E> { engine: E::new(), shape: None, room: MaybeUninit::uninit() };
    let mut turned: Option<Turned> = None;
    for t in strips {
        if RS != 1 {
            debug_assert_eq!(t.a_step, 1, "words of a row follow each other");
            strip::<E>(isa, &mut session, &t, RS);
            continue;
        }
        // Sixteen words more, against aliasing in the cache's sets.
        let lda = t.k.next_multiple_of(SIDE) + SIDE;
        let kept =
            turned.take().filter(|kept| (kept.a, kept.a_step, kept.m, kept.k) == (t.a, t.a_step, t.m, t.k));
        let kept = kept.unwrap_or_else(|| {
            let rows = Held::take(t.m * lda);
            transpose(isa, t.a, t.a_step, t.k, t.m, rows.ptr(), lda);
            Turned { a: t.a, a_step: t.a_step, m: t.m, k: t.k, rows }
        });
        strip::<E>(isa, &mut session, &Tile { a: kept.rows.ptr(), a_step: 1, ..t }, lda);
        turned = Some(kept);
    }
}

/// Whether a small product by the engine is that of the vectors of `isa`, with every kind of edge.
pub(crate) unsafe fn agrees<E: TileEngine>(isa: Isa) -> bool {
    use crate::micro::{LDP, NR, strips as vectors};
    use crate::operand::{Bf16, Operand};
    use burnish_core::random::mix32;
    let word = |i: usize| {
        let value = |i: usize| mix32(i as u32) as f32 / 2_147_483_648.0 - 1.0;
        Bf16::word(value(2 * i), value(2 * i + 1))
    };
    for (m, n, k) in [(37, 32, 43), (5, 21, 16), (16, 7, 3)] {
        let b: Vec<f32> = (0..k * NR).map(word).collect();
        let a: Vec<f32> = (0..m * LDP).map(|i| word(i + 7777)).collect();
        let c: Vec<f32> = (0..m * n).map(|i| mix32(i as u32) as f32 / 2_147_483_648.0 - 1.0).collect();
        let (mut got, mut want) = (c.clone(), c);
        for (alpha, add) in [(1.0, false), (0.5, true)] {
            let by_rows = |c: *mut f32| Tile {
                m,
                n,
                k,
                a: a.as_ptr(),
                a_step: 1,
                b: b.as_ptr(),
                ldb: NR,
                c,
                ldc: n,
                alpha,
                add,
            };
            let by_columns = |c: *mut f32| Tile { a_step: m, add: true, ..by_rows(c) };
            strips::<E, LDP>(isa, std::iter::once(by_rows(got.as_mut_ptr())));
            strips::<E, 1>(isa, std::iter::once(by_columns(got.as_mut_ptr())));
            vectors::<Bf16, LDP>(isa, std::iter::once(by_rows(want.as_mut_ptr())));
            vectors::<Bf16, 1>(isa, std::iter::once(by_columns(want.as_mut_ptr())));
        }
        let top = want.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
        if !got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-5 * top) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
