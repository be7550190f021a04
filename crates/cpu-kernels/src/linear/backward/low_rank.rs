//! Gradients of an adapter's factors and of biases, for one chunk of rows.

use super::chunk::ScratchLayout;
use super::job::{Job, Part};
use crate::micro::{LDP, gemm_tn};
use crate::pack::Depth;
use crate::rows::{column_sums, drop_packed};

impl Job<'_> {
    /// `dA += u^T drop(x)`, `dB^T += s t^T dy`, column sums of `dy`, for one chunk.
    ///
    /// # Safety
    /// After [`Self::layer`] on the same scratch; `sums` is the slot's.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    pub(super) unsafe fn low_rank_grads(
        &self,
        part: &Part<'_>,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &ScratchLayout,
        sums: *mut f32,
        new: bool,
    ) {
        let (isa, n, r, out) = (self.isa, self.in_dim, part.layer.rank(), part.layer.out);
        // SAFETY: the caller's.
        unsafe {
            if let Some(to) = part.da {
                let deep = Depth { k: n, x: 0 };
                let mut x = at.add(room.x);
                if let Some(dropout) = part.layer.dropout() {
                    let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                    let to = at.add(room.dropped);
                    drop_packed(isa, m, deep, keys.as_ptr(), mask.first, mask.threshold, mask.keep, x, to);
                    x = to;
                }
                self.outer(m, r, at.add(room.u), r, x, deep, sums.add(to), 1.0, !new);
            }
            if let (Some(to), Some(low)) = (part.db, &part.layer.low_rank) {
                let t = part.t.add(row * r);
                let deep = Depth { k: out, x: 0 };
                self.outer(m, r, t, r, at.add(room.dy), deep, sums.add(to), low.scale, !new);
            }
            if let Some(to) = part.sums {
                let dy = self.dy.as_ptr().add(row * self.total + part.at);
                column_sums(isa, m, out, dy, self.total, sums.add(to), !new);
            }
        }
    }

    /// `c[i, d.k] (+)= alpha a^T b` with `b` packed at depth `d` (extra columns aside).
    ///
    /// # Safety
    /// `a` has `m` rows of `i`, `b` `m` packed rows, `c` `i` rows of `d.k`.
    #[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
    pub(super) unsafe fn outer(
        &self,
        m: usize,
        i: usize,
        a: *const f32,
        lda: usize,
        b: *const f32,
        d: Depth,
        c: *mut f32,
        alpha: f32,
        add: bool,
    ) {
        for (block, k0) in (0..d.k).step_by(d.kc()).enumerate() {
            let n = (d.k - k0).min(d.kc());
            // SAFETY: the caller's.
            unsafe {
                gemm_tn(self.isa, m, i, n, a, lda, b.add(block * m * LDP), LDP, c.add(k0), d.k, alpha, add);
            }
        }
    }
}
