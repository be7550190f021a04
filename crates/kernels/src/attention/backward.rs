//! Attention backward.

use super::block::{AHEAD, CHUNK, Plan, output, overlap, pack_row, panels, products, weighted};
use super::rows;
use super::shape::{AttentionGrad, AttentionShape, HeadNorm, Rotary};
use super::softmax::softmax_gradient;
use crate::micro::{KC, LDP, NR, gemm_tn};
use crate::scratch::{Pooled, Ptr, scratch};
use rayon::prelude::*;

/// Gradient of [`crate::attention_forward`] with respect to `qkv` and the head norms.
///
/// `out` and `lse` are what forward returned, `d_out` the gradient of `out`. Probabilities are computed again from
/// `lse`. A task owns the key and value gradients of one (document, key head); where such tasks are fewer than the
/// threads, query gradients and key gradients become tasks of their own, per run of queries and per chunk of keys.
/// Either way every element is summed in the same order, so the result does not depend on the number of threads.
///
/// # Panics
/// If buffer lengths, head counts or documents disagree.
pub fn attention_backward(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
    out: &[f32],
    lse: &[f32],
    d_out: &[f32],
) -> AttentionGrad {
    let plan = Plan::new(qkv, shape, rotary, head_norm);
    let (rows, d, kv) = (plan.rows(), shape.head_dim, shape.kv_heads);
    let want = rows * shape.out_width();
    assert!(
        out.len() == want && d_out.len() == want && lse.len() == rows * shape.heads,
        "attention backward: out {}, d_out {} and lse {} elements, expected {want}, {want} and {}",
        out.len(),
        d_out.len(),
        lse.len(),
        rows * shape.heads
    );
    let mut dqkv = output(&plan, shape.qkv_width());
    let tasks = tasks(&plan);
    let count = |step: usize| shape.documents.iter().map(|r| r.len().div_ceil(step)).sum::<usize>();
    // Gain gradients: a row per (block of queries, key head) and per (chunk of keys, key head), summed in order.
    let normed = head_norm.is_some();
    let q_parts = if normed { count(plan.block()) * kv } else { 0 };
    let k_parts = if normed { count(CHUNK) * kv } else { 0 };
    let parts = Pooled::take((q_parts + k_parts) * d);
    let call = Call {
        plan: &plan,
        out,
        lse,
        d_out,
        dqkv: Ptr(dqkv.as_mut_ptr()),
        q_parts: parts.ptr(),
        // SAFETY: the buffer holds both.
        k_parts: Ptr(unsafe { parts.ptr().at(q_parts * d) }),
    };
    tasks.into_par_iter().with_max_len(1).for_each(|task| {
        // SAFETY: lengths are checked above; tasks write distinct (rows, heads) and distinct parts.
        unsafe { run(&call, &task) }
    });
    let total = |from: Ptr, n: usize| {
        normed.then(|| {
            // SAFETY: the tasks have filled the parts.
            let parts = unsafe { std::slice::from_raw_parts(from.0, n * d) };
            let mut sum = vec![0.0f32; d];
            for part in parts.chunks_exact(d) {
                sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
            }
            sum
        })
    };
    let (dq_norm, dk_norm) = (total(call.q_parts, q_parts), total(call.k_parts, k_parts));
    AttentionGrad { dqkv, dq_norm, dk_norm }
}

/// What all tasks share.
struct Call<'a> {
    plan: &'a Plan<'a>,
    out: &'a [f32],
    lse: &'a [f32],
    d_out: &'a [f32],
    dqkv: Ptr,
    q_parts: Ptr,
    k_parts: Ptr,
}

/// Gradients of queries `from..to` where `queries`, of keys and values `from..to` where `keys`; both only for a
/// whole document.
#[derive(Clone, Copy, Debug)]
struct Task {
    start: usize,
    len: usize,
    from: usize,
    to: usize,
    kh: usize,
    queries: bool,
    keys: bool,
    /// Blocks of queries and chunks of keys in the documents before.
    blocks_before: usize,
    chunks_before: usize,
}

fn tasks(plan: &Plan<'_>) -> Vec<Task> {
    let threads = rayon::current_num_threads();
    let kv = plan.shape.kv_heads;
    let whole = plan.shape.documents.iter().filter(|d| !d.is_empty()).count() * kv;
    let longest = plan.shape.documents.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    // Apart, the two halves take 7 products where together they take 5.
    let apart = whole * 7 / 5 < threads && longest > 2 * plan.block();
    let mut tasks = vec![];
    let (mut blocks_before, mut chunks_before) = (0, 0);
    for d in plan.shape.documents {
        let len = d.len();
        for kh in 0..kv {
            let both = Task {
                start: d.start,
                len,
                from: 0,
                to: len,
                kh,
                queries: true,
                keys: true,
                blocks_before,
                chunks_before,
            };
            if !apart {
                tasks.push(both);
                continue;
            }
            for from in (0..len).step_by(CHUNK) {
                tasks.push(Task { from, to: (from + CHUNK).min(len), queries: false, ..both });
            }
            let step = len.div_ceil(2 * threads).next_multiple_of(plan.block());
            for from in (0..len).step_by(step.max(1)) {
                tasks.push(Task { from, to: (from + step).min(len), keys: false, ..both });
            }
        }
        blocks_before += len.div_ceil(plan.block());
        chunks_before += len.div_ceil(CHUNK);
    }
    tasks.retain(|t| t.from < t.to);
    tasks.sort_by_key(|t| std::cmp::Reverse(t.len));
    tasks
}

/// Working memory of a task; lengths in [`Area::sizes`].
#[derive(Clone, Copy)]
struct Area {
    /// Keys of the chunk, by rows and in panels; values by rows and in panels.
    k: *mut f32,
    kt: *mut f32,
    v: *mut f32,
    vt: *mut f32,
    dk: *mut f32,
    dv: *mut f32,
    /// Packed queries and output gradients of a block.
    q: *mut f32,
    g: *mut f32,
    scores: *mut f32,
    slopes: *mut f32,
    dq: *mut f32,
    row: *mut f32,
    gain: *mut f32,
}

impl Area {
    fn sizes(plan: &Plan<'_>, chunk: usize) -> [usize; 13] {
        let (d, keys) = (plan.shape.head_dim, chunk * plan.shape.head_dim);
        let (packed, scores) = (plan.packed_len(), plan.scores_len());
        [keys, keys, keys, keys, keys, keys, packed, packed, scores, scores, plan.block_rows() * d, d, d]
            .map(|n| n.next_multiple_of(16))
    }

    fn new(w: *mut f32, sizes: [usize; 13]) -> Self {
        let mut at = 0;
        let [k, kt, v, vt, dk, dv, q, g, scores, slopes, dq, row, gain] = sizes.map(|n| {
            at += n;
            w.wrapping_add(at - n)
        });
        Self { k, kt, v, vt, dk, dv, q, g, scores, slopes, dq, row, gain }
    }
}

/// # Safety
/// As [`attention_backward`] sets up.
unsafe fn run(call: &Call<'_>, task: &Task) {
    let plan = call.plan;
    // Keys that the task's queries see, or all queries see of the task's keys.
    let range = if task.queries { plan.visible(task.from, task.to) } else { task.from..task.to };
    let first = range.start / CHUNK * CHUNK;
    let sizes = Area::sizes(plan, CHUNK.min((range.end - first).next_multiple_of(NR)));
    scratch(sizes.iter().sum(), |w| {
        let area = Area::new(w, sizes);
        for c0 in (first..range.end).step_by(CHUNK) {
            // SAFETY: the areas have room for a chunk.
            unsafe { chunk(call, task, area, c0, (range.end - c0).min(CHUNK)) }
        }
    });
}

/// The part of a task that concerns keys `c0..c0+count`.
///
/// # Safety
/// As [`run`].
unsafe fn chunk(call: &Call<'_>, task: &Task, a: Area, c0: usize, count: usize) {
    let plan = call.plan;
    let (isa, d, kh) = (plan.isa, plan.shape.head_dim, task.kh);
    let (h, kv) = (plan.shape.heads, plan.shape.kv_heads);
    // SAFETY: rows of the chunk lie in the document, areas hold a chunk.
    unsafe {
        for r in 0..count {
            let t = task.start + c0 + r;
            plan.prefetch_key(t + AHEAD, kh);
            rows::apply(isa, plan.key, plan.head(t, h + kh), plan.table(t), a.k.add(r * d));
            std::ptr::copy_nonoverlapping(plan.head(t, h + kv + kh), a.v.add(r * d), d);
        }
        panels(isa, count, d, a.k, a.kt);
        panels(isa, count, d, a.v, a.vt);
        if task.keys {
            std::ptr::write_bytes(a.dk, 0, count * d);
            std::ptr::write_bytes(a.dv, 0, count * d);
        }
        let (from, to) = if task.queries { (task.from, task.to) } else { (0, task.len) };
        for i0 in (from..to).step_by(plan.block()) {
            let i1 = (i0 + plan.block()).min(to);
            if let Some((offset, keys)) = overlap(plan, i0, i1, (c0, count)) {
                block(call, task, a, (i0, i1), c0, offset, keys);
            }
        }
        if !task.keys {
            return;
        }
        std::ptr::write_bytes(a.gain, 0, d);
        for r in 0..count {
            let t = task.start + c0 + r;
            let (x, dx) = (plan.head(t, h + kh), call.dqkv.at(plan.offset(t, h + kh)));
            rows::gradient(isa, plan.key, x, plan.table(t), a.dk.add(r * d), dx, a.gain);
            std::ptr::copy_nonoverlapping(a.dv.add(r * d), call.dqkv.at(plan.offset(t, h + kv + kh)), d);
        }
        if !plan.key.gain.is_null() {
            let part = (task.chunks_before + c0 / CHUNK) * kv + kh;
            std::ptr::copy_nonoverlapping(a.gain, call.k_parts.at(part * d), d);
        }
    }
}

/// The part of a chunk that concerns queries `i0..i1`; they see `keys` keys from `c0 + offset` on.
///
/// # Safety
/// As [`run`].
unsafe fn block(
    call: &Call<'_>,
    task: &Task,
    a: Area,
    (i0, i1): (usize, usize),
    c0: usize,
    offset: usize,
    keys: usize,
) {
    let plan = call.plan;
    let (isa, d, kh, g) = (plan.isa, plan.shape.head_dim, task.kh, plan.shape.group());
    let (h, m, t0) = (plan.shape.heads, (i1 - i0) * g, task.start + i0);
    let (width, base) = (plan.shape.out_width(), c0 + offset);
    let out = |r: usize| (t0 + r / g) * width + (kh * g + r % g) * d;
    // SAFETY: rows of the block lie in the document, areas hold a block.
    unsafe {
        plan.pack_queries(t0, i1 - i0, kh, a.row, a.q);
        for r in 0..m {
            pack_row(d, m, r, call.d_out[out(r)..][..d].as_ptr(), a.g);
        }
        let next = plan.block().min(task.len - i1);
        plan.prefetch_queries(task.start + i1, next, kh);
        for t in task.start + i1..task.start + i1 + next {
            rows::prefetch(call.out, t * width + kh * g * d, g * d);
            rows::prefetch(call.d_out, t * width + kh * g * d, g * d);
        }
        products(isa, m, d, keys, a.q, a.kt.add(offset * d), a.scores);
        products(isa, m, d, keys, a.g, a.vt.add(offset * d), a.slopes);
        for r in 0..m {
            let i = i0 + r / g;
            let lo = plan.shape.first_key(i).max(base) - base;
            let hi = (i + 1).min(base + keys).saturating_sub(base).max(lo);
            let lse = call.lse[(t0 + r / g) * h + kh * g + r % g];
            let mean = rows::dot(isa, d, call.d_out[out(r)..].as_ptr(), call.out[out(r)..].as_ptr());
            let (lo, hi) = (lo.min(keys), hi.min(keys));
            softmax_gradient(isa, m, r, keys, lo, hi, plan.cap(), lse, mean, a.scores, a.slopes);
        }
        if task.keys {
            for (s, k0) in (0..keys).step_by(KC).enumerate() {
                let (k, s) = ((keys - k0).min(KC), s * m * LDP);
                for (e, e0) in (0..d).step_by(KC).enumerate() {
                    let (n, e, at) = ((d - e0).min(KC), e * m * LDP, (offset + k0) * d + e0);
                    gemm_tn(isa, m, k, n, a.scores.add(s), LDP, a.g.add(e), LDP, a.dv.add(at), d, 1.0, true);
                    gemm_tn(isa, m, k, n, a.slopes.add(s), LDP, a.q.add(e), LDP, a.dk.add(at), d, 1.0, true);
                }
            }
        }
        if !task.queries {
            return;
        }
        weighted(isa, m, d, keys, a.slopes, a.k.add(offset * d), a.dq);
        // Earlier chunks have left their sum where the gradient goes; the chunk of the diagonal is the last.
        let (opens, closes) = (plan.shape.first_key(i0) >= c0, i1 <= c0 + CHUNK);
        if closes {
            std::ptr::write_bytes(a.gain, 0, d);
        }
        for r in 0..m {
            let (t, head) = (t0 + r / g, kh * g + r % g);
            let (x, to, dq) = (plan.head(t, head), call.dqkv.at(plan.offset(t, head)), a.dq.add(r * d));
            if !opens {
                rows::mix(isa, d, to, 1.0, dq, 1.0);
            }
            if closes {
                rows::gradient(isa, plan.query, x, plan.table(t), dq, to, a.gain);
            } else {
                std::ptr::copy_nonoverlapping(dq, to, d);
            }
        }
        if closes && !plan.query.gain.is_null() {
            let part = (task.blocks_before + i0 / plan.block()) * plan.shape.kv_heads + kh;
            std::ptr::copy_nonoverlapping(a.gain, call.q_parts.at(part * d), d);
        }
    }
}
