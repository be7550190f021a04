//! Packing of GEMM operands, widening to `f32` on the way.
//!
//! * A (`m` rows): blocks of at most [`KC`] columns, `[block][row][LDP]`; the spare columns behind the last block
//!   take extra columns (low-rank activations, a one for the bias), so that `[x | t] [[W^T], [B^T]]` is one GEMM.
//!   Extras which do not fit become blocks of their own.
//! * B: panels of [`NR`] columns, `[k + x][32]`, from weights `[out, in]` transposed ([`pack_nk`], forward) or by
//!   rows ([`pack_kn`], backward). Columns beyond the matrix are zero.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::micro::{KC, LDP, NR};
use crate::simd::{Element, Lanes, dispatch};

/// Spare columns behind a full block.
const SPARE: usize = LDP - 16 - KC;

/// The depth of a packed GEMM: `k` columns of A and `x` extra ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) k: usize,
    pub(crate) x: usize,
}

impl Depth {
    /// Columns of a block: `k` split evenly, in whole panels.
    pub(crate) fn kc(self) -> usize {
        self.k.div_ceil(self.main()).next_multiple_of(NR).min(KC)
    }

    /// Blocks of the `k` columns.
    fn main(self) -> usize {
        self.k.div_ceil(KC).max(1)
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

/// Packs `m` rows of `d.k` columns.
///
/// # Safety
/// `a` has `m` rows of `d.k` at stride `lda`; `dst` holds `d.a_len(m)`.
pub(crate) unsafe fn pack_rows(m: usize, d: Depth, a: *const f32, lda: usize, dst: *mut f32) {
    let kc = d.kc();
    for (block, k0) in (0..d.k).step_by(kc).enumerate() {
        let k = (d.k - k0).min(kc);
        for i in 0..m {
            std::ptr::copy_nonoverlapping(a.add(i * lda + k0), dst.add((block * m + i) * LDP), k);
        }
    }
}

#[inline(always)]
unsafe fn extra_columns_body<S: Lanes>(
    m: usize,
    d: Depth,
    dst: *mut f32,
    first: usize,
    t: *const f32,
    r: usize,
    scale: f32,
) {
    let s = S::splat(scale);
    let mut j = 0;
    while j < r {
        // Extra blocks begin at multiples of KC from the first extra column.
        let n = (r - j).min(KC - (first + j) % KC);
        let to = dst.add(d.column(m, d.k + first + j));
        for i in 0..m {
            let (from, to) = (t.add(i * r + j), to.add(i * LDP));
            let mut c = 0;
            while c + S::N <= n {
                S::store(to.add(c), S::mul(s, S::load(from.add(c))));
                c += S::N;
            }
            if c < n {
                let mask = S::mask(n - c);
                S::store_m(mask, to.add(c), S::mul(s, S::load_m(mask, from.add(c))));
            }
        }
        j += n;
    }
}

dispatch! {
    /// Writes `scale * t` (`m` rows of `r`) into the extra columns from `first` on.
    ///
    /// # Safety
    /// `t` holds `m * r`, `dst` `d.a_len(m)` floats, and `first + r <= d.x`.
    pub(crate) unsafe fn extra_columns = extra_columns_body [] []
        (m: usize, d: Depth, dst: *mut f32, first: usize, t: *const f32, r: usize, scale: f32)
}

/// Writes `value` into the extra column `at`.
///
/// # Safety
/// `dst` holds `d.a_len(m)` floats and `at < d.x`.
pub(crate) unsafe fn extra_constant(m: usize, d: Depth, dst: *mut f32, at: usize, value: f32) {
    let to = dst.add(d.column(m, d.k + at));
    for i in 0..m {
        *to.add(i * LDP) = value;
    }
}

#[inline(always)]
unsafe fn pack_nk_body<S: Lanes, E: Element>(w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32) {
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
    if n < NR {
        for kk in 0..k {
            for j in n..NR {
                *panel.add(kk * NR + j) = 0.0;
            }
        }
    }
}

dispatch! {
    /// Packs `n <= 32` rows of `k` values (`w[j * ldw + kk]`) as the columns of a panel.
    ///
    /// # Safety
    /// `w` has `n` rows of `k` at stride `ldw`; `panel` holds `k * 32` floats.
    pub(crate) unsafe fn pack_nk = pack_nk_body [E: Element] [E]
        (w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32)
}

#[inline(always)]
unsafe fn pack_kn_body<S: Lanes, E: Element>(w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32) {
    if n == NR {
        for kk in 0..k {
            let (from, to) = (w.add(kk * ldw), panel.add(kk * NR));
            let mut j = 0;
            while j < NR {
                S::store(to.add(j), E::load::<S>(from.add(j)));
                j += S::N;
            }
        }
        return;
    }
    for kk in 0..k {
        for j in 0..NR {
            *panel.add(kk * NR + j) = if j < n { (*w.add(kk * ldw + j)).widen() } else { 0.0 };
        }
    }
}

dispatch! {
    /// Packs `k` rows of `n <= 32` values (`w[kk * ldw + j]`) as the rows of a panel.
    ///
    /// # Safety
    /// `w` has `k` rows of `n` at stride `ldw`; `panel` holds `k * 32` floats.
    pub(crate) unsafe fn pack_kn = pack_kn_body [E: Element] [E]
        (w: *const E, ldw: usize, k: usize, n: usize, panel: *mut f32)
}

#[cfg(test)]
mod tests;
