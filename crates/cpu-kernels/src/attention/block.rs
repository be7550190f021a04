//! One block of queries against a run of keys: what training and decoding share.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::forward::larger;
use super::rows::{self, RowMap};
use super::shape::{AttentionShape, HeadNorm, Rotary};
use super::softmax::{Bias, largest, softmax};
use crate::micro::{KC, LDP, NR, Tile, strip};
use crate::operand::Operand;
use crate::pack::pack_nk;
use crate::rows::{TileLayout, copy_rows};
use crate::scratch::uninit;
use crate::simd::Isa;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a block of queries (positions times the heads of a group), where a group has no more.
const BLOCK: usize = 64;
/// Rows between a key's prefetch and its use.
pub(crate) const AHEAD: usize = 12;
/// Keys that a task works on at a time; longer documents go chunk by chunk with an online softmax.
pub(crate) const CHUNK: usize = 1024;

/// An attention call as its tasks see it.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a, O> {
    pub(crate) isa: Isa,
    pub(crate) shape: AttentionShape<'a>,
    pub(crate) rotary: Option<&'a Rotary<'a>>,
    pub(crate) query: RowMap,
    pub(crate) key: RowMap,
    /// `[rows, q | k | v]`.
    pub(crate) qkv: &'a [f32],
    operand: PhantomData<O>,
}

impl<'a, O: Operand> Plan<'a, O> {
    /// Checks the arguments of a call.
    pub(crate) fn new(
        qkv: &'a [f32],
        shape: &AttentionShape<'a>,
        rotary: Option<&'a Rotary<'a>>,
        norm: Option<&HeadNorm<'_>>,
    ) -> Self {
        let width = shape.qkv_width();
        assert!(
            width > 0 && qkv.len().is_multiple_of(width),
            "attention: qkv of {} elements is not whole rows of {width}",
            qkv.len()
        );
        let rows = qkv.len() / width;
        shape.check(rows);
        if let Some(r) = rotary {
            r.check(rows, shape.head_dim);
        }
        if let Some(n) = norm {
            n.check(shape.head_dim);
        }
        let (query, key) = RowMap::pair(shape.head_dim, shape.scale, rotary, norm);
        let operand = PhantomData;
        Self { isa: crate::simd::isa(), shape: *shape, rotary, query, key, qkv, operand }
    }

    /// Rows of the buffer.
    pub(crate) fn rows(&self) -> usize {
        self.qkv.len() / self.shape.qkv_width()
    }

    /// Positions of a block of queries.
    pub(crate) fn block(&self) -> usize {
        (BLOCK / self.shape.group()).max(1)
    }

    /// Query rows of a block.
    pub(crate) fn block_rows(&self) -> usize {
        self.block() * self.shape.group()
    }

    /// Floats of a block's packed rows.
    pub(crate) fn packed_len(&self) -> usize {
        self.block_rows() * O::words(self.shape.head_dim).div_ceil(KC) * LDP
    }

    /// Floats of a block's scores over a chunk.
    pub(crate) fn scores_len(&self) -> usize {
        self.block_rows().next_multiple_of(O::VALUES) * CHUNK.div_ceil(KC) * LDP
    }

    /// Offset of head `i` (queries, then keys, then values) of a row in `qkv`.
    pub(crate) fn offset(&self, row: usize, i: usize) -> usize {
        row * self.shape.qkv_width() + i * self.shape.head_dim
    }

    /// Pointer to [`Plan::offset`].
    pub(crate) fn head(&self, row: usize, i: usize) -> *const f32 {
        self.qkv[self.offset(row, i)..].as_ptr()
    }

    /// Cosines and sines of a row; null without rotary.
    pub(crate) fn table(&self, row: usize) -> *const f32 {
        self.rotary.map_or(std::ptr::null(), |r| r.row(row).as_ptr())
    }

    /// The keys of a document in the order of its positions, those of the one that it continues before its own, up to
    /// [`CHUNK`] at a time.
    pub(crate) fn runs(&self, document: usize) -> impl Iterator<Item = Run> {
        let parent = self.shape.parent(document).map(|p| (&self.shape.documents[p], 0));
        let own = (&self.shape.documents[document], self.shape.before(document));
        parent.into_iter().chain([own]).flat_map(|(rows, first)| {
            let (start, len) = (rows.start, rows.len());
            let run =
                move |at: usize| Run { start: start + at, first: first + at, count: CHUNK.min(len - at) };
            (0..len).step_by(CHUNK).map(run)
        })
    }

    /// Keys of a document that block `i0..i1` sees.
    pub(crate) fn visible(&self, i0: usize, i1: usize) -> Range<usize> {
        self.shape.first_key(i0)..i1
    }

    /// The cap as the row kernels take it: 0 is none.
    pub(crate) fn cap(&self) -> f32 {
        self.shape.softcap.unwrap_or(0.0)
    }

    /// Fetches the queries of `n` rows from `start` on, soon to be packed.
    pub(crate) fn prefetch_queries(&self, start: usize, n: usize, kh: usize) {
        let g = self.shape.group();
        for t in start..start + n {
            rows::prefetch(self.qkv, self.offset(t, kh * g), g * self.shape.head_dim);
        }
    }

    /// Fetches a row's key and value, soon to be packed.
    pub(crate) fn prefetch_key(&self, row: usize, kh: usize) {
        let (h, kv, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        rows::prefetch(self.qkv, self.offset(row, h + kh), d);
        rows::prefetch(self.qkv, self.offset(row, h + kv + kh), d);
    }

    /// Packs the queries of rows `start..start+n` of key head `kh`'s group: row `p·group + h` of the block.
    ///
    /// # Safety
    /// `dst` holds [`Plan::packed_len`] floats, and `row` a head.
    pub(crate) unsafe fn pack_queries(
        &self,
        start: usize,
        n: usize,
        kh: usize,
        row: *mut f32,
        dst: *mut f32,
    ) {
        let g = self.shape.group();
        for p in 0..n {
            for h in 0..g {
                let x = self.head(start + p, kh * g + h);
                if self.shape.head_dim <= KC * O::VALUES {
                    let to = dst.add((p * g + h) * LDP).cast::<O::Value>();
                    rows::apply(self.isa, self.query, x, self.table(start + p), to);
                } else {
                    rows::apply::<f32>(self.isa, self.query, x, self.table(start + p), row);
                    pack_row::<O>(self.isa, self.shape.head_dim, n * g, p * g + h, row, dst);
                }
            }
        }
    }
}

/// A buffer of `width` floats a row: rows outside every document are zeros, the others for the tasks to write.
pub(crate) fn output<O: Operand>(plan: &Plan<'_, O>, width: usize) -> Vec<f32> {
    let rows = plan.rows();
    // SAFETY: rows of no document are zeroed here; the caller's tasks write every row of every document.
    let mut out = unsafe { uninit(rows * width) };
    let mut documents: Vec<&Range<usize>> = plan.shape.documents.iter().filter(|d| !d.is_empty()).collect();
    documents.sort_by_key(|d| d.start);
    let mut from = 0;
    for d in documents {
        out[from * width..d.start * width].fill(0.0);
        from = d.end;
    }
    out[from * width..].fill(0.0);
    out
}

/// Where the keys and values of a run are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    /// Room for [`NR`] rows of `d`.
    pub(crate) rows: *mut f32,
    /// `[count/32][d][32]`, in words.
    pub(crate) key_panels: *mut f32,
    /// As the keys'; null where nobody asks.
    pub(crate) value_panels: *mut f32,
    /// `[count][d]`, in words of the sum over keys; null where nobody asks.
    pub(crate) keys: *mut f32,
    /// As `keys`.
    pub(crate) values: *mut f32,
}

impl<O: Operand> Plan<'_, O> {
    /// Packs keys and values of rows `start..start + count` of key head `kh`: each row is read once.
    ///
    /// # Safety
    /// The rows exist; the places have room for `count` rounded up to a whole panel.
    pub(crate) unsafe fn pack_keys(&self, start: usize, count: usize, kh: usize, to: Packed) {
        let (isa, d, width) = (self.isa, self.shape.head_dim, self.shape.qkv_width());
        let (key, value) = (self.shape.heads + kh, self.shape.heads + self.shape.kv_heads + kh);
        for first in (0..count).step_by(NR) {
            let n = (count - first).min(NR);
            for r in 0..n {
                let t = start + first + r;
                self.prefetch_key(t + AHEAD, kh);
                rows::apply(isa, self.key, self.head(t, key), self.table(t), to.rows.add(r * d));
            }
            let (panel, words) = (first * O::words(d), O::words(first) * d);
            let v = self.head(start + first, value);
            pack_nk::<O, f32>(isa, to.rows, d, d, n, to.key_panels.add(panel));
            if !to.keys.is_null() {
                O::stack(isa, n, d, to.rows.cast_const(), d, to.keys.add(words), d);
            }
            if !to.value_panels.is_null() {
                pack_nk::<O, f32>(isa, v, width, d, n, to.value_panels.add(panel));
            }
            if !to.values.is_null() {
                O::stack(isa, n, d, v, width, to.values.add(words), d);
            }
        }
    }
}

/// Copies one row of `d` floats (a whole number of words) into packed rows.
///
/// # Safety
/// `dst` holds `rows` packed rows of `d`.
pub(crate) unsafe fn pack_row<O: Operand>(
    isa: Isa,
    d: usize,
    rows: usize,
    r: usize,
    x: *const f32,
    dst: *mut f32,
) {
    let row = LDP * O::VALUES;
    let place = TileLayout { width: KC * O::VALUES, block: rows * row, row };
    copy_rows(isa, 1, d, x, d, dst.cast::<O::Value>().add(r * row), place);
}

/// Products of `m` packed rows with the `keys` columns of panels, in the layout of [`super::softmax`] for a block of `rows`
/// rows, `m` or more.
///
/// # Safety
/// `a` holds `m` packed rows of `d`, `panels` as many whole panels as hold `keys`, `s` the block.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn products<O: Operand>(
    isa: Isa,
    m: usize,
    rows: usize,
    d: usize,
    keys: usize,
    a: *const f32,
    panels: *const f32,
    s: *mut f32,
) {
    let mut j = 0;
    while j < keys {
        let n = (keys - j).min(NR);
        for (block, k0) in (0..O::words(d)).step_by(KC).enumerate() {
            let t = Tile {
                m,
                n,
                k: (O::words(d) - k0).min(KC),
                a: a.add(block * m * LDP),
                a_step: 1,
                b: panels.add(j * O::words(d) + k0 * NR),
                ldb: NR,
                c: s.add((j / KC) * rows * LDP + j % KC),
                ldc: LDP,
                alpha: 1.0,
                add: block > 0,
            };
            strip::<O, LDP>(isa, t);
        }
        j += NR;
    }
}

/// `c[m, d] = s[m, keys]·x[keys, d]`, `s` in the layout of [`super::softmax`] for a block of `rows` rows, packed, and `x` in
/// words of the sum over keys.
///
/// # Safety
/// `x` holds `d` floats for each word of `keys`, `c` `m·d`.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn weighted<O: Operand>(
    isa: Isa,
    m: usize,
    rows: usize,
    d: usize,
    keys: usize,
    s: *const f32,
    x: *const f32,
    c: *mut f32,
) {
    let mut j = 0;
    while j < d {
        for (block, k0) in (0..keys).step_by(KC).enumerate() {
            let t = Tile {
                m,
                n: (d - j).min(NR),
                k: O::words((keys - k0).min(KC)),
                a: s.add(block * rows * LDP),
                a_step: 1,
                b: x.add(O::words(k0) * d + j),
                ldb: d,
                c: c.add(j),
                ldc: d,
                alpha: 1.0,
                add: block > 0,
            };
            strip::<O, LDP>(isa, t);
        }
        j += NR;
    }
}

/// Keys that lie one after another, as a document counts them.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Row of the first.
    pub(crate) start: usize,
    /// Its position in the document.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// A run of keys: `[first, first + count)` of a document.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    /// The key head.
    pub(crate) head: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// `[count/32][d][32]`, in words.
    pub(crate) panels: *const f32,
    /// `[count][d]`, in words of the sum over keys.
    pub(crate) values: *const f32,
}

/// Working memory of [`attend`].
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// [`Plan::scores_len`].
    pub(crate) scores: *mut f32,
    /// `block_rows·d`.
    pub(crate) sum: *mut f32,
    /// The largest score so far of each head of the group, before the cap; null where nobody asks.
    pub(crate) peaks: *mut f32,
}

/// The keys of `run` that a block `i0..i1` sees, rounded down to a whole panel at the start: offset and count.
pub(crate) fn overlap<O: Operand>(
    plan: &Plan<'_, O>,
    i0: usize,
    i1: usize,
    run: (usize, usize),
) -> Option<(usize, usize)> {
    let seen = plan.visible(i0, i1);
    let (lo, hi) = (seen.start.max(run.0), seen.end.min(run.0 + run.1));
    let from = (lo.saturating_sub(run.0)) / NR * NR;
    (lo < hi).then(|| (from, hi - run.0 - from))
}

/// Attention of queries `i0..i1` (document positions, packed in `q`) over a run of keys, merged into the output
/// and log-sum-exp rows, which hold the result over earlier runs.
///
/// # Safety
/// `out` points at the first query's row for the group's first head, rows at stride `out_width`; `lse` likewise
/// at stride `heads`; what earlier runs
/// left is in them. The work areas have their sizes.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(crate) unsafe fn attend<O: Operand>(
    plan: &Plan<'_, O>,
    i0: usize,
    i1: usize,
    q: *const f32,
    keys: Keys,
    w: Work,
    out: *mut f32,
    lse: *mut f32,
) {
    let Some((from, count)) = overlap(plan, i0, i1, (keys.first, keys.count)) else { return };
    let (isa, d, g) = (plan.isa, plan.shape.head_dim, plan.shape.group());
    let m = (i1 - i0) * g;
    products::<O>(isa, m, m, d, count, q, keys.panels.add(from * O::words(d)), w.scores);
    let base = keys.first + from;
    // Per row: maximum and sum over this run, then the weights of this run and of the earlier ones.
    let weights = w.sum.add(m * d);
    for r in 0..m {
        let i = i0 + r / g;
        let lo = plan.shape.first_key(i).max(base) - base;
        let hi = (i + 1).min(base + count).saturating_sub(base);
        let bias = Bias::new(plan.shape.slope(keys.head * g + r % g), base, i);
        // Cap and bias overwrite the scores.
        let capped = !w.peaks.is_null() && (plan.cap() > 0.0 || bias.slope != 0.0) && lo < hi;
        let raw = if capped { largest(isa, m, r, lo, hi, w.scores) } else { f32::NEG_INFINITY };
        let (top, sum) = if lo < hi {
            softmax::<O>(isa, m, r, count, lo, hi, plan.cap(), bias, w.scores)
        } else {
            (0.0, 0.0)
        };
        if sum == 0.0 {
            for j in (0..count).step_by(KC) {
                let row = w.scores.add((j / KC) * m * LDP + r * LDP);
                std::ptr::write_bytes(row, 0, (count - j).min(KC));
            }
        }
        if !w.peaks.is_null() && lo < hi {
            let top = if capped { raw } else { top };
            let peak = w.peaks.add(r % g);
            *peak = larger(*peak, if sum.is_nan() { f32::NAN } else { top });
        }
        *weights.add(2 * r) = top;
        *weights.add(2 * r + 1) = sum;
    }
    weighted::<O>(isa, m, m, d, count, w.scores, keys.values.add(O::words(from) * d), w.sum);
    for r in 0..m {
        let (i, h) = (i0 + r / g, r % g);
        let (top, sum) = (*weights.add(2 * r), *weights.add(2 * r + 1));
        if sum == 0.0 {
            continue;
        }
        let to = out.add((r / g) * plan.shape.out_width() + h * d);
        let l = lse.add((r / g) * plan.shape.heads + h);
        let here = top + sum.ln();
        if plan.shape.first_key(i) >= keys.first {
            *l = here;
            rows::scale(isa, d, w.sum.add(r * d), 1.0 / sum, to);
        } else {
            let before = *l;
            let m = before.max(here);
            let both = m + ((before - m).exp() + (here - m).exp()).ln();
            *l = both;
            rows::mix(isa, d, w.sum.add(r * d), (here - both).exp() / sum, to, (before - both).exp());
        }
    }
}

/// Floats of [`Work::sum`] and its row weights.
pub(crate) fn sum_len<O: Operand>(plan: &Plan<'_, O>) -> usize {
    plan.block_rows() * (plan.shape.head_dim + 2)
}
