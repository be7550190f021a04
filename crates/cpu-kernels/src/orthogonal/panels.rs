//! Matrices in panels of 32 columns.
//!
//! `[panel][depth][32]`, the last panel partly filled. A panel is the transposed rows of one operand of the
//! micro-kernel (row stride 1) and, as it lies, a panel of the other, so that a product of two matrices held
//! this way packs nothing, and its tiles of 32 x 32 are written in place.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::Side;
use super::product::region;
use crate::elementwise::scale_slice;
use crate::micro::NR;
use crate::operand::Operand;
use crate::pack::transpose;
use crate::scratch::Ptr;
use crate::simd::Isa;

/// A matrix of `width` columns and `depth` rows.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) ptr: Ptr,
    pub(super) width: usize,
    pub(super) depth: usize,
}

impl Panels {
    /// Floats of a matrix.
    pub(super) fn len(width: usize, depth: usize) -> usize {
        width.div_ceil(NR) * NR * depth
    }

    pub(super) fn panels(self) -> usize {
        self.width.div_ceil(NR)
    }

    /// Columns of panel `p`.
    pub(super) fn columns(self, p: usize) -> usize {
        (self.width - p * NR).min(NR)
    }

    /// Row `k` of panel `p`.
    ///
    /// # Safety
    /// Both exist.
    #[inline(always)]
    pub(super) unsafe fn at(self, p: usize, k: usize) -> *mut f32 {
        self.ptr.at((p * self.depth + k) * NR)
    }

    /// Loads a matrix whose `side` is the width, times `factor`.
    ///
    /// # Safety
    /// `x` holds `width * depth` floats; nothing else uses the panels.
    pub(super) unsafe fn load(self, isa: Isa, parallel: bool, x: *const f32, side: Side, factor: f32) {
        let from = Ptr(x.cast_mut());
        // Tasks of at most 256 rows of a panel.
        let chunks = self.depth.div_ceil(CHUNK);
        region(parallel, self.panels() * chunks, |task| {
            let (p, k0) = (task / chunks, task % chunks * CHUNK);
            let (n, k) = (self.columns(p), (self.depth - k0).min(CHUNK));
            let to = self.at(p, k0);
            match side {
                Side::Rows => {
                    let from = from.at(p * NR * self.depth + k0);
                    transpose(isa, from, self.depth, n, k, to, NR);
                }
                Side::Columns => {
                    let from = from.at(k0 * self.width + p * NR);
                    for i in 0..k {
                        std::ptr::copy_nonoverlapping(from.add(i * self.width), to.add(i * NR), n);
                    }
                }
            }
            if n == NR {
                scale_slice(isa, to, k * NR, factor);
            } else {
                (0..k).for_each(|i| scale_slice(isa, to.add(i * NR), n, factor));
            }
        });
    }

    /// Writes a symmetric matrix out, row-major.
    ///
    /// # Safety
    /// `out` holds `width * depth` floats, and the panels are complete.
    pub(super) unsafe fn store(self, out: Ptr) {
        for p in 0..self.panels() {
            for k in 0..self.depth {
                let to = out.at(k * self.width + p * NR);
                std::ptr::copy_nonoverlapping(self.at(p, k), to, self.columns(p));
            }
        }
    }

    /// The sum of the diagonal.
    ///
    /// # Safety
    /// The panels are complete and square.
    pub(super) unsafe fn trace(self) -> f64 {
        (0..self.width).map(|i| f64::from(*self.at(i / NR, i).add(i % NR))).sum()
    }
}

/// A matrix as an operand of products.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    /// The matrix.
    pub(super) full: Panels,
    /// Words of its depth without [`Self::shift`]: the matrix itself where a word is a value.
    pub(super) words: Panels,
    /// The multiple of the identity that is held apart.
    pub(super) shift: f64,
}

impl Factor {
    /// A matrix whose words are its values.
    pub(super) fn own(full: Panels) -> Self {
        Self { full, words: full, shift: 0.0 }
    }

    /// Floats that words need beside the values.
    pub(super) fn room<O: Operand>(width: usize, depth: usize) -> usize {
        if O::VALUES == 1 { 0 } else { Panels::len(width, O::words(depth)) }
    }

    /// Words of a matrix in `room`; the mean of a square one's diagonal is held apart if asked.
    ///
    /// # Safety
    /// The panels are complete; `room` holds [`Self::room`] floats that nothing else uses.
    pub(super) unsafe fn of<O: Operand>(
        isa: Isa,
        parallel: bool,
        full: Panels,
        shifted: bool,
        room: Ptr,
    ) -> Self {
        if O::VALUES == 1 {
            return Self::own(full);
        }
        let words = Panels { ptr: room, width: full.width, depth: O::words(full.depth) };
        let shift = if shifted { full.trace() / full.width as f64 } else { 0.0 };
        let chunks = full.depth.div_ceil(CHUNK);
        region(parallel, full.panels() * chunks, |task| {
            let (p, k0) = (task / chunks, task % chunks * CHUNK);
            let (n, k) = (full.columns(p), (full.depth - k0).min(CHUNK));
            O::stack(isa, k, n, full.at(p, k0).cast_const(), NR, words.at(p, k0 / O::VALUES), NR);
            if shift != 0.0 {
                // The diagonal's words anew.
                for i in (p * NR..p * NR + n).filter(|i| (k0..k0 + k).contains(i)) {
                    let value = |row: usize| {
                        let x = if row < full.depth { *full.at(p, row).add(i - p * NR) } else { 0.0 };
                        if row == i { (f64::from(x) - shift) as f32 } else { x }
                    };
                    let (word, first) = (i / O::VALUES, i / O::VALUES * O::VALUES);
                    *words.at(p, word).add(i - p * NR) = O::word(value(first), value(first + 1));
                }
            }
        });
        Self { full, words, shift }
    }
}

/// Rows of a panel that one task loads.
const CHUNK: usize = 256;
