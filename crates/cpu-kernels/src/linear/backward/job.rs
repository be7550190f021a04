//! The job: every layer of the group, all passes over all chunks of rows, and the sums over slots.

use super::super::Linear;
use super::super::input::Reads;
use super::LinearsGrad;
use crate::micro::KC;
use crate::operand::Operand;
use crate::rows::sum_slots;
use crate::scratch::{Pooled, Ptr, uninit};
use crate::simd::Isa;
use crate::tasks::{SLICE, Slots, chunk_rows, tasks};
use burnish_core::LinearPart::{Bias, LoraA, LoraB, LoraBBias, Magnitude, Weight};
use burnish_core::LinearParts;
use std::marker::PhantomData;

/// One layer of the job; `da`, `db` and `sums` are places in a slot's partial sums.
pub(super) struct Part<'a> {
    pub(super) layer: &'a Linear<'a>,
    /// The layer's first column in `dy`.
    pub(super) at: usize,
    pub(super) t: *const f32,
    /// Where its `u` begins in the job's, `[tokens, rank]`.
    pub(super) u: usize,
    pub(super) da: Option<usize>,
    /// Transposed: `[rank, out]`.
    pub(super) db: Option<usize>,
    /// Column sums of `dy`.
    pub(super) sums: Option<usize>,
    pub(super) wanted: LinearParts<bool>,
    /// The rows' factors of a magnitude.
    pub(super) gains: Option<Vec<f32>>,
}

// SAFETY: `t` points into a shared slice that outlives the job.
unsafe impl Sync for Part<'_> {}
// SAFETY: as above.
unsafe impl Send for Part<'_> {}

pub(super) struct Job<'a, O> {
    pub(super) isa: Isa,
    pub(super) tokens: usize,
    pub(super) in_dim: usize,
    pub(super) input: Reads<'a>,
    pub(super) dy: &'a [f32],
    pub(super) total: usize,
    pub(super) rstd: *const f32,
    pub(super) dgamma_at: Option<usize>,
    pub(super) dbeta_at: Option<usize>,
    pub(super) partial: usize,
    pub(super) wants_dx: bool,
    /// Where the input's gradient is written; null for memory of its own.
    pub(super) dx: *mut f32,
    pub(super) parts: &'a [Part<'a>],
    pub(super) operand: PhantomData<O>,
}

// SAFETY: `rstd` points into a shared slice that outlives the job, `dx` to rows that are written by their tasks.
unsafe impl<O: Operand> Sync for Job<'_, O> {}

impl<O: Operand> Job<'_, O> {
    pub(super) fn needs_dh(&self) -> bool {
        self.wants_dx || self.dgamma_at.is_some() || self.dbeta_at.is_some()
    }

    pub(super) fn run(&self) -> LinearsGrad {
        let mut grad = LinearsGrad {
            dx: None,
            dgamma: self.dgamma_at.map(|_| vec![0.0; self.in_dim]),
            dbeta: self.dbeta_at.map(|_| vec![0.0; self.in_dim]),
            linears: self.parts.iter().map(|p| p.zeros(self.in_dim)).collect(),
        };
        let dx_len = self.tokens * self.input.row_len(self.in_dim);
        if self.tokens == 0 || self.parts.is_empty() {
            grad.dx = (self.wants_dx && self.dx.is_null()).then(|| vec![0.0; dx_len]);
            return grad;
        }
        // SAFETY: every element is written: by the GEMMs for a plain input, by the row-wise backward otherwise.
        let mut dx = (self.wants_dx && self.dx.is_null()).then(|| unsafe { uninit(dx_len) });
        let dx_ptr = Ptr(dx.as_mut().map_or(self.dx, |d| d.as_mut_ptr()));
        if self.needs_dh() || self.partial > 0 {
            let widest = self.parts.iter().map(|p| p.layer.out).max().unwrap_or(0).max(self.in_dim);
            let rows = chunk_rows(self.tokens, O::words(widest));
            let slots = Slots::new(self.tokens.div_ceil(rows), self.partial);
            let sums = Pooled::take(slots.count * self.partial);
            self.chunks(rows, slots, dx_ptr, sums.ptr());
            self.reduce(slots.count, sums.ptr(), &mut grad);
        }
        grad.dx = dx;
        grad
    }

    /// All passes over all chunks.
    pub(super) fn chunks(&self, rows: usize, slots: Slots, dx: Ptr, sums: Ptr) {
        let passes = self.passes();
        // A plain input's gradient is the GEMMs' own output; otherwise it passes through `dh`, which lives in the tasks'
        // scratch unless several passes fill it: all columns of a norm's, those of a range behind an activation.
        let (several, width) = match self.input {
            Reads::Plain(_) => (false, self.in_dim),
            Reads::Norm(_) => (passes.len() > 1, self.in_dim),
            Reads::Activated(..) => {
                (passes.iter().any(|pass| !pass.last), passes[0].columns(self.in_dim).len())
            }
        };
        let whole = (several && self.needs_dh()).then(|| Pooled::take(self.tokens * width));
        let dh = match self.input {
            Reads::Plain(_) => Some(dx),
            _ => whole.as_ref().map(Pooled::ptr),
        };
        let memory = Pooled::take(self.parts.iter().map(|p| p.layer.rank() * self.tokens).sum());
        let u = memory.ptr();
        for (i, pass) in passes.iter().enumerate() {
            let buffer = Pooled::take(pass.len);
            let (packed, last) = (buffer.ptr(), i + 1 == passes.len());
            self.pack(pass, packed);
            tasks(slots.count, |slot| {
                for chunk in slots.of(slot) {
                    let row = chunk * rows;
                    let m = (self.tokens - row).min(rows);
                    // SAFETY: the slot's sums and the chunk's rows belong to this task.
                    unsafe {
                        let sums = sums.at(slot * self.partial);
                        let new = chunk == slots.of(slot).start;
                        self.chunk(pass, packed, row, m, ((dh, width), dx, u), sums, new, last);
                    }
                }
            });
        }
    }

    /// Sums the slots, in order, into the gradients.
    pub(super) fn reduce(&self, slots: usize, sums: Ptr, grad: &mut LinearsGrad) {
        let len = self.partial;
        tasks(len.div_ceil(SLICE / 8), |i| {
            let from = i * (SLICE / 8);
            let n = (len - from).min(SLICE / 8);
            // SAFETY: ranges of the first slot are disjoint.
            unsafe { sum_slots(self.isa, slots, len, n, sums.at(from), sums.at(from)) };
        });
        // SAFETY: the first slot holds `len` floats, now the sums.
        let sums = unsafe { std::slice::from_raw_parts(sums.0, len) };
        for (part, to) in self.parts.iter().zip(&mut grad.linears) {
            let (r, out) = (part.layer.rank(), part.layer.out);
            if let (Some(at), Some(to)) = (part.da, to.found_mut(LoraA)) {
                to.copy_from_slice(&sums[at..at + r * self.in_dim]);
            }
            if let (Some(at), Some(to)) = (part.db, to.found_mut(LoraB)) {
                for (j, to) in to.chunks_exact_mut(r).enumerate() {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = sums[at + i * out + j];
                    }
                }
            }
            if let Some(at) = part.sums {
                if let Some(to) = to.found_mut(Bias) {
                    to.copy_from_slice(&sums[at..at + out]);
                }
                if let (Some(to), Some(low)) = (to.found_mut(LoraBBias), &part.layer.low_rank) {
                    to.iter_mut().zip(&sums[at..at + out]).for_each(|(to, s)| *to = low.scale * s);
                }
            }
        }
        let of_norm = [(self.dgamma_at, &mut grad.dgamma), (self.dbeta_at, &mut grad.dbeta)];
        for (at, to) in of_norm {
            if let (Some(at), Some(to)) = (at, to) {
                to.copy_from_slice(&sums[at..at + self.in_dim]);
            }
        }
    }
}

impl Part<'_> {
    /// Rows of its weight in a pass into which `fit` words go: all, or equal parts of whole blocks of a product.
    pub(super) fn rows_of_slice<O: Operand>(&self, fit: usize) -> usize {
        let words = O::words(self.layer.out);
        // A magnitude behind dropout multiplies `dy` twice, as a whole.
        let whole = self.layer.dropout().is_some() && self.gains.is_some();
        if whole || words <= fit {
            return self.layer.out;
        }
        words.div_ceil(words.div_ceil(fit)).next_multiple_of(KC) * O::VALUES
    }

    /// Gradients of nothing. A weight's is made by tiles of the weight, a magnitude's from the output.
    fn zeros(&self, in_dim: usize) -> LinearParts<Option<Vec<f32>>> {
        let (r, out) = (self.layer.rank(), self.layer.out);
        self.wanted.map(|part, wanted| match part {
            Weight | Magnitude => None,
            _ => wanted.then(|| vec![0.0; part.shape(false, out, in_dim, r).iter().product()]),
        })
    }
}
