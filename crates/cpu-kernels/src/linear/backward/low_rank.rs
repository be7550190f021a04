//! Gradients of an adapter's factors and of biases, for one chunk of rows.

use super::chunk::ScratchLayout;
use super::job::{Job, Part};
use super::pack::Slice;
use crate::micro::gemm_tn;
use crate::operand::Operand;
use crate::pack::Depth;
use crate::rows::{TileLayout, column_sums, drop_packed};
use std::ops::Range;

impl<O: Operand> Job<'_, O> {
    /// These columns of `dA += u^T drop(x)`, for one chunk.
    ///
    /// # Safety
    /// After [`Self::layer`] of the part's last slice, with its `u` and these columns of the input packed; `sums` is the slot's.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    pub(super) unsafe fn grad_of_a(
        &self,
        part: &Part<'_>,
        columns: Range<usize>,
        row: usize,
        m: usize,
        u: *const f32,
        at: *mut f32,
        room: &ScratchLayout,
        sums: *mut f32,
        new: bool,
    ) {
        let (isa, n, r) = (self.isa, columns.len(), part.layer.rank());
        // SAFETY: the caller's.
        unsafe {
            if let Some(to) = part.da {
                let deep = Depth::new(O::words(n), 0);
                let mut x = at.add(room.x);
                if let Some(dropout) = part.layer.dropout() {
                    let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                    let to = at.add(room.dropped);
                    let (keys, first) = (keys.as_ptr(), mask.first + columns.start as u32);
                    drop_packed::<O>(isa, m, n, deep, keys, first, mask.threshold, mask.keep, x, to);
                    x = to;
                }
                let to = sums.add(to + columns.start);
                self.outer(m, r, u, x, (n, self.in_dim), deep, at, room, to, 1.0, !new);
            }
        }
    }

    /// Column sums of `dy`, where they are wanted, for one chunk.
    ///
    /// # Safety
    /// `sums` is the slot's.
    pub(super) unsafe fn sums_of_dy(&self, part: &Part<'_>, row: usize, m: usize, sums: *mut f32, new: bool) {
        if let Some(to) = part.sums {
            // SAFETY: the caller's; shapes were checked.
            unsafe {
                let dy = self.dy.as_ptr().add(row * self.total + part.at);
                column_sums(self.isa, m, part.layer.out, dy, self.total, sums.add(to), !new);
            }
        }
    }

    /// The slice's columns of `dB^T += s t^T dy`, for one chunk.
    ///
    /// # Safety
    /// After [`Self::layer`] on the same scratch; `sums` is the slot's.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    pub(super) unsafe fn grad_of_b(
        &self,
        slice: &Slice,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &ScratchLayout,
        sums: *mut f32,
        new: bool,
    ) {
        let part = &self.parts[slice.part];
        if let (Some(to), Some(low)) = (part.db, &part.layer.low_rank) {
            let (r, width) = (low.rank, (slice.rows.len(), part.layer.out));
            // SAFETY: the caller's.
            unsafe {
                let (t, dy) = (part.t.add(row * r), at.add(room.dy));
                let deep = Depth::new(slice.depth.k, 0);
                let to = sums.add(to + slice.rows.start);
                self.outer(m, r, t, dy, width, deep, at, room, to, low.scale, !new);
            }
        }
    }

    /// `c[i, n] (+)= alpha a^T b` with `b` packed at depth `d` (extra columns aside).
    ///
    /// # Safety
    /// `a` has `m` rows of `i`, `b` `m` packed rows of `n`, `c` `i` rows of `n` at stride `ldc`; `at` is the scratch.
    #[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
    pub(super) unsafe fn outer(
        &self,
        m: usize,
        i: usize,
        a: *const f32,
        b: *const f32,
        (n, ldc): (usize, usize),
        d: Depth,
        at: *mut f32,
        room: &ScratchLayout,
        c: *mut f32,
        alpha: f32,
        add: bool,
    ) {
        let (isa, place, k) = (self.isa, TileLayout::packed::<O>(m, d), O::words(m));
        // SAFETY: the caller's; `room` holds a block of words.
        unsafe {
            let (a, lda) = O::stacked(isa, m, i, a, i, at.add(room.left));
            for (block, j) in (0..n).step_by(place.width).enumerate() {
                let width = (n - j).min(place.width);
                let b = b.cast::<O::Value>().add(block * place.block);
                let (b, ldb) = O::stacked(isa, m, width, b, place.row, at.add(room.right));
                gemm_tn::<O>(isa, k, i, width, a, lda, b, ldb, c.add(j), ldc, alpha, add);
            }
        }
    }
}
