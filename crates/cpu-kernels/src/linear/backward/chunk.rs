//! One chunk of rows of one pass: the input's gradient through every layer, then through what came before them.

use super::super::input::{NormSums, Reads, activated_backward, norm_backward};
use super::super::magnitude::scale_packed;
use super::job::{Job, Part};
use super::pack::{Pass, Slice};
use crate::micro::{KC, NR, gemm};
use crate::operand::Operand;
use crate::pack::{Depth, end_rows, extra_columns, pack_rows};
use crate::rows::{TileLayout, add_dropped};
use crate::scratch::{Ptr, scratch};
use std::ops::Range;

/// Offsets in a task's scratch.
pub(super) struct ScratchLayout {
    pub(super) x: usize,
    pub(super) dropped: usize,
    pub(super) dy: usize,
    pub(super) packed_u: usize,
    pub(super) low: usize,
    pub(super) dh: usize,
    /// Rows of both factors of an adapter's gradient as words of the sum over tokens.
    pub(super) left: usize,
    pub(super) right: usize,
    pub(super) len: usize,
}

impl<O: Operand> Job<'_, O> {
    pub(super) fn room(&self, pass: &Pass, m: usize, dh: usize) -> ScratchLayout {
        let most = |f: &dyn Fn(&Part<'_>) -> usize| self.parts.iter().map(f).max().unwrap_or(0);
        let x = self.depth_of_x(pass).a_len(m);
        let needs_x = self.parts.iter().any(|p| p.da.is_some());
        let drops = self.parts.iter().any(|p| p.layer.dropout().is_some());
        let mut room =
            ScratchLayout { x: 0, dropped: 0, dy: 0, packed_u: 0, low: 0, dh: 0, left: 0, right: 0, len: 0 };
        let mut place = |len: usize| {
            let at = room.len;
            room.len += len.next_multiple_of(16);
            at
        };
        room.x = place(if needs_x { x } else { 0 });
        room.dropped = place(if needs_x && drops { x } else { 0 });
        room.dy = place(pass.slices.iter().map(|s| s.depth.a_len(m)).max().unwrap_or(0));
        room.packed_u =
            place(if drops { most(&|p| Depth::new(O::words(p.layer.rank().max(1)), 0).a_len(m)) } else { 0 });
        room.low = place(if drops { m * self.in_dim } else { 0 });
        room.left = place(O::room(m, most(&|p| p.layer.rank())));
        room.right = place(O::room(m, KC * O::VALUES));
        room.dh = place(m * dh);
        room
    }

    /// Columns of the input that a chunk of the pass has packed at once, where it has any: behind an activation those of the
    /// pass, which its gradient makes anyway.
    fn columns_of_x(&self, pass: &Pass) -> Range<usize> {
        match self.input {
            Reads::Activated(..) if self.needs_dh() => pass.columns(self.in_dim),
            _ => 0..self.in_dim,
        }
    }

    fn depth_of_x(&self, pass: &Pass) -> Depth {
        Depth::new(O::words(self.columns_of_x(pass).len()), 0)
    }

    /// One chunk of rows of one pass; outside are the gradient of what the layers read (none where it is this chunk's
    /// alone) and its row's length, the input's gradient, and `u`.
    ///
    /// # Safety
    /// `sums` is the slot's; the chunk's rows of what lies outside are this task's.
    #[allow(clippy::too_many_arguments, reason = "a chunk is placed in rows, columns and slots")]
    pub(super) unsafe fn chunk(
        &self,
        pass: &Pass,
        packed: Ptr,
        row: usize,
        m: usize,
        ((dh, width), dx, u): ((Option<Ptr>, usize), Ptr, Ptr),
        sums: *mut f32,
        new: bool,
        last: bool,
    ) {
        let room = self.room(pass, m, if dh.is_some() { 0 } else { width });
        let columns = self.columns_of_x(pass);
        scratch(room.len, |at| {
            // SAFETY: `room` holds every part for m rows; the rest is the caller's.
            unsafe {
                let first = pass.is_first();
                let behind = matches!(self.input, Reads::Activated(..)) && self.needs_dh();
                let needs_x = |s: &Slice| s.ends && self.parts[s.part].da.is_some();
                if first && !behind && pass.slices.iter().any(needs_x) {
                    self.pack_input(row, m, at.add(room.x));
                }
                let dh_rows = match dh {
                    Some(p) if p.0.is_null() => p.0,
                    Some(p) => p.at(row * width),
                    None => at.add(room.dh),
                };
                // Behind an activation the rows hold the pass's columns alone.
                let own = dh_rows.wrapping_add(if behind { 0 } else { pass.first * NR });
                let grad_of_a = |part: &Part<'_>| {
                    let u = u.at(part.u + row * part.layer.rank());
                    self.grad_of_a(part, columns.clone(), row, m, u, at, &room, sums, new);
                };
                for slice in &pass.slices {
                    let part = &self.parts[slice.part];
                    let u = u.at(part.u + row * part.layer.rank());
                    self.layer(pass, slice, packed, row, m, at, &room, u, (own, width));
                    if first {
                        self.grad_of_b(slice, row, m, at, &room, sums, new);
                        if slice.ends {
                            self.sums_of_dy(part, row, m, sums, new);
                            if !behind {
                                grad_of_a(part);
                            }
                        }
                    }
                }
                let to = if self.wants_dx { dx.0 } else { std::ptr::null_mut() };
                match self.input {
                    Reads::Norm(norm) if last && self.needs_dh() => {
                        let of = |at: Option<usize>| at.map_or(std::ptr::null_mut(), |at| sums.add(at));
                        let sums =
                            NormSums { dgamma: of(self.dgamma_at), dbeta: of(self.dbeta_at), first: new };
                        norm_backward(self.isa, norm, self.rstd, self.in_dim, row, m, dh_rows, to, sums);
                    }
                    Reads::Activated(x, f) if behind && pass.last => {
                        let d = self.depth_of_x(pass);
                        let (a, place) = (at.add(room.x).cast::<O::Value>(), TileLayout::packed::<O>(m, d));
                        let needs_x = self.parts.iter().any(|p| p.da.is_some());
                        let backward = if needs_x {
                            activated_backward::<O::Value, true>
                        } else {
                            activated_backward::<O::Value, false>
                        };
                        let (x, dh) = ((x, f), (dh_rows.cast_const(), width));
                        backward(self.isa, x, self.in_dim, columns.clone(), row, m, dh, to, a, place);
                        if needs_x {
                            end_rows::<O>(m, columns.len(), d, a.cast());
                            self.parts.iter().for_each(grad_of_a);
                        }
                    }
                    _ => {}
                }
            }
        });
    }

    /// `dh (+)= [dy | u] [W; A]` for the pass's columns, which are at `dh` in rows of `width`, and the slice's rows of W;
    /// leaves packed `dy` in the scratch, and `u (+)= s dy B` where this is the first pass over these rows.
    ///
    /// # Safety
    /// As [`Self::chunk`]; `u` has the chunk's rows.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    pub(super) unsafe fn layer(
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
        let (isa, d, r) = (self.isa, slice.depth, part.layer.rank());
        let (from, rows) = (slice.rows.start, slice.rows.len());
        let needs_dh = self.needs_dh();
        if !needs_dh && part.da.is_none() && part.db.is_none() {
            return;
        }
        // SAFETY: the caller's; the passes' panels are packed.
        unsafe {
            let dy = at.add(room.dy);
            pack_rows::<O>(isa, m, rows, d, self.dy_rows(slice, row), self.total, dy);
            if part.layer.dropout().is_some() && part.gains.is_some() {
                return self.dropped_magnitude_layer(pass, slice, packed, row, m, at, room, u, (dh, width));
            }
            if let Some(gains) = &part.gains {
                scale_packed::<O>(isa, m, rows, d, gains.as_ptr().add(from), 0.0, dy);
            }
            if let Some(low) = &part.layer.low_rank
                && (needs_dh || part.da.is_some())
            {
                if pass.is_first() {
                    let plain = Depth::new(d.k, 0);
                    gemm::<O>(isa, m, dy, plain, packed.at(slice.b), r, u, r, low.scale, from > 0);
                }
                if d.x > 0 {
                    extra_columns::<O>(isa, m, d, dy, 0, u, r, 1.0);
                }
            }
            if !needs_dh {
                return;
            }
            let columns = pass.columns(self.in_dim);
            let (col, cols) = (columns.start, columns.len());
            let add = slice.part > 0 || from > 0;
            gemm::<O>(isa, m, dy, d, packed.at(slice.main), cols, dh, width, 1.0, add);
            if let Some(dropout) = part.layer.dropout()
                && slice.ends
            {
                let deep = Depth::new(O::words(r), 0);
                let (pu, low) = (at.add(room.packed_u), at.add(room.low));
                pack_rows::<O>(isa, m, r, deep, u, r, pu);
                gemm::<O>(isa, m, pu, deep, packed.at(slice.low), cols, low, cols, 1.0, false);
                let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                let (t, k) = (mask.threshold, mask.keep);
                let first = mask.first as usize + col;
                add_dropped(isa, m, cols, first, keys.as_ptr(), t, k, low, cols, dh, width, true);
            }
        }
    }

    /// The slice's columns of `dy`, from row `row` on.
    pub(super) fn dy_rows(&self, slice: &Slice, row: usize) -> *const f32 {
        let at = self.parts[slice.part].at + slice.rows.start;
        self.dy.as_ptr().wrapping_add(row * self.total + at)
    }
}
