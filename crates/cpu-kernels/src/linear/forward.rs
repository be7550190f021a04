//! Forward of a group of linear layers.

use super::input::{Reads, input_rows};
use super::magnitude::magnify;
use super::{Dropout, Input, Linear, Mask, PASS, check, compute, scale_panel};
use crate::micro::{NR, gemm, gemm_panel};
use crate::operand::{Operand, with_operand};
use crate::pack::{Depth, end_rows, extra_columns, extra_constant, pack_nk};
use crate::rows::{TileLayout, copy_rows, drop_packed, lost_packed};
use crate::scratch::{Pooled, Ptr, scratch, uninit};
use crate::simd::{Isa, isa};
use crate::tasks::{chunk_rows, tasks};
use std::marker::PhantomData;
use std::ops::Range;

/// Outputs of [`linears_forward`].
#[derive(Debug)]
pub struct LinearsOut {
    /// `[tokens, sum of out]`: the layers side by side.
    pub y: Vec<f32>,
    /// What [`super::linears_backward`] reads besides the input.
    pub saved: LinearsSaved,
}

/// What the backward needs from the forward.
#[derive(Debug, Default)]
pub struct LinearsSaved {
    /// Per layer the low-rank activations `drop(x) A^T`, `[tokens, rank]`.
    pub t: Vec<Option<Vec<f32>>>,
    /// Per layer, where its [`super::Magnitude`] asks: the output before the rows' factors, `W drop(x) + scale * B t`,
    /// `[tokens, out]`.
    pub z: Vec<Option<Vec<f32>>>,
    /// Of a norm: `[tokens]`.
    pub rstd: Option<Vec<f32>>,
}

/// Tokens up to which the work is split by output columns: weights are read once, into the first-level cache.
const NARROW: usize = 64;

/// Slices of the input are whole multiples of so many blocks of a product.
const SLICE_BLOCKS: usize = 4;

/// `y = f(input) W^T + bias + low-rank part (+ residual)` for every layer of the group.
///
/// `residual` is `[tokens, sum of out]`. Results do not depend on the number of threads.
///
/// # Panics
/// When a slice's length is not that of its shape.
#[must_use]
pub fn linears_forward(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    residual: Option<&[f32]>,
) -> LinearsOut {
    check(tokens, in_dim, &input, linears);
    with_operand!(isa(), compute(linears), O => forward::<O>(tokens, in_dim, input, linears, residual, true))
}

/// [`linears_forward`] where nobody reads the outputs: what the backward reads, with outputs that are zeros. With a
/// [`super::Magnitude`] all of it, whose gradient reads the outputs.
///
/// # Panics
/// As [`linears_forward`].
#[must_use]
pub fn linears_unread(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    residual: Option<&[f32]>,
) -> LinearsOut {
    check(tokens, in_dim, &input, linears);
    let reads = linears.iter().any(|layer| layer.magnitude().is_some());
    with_operand!(isa(), compute(linears), O => forward::<O>(tokens, in_dim, input, linears, residual, reads))
}

fn forward<O: Operand>(
    tokens: usize,
    in_dim: usize,
    input: Input<'_>,
    linears: &[Linear<'_>],
    residual: Option<&[f32]>,
    reads: bool,
) -> LinearsOut {
    let total: usize = linears.iter().map(|l| l.out).sum();
    assert!(
        residual.is_none_or(|r| r.len() == tokens * total),
        "linears: `residual` is [tokens, sum of out]"
    );
    let drops = |l: &Linear<'_>| l.magnitude().is_some() && l.dropout().is_some();
    // SAFETY: every pass below writes all columns of its layers for all tokens: y where it is read, t, z, and rstd.
    let (mut y, mut t, mut z, mut rstd) = unsafe {
        let t: Vec<_> = linears.iter().map(|l| l.low_rank.map(|low| uninit(tokens * low.rank))).collect();
        // Factors that would be rounded with the weights multiply the output instead.
        let kept = |l: &Linear<'_>| l.magnitude().is_some_and(|m| m.keep || O::VALUES > 1) || drops(l);
        let z: Vec<_> = linears.iter().map(|l| kept(l).then(|| uninit(tokens * l.out))).collect();
        let y = if reads { uninit(tokens * total) } else { vec![0.0; tokens * total] };
        (y, t, z, input.reads().is_norm().then(|| uninit(tokens)))
    };
    if tokens > 0 && total > 0 {
        let mut offset = 0;
        let parts = linears
            .iter()
            .zip(&mut t)
            .zip(&mut z)
            .map(|((layer, t), z)| {
                let at = offset;
                offset += layer.out;
                let x = O::words(layer.rank()) + usize::from(layer.any_bias() && z.is_none());
                let ptr = |v: &mut Option<Vec<f32>>| v.as_mut().map_or(std::ptr::null_mut(), Vec::as_mut_ptr);
                let (t, z) = (Ptr(ptr(t)), Ptr(ptr(z)));
                Part {
                    layer,
                    depth: Depth::new(O::words(in_dim), x),
                    at,
                    t,
                    gains: layer.gains(),
                    z,
                    drops: drops(layer),
                }
            })
            .collect();
        let rstd = rstd.as_mut().map_or(Ptr(std::ptr::null_mut()), |r| Ptr(r.as_mut_ptr()));
        let (isa, y) = (isa(), Ptr(y.as_mut_ptr()));
        let operand = PhantomData::<O>;
        let job = Job { isa, tokens, in_dim, input, parts, residual, total, y, rstd, operand };
        match reads {
            false => job.inputs(),
            true if tokens <= NARROW && !linears.iter().any(drops) => job.by_columns(),
            true => job.by_rows(),
        }
    }
    for (z, layer) in z.iter_mut().zip(linears) {
        z.take_if(|_| !layer.magnitude().is_some_and(|m| m.keep));
    }
    LinearsOut { y, saved: LinearsSaved { t, z, rstd } }
}

/// One layer of the job.
struct Part<'a> {
    layer: &'a Linear<'a>,
    depth: Depth,
    /// The layer's first column in `y`.
    at: usize,
    t: Ptr,
    /// The rows' factors of a magnitude.
    gains: Option<Vec<f32>>,
    /// `[tokens, out]` for the output before the factors; null where they are in the packed weights.
    z: Ptr,
    /// Whether a magnitude meets dropout, which then reaches part of the base's product too.
    drops: bool,
}

impl Part<'_> {
    fn panels(&self) -> usize {
        self.layer.out.div_ceil(NR)
    }

    /// Floats of the packed `A` of the low-rank branch.
    fn low_len<O: Operand>(&self, slice: &Slice) -> usize {
        self.layer.rank().div_ceil(NR) * O::words(slice.columns.len()) * NR
    }

    /// The depth of a slice of the input.
    fn depth_of<O: Operand>(&self, slice: &Slice) -> Depth {
        self.depth.part(O::words(slice.columns.len()), if slice.ends { self.depth.x } else { 0 })
    }

    /// Packs panel `p` for a slice of inputs of `k` values: weights; in the last slice then the rows of `B` and the bias.
    ///
    /// # Safety
    /// `to` holds a panel.
    unsafe fn pack<O: Operand>(&self, isa: Isa, k: usize, slice: &Slice, p: usize, to: *mut f32) {
        let j = p * NR;
        let n = (self.layer.out - j).min(NR);
        // SAFETY: shapes were checked; the panel has a row for each word of the slice's depth.
        unsafe {
            self.layer.weight.pack_nk::<O>(isa, j * k + slice.columns.start, k, slice.columns.len(), n, to);
            let mut row = O::words(slice.columns.len());
            if let Some(low) = self.layer.low_rank.as_ref().filter(|_| slice.ends) {
                let (from, r) = (low.b.as_ptr().add(j * low.rank), low.rank);
                pack_nk::<O, f32>(isa, from, r, r, n, to.add(row * NR));
                row += O::words(r);
            }
            if let Some(gains) = &self.gains {
                if !self.z.0.is_null() {
                    return;
                }
                scale_panel(isa, row, n, gains.as_ptr().add(j), to);
            }
            if self.layer.any_bias() && slice.ends {
                let low = self.layer.low_rank.and_then(|l| l.b_bias.map(|b| (l.scale, b)));
                for c in 0..NR {
                    let base = self.layer.bias.map_or(0.0, |b| if c < n { b[j + c] } else { 0.0 });
                    let extra = low.map_or(0.0, |(s, b)| if c < n { s * b[j + c] } else { 0.0 });
                    *to.add(row * NR + c) = O::constant(base + extra);
                }
            }
        }
    }

    /// Packs panel `p` of the low-rank `A` for a slice of inputs of `k` values.
    ///
    /// # Safety
    /// `to` holds 32 floats for each word of the slice; the layer has a low-rank branch.
    unsafe fn pack_low<O: Operand>(&self, isa: Isa, k: usize, slice: &Slice, p: usize, to: *mut f32) {
        if let Some(low) = &self.layer.low_rank {
            let (j, columns) = (p * NR, &slice.columns);
            // SAFETY: shapes were checked.
            unsafe {
                let from = low.a.as_ptr().add(j * k + columns.start);
                pack_nk::<O, f32>(isa, from, k, columns.len(), (low.rank - j).min(NR), to);
            }
        }
    }
}

/// Columns of the input whose products are made at once: all of them, or whole blocks of the products.
struct Slice {
    columns: Range<usize>,
    /// Whether it is the last.
    ends: bool,
}

impl Slice {
    /// Whether it is the first.
    fn starts(&self) -> bool {
        self.columns.start == 0
    }
}

/// Panels `first..end` of a part, packed at `at` of a pass's buffer.
struct Span {
    part: usize,
    first: usize,
    end: usize,
    at: usize,
}

struct Job<'a, O> {
    isa: Isa,
    tokens: usize,
    in_dim: usize,
    input: Input<'a>,
    parts: Vec<Part<'a>>,
    residual: Option<&'a [f32]>,
    total: usize,
    y: Ptr,
    rstd: Ptr,
    operand: PhantomData<O>,
}

impl<O: Operand> Job<'_, O> {
    /// Of the input alone.
    fn depth(&self) -> Depth {
        Depth::new(O::words(self.in_dim), 0)
    }

    /// Of a slice of the input alone.
    fn depth_of(&self, slice: &Slice) -> Depth {
        self.depth().part(O::words(slice.columns.len()), 0)
    }

    /// All of the input at once.
    fn whole(&self) -> Slice {
        Slice { columns: 0..self.in_dim, ends: true }
    }

    /// Slices of the input: as many as make the passes' work besides the products least. Each pass brings the input of its
    /// columns into order, and goes over all outputs of its panels.
    fn slices(&self) -> Vec<Slice> {
        let (words, total) = (O::words(self.in_dim), self.total);
        let each = match self.input.reads() {
            Reads::Plain(_) => 1,
            Reads::Norm(_) => 3,
            Reads::Activated(..) => 6,
        };
        let (unit, outputs) = (SLICE_BLOCKS * self.depth().kc(), 2 * total);
        let cost = |units: usize| {
            let passes = (total * words.min(units * unit)).div_ceil(PASS);
            (passes * each * self.in_dim, words.div_ceil(units * unit) * outputs)
        };
        let units =
            (1..=words.div_ceil(unit)).min_by_key(|&units| cost(units).0 + cost(units).1).unwrap_or(1);
        let step = units * unit * O::VALUES;
        let slice =
            |from| Slice { columns: from..self.in_dim.min(from + step), ends: from + step >= self.in_dim };
        (0..self.in_dim).step_by(step).map(slice).collect()
    }

    /// Packs `m` rows of a slice of the input from `row` on; `known` where an earlier pass has written the rows' rstd.
    ///
    /// # Safety
    /// `to` holds the packed rows.
    unsafe fn pack_input(&self, slice: &Slice, known: bool, row: usize, m: usize, to: *mut f32) {
        let (n, d, columns) = (self.in_dim, self.depth_of(slice), slice.columns.clone());
        let (place, values, width) = (TileLayout::packed::<O>(m, d), to.cast::<O::Value>(), columns.len());
        // SAFETY: shapes were checked; rows row..row + m exist, and this task alone writes their rstd.
        unsafe {
            input_rows(self.isa, self.input.reads(), self.rstd.0, known, n, columns, row, m, values, place);
            end_rows::<O>(m, width, d, to);
        }
    }

    /// `t (+)= drop(x) A^T` of `m` rows from a slice of packed `x`; `dropped` is scratch for a packed copy.
    ///
    /// # Safety
    /// `x` and `dropped` hold `m` packed rows, `low` the packed `A`.
    #[allow(clippy::too_many_arguments, reason = "a block is placed in rows and columns")]
    unsafe fn low_rank(
        &self,
        part: &Part<'_>,
        slice: &Slice,
        row: usize,
        m: usize,
        x: *const f32,
        dropped: *mut f32,
        low: *const f32,
    ) {
        let (d, r) = (self.depth_of(slice), part.layer.rank());
        // SAFETY: the caller's; this task alone writes its rows of t.
        unsafe {
            let mut a = x;
            if let Some(dropout) = part.layer.dropout() {
                self.drop(dropout, slice, row, m, x, dropped);
                a = dropped;
            }
            gemm::<O>(self.isa, m, a, d, low, r, part.t.at(row * r), r, 1.0, !slice.starts());
        }
    }

    /// Drops elements of `m` rows of a slice of packed `x`, into `to`.
    ///
    /// # Safety
    /// Both hold `m` packed rows.
    unsafe fn drop(
        &self,
        dropout: Dropout<'_>,
        slice: &Slice,
        row: usize,
        m: usize,
        x: *const f32,
        to: *mut f32,
    ) {
        let (keys, Mask { threshold, keep, first }) = (dropout.row_keys(row, m), dropout.mask());
        let (n, first) = (slice.columns.len(), first + slice.columns.start as u32);
        // SAFETY: the caller's.
        unsafe {
            drop_packed::<O>(
                self.isa,
                m,
                n,
                self.depth_of(slice),
                keys.as_ptr(),
                first,
                threshold,
                keep,
                x,
                to,
            );
        }
    }

    /// Writes `scale * t` and the bias' one into the spare columns of the last slice of packed `x`.
    ///
    /// # Safety
    /// `x` holds `m` packed rows of the part's depth.
    unsafe fn extras(&self, part: &Part<'_>, slice: &Slice, row: usize, m: usize, x: *mut f32) {
        if !slice.ends {
            return;
        }
        let (d, r) = (part.depth_of::<O>(slice), part.layer.rank());
        // SAFETY: the caller's; t was written by this task or an earlier pass.
        unsafe {
            if let Some(low) = &part.layer.low_rank {
                extra_columns::<O>(self.isa, m, d, x, 0, part.t.at(row * r), r, low.scale);
            }
            if d.x > O::words(r) {
                extra_constant(m, d, x, O::words(r), O::ones());
            }
        }
    }

    /// Copies the residual of `m` rows and `n` columns to where the GEMM then adds. Whether there is one.
    ///
    /// # Safety
    /// The columns are this task's.
    unsafe fn start(&self, row: usize, m: usize, col: usize, n: usize) -> bool {
        let Some(residual) = self.residual else { return false };
        let at = row * self.total + col;
        // SAFETY: same shape as y.
        unsafe {
            let (from, to) = (residual.as_ptr().add(at), self.y.at(at));
            copy_rows(self.isa, m, n, from, self.total, to, TileLayout::rows(self.total));
        }
        true
    }

    /// Columns of the output, from panel `first` on, of a slice of packed `x` times `panels`; `lost` is what dropout took from
    /// `x`, or null. The first slice writes them, the others add to them.
    ///
    /// # Safety
    /// `x` and `lost` hold `m` packed rows; the columns are this task's.
    #[allow(clippy::too_many_arguments, reason = "a block is placed in rows and columns")]
    unsafe fn columns(
        &self,
        part: &Part<'_>,
        slice: &Slice,
        row: usize,
        m: usize,
        x: *const f32,
        lost: *const f32,
        panels: *const f32,
        first: usize,
        n: usize,
    ) {
        let (isa, total, d, c) = (self.isa, self.total, part.depth_of::<O>(slice), first * NR);
        let later = !slice.starts();
        // SAFETY: the caller's.
        unsafe {
            let mut add = if later { self.residual.is_some() } else { self.start(row, m, part.at + c, n) };
            let y = self.y.at(row * total + part.at + c);
            let Some(gains) = part.gains.as_ref().filter(|_| !part.z.0.is_null()) else {
                gemm::<O>(isa, m, x, d, panels, n, y, total, 1.0, add || later);
                return;
            };
            let out = part.layer.out;
            let z = part.z.at(row * out + c);
            gemm::<O>(isa, m, x, d, panels, n, z, out, 1.0, later);
            if !lost.is_null() {
                let base = d.part(d.k, 0);
                for (p, j) in (0..n).step_by(NR).enumerate() {
                    let panel = panels.add(p * d.panel_len());
                    gemm_panel::<O>(
                        isa,
                        m,
                        lost,
                        base,
                        panel,
                        (n - j).min(NR),
                        y.add(j),
                        total,
                        1.0,
                        add || later,
                    );
                }
                add = true;
            }
            if !slice.ends {
                return;
            }
            let bias = part.layer.bias.map_or(std::ptr::null(), |b| b.as_ptr().add(c));
            magnify(isa, m, n, z, out, gains.as_ptr().add(c), bias, y, total, add);
        }
    }

    /// Floats of the largest packed input of `m` rows of a slice.
    fn a_len(&self, slice: &Slice, m: usize) -> usize {
        self.parts.iter().map(|p| p.depth_of::<O>(slice).a_len(m)).max().unwrap_or(0)
    }

    fn by_rows(&self) {
        for slice in self.slices() {
            let mut spans: Vec<Span> = Vec::new();
            let (mut used, mut known) = (0, !slice.starts());
            for (index, part) in self.parts.iter().enumerate() {
                let mut first = 0;
                while first < part.panels() {
                    let len = part.depth_of::<O>(&slice).panel_len();
                    let low = if first == 0 { part.low_len::<O>(&slice) } else { 0 };
                    let fit = PASS.saturating_sub(used + low) / len;
                    if fit == 0 && used > 0 {
                        self.pass(&slice, known, &spans, used);
                        spans.clear();
                        (used, known) = (0, true);
                        continue;
                    }
                    let end = part.panels().min(first + fit.max(1));
                    spans.push(Span { part: index, first, end, at: used });
                    used += (end - first) * len + low;
                    first = end;
                }
            }
            self.pass(&slice, known, &spans, used);
        }
    }

    /// What the input gives without the weights: rstd, and the low-rank activations.
    fn inputs(&self) {
        let (mut used, slice) = (0, self.whole());
        let mut spans = Vec::new();
        for (part, of) in self.parts.iter().enumerate().filter(|(_, of)| of.layer.low_rank.is_some()) {
            spans.push(Span { part, first: 0, end: 0, at: used });
            used += of.low_len::<O>(&slice);
        }
        if !spans.is_empty() || self.input.reads().is_norm() {
            self.pass(&slice, false, &spans, used);
        }
    }

    /// Packs the spans' weights of a slice, then takes every chunk of rows through them; `known` as in [`Self::pack_input`].
    fn pass(&self, slice: &Slice, known: bool, spans: &[Span], used: usize) {
        let buffer = Pooled::take(used);
        let packed = buffer.ptr();
        let mut panels = Vec::new();
        for span in spans {
            let part = &self.parts[span.part];
            let len = part.depth_of::<O>(slice).panel_len();
            panels.extend((span.first..span.end).map(|p| (part, false, p, span.at + (p - span.first) * len)));
            if span.first == 0 {
                let (at, len) = (span.at + (span.end - span.first) * len, self.depth_of(slice).k * NR);
                panels.extend((0..part.layer.rank().div_ceil(NR)).map(|p| (part, true, p, at + p * len)));
            }
        }
        tasks(panels.len(), |i| {
            let (part, low, p, at) = panels[i];
            // SAFETY: each panel has a place of its own in the buffer.
            unsafe {
                if low {
                    part.pack_low::<O>(self.isa, self.in_dim, slice, p, packed.at(at));
                } else {
                    part.pack::<O>(self.isa, self.in_dim, slice, p, packed.at(at));
                }
            }
        });
        let rows = chunk_rows(self.tokens, self.depth_of(slice).k);
        let drops = self.parts.iter().any(|p| p.layer.dropout().is_some());
        let loses = self.parts.iter().any(|p| p.drops);
        let copies = 1 + usize::from(drops) + usize::from(loses);
        tasks(self.tokens.div_ceil(rows), |chunk| {
            let row = chunk * rows;
            let m = (self.tokens - row).min(rows);
            let len = self.a_len(slice, m);
            // SAFETY: the scratch holds one packed input, two with dropout, three where the base drops too; rows of y, t
            // and z are this chunk's.
            scratch(copies * len, |x| unsafe {
                let dropped = if drops { x.add(len) } else { x };
                let lost = x.add((copies - 1) * len);
                self.pack_input(slice, known, row, m, x);
                for span in spans {
                    let part = &self.parts[span.part];
                    let len = part.depth_of::<O>(slice).panel_len();
                    if span.first == 0 && part.layer.low_rank.is_some() {
                        let low = packed.at(span.at + (span.end - span.first) * len);
                        self.low_rank(part, slice, row, m, x, dropped, low);
                    }
                    let n = part.layer.out.min(span.end * NR) - span.first * NR;
                    if n == 0 {
                        continue;
                    }
                    let panels = packed.at(span.at);
                    if let Some(dropout) = part.layer.dropout().filter(|_| part.drops) {
                        self.drop(dropout, slice, row, m, x, dropped);
                        let base = self.depth_of(slice);
                        lost_packed::<O>(self.isa, m, slice.columns.len(), base, x, dropped, lost);
                        self.extras(part, slice, row, m, dropped);
                        self.columns(part, slice, row, m, dropped, lost, panels, span.first, n);
                    } else {
                        self.extras(part, slice, row, m, x);
                        self.columns(part, slice, row, m, x, std::ptr::null(), panels, span.first, n);
                    }
                }
            });
        });
    }

    /// Few tokens: all rows at once, each task packing one panel of weights and using it.
    fn by_columns(&self) {
        let (m, whole) = (self.tokens, self.whole());
        let len = self.a_len(&whole, m);
        let buffer = Pooled::take(len * (self.parts.len() + 1));
        let inputs = buffer.ptr();
        let plain = self.parts.len() * len;
        // SAFETY: the last packed input is written here; the others, one per layer, by their tasks.
        unsafe { self.pack_input(&whole, false, 0, m, inputs.at(plain)) };
        tasks(self.parts.len(), |i| {
            let part = &self.parts[i];
            let low_len = part.low_len::<O>(&whole);
            scratch(low_len + len, |low| {
                // SAFETY: the layer's own copy of the input; the scratch holds the packed A and a dropped copy.
                unsafe {
                    let x = inputs.at(i * len);
                    std::ptr::copy_nonoverlapping(inputs.at(plain), x, self.depth().a_len(m));
                    if part.layer.low_rank.is_some() {
                        for p in 0..part.layer.rank().div_ceil(NR) {
                            part.pack_low::<O>(
                                self.isa,
                                self.in_dim,
                                &whole,
                                p,
                                low.add(p * part.depth.k * NR),
                            );
                        }
                        self.low_rank(part, &whole, 0, m, x, low.add(low_len), low);
                    }
                    self.extras(part, &whole, 0, m, x);
                }
            });
        });
        let panels: Vec<(usize, usize)> = self
            .parts
            .iter()
            .enumerate()
            .flat_map(|(i, part)| (0..part.panels()).map(move |p| (i, p)))
            .collect();
        tasks(panels.len(), |i| {
            let (index, p) = panels[i];
            let part = &self.parts[index];
            // SAFETY: the scratch holds one panel; the columns of y are this task's.
            scratch(part.depth.panel_len(), |panel| unsafe {
                part.pack::<O>(self.isa, self.in_dim, &whole, p, panel);
                let n = (part.layer.out - p * NR).min(NR);
                self.columns(part, &whole, 0, m, inputs.at(index * len), std::ptr::null(), panel, p, n);
            });
        });
    }
}
