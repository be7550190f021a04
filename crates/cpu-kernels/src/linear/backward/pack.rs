//! Packed weights of a pass, and the packed input of a chunk.

use super::super::PASS;
use super::super::input::input_rows;
use super::job::Job;
use crate::micro::NR;
use crate::operand::Operand;
use crate::pack::{Depth, end_rows, pack_kn};
use crate::rows::TileLayout;
use crate::scratch::Ptr;
use crate::tasks::tasks;
use std::ops::Range;

/// Words of rows that a pass has room for at least, if there are as many: with [`PASS`] a block of a weight that is about
/// square, so that neither `dy` nor its product is gone over often.
const DEEP: usize = 1024;

/// Rows `rows` of a layer's weight in a pass, and where their packed panels lie.
pub(super) struct Slice {
    /// The layer's number.
    pub(super) part: usize,
    pub(super) rows: Range<usize>,
    /// Whether it is the layer's last.
    pub(super) ends: bool,
    /// Of the rows of `dy`; with `u` behind them in a layer's last slice, where no dropout comes between.
    pub(super) depth: Depth,
    /// Panels of `[W; A]`.
    pub(super) main: usize,
    /// Panels of `A` alone (with dropout, in a layer's last slice).
    pub(super) low: usize,
    /// Panels of `B`, to make `u`.
    pub(super) b: usize,
}

/// Panels `first..end` of the input's columns through some rows of the weights.
pub(super) struct Pass {
    pub(super) first: usize,
    pub(super) end: usize,
    /// Whether it is the last over these columns.
    pub(super) last: bool,
    pub(super) slices: Vec<Slice>,
    pub(super) len: usize,
}

impl Pass {
    /// Whether it is among those that go over all rows for the first time.
    pub(super) fn is_first(&self) -> bool {
        self.first == 0
    }

    /// Its columns of an input of `n`.
    pub(super) fn columns(&self, n: usize) -> Range<usize> {
        self.first * NR..n.min(self.end * NR)
    }
}

impl<O: Operand> Job<'_, O> {
    /// All passes: for each range of columns all rows of all layers, in order.
    pub(super) fn passes(&self) -> Vec<Pass> {
        let panels = if self.needs_dh() { self.in_dim.div_ceil(NR) } else { 0 };
        let words: usize = self.parts.iter().map(|p| O::words(p.layer.out) + O::words(p.layer.rank())).sum();
        let fits = |step: usize| PASS / (step * NR);
        let steps = (1..=panels).map(|ranges| panels.div_ceil(ranges));
        let step = steps.into_iter().find(|&step| fits(step) >= words.min(DEEP)).unwrap_or(1);
        let fit = if panels == 0 { usize::MAX } else { fits(step) };
        let mut passes = Vec::new();
        for first in (0..panels.max(1)).step_by(step) {
            let end = panels.min(first + step);
            let (mut rows, mut used) = (Vec::new(), 0);
            for (i, part) in self.parts.iter().enumerate() {
                let each = part.rows_of_slice::<O>(fit);
                for from in (0..part.layer.out).step_by(each) {
                    let to = part.layer.out.min(from + each);
                    let words = O::words(to - from)
                        + if to == part.layer.out { O::words(part.layer.rank()) } else { 0 };
                    if used > 0 && used + words > fit {
                        passes.push(self.pass(first, end, false, std::mem::take(&mut rows)));
                        used = 0;
                    }
                    used += words;
                    rows.push((i, from..to));
                }
            }
            passes.push(self.pass(first, end, true, rows));
        }
        passes
    }

    fn pass(&self, first: usize, end: usize, last: bool, rows: Vec<(usize, Range<usize>)>) -> Pass {
        let panels = end - first;
        let mut len = 0;
        let mut place = |floats: usize| {
            len += floats;
            len - floats
        };
        let slice = |(i, rows): (usize, Range<usize>)| {
            let part = &self.parts[i];
            let (k, r) = (O::words(rows.len()), O::words(part.layer.rank()));
            let ends = rows.end == part.layer.out;
            let a = if ends { r } else { 0 };
            let x = if part.layer.dropout().is_some() { 0 } else { a };
            let depth = Depth::new(k, x);
            Slice {
                part: i,
                rows,
                ends,
                depth,
                main: place(panels * depth.panel_len()),
                low: place(panels * (a - x) * NR),
                b: place(part.layer.rank().div_ceil(NR) * k * NR),
            }
        };
        let slices = rows.into_iter().map(slice).collect();
        Pass { first, end, last, slices, len }
    }

    /// Packs the weights of a pass.
    pub(super) fn pack(&self, pass: &Pass, buffer: Ptr) {
        let mut work = Vec::new();
        for slice in &pass.slices {
            let part = &self.parts[slice.part];
            work.extend((pass.first..pass.end).map(|p| (slice, p, false)));
            work.extend((0..part.layer.rank().div_ceil(NR)).map(|p| (slice, p, true)));
        }
        let (isa, k) = (self.isa, self.in_dim);
        tasks(work.len(), |w| {
            let (slice, p, of_b) = &work[w];
            let part = &self.parts[slice.part];
            let (r, rows, j) = (part.layer.rank(), slice.rows.clone(), p * NR);
            // SAFETY: each panel has a place of its own; shapes were checked.
            unsafe {
                if *of_b {
                    if let Some(low) = &part.layer.low_rank {
                        let to = buffer.at(slice.b + p * slice.depth.k * NR);
                        let b = low.b.as_ptr().add(rows.start * r + j);
                        pack_kn::<O, f32>(isa, b, r, rows.len(), (r - j).min(NR), to);
                    }
                    return;
                }
                let n = (k - j).min(NR);
                let to = buffer.at(slice.main + (p - pass.first) * slice.depth.panel_len());
                part.layer.weight.pack_kn::<O>(isa, rows.start * k + j, k, rows.len(), n, to);
                if let Some(low) = &part.layer.low_rank
                    && slice.ends
                {
                    let to = if slice.depth.x > 0 {
                        to.add(slice.depth.k * NR)
                    } else {
                        buffer.at(slice.low + (p - pass.first) * O::words(r) * NR)
                    };
                    pack_kn::<O, f32>(isa, low.a.as_ptr().add(j), k, r, n, to);
                }
            }
        });
    }

    /// Of the input alone.
    pub(super) fn input_depth(&self) -> Depth {
        Depth::new(O::words(self.in_dim), 0)
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
            input_rows(self.isa, self.input, rstd, true, n, 0..n, row, m, values, place);
            end_rows::<O>(m, n, d, to);
        }
    }
}
