//! Backward of a group of linear layers.

use super::magnitude::scale_packed;
use super::weight_grad::{magnified_weight_grads, weight_grads};
use super::{Input, Linear, LinearsSaved, PASS, check};
use crate::micro::{LDP, NR, gemm, gemm_tn};
use crate::pack::{Depth, extra_columns, pack_kn, pack_rows};
use crate::rows::{
    Place, add_dropped, column_sums, copy_rows, drop_packed, rms_backward_rows, rms_rows, sum_slots,
    swiglu_backward_rows, swiglu_rows,
};
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::simd::{Isa, isa};
use crate::tasks::{SLICE, Slots, chunk_rows, tasks};

/// The gradients asked of [`linears_backward`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of the input tensor.
    pub dx: bool,
    /// Of [`Input::RmsNorm`]'s `gamma`.
    pub dgamma: bool,
    /// Per layer.
    pub linears: Vec<WantedLinear>,
}

/// The gradients asked of one layer; those of parts that it lacks are not computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedLinear {
    /// Of `weight`.
    pub weight: bool,
    /// Of `bias`.
    pub bias: bool,
    /// Of the low-rank `A`.
    pub a: bool,
    /// Of the low-rank `B`.
    pub b: bool,
    /// Of `B`'s bias.
    pub b_bias: bool,
}

/// Gradients from [`linears_backward`].
#[derive(Debug, Default)]
pub struct LinearsGrad {
    /// Of the input tensor, in its shape (`[tokens, 2 * in]` for SwiGLU).
    pub dx: Option<Vec<f32>>,
    /// `[in]`.
    pub dgamma: Option<Vec<f32>>,
    /// Per layer.
    pub linears: Vec<LinearGrad>,
}

/// Gradients of one layer.
#[derive(Debug, Default)]
pub struct LinearGrad {
    /// `[out, in]`.
    pub weight: Option<Vec<f32>>,
    /// `[out]`.
    pub bias: Option<Vec<f32>>,
    /// `[rank, in]`.
    pub a: Option<Vec<f32>>,
    /// `[out, rank]`.
    pub b: Option<Vec<f32>>,
    /// `[out]`.
    pub b_bias: Option<Vec<f32>>,
}

/// Gradients of [`super::linears_forward`] from `dy` `[tokens, sum of out]`.
///
/// The residual's gradient is `dy` itself and not returned. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape, or `saved` is not of a forward with these arguments.
#[must_use]
pub fn linears_backward(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    saved: &LinearsSaved,
    dy: &[f32],
    wanted: &Wanted,
) -> LinearsGrad {
    check(tokens, in_dim, &input, linears);
    let total: usize = linears.iter().map(|l| l.out).sum();
    assert_eq!(dy.len(), tokens * total, "linears: `dy` is [tokens, sum of out]");
    assert_eq!(wanted.linears.len(), linears.len(), "linears: `wanted.linears` has one entry per layer");
    assert_eq!(saved.t.len(), linears.len(), "linears: `saved.t` has one entry per layer");
    for (layer, t) in linears.iter().zip(&saved.t) {
        let len = layer.low_rank.map(|low| low.rank * tokens);
        assert_eq!(t.as_ref().map(Vec::len), len, "linears: `saved.t` is [tokens, rank]");
    }
    let norm = matches!(input, Input::RmsNorm { .. });
    assert_eq!(
        saved.rstd.as_ref().map(Vec::len),
        norm.then_some(tokens),
        "linears: `saved.rstd` is [tokens]"
    );

    let isa = isa();
    let wants_dgamma = wanted.dgamma && norm;
    let mut offset = 0;
    let mut partial = 0;
    let mut place = |wanted: bool, len: usize| {
        let at = partial;
        partial += if wanted { len.next_multiple_of(16) } else { 0 };
        wanted.then_some(at)
    };
    let mut parts = Vec::with_capacity(linears.len());
    for ((layer, want), t) in linears.iter().zip(&wanted.linears).zip(&saved.t) {
        let (r, low) = (layer.rank(), layer.low_rank.is_some());
        let b_bias = want.b_bias && layer.low_rank.is_some_and(|l| l.b_bias.is_some());
        let bias = want.bias && layer.bias.is_some();
        let joined = if layer.dropout().is_some() { 0 } else { r };
        parts.push(Part {
            layer,
            depth: Depth { k: layer.out, x: joined },
            at: offset,
            t: t.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()),
            da: place(want.a && low, r * in_dim),
            db: place(want.b && low, r * layer.out),
            sums: place(bias || b_bias, layer.out),
            bias,
            b_bias,
            gains: layer.gains(),
        });
        offset += layer.out;
    }
    let dgamma_at = place(wants_dgamma, in_dim);
    let job = Job {
        isa,
        tokens,
        in_dim,
        input,
        dy,
        total,
        rstd: saved.rstd.as_ref().map_or(std::ptr::null(), |r| r.as_ptr()),
        dgamma_at,
        partial,
        wants_dx: wanted.dx,
        parts: &parts,
    };
    let mut grad = job.run();
    let weights: Vec<bool> = wanted.linears.iter().map(|w| w.weight).collect();
    let rstd = saved.rstd.as_deref();
    let mut weights = weight_grads(isa, tokens, in_dim, &input, linears, rstd, dy, &weights);
    magnified_weight_grads(isa, tokens, in_dim, &input, linears, rstd, dy, &mut weights);
    for (to, weight) in grad.linears.iter_mut().zip(weights) {
        to.weight = weight;
    }
    grad
}

/// One layer of the job; `da`, `db` and `sums` are places in a slot's partial sums.
struct Part<'a> {
    layer: &'a Linear<'a>,
    /// Of `dy` with `u` behind it, where no dropout comes between.
    depth: Depth,
    /// The layer's first column in `dy`.
    at: usize,
    t: *const f32,
    da: Option<usize>,
    /// Transposed: `[rank, out]`.
    db: Option<usize>,
    /// Column sums of `dy`.
    sums: Option<usize>,
    bias: bool,
    b_bias: bool,
    /// The rows' factors of a magnitude.
    gains: Option<Vec<f32>>,
}

// SAFETY: `t` points into a shared slice that outlives the job.
unsafe impl Sync for Part<'_> {}
// SAFETY: as above.
unsafe impl Send for Part<'_> {}

struct Job<'a> {
    isa: Isa,
    tokens: usize,
    in_dim: usize,
    input: Input<'a>,
    dy: &'a [f32],
    total: usize,
    rstd: *const f32,
    dgamma_at: Option<usize>,
    partial: usize,
    wants_dx: bool,
    parts: &'a [Part<'a>],
}

// SAFETY: `rstd` points into a shared slice that outlives the job.
unsafe impl Sync for Job<'_> {}

/// Where the packed weights of one pass lie: panels `first..end` of the input's columns for every layer.
struct Pass {
    first: usize,
    end: usize,
    /// Per layer: panels of `[W; A]`.
    main: Vec<usize>,
    /// Per layer: panels of `A` alone (with dropout).
    low: Vec<usize>,
    /// Per layer: panels of `B`, to make `u`.
    b: Vec<usize>,
    len: usize,
}

/// Offsets in a task's scratch.
struct Room {
    x: usize,
    dropped: usize,
    dy: usize,
    u: usize,
    packed_u: usize,
    low: usize,
    dh: usize,
    len: usize,
}

impl Job<'_> {
    fn needs_dh(&self) -> bool {
        self.wants_dx || self.dgamma_at.is_some()
    }

    fn pass(&self, first: usize, end: usize) -> Pass {
        let mut pass = Pass { first, end, main: vec![], low: vec![], b: vec![], len: 0 };
        let panels = end - first;
        for part in self.parts {
            let (r, out) = (part.layer.rank(), part.layer.out);
            pass.main.push(pass.len);
            pass.len += panels * part.depth.panel_len();
            pass.low.push(pass.len);
            pass.len += panels * (r - part.depth.x) * NR;
            pass.b.push(pass.len);
            pass.len += r.div_ceil(NR) * out * NR;
        }
        pass
    }

    fn run(&self) -> LinearsGrad {
        let mut grad = LinearsGrad {
            dx: None,
            dgamma: self.dgamma_at.map(|_| vec![0.0; self.in_dim]),
            linears: self.parts.iter().map(|p| p.zeros(self.in_dim)).collect(),
        };
        let dx_len = self.tokens * self.input.row_len(self.in_dim);
        if self.tokens == 0 || self.parts.is_empty() {
            grad.dx = self.wants_dx.then(|| vec![0.0; dx_len]);
            return grad;
        }
        // SAFETY: every element is written: by the GEMMs for a plain input, by the row-wise backward otherwise.
        let mut dx = self.wants_dx.then(|| unsafe { uninit(dx_len) });
        let dx_ptr = Ptr(dx.as_mut().map_or(std::ptr::null_mut(), |d| d.as_mut_ptr()));
        if self.needs_dh() || self.partial > 0 {
            let widest = self.parts.iter().map(|p| p.layer.out).max().unwrap_or(0).max(self.in_dim);
            let rows = chunk_rows(self.tokens, widest);
            let slots = Slots::new(self.tokens.div_ceil(rows), self.partial);
            let sums = Pooled::take(slots.count * self.partial);
            self.chunks(rows, slots, dx_ptr, sums.ptr());
            self.reduce(slots.count, sums.ptr(), &mut grad);
        }
        grad.dx = dx;
        grad
    }

    /// All passes over all chunks.
    fn chunks(&self, rows: usize, slots: Slots, dx: Ptr, sums: Ptr) {
        let panels = self.in_dim.div_ceil(NR);
        let per_panel: usize = self.parts.iter().map(|p| (p.layer.out + p.layer.rank()) * NR).sum();
        let fixed = self.pass(0, 0).len;
        let step = (PASS.saturating_sub(fixed) / per_panel).clamp(1, panels);
        // A plain input's gradient is the GEMMs' own output; otherwise it passes through `dh`, which lives in the
        // tasks' scratch unless several passes fill it.
        let plain = matches!(self.input, Input::Plain(_));
        let several = step < panels && !plain && self.needs_dh();
        let whole = several.then(|| Pooled::take(self.tokens * self.in_dim));
        let dh = if plain { Some(dx) } else { whole.as_ref().map(Pooled::ptr) };
        for first in (0..panels).step_by(step) {
            let end = panels.min(first + step);
            let pass = self.pass(first, if self.needs_dh() { end } else { first });
            let buffer = Pooled::take(pass.len);
            let packed = buffer.ptr();
            self.pack(&pass, packed);
            tasks(slots.count, |slot| {
                for chunk in slots.of(slot) {
                    let row = chunk * rows;
                    let m = (self.tokens - row).min(rows);
                    // SAFETY: the slot's sums and the chunk's rows belong to this task.
                    unsafe {
                        let sums = sums.at(slot * self.partial);
                        let new = chunk == slots.of(slot).start;
                        self.chunk(&pass, packed, row, m, dh, dx, sums, new, end == panels);
                    }
                }
            });
            if !self.needs_dh() {
                break;
            }
        }
    }

    /// Packs the weights of a pass.
    fn pack(&self, pass: &Pass, buffer: Ptr) {
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
                        let to = buffer.at(pass.b[i] + p * out * NR);
                        pack_kn(isa, low.b.as_ptr().add(j), r, out, (r - j).min(NR), to);
                    }
                    return;
                }
                let n = (k - j).min(NR);
                let to = buffer.at(pass.main[i] + (p - pass.first) * part.depth.panel_len());
                part.layer.weight.pack_kn(isa, j, k, out, n, to);
                if let Some(low) = &part.layer.low_rank {
                    let to = if part.depth.x > 0 {
                        to.add(out * NR)
                    } else {
                        buffer.at(pass.low[i] + (p - pass.first) * r * NR)
                    };
                    pack_kn(isa, low.a.as_ptr().add(j), k, r, n, to);
                }
            }
        });
    }

    fn room(&self, m: usize, dh_outside: bool) -> Room {
        let most = |f: &dyn Fn(&Part<'_>) -> usize| self.parts.iter().map(f).max().unwrap_or(0);
        let x = Depth { k: self.in_dim, x: 0 }.a_len(m);
        let needs_x = self.parts.iter().any(|p| p.da.is_some());
        let drops = self.parts.iter().any(|p| p.layer.dropout().is_some());
        let mut room = Room { x: 0, dropped: 0, dy: 0, u: 0, packed_u: 0, low: 0, dh: 0, len: 0 };
        let mut place = |len: usize| {
            let at = room.len;
            room.len += len.next_multiple_of(16);
            at
        };
        room.x = place(if needs_x { x } else { 0 });
        room.dropped = place(if needs_x && drops { x } else { 0 });
        room.dy = place(most(&|p| p.depth.a_len(m)));
        room.u = place(m * most(&|p| p.layer.rank()));
        room.packed_u =
            place(if drops { most(&|p| Depth { k: p.layer.rank().max(1), x: 0 }.a_len(m)) } else { 0 });
        room.low = place(if drops { m * self.in_dim } else { 0 });
        room.dh = place(if dh_outside { 0 } else { m * self.in_dim });
        room
    }

    /// One chunk of rows of one pass.
    ///
    /// # Safety
    /// `sums` is the slot's; the rows of `dh` and `dx` are this task's.
    #[allow(clippy::too_many_arguments, reason = "a chunk is placed in rows, columns and slots")]
    unsafe fn chunk(
        &self,
        pass: &Pass,
        packed: Ptr,
        row: usize,
        m: usize,
        dh: Option<Ptr>,
        dx: Ptr,
        sums: *mut f32,
        new: bool,
        last: bool,
    ) {
        let room = self.room(m, dh.is_some());
        let n = self.in_dim;
        scratch(room.len, |at| {
            // SAFETY: `room` holds every part for m rows; the rest is the caller's.
            unsafe {
                let first = pass.first == 0;
                let needs_x = first && self.parts.iter().any(|p| p.da.is_some());
                // A single layer's dA can wait for the input that SwiGLU's backward computes anyway.
                let late = needs_x
                    && last
                    && self.wants_dx
                    && self.parts.len() == 1
                    && matches!(self.input, Input::SwiGlu(_));
                if needs_x && !late {
                    self.pack_input(row, m, at.add(room.x));
                }
                let dh_rows = match dh {
                    Some(p) if p.0.is_null() => p.0,
                    Some(p) => p.at(row * n),
                    None => at.add(room.dh),
                };
                for (i, part) in self.parts.iter().enumerate() {
                    self.layer(pass, i, part, packed, row, m, at, &room, dh_rows);
                    if first && !late {
                        self.low_rank_grads(part, row, m, at, &room, sums, new);
                    }
                }
                if !last || !self.needs_dh() {
                    return;
                }
                match self.input {
                    Input::Plain(_) => {}
                    Input::RmsNorm { x, gamma, .. } => {
                        let to = if self.wants_dx { dx.at(row * n) } else { std::ptr::null_mut() };
                        let dgamma = self.dgamma_at.map_or(std::ptr::null_mut(), |at| sums.add(at));
                        let (x, rstd) = (x.as_ptr().add(row * n), self.rstd.add(row));
                        rms_backward_rows(self.isa, m, n, x, gamma.as_ptr(), rstd, dh_rows, to, dgamma, new);
                    }
                    Input::SwiGlu(x) => {
                        let (x, to) = (x.as_ptr().add(2 * row * n), dx.at(2 * row * n));
                        let (a, place) = (at.add(room.x), Place::packed(m, Depth { k: n, x: 0 }));
                        if late {
                            swiglu_backward_rows::<true>(self.isa, m, n, x, dh_rows, to, a, place);
                            self.low_rank_grads(&self.parts[0], row, m, at, &room, sums, new);
                        } else {
                            swiglu_backward_rows::<false>(self.isa, m, n, x, dh_rows, to, a, place);
                        }
                    }
                }
            }
        });
    }

    /// `dh (+)= [dy | u] [W; A]` for the pass's columns; leaves packed `dy` and `u` in the scratch.
    ///
    /// # Safety
    /// As [`Self::chunk`].
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    unsafe fn layer(
        &self,
        pass: &Pass,
        i: usize,
        part: &Part<'_>,
        packed: Ptr,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &Room,
        dh: *mut f32,
    ) {
        let (isa, n, d, r) = (self.isa, self.in_dim, part.depth, part.layer.rank());
        let needs_dh = self.needs_dh();
        if !needs_dh && part.da.is_none() && part.db.is_none() {
            return;
        }
        // SAFETY: the caller's; the passes' panels are packed.
        unsafe {
            let (dy, u) = (at.add(room.dy), at.add(room.u));
            let from = self.dy.as_ptr().add(row * self.total + part.at);
            pack_rows(m, d, from, self.total, dy);
            if part.layer.dropout().is_some() && part.gains.is_some() {
                return self.dropped_magnitude_layer(pass, i, part, packed, row, m, at, room, dh);
            }
            if let Some(gains) = &part.gains {
                scale_packed(isa, m, d, gains.as_ptr(), 0.0, dy);
            }
            if let Some(low) = &part.layer.low_rank
                && (needs_dh || part.da.is_some())
            {
                let plain = Depth { k: d.k, x: 0 };
                gemm(isa, m, dy, plain, packed.at(pass.b[i]), r, u, r, low.scale, false);
                if d.x > 0 {
                    extra_columns(isa, m, d, dy, 0, u, r, 1.0);
                }
            }
            if !needs_dh {
                return;
            }
            let col = pass.first * NR;
            let cols = n.min(pass.end * NR) - col;
            gemm(isa, m, dy, d, packed.at(pass.main[i]), cols, dh.add(col), n, 1.0, i > 0);
            if let Some(dropout) = part.layer.dropout() {
                let deep = Depth { k: r, x: 0 };
                let (pu, low) = (at.add(room.packed_u), at.add(room.low));
                pack_rows(m, deep, u, r, pu);
                gemm(isa, m, pu, deep, packed.at(pass.low[i]), cols, low, cols, 1.0, false);
                let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                let (t, k) = (mask.threshold, mask.keep);
                let first = mask.first as usize + col;
                add_dropped(isa, m, cols, first, keys.as_ptr(), t, k, low, cols, dh.add(col), n, true);
            }
        }
    }

    /// [`Self::layer`] where a magnitude meets dropout, `y = W (x - xd) + g (W xd + s B A xd)` with `xd = drop(x)`:
    /// `dh (+)= dy W + mask ((g - 1) dy W + u A)`, `u = s (g dy) B`. Leaves `g dy` packed in the scratch.
    ///
    /// # Safety
    /// As [`Self::chunk`]; the packed `dy` is in the scratch.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    unsafe fn dropped_magnitude_layer(
        &self,
        pass: &Pass,
        i: usize,
        part: &Part<'_>,
        packed: Ptr,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &Room,
        dh: *mut f32,
    ) {
        let (Some(gains), Some(low), Some(dropout)) =
            (&part.gains, &part.layer.low_rank, part.layer.dropout())
        else {
            return;
        };
        let (isa, n, d, r) = (self.isa, self.in_dim, part.depth, part.layer.rank());
        let (needs_dh, col) = (self.needs_dh(), pass.first * NR);
        let cols = n.min(pass.end * NR).saturating_sub(col);
        // SAFETY: the caller's; with dropout the packed weights hold no columns of A.
        unsafe {
            let (dy, u, product) = (at.add(room.dy), at.add(room.u), at.add(room.low));
            let from = self.dy.as_ptr().add(row * self.total + part.at);
            let weights = packed.at(pass.main[i]);
            if needs_dh {
                gemm(isa, m, dy, d, weights, cols, dh.add(col), n, 1.0, i > 0);
                scale_packed(isa, m, d, gains.as_ptr(), -1.0, dy);
                gemm(isa, m, dy, d, weights, cols, product, cols, 1.0, false);
                pack_rows(m, d, from, self.total, dy);
            }
            scale_packed(isa, m, d, gains.as_ptr(), 0.0, dy);
            if !needs_dh && part.da.is_none() {
                return;
            }
            gemm(isa, m, dy, d, packed.at(pass.b[i]), r, u, r, low.scale, false);
            if needs_dh {
                let (deep, pu) = (Depth { k: r, x: 0 }, at.add(room.packed_u));
                pack_rows(m, deep, u, r, pu);
                gemm(isa, m, pu, deep, packed.at(pass.low[i]), cols, product, cols, 1.0, true);
                let (keys, mask) = (dropout.row_keys(row, m), dropout.mask());
                let (t, k) = (mask.threshold, mask.keep);
                let first = mask.first as usize + col;
                add_dropped(isa, m, cols, first, keys.as_ptr(), t, k, product, cols, dh.add(col), n, true);
            }
        }
    }

    /// `dA += u^T drop(x)`, `dB^T += s t^T dy`, column sums of `dy`, for one chunk.
    ///
    /// # Safety
    /// After [`Self::layer`] on the same scratch; `sums` is the slot's.
    #[allow(clippy::too_many_arguments, reason = "as `chunk`")]
    unsafe fn low_rank_grads(
        &self,
        part: &Part<'_>,
        row: usize,
        m: usize,
        at: *mut f32,
        room: &Room,
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
    unsafe fn outer(
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

    /// As the forward's, with `rstd` known.
    ///
    /// # Safety
    /// `to` holds `m` packed rows.
    unsafe fn pack_input(&self, row: usize, m: usize, to: *mut f32) {
        let place = Place::packed(m, Depth { k: self.in_dim, x: 0 });
        // SAFETY: shapes were checked.
        unsafe { input_rows(self.isa, &self.input, self.rstd, self.in_dim, row, m, to, place) }
    }

    /// Sums the slots, in order, into the gradients.
    fn reduce(&self, slots: usize, sums: Ptr, grad: &mut LinearsGrad) {
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
            if let (Some(at), Some(to)) = (part.da, &mut to.a) {
                to.copy_from_slice(&sums[at..at + r * self.in_dim]);
            }
            if let (Some(at), Some(to)) = (part.db, &mut to.b) {
                for (j, to) in to.chunks_exact_mut(r).enumerate() {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = sums[at + i * out + j];
                    }
                }
            }
            if let Some(at) = part.sums {
                if let Some(to) = &mut to.bias {
                    to.copy_from_slice(&sums[at..at + out]);
                }
                if let (Some(to), Some(low)) = (&mut to.b_bias, &part.layer.low_rank) {
                    to.iter_mut().zip(&sums[at..at + out]).for_each(|(to, s)| *to = low.scale * s);
                }
            }
        }
        if let (Some(at), Some(to)) = (self.dgamma_at, &mut grad.dgamma) {
            to.copy_from_slice(&sums[at..at + self.in_dim]);
        }
    }
}

impl Part<'_> {
    /// Gradients of nothing.
    fn zeros(&self, in_dim: usize) -> LinearGrad {
        let (r, out) = (self.layer.rank(), self.layer.out);
        LinearGrad {
            weight: None,
            bias: self.bias.then(|| vec![0.0; out]),
            a: self.da.map(|_| vec![0.0; r * in_dim]),
            b: self.db.map(|_| vec![0.0; r * out]),
            b_bias: self.b_bias.then(|| vec![0.0; out]),
        }
    }
}

/// The layers' input, rows `row..row + m`, recomputed from the input tensor and a known `rstd`.
///
/// # Safety
/// The rows exist; `to` has room at its place; `rstd` is `[tokens]` for a norm.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(super) unsafe fn input_rows(
    isa: Isa,
    input: &Input<'_>,
    rstd: *const f32,
    n: usize,
    row: usize,
    m: usize,
    to: *mut f32,
    place: Place,
) {
    // SAFETY: the caller's; a known rstd is only read.
    unsafe {
        match *input {
            Input::Plain(x) => copy_rows(isa, m, n, x.as_ptr().add(row * n), n, to, place),
            Input::RmsNorm { x, gamma, eps } => {
                let (x, rstd) = (x.as_ptr().add(row * n), rstd.add(row).cast_mut());
                rms_rows(isa, m, n, x, gamma.as_ptr(), eps, rstd, true, to, place);
            }
            Input::SwiGlu(x) => swiglu_rows(isa, m, n, x.as_ptr().add(2 * row * n), to, place),
        }
    }
}
