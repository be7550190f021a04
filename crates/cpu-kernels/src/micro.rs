//! The micro-kernel and the serial GEMMs over packed operands.
//!
//! B comes in panels of [`NR`] columns (`[k][32]`, see [`crate::pack`]); A in blocks of [`KC`] columns with the
//! constant row stride [`LDP`], so that a tile needs one base pointer and no transposition; with
//! [`Isa::Avx512`] a tile of 14 x 32 keeps 28 accumulators in registers and a block of a panel (32 KiB) in the
//! first-level cache. Columns of A and rows of B are counted in words ([`Operand`]), and so is a sum's length.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and vector")]

use crate::operand::{Bf16Dot, Operand, Product};
use crate::pack::Depth;
use crate::simd::{Isa, Lanes, dispatch};
use crate::tasks::evenly;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;

/// Columns of a block of packed A.
pub(crate) const KC: usize = 256;
/// Row stride of packed A: a block, up to 64 spare columns, and 16 against cache-set aliasing.
pub(crate) const LDP: usize = 336;
/// Blocks of packed A that all panels are multiplied with before the next ones.
const GROUP: usize = 4;
/// Columns of a panel of packed B.
pub(crate) const NR: usize = 32;

/// The longest sum of a tile of fewer columns than a panel: a block of packed A with its spare columns.
const DEPTH: usize = LDP - 16;

/// Rows of B (or of what is packed into it) between a row's prefetch and its use.
pub(crate) const AHEAD: usize = 16;

/// Floats of a cache line.
const LINE: usize = 16;

/// One tile or strip: `c[i][j] = alpha * sum_k a[i * RS + k * a_step] * b[k * ldb + j] (+ c[i][j])`, `k` over words.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Rows (of a strip: any number).
    pub m: usize,
    /// Columns, at most [`NR`]. Columns of `b` and `c` at `n` and beyond are neither read nor written.
    pub n: usize,
    /// Length of the sum.
    pub k: usize,
    pub a: *const f32,
    pub a_step: usize,
    pub b: *const f32,
    pub ldb: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub alpha: f32,
    /// Whether `c` is added to rather than written.
    pub add: bool,
}

/// Rows of a tile's B lie [`Tile::ldb`] apart, and those ahead are called for.
pub(crate) const APART: u8 = 0;
/// As [`APART`]; they are written to `kept`, one behind the other.
pub(crate) const KEPT: u8 = 1;
/// They lie one behind the other, in the first-level cache.
pub(crate) const NEAR: u8 = 2;

/// The tile of `M` rows and `V` vectors (the last one masked to `t.n`), whose rows of B lie as `B` says.
#[inline(always)]
pub(crate) unsafe fn tile<
    S: Lanes,
    P: Product,
    const M: usize,
    const V: usize,
    const RS: usize,
    const B: u8,
>(
    t: &Tile,
    mut kept: *mut f32,
) {
    let mask = S::mask(t.n - (V - 1) * S::N);
    let (mut a, mut b) = (t.a, t.b);
    // C is far away: its lines come in while the sums are made.
    for i in 0..M {
        S::prefetch(t.c.wrapping_add(i * t.ldc));
        S::prefetch(t.c.wrapping_add(i * t.ldc + t.n - 1));
    }
    let mut acc = [[S::splat(0.0); V]; M];
    let mut left = t.k;
    // Where another thread has the core's other half, what counts is the operations between products: of rows that lie
    // near four are taken at once.
    while B == NEAR && left >= 4 {
        for _ in 0..4 {
            row::<S, P, M, V, RS, B>(mask, a, b, &mut kept, &mut acc);
            (a, b) = (a.wrapping_add(t.a_step), b.wrapping_add(V * S::N));
        }
        left -= 4;
    }
    for _ in 0..left {
        if B != NEAR {
            for j in (0..V).step_by(LINE / S::N) {
                S::prefetch(b.wrapping_add(AHEAD * t.ldb + j * S::N));
            }
        }
        row::<S, P, M, V, RS, B>(mask, a, b, &mut kept, &mut acc);
        (a, b) = (a.wrapping_add(t.a_step), b.wrapping_add(if B == NEAR { V * S::N } else { t.ldb }));
    }
    let alpha = S::splat(t.alpha);
    for i in 0..M {
        for j in 0..V {
            let p = t.c.add(i * t.ldc + j * S::N);
            let v = S::mul(acc[i][j], alpha);
            if j + 1 < V {
                S::store(p, if t.add { S::add(v, S::load(p)) } else { v });
            } else {
                S::store_m(mask, p, if t.add { S::add(v, S::load_m(mask, p)) } else { v });
            }
        }
    }
}

/// A row of B times a column of A.
#[inline(always)]
unsafe fn row<S: Lanes, P: Product, const M: usize, const V: usize, const RS: usize, const B: u8>(
    mask: S::M,
    a: *const f32,
    b: *const f32,
    kept: &mut *mut f32,
    acc: &mut [[S::V; V]; M],
) {
    let mut bv = [S::splat(0.0); V];
    for j in 0..V - 1 {
        bv[j] = S::load(b.add(j * S::N));
    }
    let last = b.add((V - 1) * S::N);
    bv[V - 1] = if B == NEAR { S::load(last) } else { S::load_m(mask, last) };
    if B == KEPT {
        for j in 0..V {
            S::store(kept.add(j * S::N), bv[j]);
        }
        *kept = kept.wrapping_add(V * S::N);
    }
    for part in 0..P::PARTS {
        let mut bp = bv;
        for j in 0..V {
            bp[j] = P::part::<S>(bv[j], part);
        }
        for i in 0..M {
            let av = P::part::<S>(S::splat(*a.add(i * RS)), part);
            for j in 0..V {
                acc[i][j] = P::add::<S>(av, bp[j], acc[i][j]);
            }
        }
    }
}

macro_rules! by_rows {
    ($s:ty, $p:ty, $m:expr, $v:literal, $rs:ident, $t:expr) => {
        match $m {
            14 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 14, $v, $rs, APART>($t, null_mut()),
            13 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 13, $v, $rs, APART>($t, null_mut()),
            12 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 12, $v, $rs, APART>($t, null_mut()),
            11 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 11, $v, $rs, APART>($t, null_mut()),
            10 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 10, $v, $rs, APART>($t, null_mut()),
            9 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 9, $v, $rs, APART>($t, null_mut()),
            8 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 8, $v, $rs, APART>($t, null_mut()),
            7 if <$s>::ROWS >= 14 => <$s>::tile::<$p, 7, $v, $rs, APART>($t, null_mut()),
            6 if <$s>::ROWS >= 6 => <$s>::tile::<$p, 6, $v, $rs, APART>($t, null_mut()),
            5 if <$s>::ROWS >= 6 => <$s>::tile::<$p, 5, $v, $rs, APART>($t, null_mut()),
            4 => <$s>::tile::<$p, 4, $v, $rs, APART>($t, null_mut()),
            3 => <$s>::tile::<$p, 3, $v, $rs, APART>($t, null_mut()),
            2 => <$s>::tile::<$p, 2, $v, $rs, APART>($t, null_mut()),
            1 => <$s>::tile::<$p, 1, $v, $rs, APART>($t, null_mut()),
            _ => {}
        }
    };
}

/// Rows of B, as wide as a tile, one behind the other.
#[repr(C, align(64))]
struct Rows([f32; DEPTH * NR / 2]);

/// [`strip`], long sums in parts where a tile is half a panel wide.
#[inline(always)]
unsafe fn strip_body<S: Lanes, P: Product, const RS: usize>(t: Tile) {
    if S::COLS * S::N >= NR {
        return columns::<S, P, RS>(t, null_mut());
    }
    let mut kept = MaybeUninit::<Rows>::uninit();
    let depth = t.k.div_ceil(t.k.div_ceil(DEPTH).max(1));
    let mut k0 = 0;
    loop {
        let k = (t.k - k0).min(depth);
        let (a, b) = (t.a.wrapping_add(k0 * t.a_step), t.b.wrapping_add(k0 * t.ldb));
        columns::<S, P, RS>(Tile { k, a, b, add: t.add || k0 > 0, ..t }, kept.as_mut_ptr().cast());
        k0 += k;
        if k0 >= t.k {
            return;
        }
    }
}

/// The tiles of a strip, columns by columns.
///
/// Half a panel's rows lie in every second line of the cache, or fewer: in half of its sets, where they push each other
/// out. So the first tile of many puts them together, into `kept`, for those below it.
#[inline(always)]
unsafe fn columns<S: Lanes, P: Product, const RS: usize>(t: Tile, kept: *mut f32) {
    let wide = S::COLS * S::N;
    let keeps = wide < NR && t.m > 2 * S::ROWS;
    let mut j = 0;
    while j < t.n {
        let n = (t.n - j).min(wide);
        let of = Tile { n, b: t.b.add(j), c: t.c.add(j), ..t };
        // Rows split evenly: 64 is 13 + 13 + 13 + 13 + 12, never a tile of a few rows.
        for (i, m) in evenly(t.m, S::ROWS) {
            let one = Tile { a: t.a.add(i * RS), c: of.c.add(i * t.ldc), ..of };
            if S::COLS == 2 && n > S::N {
                if keeps {
                    // Of more than twelve rows a tile has four to six, the first at least five.
                    match (i, m) {
                        (0, 6) => S::tile::<P, 6, 2, RS, KEPT>(&one, kept),
                        (0, _) => S::tile::<P, 5, 2, RS, KEPT>(&one, kept),
                        (_, 6) => S::tile::<P, 6, 2, RS, NEAR>(&Tile { b: kept, ..one }, null_mut()),
                        (_, 5) => S::tile::<P, 5, 2, RS, NEAR>(&Tile { b: kept, ..one }, null_mut()),
                        _ => S::tile::<P, 4, 2, RS, NEAR>(&Tile { b: kept, ..one }, null_mut()),
                    }
                } else {
                    by_rows!(S, P, m, 2, RS, &one);
                }
            } else {
                by_rows!(S, P, m, 1, RS, &one);
            }
        }
        j += n;
    }
}

dispatch! {
    /// [`strip`] without an instruction for the product.
    ///
    /// # Safety
    /// As [`strip`].
    unsafe fn strip_plainly = strip_body [P: Product, const RS: usize] [P, RS] (t: Tile)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
unsafe fn strip_dots<const RS: usize>(t: Tile) {
    strip_body::<crate::simd::Avx512<true>, Bf16Dot, RS>(t);
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,bf16")]
unsafe fn strip_dots<const RS: usize>(t: Tile) {
    strip_body::<crate::simd::Neon<true>, Bf16Dot, RS>(t);
}

/// [`strip`] on vectors.
#[inline]
unsafe fn strip_on_vectors<O: Operand, const RS: usize>(isa: Isa, t: Tile) {
    #[cfg(target_arch = "x86_64")]
    if O::VALUES == 2 && isa.lanes() == Isa::Avx512Bf16 {
        return strip_dots::<RS>(t);
    }
    #[cfg(target_arch = "aarch64")]
    if O::VALUES == 2 && isa.lanes() == Isa::NeonBf16 {
        return strip_dots::<RS>(t);
    }
    strip_plainly::<O::Product, RS>(isa, t);
}

/// Strips one after another: each of any number of rows by at most [`NR`] columns; `RS` is A's row stride. Those with
/// the same A should follow each other.
///
/// # Safety
/// The elements named by each tile are in bounds, and no `c` overlaps an `a` or a `b`.
#[inline]
pub(crate) unsafe fn strips<O: Operand, const RS: usize>(isa: Isa, strips: impl Iterator<Item = Tile>) {
    if O::VALUES == 2 {
        match isa {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => return crate::tiles::strips::<crate::tiles::amx::Amx, RS>(isa, strips),
            #[cfg(test)]
            Isa::EmulatedAmx => {
                return crate::tiles::strips::<crate::tiles::emulated::Emulated, RS>(isa, strips);
            }
            _ => {}
        }
    }
    strips.for_each(|t| strip_on_vectors::<O, RS>(isa, t));
}

/// One of [`strips`].
///
/// # Safety
/// As [`strips`].
#[inline]
pub(crate) unsafe fn strip<O: Operand, const RS: usize>(isa: Isa, t: Tile) {
    strips::<O, RS>(isa, std::iter::once(t));
}

/// `c[m, n] = alpha * A B (+ c)`, A packed with its extra columns, B in `ceil(n / 32)` panels of depth `d` (in words).
///
/// # Safety
/// `a` holds `d.a_len(m)` floats, `panels` `ceil(n / 32) * d.panel_len()`, `c` `m` rows of `n` at stride `ldc`.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn gemm<O: Operand>(
    isa: Isa,
    m: usize,
    a: *const f32,
    d: Depth,
    panels: *const f32,
    n: usize,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    add: bool,
) {
    // All panels for some blocks of A, which stay in the second-level cache meanwhile.
    let groups = (0..d.blocks()).step_by(GROUP).map(|first| first..d.blocks().min(first + GROUP));
    let all = groups.flat_map(|blocks| {
        (0..n.div_ceil(NR)).flat_map(move |p| {
            let (panel, c) = (panels.wrapping_add(p * d.panel_len()), c.wrapping_add(p * NR));
            of_panel(m, a, d, blocks.clone(), panel, (n - p * NR).min(NR), c, ldc, alpha, add)
        })
    });
    strips::<O, LDP>(isa, all);
}

/// One panel of [`gemm`].
///
/// # Safety
/// As [`gemm`], with one panel and `n <= 32`.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn gemm_panel<O: Operand>(
    isa: Isa,
    m: usize,
    a: *const f32,
    d: Depth,
    panel: *const f32,
    n: usize,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    add: bool,
) {
    strips::<O, LDP>(isa, of_panel(m, a, d, 0..d.blocks(), panel, n, c, ldc, alpha, add));
}

/// The strips of a panel, one for each of these blocks of the depth.
#[allow(clippy::too_many_arguments, reason = "as the product of a panel")]
fn of_panel(
    m: usize,
    a: *const f32,
    d: Depth,
    blocks: Range<usize>,
    panel: *const f32,
    n: usize,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    add: bool,
) -> impl Iterator<Item = Tile> {
    let mut k0 = (0..blocks.start).map(|block| d.len(block)).sum::<usize>();
    blocks.map(move |block| {
        let k = d.len(block);
        let (a, b) = (a.wrapping_add(block * m * LDP), panel.wrapping_add(k0 * NR));
        k0 += k;
        Tile { m, n, k, a, a_step: 1, b, ldb: NR, c, ldc, alpha, add: add || block > 0 }
    })
}

/// `c[i, j] = alpha * sum_t a[t * lda + i] * b[t * ldb + j] (+ c)` over `m` rows of words `t`: outer products of two
/// row-major operands, neither packed ([`Operand::stack`] makes such rows).
///
/// # Safety
/// `a` has `m` rows of `i` at stride `lda`, `b` of `j` at stride `ldb`, `c` `i` rows of `j` at stride `ldc`.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn gemm_tn<O: Operand>(
    isa: Isa,
    m: usize,
    i: usize,
    j: usize,
    a: *const f32,
    lda: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    add: bool,
) {
    let all = (0..j).step_by(NR).map(|j0| {
        let (n, b, c) = ((j - j0).min(NR), b.wrapping_add(j0), c.wrapping_add(j0));
        Tile { m: i, n, k: m, a, a_step: lda, b, ldb, c, ldc, alpha, add }
    });
    strips::<O, 1>(isa, all);
}

#[cfg(test)]
mod tests;
