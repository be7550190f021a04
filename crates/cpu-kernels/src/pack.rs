//! Packing of GEMM operands, widening or narrowing on the way.
//!
//! Columns of A and rows of B are words ([`Operand`]): a value each, or a pair of values.
//!
//! * A (`m` rows): blocks of at most [`KC`] columns, `[block][row][LDP]`; the spare columns behind the last block
//!   take extra columns (low-rank activations, a one for the bias), so that `[x | t] [[W^T], [B^T]]` is one GEMM.
//!   Extras which do not fit become blocks of their own.
//! * B: panels of [`NR`] columns, `[k + x][32]`, from weights `[out, in]` transposed ([`pack_nk`], forward) or by
//!   rows ([`pack_kn`], backward). Columns beyond the matrix are zero.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::micro::{KC, LDP, NR};
use crate::operand::Operand;
use crate::rows::{TileLayout, copy_rows};
use crate::simd::{Element, Isa, Lanes, Store, dispatch};

/// Spare columns behind a full block.
const SPARE: usize = LDP - 16 - KC;

/// The depth of a packed GEMM in words: `k` columns of A and `x` extra ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) k: usize,
    pub(crate) x: usize,
    /// Columns of a block.
    kc: usize,
}

impl Depth {
    /// Blocks of `k` split evenly, in whole panels.
    pub(crate) fn new(k: usize, x: usize) -> Self {
        let kc = k.div_ceil(k.div_ceil(KC).max(1)).next_multiple_of(NR).min(KC);
        Self { k, x, kc }
    }

    /// `k` of these columns, whole blocks or the last ones, and `x` extra ones: the blocks of a product stay those of the
    /// whole, and with them the order of its sums.
    pub(crate) fn part(self, k: usize, x: usize) -> Self {
        Self { k, x, ..self }
    }

    /// Columns of a block.
    pub(crate) fn kc(self) -> usize {
        self.kc
    }

    /// Whether the extra columns fit behind the last block.
    fn joined(self) -> bool {
        self.k - (self.main_used() - 1) * self.kc() + self.x <= KC + SPARE
    }

    /// Blocks of the `k` columns after rounding.
    fn main_used(self) -> usize {
        self.k.div_ceil(self.kc()).max(1)
    }

    /// Blocks in all.
    pub(crate) fn blocks(self) -> usize {
        self.main_used() + if self.joined() { 0 } else { self.x.div_ceil(KC) }
    }

    /// Columns of `block`, extras included.
    pub(crate) fn len(self, block: usize) -> usize {
        let (main, kc) = (self.main_used(), self.kc());
        if block >= main {
            return (self.x - (block - main) * KC).min(KC);
        }
        let last = if block + 1 == main && self.joined() { self.x } else { 0 };
        (self.k - block * kc).min(kc) + last
    }

    /// Floats of `m` packed rows.
    pub(crate) fn a_len(self, m: usize) -> usize {
        self.blocks() * m * LDP
    }

    /// Floats of a packed panel.
    pub(crate) fn panel_len(self) -> usize {
        (self.k + self.x) * NR
    }

    /// Where column `col` (extras start at `k`) of row 0 lies in `m` packed rows; row `i` is `i * LDP` further.
    pub(crate) fn column(self, m: usize, col: usize) -> usize {
        let (main, kc) = (self.main_used(), self.kc());
        if col < self.k {
            return (col / kc) * m * LDP + col % kc;
        }
        let extra = col - self.k;
        if self.joined() {
            (main - 1) * m * LDP + self.k - (main - 1) * kc + extra
        } else {
            (main + extra / KC) * m * LDP + extra % KC
        }
    }
}

/// Packs `m` rows of `n` values.
///
/// # Safety
/// `a` has `m` rows of `n` at stride `lda`; `d.k` is the words of `n`, and `dst` holds `d.a_len(m)`.
pub(crate) unsafe fn pack_rows<O: Operand>(
    isa: Isa,
    m: usize,
    n: usize,
    d: Depth,
    a: *const f32,
    lda: usize,
    dst: *mut f32,
) {
    copy_rows::<f32, O::Value>(isa, m, n, a, lda, dst.cast(), TileLayout::packed::<O>(m, d));
    end_rows::<O>(m, n, d, dst);
}

/// Makes whole words of `m` packed rows of `n` values.
///
/// # Safety
/// `d.k` is the words of `n`, and `dst` holds `d.a_len(m)`.
pub(crate) unsafe fn end_rows<O: Operand>(m: usize, n: usize, d: Depth, dst: *mut f32) {
    if n.is_multiple_of(O::VALUES) {
        return;
    }
    let last = dst.add(d.column(m, n / O::VALUES)).cast::<O::Value>().add(n % O::VALUES);
    for i in 0..m {
        *last.add(i * LDP * O::VALUES) = O::Value::narrow(0.0);
    }
}

#[inline(always)]
unsafe fn extra_columns_body<S: Lanes, O: Operand>(
    m: usize,
    d: Depth,
    dst: *mut f32,
    first: usize,
    t: *const f32,
    r: usize,
    scale: f32,
) {
    let s = S::splat(scale);
    let mut word = 0;
    while word < O::words(r) {
        // Extra blocks begin at multiples of KC from the first extra column.
        let words = (O::words(r) - word).min(KC - (first + word) % KC);
        let to = dst.add(d.column(m, d.k + first + word));
        let j = word * O::VALUES;
        let n = (r - j).min(words * O::VALUES);
        for i in 0..m {
            let (from, to) = (t.add(i * r + j), to.add(i * LDP).cast::<O::Value>());
            let mut c = 0;
            while c + S::N <= n {
                O::Value::store::<S>(to.add(c), S::mul(s, S::load(from.add(c))));
                c += S::N;
            }
            if c < n {
                let mask = S::mask(n - c);
                O::Value::store_m::<S>(mask, to.add(c), S::mul(s, S::load_m(mask, from.add(c))));
            }
            if !n.is_multiple_of(O::VALUES) {
                *to.add(n) = O::Value::narrow(0.0);
            }
        }
        word += words;
    }
}

dispatch! {
    narrowing
    /// Writes `scale * t` (`m` rows of `r`) into the extra columns from word `first` on.
    ///
    /// # Safety
    /// `t` holds `m * r`, `dst` `d.a_len(m)` floats, and `first` with the words of `r` is at most `d.x`.
    pub(crate) unsafe fn extra_columns = extra_columns_body [O: Operand] [O]
        (m: usize, d: Depth, dst: *mut f32, first: usize, t: *const f32, r: usize, scale: f32)
}

/// Writes a word into the extra column `at`.
///
/// # Safety
/// `dst` holds `d.a_len(m)` floats and `at < d.x`.
pub(crate) unsafe fn extra_constant(m: usize, d: Depth, dst: *mut f32, at: usize, word: f32) {
    let to = dst.add(d.column(m, d.k + at));
    for i in 0..m {
        *to.add(i * LDP) = word;
    }
}

/// Zeros in the columns of a panel from `n` on.
#[inline(always)]
unsafe fn blank_columns(rows: usize, n: usize, panel: *mut f32) {
    if n < NR {
        for kk in 0..rows {
            for j in n..NR {
                *panel.add(kk * NR + j) = 0.0;
            }
        }
    }
}

/// [`pack_nk`] of fp32.
#[inline(always)]
pub(crate) unsafe fn columns_of_values<S: Lanes, E: Element>(
    w: *const E,
    ldw: usize,
    k: usize,
    n: usize,
    panel: *mut f32,
) {
    let mut j = 0;
    while j + S::N <= n {
        let (from, to) = (w.add(j * ldw), panel.add(j));
        let mut kk = 0;
        while kk + S::N <= k {
            S::transpose(from.add(kk), ldw, to.add(kk * NR), NR);
            kk += S::N;
        }
        while kk < k {
            for i in 0..S::N {
                *to.add(kk * NR + i) = (*from.add(i * ldw + kk)).widen();
            }
            kk += 1;
        }
        j += S::N;
    }
    for j in j..n {
        for kk in 0..k {
            *panel.add(kk * NR + j) = (*w.add(j * ldw + kk)).widen();
        }
    }
    blank_columns(k, n, panel);
}

/// [`pack_nk`] of pairs: a square of words is halved by rows, then transposed.
#[inline(always)]
pub(crate) unsafe fn columns_of_pairs<S: Lanes, E: Element>(
    w: *const E,
    ldw: usize,
    k: usize,
    n: usize,
    panel: *mut f32,
) {
    /// Words of the largest square.
    const SQUARE: usize = 16 * 16;
    let word = |row: *const E, kk: usize| {
        let second = if kk + 1 < k { (*row.add(kk + 1)).widen() } else { 0.0 };
        <crate::operand::Bf16 as Operand>::word((*row.add(kk)).widen(), second)
    };
    let mut square = [0.0_f32; SQUARE];
    let mut j = 0;
    while j + S::N <= n {
        let (from, to) = (w.add(j * ldw), panel.add(j));
        let mut kk = 0;
        while kk + 2 * S::N <= k {
            for i in 0..S::N {
                E::halve::<S>(from.add(i * ldw + kk), square.as_mut_ptr().add(i * S::N).cast());
            }
            S::transpose(square.as_ptr(), S::N, to.add(kk / 2 * NR), NR);
            kk += 2 * S::N;
        }
        while kk < k {
            for i in 0..S::N {
                *to.add(kk / 2 * NR + i) = word(from.add(i * ldw), kk);
            }
            kk += 2;
        }
        j += S::N;
    }
    for j in j..n {
        for kk in (0..k).step_by(2) {
            *panel.add(kk / 2 * NR + j) = word(w.add(j * ldw), kk);
        }
    }
    blank_columns(k.div_ceil(2), n, panel);
}

#[inline(always)]
unsafe fn pack_nk_body<S: Lanes, O: Operand, E: Element>(
    w: *const E,
    ldw: usize,
    k: usize,
    n: usize,
    panel: *mut f32,
) {
    O::columns::<S, E>(w, ldw, k, n, panel);
}

dispatch! {
    narrowing
    /// Packs `n <= 32` rows of `k` values (`w[j * ldw + kk]`) as the columns of a panel.
    ///
    /// # Safety
    /// `w` has `n` rows of `k` at stride `ldw`; `panel` holds 32 floats for each word of `k`.
    pub(crate) unsafe fn pack_nk = pack_nk_body [O: Operand, E: Element] [O, E]
        (w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32)
}

/// Packs `k` rows of `n <= 32` values (`w[kk * ldw + j]`) as the rows of a panel.
///
/// # Safety
/// `w` has `k` rows of `n` at stride `ldw`; `panel` holds 32 floats for each word of `k`.
pub(crate) unsafe fn pack_kn<O: Operand, E: Element>(
    isa: Isa,
    w: *const E,
    ldw: usize,
    k: usize,
    n: usize,
    panel: *mut f32,
) {
    O::stack(isa, k, n, w, ldw, panel, NR);
    blank_columns(O::words(k), n, panel);
}

#[inline(always)]
unsafe fn transpose_body<S: Lanes>(
    src: *const f32,
    ld: usize,
    rows: usize,
    columns: usize,
    dst: *mut f32,
    ldd: usize,
) {
    let (r, c) = (rows / S::N * S::N, columns / S::N * S::N);
    let mut j = 0;
    while j < c {
        let mut i = 0;
        while i < r {
            S::transpose(src.add(i * ld + j), ld, dst.add(j * ldd + i), ldd);
            i += S::N;
        }
        j += S::N;
    }
    for i in 0..rows {
        for j in if i < r { c } else { 0 }..columns {
            *dst.add(j * ldd + i) = *src.add(i * ld + j);
        }
    }
}

dispatch! {
    /// `dst[j * ldd + i] = src[i * ld + j]` for `rows` by `columns`.
    ///
    /// # Safety
    /// All of them are in bounds, and the two do not overlap.
    pub(crate) unsafe fn transpose = transpose_body [] []
        (src: *const f32, ld: usize, rows: usize, columns: usize, dst: *mut f32, ldd: usize)
}

#[cfg(test)]
mod tests;
