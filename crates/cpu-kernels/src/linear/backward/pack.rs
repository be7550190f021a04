//! Packed weights of a pass, and the packed input of a chunk.

use super::super::input::input_rows;
use super::job::Job;
use crate::micro::NR;
use crate::operand::Operand;
use crate::pack::{Depth, end_rows, pack_kn};
use crate::rows::TileLayout;
use crate::scratch::Ptr;
use crate::tasks::tasks;

/// Where the packed weights of one pass lie: panels `first..end` of the input's columns for every layer.
pub(super) struct Pass {
    pub(super) first: usize,
    pub(super) end: usize,
    /// Per layer: panels of `[W; A]`.
    pub(super) main: Vec<usize>,
    /// Per layer: panels of `A` alone (with dropout).
    pub(super) low: Vec<usize>,
    /// Per layer: panels of `B`, to make `u`.
    pub(super) b: Vec<usize>,
    pub(super) len: usize,
}

impl<O: Operand> Job<'_, O> {
    pub(super) fn pass(&self, first: usize, end: usize) -> Pass {
        let mut pass = Pass { first, end, main: vec![], low: vec![], b: vec![], len: 0 };
        let panels = end - first;
        for part in self.parts {
            let (r, out) = (part.layer.rank(), part.layer.out);
            pass.main.push(pass.len);
            pass.len += panels * part.depth.panel_len();
            pass.low.push(pass.len);
            pass.len += panels * (O::words(r) - part.depth.x) * NR;
            pass.b.push(pass.len);
            pass.len += r.div_ceil(NR) * O::words(out) * NR;
        }
        pass
    }

    /// Packs the weights of a pass.
    pub(super) fn pack(&self, pass: &Pass, buffer: Ptr) {
        let mut work = Vec::new();
        for (i, part) in self.parts.iter().enumerate() {
            work.extend((pass.first..pass.end).map(|p| (i, p, false)));
            work.extend((0..part.layer.rank().div_ceil(NR)).map(|p| (i, p, true)));
        }
        let (isa, k) = (self.isa, self.in_dim);
        tasks(work.len(), |w| {
            let (i, p, of_b) = work[w];
            let part = &self.parts[i];
            let (r, out, j) = (part.layer.rank(), part.layer.out, p * NR);
            // SAFETY: each panel has a place of its own; shapes were checked.
            unsafe {
                if of_b {
                    if let Some(low) = &part.layer.low_rank {
                        let to = buffer.at(pass.b[i] + p * O::words(out) * NR);
                        pack_kn::<O, f32>(isa, low.b.as_ptr().add(j), r, out, (r - j).min(NR), to);
                    }
                    return;
                }
                let n = (k - j).min(NR);
                let to = buffer.at(pass.main[i] + (p - pass.first) * part.depth.panel_len());
                part.layer.weight.pack_kn::<O>(isa, j, k, out, n, to);
                if let Some(low) = &part.layer.low_rank {
                    let to = if part.depth.x > 0 {
                        to.add(O::words(out) * NR)
                    } else {
                        buffer.at(pass.low[i] + (p - pass.first) * O::words(r) * NR)
                    };
                    pack_kn::<O, f32>(isa, low.a.as_ptr().add(j), k, r, n, to);
                }
            }
        });
    }

    /// Of the input alone.
    pub(super) fn input_depth(&self) -> Depth {
        Depth { k: O::words(self.in_dim), x: 0 }
    }

    /// As the forward's, with `rstd` known.
    ///
    /// # Safety
    /// `to` holds `m` packed rows.
    pub(super) unsafe fn pack_input(&self, row: usize, m: usize, to: *mut f32) {
        let (n, d) = (self.in_dim, self.input_depth());
        let (place, values) = (TileLayout::packed::<O>(m, d), to.cast::<O::Value>());
        // SAFETY: shapes were checked.
        unsafe {
            let rstd = self.rstd.cast_mut();
            input_rows(self.isa, self.input, rstd, true, n, row, m, values, place);
            end_rows::<O>(m, n, d, to);
        }
    }
}
