//! Attention forward.

use super::block::{CHUNK, Keys, Packed, Plan, Work, attend, output, sum_len};
use super::shape::{AttentionOut, AttentionShape, HeadNorm, Rotary};
use super::sinks;
use crate::micro::NR;
use crate::operand::{Operand, with_operand};
use crate::scratch::{Ptr, scratch};
use crate::simd::isa;
use rayon::prelude::*;

/// Causal attention of every document.
///
/// `qkv` is `[rows, (heads+2·kv_heads)·head_dim]`: queries, keys, values. Norm and rotary are applied on the way in.
/// The result does not depend on the number of threads.
///
/// One task per (document, key head), and per run of queries where that leaves threads idle. A task takes the
/// group's heads together, so keys and values are packed once and never expanded; scores of a block of queries stay
/// in the second-level cache; keys hidden by causality or the window are skipped. Documents beyond 1024 keys are
/// taken chunk by chunk with an online softmax.
///
/// ```
/// use burnish_cpu_kernels::{AttentionShape, attention_forward};
///
/// let shape =
///     AttentionShape { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, softcap: None, slopes: &[], sinks: &[], window: None,
///     documents: &[0..2], parents: &[], compute: Default::default() };
/// // Rows of q | k | v; the first token sees only itself.
/// let y = attention_forward(&[1.0, 0.0, 1.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0], &shape, None, None);
/// assert_eq!(y.out, [3.0, 4.0, 4.0, 5.0]);
/// ```
///
/// # Panics
/// If buffer lengths, head counts or documents disagree.
pub fn attention_forward(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
) -> AttentionOut {
    with_operand!(isa(), shape.compute, O => forward(&Plan::<O>::new(qkv, shape, rotary, head_norm), None))
}

/// [`attention_forward`], and each query head's largest score over all visible pairs of all documents, `[heads]`.
///
/// A score is what softmax sees before any cap: `scale·q·k` after norm and rotary. The largest is that of the scores as
/// computed, so it depends neither on the number of threads nor on how documents are cut into tasks. A head that saw no
/// pair has negative infinity; one with a score that is infinite or not a number has NaN.
///
/// ```
/// use burnish_cpu_kernels::{AttentionShape, attention_forward_peaks};
///
/// let shape =
///     AttentionShape { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, softcap: None, slopes: &[], sinks: &[], window: None,
///     documents: &[0..2], parents: &[], compute: Default::default() };
/// // Rows of q | k | v; the first query would score 9 on the second key, which it does not see.
/// let qkv = [1.0, 0.0, 2.0, 0.0, 3.0, 4.0, 0.5, 0.0, 9.0, 0.0, 5.0, 6.0];
/// assert_eq!(attention_forward_peaks(&qkv, &shape, None, None).1, [4.5]);
/// ```
///
/// # Panics
/// As [`attention_forward`].
pub fn attention_forward_peaks(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
) -> (AttentionOut, Vec<f32>) {
    let mut peaks = vec![f32::NEG_INFINITY; shape.heads];
    let out = with_operand!(isa(), shape.compute, O => {
        forward(&Plan::<O>::new(qkv, shape, rotary, head_norm), Some(&mut peaks))
    });
    (out, peaks)
}

/// The larger; NaN where either is.
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

fn forward<O: Operand>(plan: &Plan<'_, O>, peaks: Option<&mut [f32]>) -> AttentionOut {
    let (shape, g) = (plan.shape, plan.shape.group());
    let mut out = AttentionOut { out: output(plan, shape.out_width()), lse: output(plan, shape.heads) };
    let (o, l) = (Ptr(out.out.as_mut_ptr()), Ptr(out.lse.as_mut_ptr()));
    let tasks = tasks(plan, 2 * rayon::current_num_threads());
    let Some(peaks) = peaks else {
        tasks.into_par_iter().with_max_len(1).for_each(|task| {
            // SAFETY: `Plan::new` checked the lengths; documents are disjoint, so tasks write distinct rows or heads.
            unsafe { run(plan, &task, o, l, Ptr(std::ptr::null_mut())) }
        });
        return out;
    };
    // A task has the heads of one group to itself.
    let mut parts = vec![f32::NEG_INFINITY; tasks.len() * g];
    let groups: Vec<usize> = tasks.iter().map(|task| task.kh).collect();
    tasks.into_par_iter().zip(parts.par_chunks_mut(g)).with_max_len(1).for_each(|(task, part)| {
        // SAFETY: as above; `part` holds a group's heads.
        unsafe { run(plan, &task, o, l, Ptr(part.as_mut_ptr())) }
    });
    for (kh, part) in groups.into_iter().zip(parts.chunks_exact(g)) {
        peaks[kh * g..][..g].iter_mut().zip(part).for_each(|(p, &x)| *p = larger(*p, x));
    }
    out
}

/// Queries `from..to` of a document's or sequence's own rows for one key head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) sequence: usize,
    pub(crate) start: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) kh: usize,
}

/// Tasks over documents and key heads; long documents are cut into runs of whole blocks until there are `wanted`.
pub(crate) fn tasks<O: Operand>(plan: &Plan<'_, O>, wanted: usize) -> Vec<Task> {
    let heads = plan.shape.kv_heads;
    let total: usize = plan.shape.documents.iter().map(ExactSizeIterator::len).sum();
    let whole = plan.shape.documents.iter().filter(|d| !d.is_empty()).count() * heads;
    let step = if whole >= wanted { total } else { (total * heads).div_ceil(2 * wanted) };
    let step = step.max(1).next_multiple_of(plan.block());
    let mut tasks = vec![];
    for (sequence, d) in plan.shape.documents.iter().enumerate() {
        for from in (0..d.len()).step_by(step) {
            for kh in 0..heads {
                tasks.push(Task { sequence, start: d.start, from, to: (from + step).min(d.len()), kh });
            }
        }
    }
    // The longest first: what is left over at the end is small.
    tasks.sort_by_key(|t| std::cmp::Reverse(t.to));
    tasks
}

/// # Safety
/// As [`forward`] sets up; `peaks` as in [`Work`].
unsafe fn run<O: Operand>(plan: &Plan<'_, O>, task: &Task, out: Ptr, lse: Ptr, peaks: Ptr) {
    let (d, g) = (plan.shape.head_dim, plan.shape.group());
    let (h, kh) = (plan.shape.heads, task.kh);
    let before = plan.shape.before(task.sequence);
    let seen = plan.visible(before + task.from, before + task.to);
    let chunk = CHUNK.min((seen.len() + NR).next_multiple_of(NR));
    let sizes = [
        d * NR,
        O::words(d) * chunk,
        O::words(chunk) * d,
        plan.packed_len(),
        plan.scores_len(),
        sum_len(plan),
        d,
    ];
    scratch(sizes.iter().map(|n| n.next_multiple_of(16)).sum(), |w| {
        let mut at = 0;
        let [k, kt, v, q, scores, sum, row] = sizes.map(|n| {
            at += n.next_multiple_of(16);
            w.wrapping_add(at - n.next_multiple_of(16))
        });
        for run in plan.runs(task.sequence) {
            let (lo, hi) = (seen.start.max(run.first), seen.end.min(run.first + run.count));
            if lo >= hi {
                continue;
            }
            // A run begins at the same key whatever the task; its part before the first visible key is skipped.
            let skipped = (lo - run.first) / NR * NR;
            let (start, from) = (run.start + skipped, run.first + skipped);
            let count = hi - from;
            // SAFETY: the run's rows lie in a document; the work areas have room for a chunk and a block.
            unsafe {
                let (keys, value_panels) = (std::ptr::null_mut(), std::ptr::null_mut());
                plan.pack_keys(
                    start,
                    count,
                    kh,
                    Packed { rows: k, key_panels: kt, value_panels, keys, values: v },
                );
                let keys = Keys { head: kh, first: from, count, panels: kt, values: v };
                let mut p0 = task.from;
                while p0 < task.to {
                    let p1 = (p0 + plan.block()).min(task.to);
                    let (t, i0, i1) = (task.start + p0, before + p0, before + p1);
                    if super::block::overlap(plan, i0, i1, (from, count)).is_some() {
                        plan.pack_queries(t, p1 - p0, kh, row, q);
                        plan.prefetch_queries(task.start + p1, plan.block().min(task.to - p1), kh);
                        let o = out.at(t * plan.shape.out_width() + kh * g * d);
                        let work = Work { scores, sum, peaks: peaks.0 };
                        attend(plan, i0, i1, q, keys, work, o, lse.at(t * h + kh * g));
                    }
                    p0 = p1;
                }
            }
        }
    });
    let row = task.start + task.from;
    // SAFETY: rows of the task are its own, and its group's heads are.
    unsafe {
        let o = out.at(row * plan.shape.out_width() + kh * g * d);
        sinks::take(plan, kh, task.to - task.from, o, lse.at(row * h + kh * g));
    }
}
