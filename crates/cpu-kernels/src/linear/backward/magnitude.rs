//! The input's gradient of a layer where a magnitude meets dropout.

use super::super::magnitude::scale_packed;
use super::chunk::ScratchLayout;
use super::job::Job;
use super::pack::{Pass, Slice};
use crate::micro::gemm;
use crate::operand::Operand;
use crate::pack::{Depth, pack_rows};
use crate::rows::add_dropped;
use crate::scratch::Ptr;

impl<O: Operand> Job<'_, O> {
    /// [`Self::layer`] where a magnitude meets dropout, `y = W (x - xd) + g (W xd + s B A xd)` with `xd = drop(x)`:
    /// `dh (+)= dy W + mask ((g - 1) dy W + u A)`, `u = s (g dy) B`. Leaves `g dy` packed in the scratch.
    ///
    /// # Safety
    /// As [`Self::layer`]; the packed `dy` is in the scratch, and the slice is the whole layer.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    pub(super) unsafe fn dropped_magnitude_layer(
        &self,
        pass: &Pass,
        slice: &Slice,
        packed: Ptr,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &ScratchLayout,
        u: *mut f32,
        (dh, width): (*mut f32, usize),
    ) {
        let part = &self.parts[slice.part];
        let (Some(gains), Some(low), Some(dropout)) =
            (&part.gains, &part.layer.low_rank, part.layer.dropout())
        else {
            return;
        };
        let (isa, d, r) = (self.isa, slice.depth, part.layer.rank());
        let (out, needs_dh, columns) = (part.layer.out, self.needs_dh(), pass.columns(self.in_dim));
        let (col, cols) = (columns.start, columns.len());
        // SAFETY: the caller's; with dropout the packed weights hold no columns of A.
        unsafe {
            let (dy, product) = (at.add(room.dy), at.add(room.low));
            let from = self.dy_rows(slice, row);
            let weights = packed.at(slice.main);
            if needs_dh {
                gemm::<O>(isa, m, dy, d, weights, cols, dh, width, 1.0, slice.part > 0);
                scale_packed::<O>(isa, m, out, d, gains.as_ptr(), -1.0, dy);
                gemm::<O>(isa, m, dy, d, weights, cols, product, cols, 1.0, false);
                pack_rows::<O>(isa, m, out, d, from, self.total, dy);
            }
            scale_packed::<O>(isa, m, out, d, gains.as_ptr(), 0.0, dy);
            if !needs_dh && part.da.is_none() {
                return;
            }
            gemm::<O>(isa, m, dy, d, packed.at(slice.b), r, u, r, low.scale, false);
            if needs_dh {
                let (deep, pu) = (Depth::new(O::words(r), 0), at.add(room.packed_u));
                pack_rows::<O>(isa, m, r, deep, u, r, pu);
                gemm::<O>(isa, m, pu, deep, packed.at(slice.low), cols, product, cols, 1.0, true);
                let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                let (t, k) = (mask.threshold, mask.keep);
                let first = mask.first as usize + col;
                add_dropped(isa, m, cols, first, keys.as_ptr(), t, k, product, cols, dh, width, true);
            }
        }
    }
}
