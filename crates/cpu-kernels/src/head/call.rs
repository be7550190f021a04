//! A call of the head: sizes of its tiles, packing, and the logits of a run of vocabulary entries.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::options::check;
use super::shard::VocabRows;
use super::vocab::{Scaling, scale_logits};
use crate::elementwise::scale_slice;
use crate::linear::{Linear, LowRank, Weight};
use crate::micro::{LDP, NR, gemm, gemm_panel};
use crate::operand::Operand;
use crate::pack::{Depth, end_rows, extra_columns, pack_nk, pack_rows};
use crate::rows::{TileLayout, add_dropped, copy_rows};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::{Element, Isa};
use crate::tasks::tasks;
use burnish_core::random::{dropout_row, dropout_threshold};
use burnish_core::{Compute, HeadOptions};
use std::marker::PhantomData;
use std::ops::Range;

/// Floats of a tile of logits (32 MiB) of [`FEW`] tokens or more.
const TILE: usize = 8 << 20;
/// Floats of a tile of logits (64 MiB) of fewer tokens.
const LARGE_TILE: usize = 16 << 20;
/// Tokens for which packing a weight costs little beside its products.
const FEW: usize = 96;
/// Tokens of a tile, at most.
const TOKENS: usize = 512;
/// Tokens for which a weight is packed once where their logits are not kept.
const AT_ONCE: usize = 1024;
/// Words of a packed run of weights.
const RUN: usize = 96 << 10;

/// Tokens whose logits are held at a time, of a head of `vocab` rows (split: of the rank that has most).
///
/// A split head that makes its gradients in forward ([`crate::head_fused`]) combines once per that many tokens.
#[must_use]
pub fn head_tile(vocab: usize) -> usize {
    let tokens = |floats: usize| floats / vocab.max(1) / NR * NR;
    tokens(TILE).max(tokens(LARGE_TILE).min(FEW)).clamp(NR, TOKENS)
}

/// What the head's operands are. The factors of a magnitude are multiplied into its rows, which rounding would hide: such a
/// head computes in fp32.
pub(crate) fn compute(head: &Linear<'_>) -> Compute {
    if head.low_rank.is_some_and(|low| low.magnitude.is_some()) { Compute::Fp32 } else { head.compute }
}

/// Arguments and sizes.
pub(crate) struct Call<'a, O> {
    pub(crate) isa: Isa,
    pub(crate) hidden: &'a [f32],
    pub(crate) head: &'a Linear<'a>,
    pub(crate) n: usize,
    pub(crate) dim: usize,
    pub(crate) vocab: usize,
    pub(crate) scaling: Scaling,
    /// Entries of the whole vocabulary, where this is a rank's part of it.
    pub(crate) whole: usize,
    pub(crate) options: HeadOptions,
    /// Inputs, then the low-rank columns, then one for the bias.
    pub(crate) depth: Depth,
    /// Vocabulary entries of a run; a run is a task.
    pub(crate) run: usize,
    /// Tokens of a tile; a multiple of 32.
    pub(crate) tile: usize,
    /// The entries' factors of a magnitude.
    pub(crate) gains: Option<Vec<f32>>,
    operand: PhantomData<O>,
}

impl<'a, O: Operand> Call<'a, O> {
    /// Checks the arguments; `n` tokens.
    pub(crate) fn new(
        hidden: &'a [f32],
        head: &'a Linear<'a>,
        shard: Option<&VocabRows<'_>>,
        n: usize,
        o: &HeadOptions,
    ) -> Self {
        check(o);
        let vocab = head.out;
        let widest = shard.map_or(vocab, |s| s.widest);
        if let Some(s) = shard {
            assert!(
                vocab <= s.widest && s.first + vocab <= s.vocab,
                "head: {vocab} rows from {} on of a vocabulary of {}, at most {} on a rank",
                s.first,
                s.vocab,
                s.widest
            );
        }
        assert!(widest > 0, "head: `out` is 0");
        // A rank without rows knows the width from elsewhere, or does not need it.
        let dim = match (&head.low_rank, vocab, n) {
            (Some(low), 0, _) => low.a.len() / low.rank.max(1),
            (None, 0, 0) => 1,
            (None, 0, _) => hidden.len() / n,
            _ => head.weight.len() / vocab,
        };
        assert!(dim > 0 && head.weight.len() == vocab * dim, "head: `weight` is [out, in]");
        assert!(
            hidden.len() == n * dim,
            "head: hidden of {} elements, expected {n} rows of {dim}",
            hidden.len()
        );
        assert!(head.bias.is_none_or(|b| b.len() == vocab), "head: `bias` is [out]");
        let mut biased = head.bias.is_some();
        let mut rank = 0;
        if let Some(low) = &head.low_rank {
            rank = low.rank;
            biased |= low.b_bias.is_some();
            assert!(rank > 0, "head: `rank` is 0");
            assert!(low.a.len() == rank * dim, "head: `a` is [rank, in]");
            assert!(low.b.len() == vocab * rank, "head: `b` is [out, rank]");
            assert!(low.b_bias.is_none_or(|b| b.len() == vocab), "head: `b_bias` is [out]");
            assert!(
                low.dropout.is_none_or(|d| (0.0..1.0).contains(&d.p) && d.rows.len() == n),
                "head: dropout `p` is in [0, 1) and `rows` is [tokens]"
            );
        }
        let depth = Depth::new(O::words(dim), O::words(rank) + usize::from(biased));
        // Whole tiles of the micro-kernel's 14 rows.
        let run = (RUN / (depth.blocks() * LDP) / 14 * 14).clamp(14, 224).min(vocab.max(1));
        let tile = head_tile(widest).min(n.max(1).next_multiple_of(NR));
        let isa = crate::simd::isa();
        let gains = head.gains();
        if let Some(low) = &head.low_rank
            && let Some(m) = &low.magnitude
        {
            assert!(m.m.len() == vocab && m.norm.len() == vocab, "head: `m` and `norm` are [out]");
            assert!(low.b_bias.is_none(), "head: a magnitude excludes `b_bias`");
            assert!(low.dropout.is_none_or(|d| d.p == 0.0), "head: a magnitude excludes dropout here");
        }
        let (scaling, operand) = (Scaling::new(o), PhantomData);
        let (whole, options) = (shard.map_or(vocab, |s| s.vocab), *o);
        Self { isa, hidden, head, n, dim, vocab, scaling, whole, options, depth, run, tile, gains, operand }
    }

    pub(crate) fn rank(&self) -> usize {
        self.head.low_rank.map_or(0, |l| l.rank)
    }

    /// Runs of the vocabulary.
    pub(crate) fn runs(&self) -> usize {
        self.vocab.div_ceil(self.run)
    }

    /// Entries of run `r`.
    pub(crate) fn entries(&self, r: usize) -> Range<usize> {
        r * self.run..((r + 1) * self.run).min(self.vocab)
    }

    /// Bias of entry `v`, the low-rank one included.
    fn bias(&self, v: usize) -> f32 {
        let low = self.head.low_rank.and_then(|l| l.b_bias.map(|b| l.scale * b[v]));
        self.head.bias.map_or(0.0, |b| b[v]) + low.unwrap_or(0.0)
    }

    /// Packs the weights of entries `v`, as rows.
    ///
    /// # Safety
    /// `dst` holds `depth.a_len(v.len())` floats.
    pub(crate) unsafe fn pack_entries(&self, v: Range<usize>, dst: *mut f32) {
        let (m, d, at) = (v.len(), self.depth, v.start * self.dim);
        match self.head.weight {
            Weight::F32(w) => self.pack_stored(m, w.as_ptr().add(at), dst),
            Weight::Bf16(w) => self.pack_stored(m, w.as_ptr().add(at), dst),
            Weight::F16(w) => self.pack_stored(m, w.as_ptr().add(at), dst),
            Weight::Packed(_) => scratch(m * self.dim, |wide| {
                let row = |i: usize| at + i * self.dim;
                (0..m)
                    .for_each(|i| self.head.weight.widen(self.isa, row(i), self.dim, wide.add(i * self.dim)));
                self.pack_stored(m, wide.cast_const(), dst);
            }),
        }
        let rank = self.rank();
        if let Some(low) = &self.head.low_rank {
            extra_columns::<O>(self.isa, m, d, dst, 0, low.b.as_ptr().add(v.start * rank), rank, 1.0);
        }
        if let Some(gains) = &self.gains {
            for block in 0..d.blocks() {
                for (i, g) in gains[v.clone()].iter().enumerate() {
                    scale_slice(self.isa, dst.add((block * m + i) * LDP), d.len(block), *g);
                }
            }
        }
        if d.x > O::words(rank) {
            let column = dst.add(d.column(m, d.k + O::words(rank)));
            for (i, v) in v.enumerate() {
                *column.add(i * LDP) = O::constant(self.bias(v));
            }
        }
    }

    /// Packs `m` rows of stored values.
    ///
    /// # Safety
    /// `w` holds `m·dim` values, `dst` `depth.a_len(m)` floats.
    unsafe fn pack_stored<E: Element>(&self, m: usize, w: *const E, dst: *mut f32) {
        let (n, place) = (self.dim, TileLayout::packed::<O>(m, self.depth));
        copy_rows::<E, O::Value>(self.isa, m, n, w, n, dst.cast(), place);
        end_rows::<O>(m, n, self.depth, dst);
    }

    /// Packs columns `j..j+n` (`n <= 32`) of entries `v` of the weight as a panel.
    ///
    /// # Safety
    /// `panel` holds `v.len() * 32` floats.
    pub(crate) unsafe fn pack_columns(&self, v: Range<usize>, j: usize, n: usize, panel: *mut f32) {
        let (at, k) = (v.start * self.dim + j, v.len());
        self.head.weight.pack_kn::<O>(self.isa, at, self.dim, k, n, panel);
    }

    /// Packs the tokens `rows` (a tile).
    pub(crate) fn pack_tokens(
        &self,
        rows: Range<usize>,
        low_a: Option<&Pooled>,
        rows_packed: bool,
    ) -> Tokens {
        let low_a = low_a.map(Pooled::ptr);
        let (n, r) = (rows.len(), self.rank());
        let panels = n.div_ceil(NR);
        let dropped = self.head.low_rank.and_then(|l| l.dropout).is_some_and(|d| d.p > 0.0);
        let tokens = Tokens {
            columns: Pooled::take(panels * self.depth.panel_len()),
            rows: Pooled::take(if rows_packed { O::words(n) * self.dim.next_multiple_of(NR) } else { 0 }),
            low: Pooled::take(n * r),
            dropped: Pooled::take(if dropped { n * self.dim } else { 0 }),
            is_dropped: dropped,
            first: rows.start,
            n,
        };
        let (columns, by_rows, low, drop) =
            (tokens.columns.ptr(), tokens.rows.ptr(), tokens.low.ptr(), tokens.dropped.ptr());
        tasks(panels, |p| {
            let (first, m) = (p * NR, (n - p * NR).min(NR));
            // SAFETY: buffers have the sizes above; a panel's tokens are this task's alone.
            unsafe {
                let x = self.hidden[(rows.start + first) * self.dim..].as_ptr();
                let panel = columns.at(p * self.depth.panel_len());
                pack_nk::<O, f32>(self.isa, x, self.dim, self.dim, m, panel);
                if let (Some(lr), Some(a)) = (&self.head.low_rank, low_a) {
                    let mut from = x;
                    if dropped {
                        self.drop_rows(lr, rows.start + first, m, x, drop.at(first * self.dim), false);
                        from = drop.at(first * self.dim);
                    }
                    let d = Depth::new(O::words(self.dim), 0);
                    scratch(d.a_len(m), |packed| {
                        pack_rows::<O>(self.isa, m, self.dim, d, from, self.dim, packed);
                        gemm::<O>(self.isa, m, packed, d, a.0, r, low.at(first * r), r, lr.scale, false);
                    });
                    let to = panel.add(O::words(self.dim) * NR);
                    pack_nk::<O, f32>(self.isa, low.at(first * r), r, r, m, to);
                }
                if self.depth.x > O::words(r) {
                    let ones = panel.add((O::words(self.dim) + O::words(r)) * NR);
                    for l in 0..NR {
                        *ones.add(l) = if l < m { O::ones() } else { 0.0 };
                    }
                }
                if rows_packed {
                    for j in (0..self.dim).step_by(NR) {
                        let to = by_rows.at(j * O::words(n) + O::words(first) * NR);
                        let columns = (self.dim - j).min(NR);
                        O::stack(self.isa, m, columns, x.add(j), self.dim, to, NR);
                    }
                }
            }
        });
        tokens
    }

    /// `dst (+)= mask·x` of `m` rows from token `first` on.
    ///
    /// # Safety
    /// Both hold `m` rows of `dim`.
    pub(crate) unsafe fn drop_rows(
        &self,
        low: &LowRank<'_>,
        first: usize,
        m: usize,
        x: *const f32,
        dst: *mut f32,
        add: bool,
    ) {
        let Some(d) = low.dropout else { return };
        let keys: Vec<u32> = d.rows[first..first + m].iter().map(|&row| dropout_row(d.key, row)).collect();
        let (threshold, keep) = (dropout_threshold(d.p), 1.0 / (1.0 - d.p));
        let n = self.dim;
        add_dropped(
            self.isa,
            m,
            n,
            d.first_column as usize,
            keys.as_ptr(),
            threshold,
            keep,
            x,
            n,
            dst,
            n,
            add,
        );
    }

    /// Low-rank `A` in panels.
    pub(crate) fn pack_low(&self) -> Option<Pooled> {
        let low = self.head.low_rank.as_ref()?;
        let (k, r) = (self.dim, low.rank);
        let panel = O::words(k) * NR;
        let a = Pooled::take(r.div_ceil(NR) * panel);
        for p in 0..r.div_ceil(NR) {
            // SAFETY: the buffer holds all panels.
            unsafe {
                let from = low.a.as_ptr().add(p * NR * k);
                pack_nk::<O, f32>(self.isa, from, k, k, (r - p * NR).min(NR), a.ptr().at(p * panel));
            }
        }
        Some(a)
    }

    /// `z` of entries `v`, packed in `weights`, for all tokens; panel `p` goes to `to + p·stride`.
    ///
    /// # Safety
    /// `weights` holds the packed entries, `to` the panels' rows.
    pub(crate) unsafe fn logits(
        &self,
        scaling: Scaling,
        tokens: &Tokens,
        v: Range<usize>,
        weights: *const f32,
        to: Ptr,
        stride: usize,
    ) {
        for p in 0..tokens.panels() {
            self.panel_logits(scaling, tokens, p, v.clone(), weights, to.at(p * stride));
        }
    }

    /// `z` of entries `v`, packed in `weights`, for the tokens of panel `p`: a row of 32 per entry.
    ///
    /// # Safety
    /// `weights` holds the packed entries, `z` the rows.
    pub(crate) unsafe fn panel_logits(
        &self,
        scaling: Scaling,
        tokens: &Tokens,
        p: usize,
        v: Range<usize>,
        weights: *const f32,
        z: *mut f32,
    ) {
        let (panel, lanes) = (tokens.columns.ptr().at(p * self.depth.panel_len()), tokens.lanes(p));
        gemm_panel::<O>(self.isa, v.len(), weights, self.depth, panel, lanes, z, NR, 1.0, false);
        scale_logits(self.isa, scaling, v.len(), lanes, z);
    }

    /// Room for the logits of a tile of tokens.
    pub(crate) fn tile_buffer(&self) -> Pooled {
        Pooled::passing(self.tile.min(self.n).next_multiple_of(NR) * self.vocab)
    }

    /// Tiles of tokens.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        cut(0..self.n, self.tile)
    }

    /// Whole tiles of up to [`AT_ONCE`] tokens, where the logits of no tile are kept.
    pub(crate) fn wide_tiles(&self) -> impl Iterator<Item = Range<usize>> {
        cut(0..self.n, self.tile * (AT_ONCE / self.tile).max(1))
    }
}

/// `rows` in pieces of `size`, the last one smaller.
pub(crate) fn cut(rows: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(size).map(move |t| t..(t + size).min(end))
}

/// The tokens of a tile, packed.
pub(crate) struct Tokens {
    /// `[tokens/32][in + extras][32]`, in words.
    pub(crate) columns: Pooled,
    /// `[in/32][tokens][32]`, in words, where weight gradients need it.
    pub(crate) rows: Pooled,
    /// `scale·drop(h) A^T`, `[tokens, rank]`.
    pub(crate) low: Pooled,
    /// `drop(h)`, `[tokens, in]`.
    dropped: Pooled,
    is_dropped: bool,
    /// First token.
    pub(crate) first: usize,
    pub(crate) n: usize,
}

// SAFETY: the buffers are only pointed into, each task writing what is its own.
unsafe impl Sync for Tokens {}

impl Tokens {
    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(NR)
    }

    /// Tokens of a panel.
    pub(crate) fn count(&self, panel: usize) -> usize {
        (self.n - panel * NR).min(NR)
    }

    /// The tokens of panel `p` whose targets are among entries `v`: each one's lane, and its target's place among them.
    pub(crate) fn hits<'t>(
        &self,
        targets: &'t [u32],
        p: usize,
        v: &Range<usize>,
    ) -> impl Iterator<Item = (usize, usize)> + use<'t> {
        let (of_panel, v) = (&targets[p * NR..][..self.count(p)], v.clone());
        let hit = move |(lane, &target): (usize, &u32)| {
            v.contains(&(target as usize)).then(|| (lane, target as usize - v.start))
        };
        of_panel.iter().enumerate().filter_map(hit)
    }

    /// Lanes of a panel that are computed; those past its tokens hold zeros.
    pub(crate) fn lanes(&self, panel: usize) -> usize {
        self.count(panel).next_multiple_of(16)
    }

    /// The low-rank branch's input, `[tokens, in]`.
    pub(crate) fn low_input<O>(&self, call: &Call<'_, O>) -> *const f32 {
        if self.is_dropped { self.dropped.ptr().0 } else { call.hidden[self.first * call.dim..].as_ptr() }
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped
    }
}
