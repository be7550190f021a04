//! Attention backward.

use super::block::{CHUNK, Packed, Plan, Run, output, overlap, pack_row, products, weighted};
use super::rows;
use super::shape::{AttentionGrad, AttentionShape, HeadNorm, Rotary};
use super::sinks;
use super::softmax::{Bias, Row, softmax_gradient};
use crate::micro::{KC, LDP, NR, gemm_tn};
use crate::operand::{Operand, with_operand};
use crate::scratch::{Pooled, Ptr, scratch};
use crate::simd::isa;
use rayon::prelude::*;

/// Gradient of [`crate::attention_forward`] with respect to `qkv`, the head norms and the sinks.
///
/// `out` and `lse` are what forward returned, `d_out` the gradient of `out`. Probabilities are computed again from
/// `lse`. A task owns the key and value gradients of one (document and those that continue it, key head); where such
/// tasks are fewer than the threads, query gradients and key gradients become tasks of their own, per run of queries and
/// per chunk of keys. Either way every element is summed in the same order, so the result does not depend on the number
/// of threads.
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
    with_operand!(isa(), shape.compute, O => backward::<O>(qkv, shape, rotary, head_norm, out, lse, d_out))
}

fn backward<O: Operand>(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
    out: &[f32],
    lse: &[f32],
    d_out: &[f32],
) -> AttentionGrad {
    let plan = Plan::<O>::new(qkv, shape, rotary, head_norm);
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
    let readers = readers(shape);
    let tasks = tasks(&plan, &readers);
    let count = |step: usize| shape.documents.iter().map(|r| r.len().div_ceil(step)).sum::<usize>();
    // Gain gradients: a row per (block of queries, key head) and per (chunk of keys, key head), summed in order.
    let normed = head_norm.is_some();
    let q_parts = if normed { count(plan.block()) * kv } else { 0 };
    let k_parts = if normed { count(CHUNK) * kv } else { 0 };
    let parts = Pooled::take((q_parts + k_parts) * d);
    let before = |step: usize| -> Vec<usize> {
        let parts =
            shape.documents.iter().scan(0, |at, d| Some(std::mem::replace(at, *at + d.len().div_ceil(step))));
        parts.collect()
    };
    let call = Call {
        plan: &plan,
        readers: &readers,
        blocks_before: before(plan.block()),
        chunks_before: before(CHUNK),
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
    let d_sinks = (!shape.sinks.is_empty()).then(|| sinks::gradient(&plan, out, lse, d_out));
    AttentionGrad { dqkv, dq_norm, dk_norm, d_sinks }
}

/// What all tasks share.
struct Call<'a, O> {
    plan: &'a Plan<'a, O>,
    /// As [`readers`] gives them.
    readers: &'a [Vec<usize>],
    /// Blocks of queries and chunks of keys in the documents before each.
    blocks_before: Vec<usize>,
    chunks_before: Vec<usize>,
    out: &'a [f32],
    lse: &'a [f32],
    d_out: &'a [f32],
    dqkv: Ptr,
    q_parts: Ptr,
    k_parts: Ptr,
}

/// The documents that see each document's keys, itself first; none of those in between where it continues another.
fn readers(shape: &AttentionShape<'_>) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..shape.documents.len()).map(|document| vec![document]).collect();
    for document in 0..all.len() {
        if let Some(parent) = shape.parent(document) {
            all[parent].push(document);
        }
    }
    all
}

/// Which gradients a task makes, of rows `from..to` of a document's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Of all queries, keys and values of the document and those that continue it.
    All,
    Queries,
    /// And values.
    Keys,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    document: usize,
    from: usize,
    to: usize,
    kh: usize,
    of: Of,
}

impl Of {
    fn queries(self) -> bool {
        self != Self::Keys
    }

    fn keys(self) -> bool {
        self != Self::Queries
    }
}

fn tasks<O: Operand>(plan: &Plan<'_, O>, readers: &[Vec<usize>]) -> Vec<Task> {
    let threads = rayon::current_num_threads();
    let (shape, kv) = (&plan.shape, plan.shape.kv_heads);
    let len = |document: usize| shape.documents[document].len();
    // Rows of a document and of those that continue it.
    let all = |document: usize| readers[document].iter().map(|&d| len(d)).sum::<usize>();
    let roots = || (0..readers.len()).filter(|&d| shape.parent(d).is_none());
    let whole = roots().filter(|&d| all(d) > 0).count() * kv;
    let longest = roots().map(all).max().unwrap_or(0);
    // Apart, the two halves take 7 products where together they take 5.
    let apart = whole * 7 / 5 < threads && longest > 2 * plan.block();
    let mut tasks = vec![];
    for document in 0..readers.len() {
        let len = len(document);
        for kh in 0..kv {
            let task = Task { document, from: 0, to: len, kh, of: Of::All };
            if !apart {
                if shape.parent(document).is_none() && all(document) > 0 {
                    tasks.push(task);
                }
                continue;
            }
            for from in (0..len).step_by(CHUNK) {
                tasks.push(Task { from, to: (from + CHUNK).min(len), of: Of::Keys, ..task });
            }
            let step = len.div_ceil(2 * threads).next_multiple_of(plan.block());
            for from in (0..len).step_by(step.max(1)) {
                tasks.push(Task { from, to: (from + step).min(len), of: Of::Queries, ..task });
            }
        }
    }
    tasks.sort_by_key(|t| std::cmp::Reverse(all(t.document)));
    tasks
}

/// Working memory of a task; lengths in [`Area::sizes`].
#[derive(Clone, Copy)]
struct Area {
    /// Keys of the chunk in words of the sum over them, and in panels; values in panels; a panel's rows.
    k: *mut f32,
    kt: *mut f32,
    vt: *mut f32,
    rows: *mut f32,
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
    /// A block's rows in words of the sum over them: of output gradients and of queries.
    gw: *mut f32,
    qw: *mut f32,
}

impl Area {
    fn sizes<O: Operand>(plan: &Plan<'_, O>, chunk: usize) -> [usize; 15] {
        let (d, keys) = (plan.shape.head_dim, chunk * plan.shape.head_dim);
        let (words, panels) = (O::words(chunk) * d, chunk * O::words(d));
        let (packed, scores) = (plan.packed_len(), plan.scores_len());
        let rows = plan.block_rows();
        let qw = O::room(rows, d);
        [words, panels, panels, NR * d, keys, keys, packed, packed, scores, scores, rows * d, d, d, qw, qw]
            .map(|n| n.next_multiple_of(16))
    }

    fn new(w: *mut f32, sizes: [usize; 15]) -> Self {
        let mut at = 0;
        let [k, kt, vt, rows, dk, dv, q, g, scores, slopes, dq, row, gain, gw, qw] = sizes.map(|n| {
            at += n;
            w.wrapping_add(at - n)
        });
        Self { k, kt, vt, rows, dk, dv, q, g, scores, slopes, dq, row, gain, gw, qw }
    }
}

/// # Safety
/// As [`attention_backward`] sets up.
unsafe fn run<O: Operand>(call: &Call<'_, O>, task: &Task) {
    let (plan, document) = (call.plan, task.document);
    let documents = plan.shape.documents;
    let runs: Vec<(usize, Run)> = match task.of {
        Of::All => {
            // Keys of the document, then of each that continues it: a query meets its keys in order.
            let of = |&d: &usize| {
                plan.runs(d).filter(move |run| documents[d].contains(&run.start)).map(move |run| (d, run))
            };
            call.readers[document].iter().flat_map(of).collect()
        }
        Of::Keys => {
            let first = plan.shape.before(document) + task.from;
            vec![(
                document,
                Run { start: documents[document].start + task.from, first, count: task.to - task.from },
            )]
        }
        Of::Queries => {
            let before = plan.shape.before(document);
            let seen = plan.visible(before + task.from, before + task.to);
            let visible = |run: &Run| run.first < seen.end && seen.start < run.first + run.count;
            let cut = |run: Run| Run { count: run.count.min(seen.end - run.first), ..run };
            plan.runs(document).filter(visible).map(|run| (document, cut(run))).collect()
        }
    };
    let longest = runs.iter().map(|(_, run)| run.count).max().unwrap_or(0);
    let sizes = Area::sizes(plan, longest.next_multiple_of(NR));
    scratch(sizes.iter().sum(), |w| {
        let area = Area::new(w, sizes);
        for (owner, run) in runs {
            // SAFETY: the areas have room for a run.
            unsafe { chunk(call, task, area, owner, run) }
        }
    });
}

/// The part of a task that concerns a run of keys, which are `owner`'s (or, where only queries' gradients are made, those
/// of the document that it continues).
///
/// # Safety
/// As [`run`].
unsafe fn chunk<O: Operand>(call: &Call<'_, O>, task: &Task, a: Area, owner: usize, run: Run) {
    let plan = call.plan;
    let (isa, d, kh) = (plan.isa, plan.shape.head_dim, task.kh);
    let (h, kv, count) = (plan.shape.heads, plan.shape.kv_heads, run.count);
    let only = [task.document];
    let readers = if task.of.keys() { &call.readers[owner][..] } else { &only };
    let queries = |reader: usize| match task.of {
        Of::Queries => task.from..task.to,
        _ => 0..plan.shape.documents[reader].len(),
    };
    // SAFETY: rows of the run lie in a document, areas hold a run.
    unsafe {
        let values = std::ptr::null_mut();
        let to = Packed { rows: a.rows, key_panels: a.kt, value_panels: a.vt, keys: a.k, values };
        plan.pack_keys(run.start, count, kh, to);
        if task.of.keys() {
            std::ptr::write_bytes(a.dk, 0, count * d);
            std::ptr::write_bytes(a.dv, 0, count * d);
        }
        for &reader in readers {
            let (own, before) = (queries(reader), plan.shape.before(reader));
            for q0 in own.clone().step_by(plan.block()) {
                let q1 = (q0 + plan.block()).min(own.end);
                if let Some((offset, keys)) = overlap(plan, before + q0, before + q1, (run.first, count)) {
                    block(call, task, a, reader, (q0, q1), run, offset, keys);
                }
            }
        }
        if !task.of.keys() {
            return;
        }
        std::ptr::write_bytes(a.gain, 0, d);
        for r in 0..count {
            let t = run.start + r;
            let (x, dx) = (plan.head(t, h + kh), call.dqkv.at(plan.offset(t, h + kh)));
            rows::gradient(isa, plan.key, x, plan.table(t), a.dk.add(r * d), dx, a.gain);
            std::ptr::copy_nonoverlapping(a.dv.add(r * d), call.dqkv.at(plan.offset(t, h + kv + kh)), d);
        }
        if !plan.key.gain.is_null() {
            let own = run.start - plan.shape.documents[owner].start;
            let part = (call.chunks_before[owner] + own / CHUNK) * kv + kh;
            std::ptr::copy_nonoverlapping(a.gain, call.k_parts.at(part * d), d);
        }
    }
}

/// The part of a run that concerns queries `q0..q1` of `reader`'s own; they see `keys` keys from `offset` on.
///
/// # Safety
/// As [`run`].
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn block<O: Operand>(
    call: &Call<'_, O>,
    task: &Task,
    a: Area,
    reader: usize,
    (q0, q1): (usize, usize),
    run: Run,
    offset: usize,
    keys: usize,
) {
    let plan = call.plan;
    let (isa, d, kh, g) = (plan.isa, plan.shape.head_dim, task.kh, plan.shape.group());
    let (rows, before) = (&plan.shape.documents[reader], plan.shape.before(reader));
    let (i0, i1) = (before + q0, before + q1);
    let (h, m, t0) = (plan.shape.heads, (q1 - q0) * g, rows.start + q0);
    let (width, base) = (plan.shape.out_width(), run.first + offset);
    let out = |r: usize| (t0 + r / g) * width + (kh * g + r % g) * d;
    // SAFETY: rows of the block lie in the document, areas hold a block.
    unsafe {
        plan.pack_queries(t0, q1 - q0, kh, a.row, a.q);
        for r in 0..m {
            pack_row::<O>(isa, d, m, r, call.d_out[out(r)..][..d].as_ptr(), a.g);
        }
        let next = rows.start + q1..rows.start + (q1 + plan.block()).min(rows.len());
        plan.prefetch_queries(next.start, next.len(), kh);
        for t in next {
            rows::prefetch(call.out, t * width + kh * g * d, g * d);
            rows::prefetch(call.d_out, t * width + kh * g * d, g * d);
        }
        // Of pairs the last row may have none beside it, but for its place.
        let layout = m.next_multiple_of(O::VALUES);
        products::<O>(isa, m, layout, d, keys, a.q, a.kt.add(offset * O::words(d)), a.scores);
        products::<O>(isa, m, layout, d, keys, a.g, a.vt.add(offset * O::words(d)), a.slopes);
        let row = |r: usize| {
            let i = i0 + r / g;
            let lo = plan.shape.first_key(i).max(base) - base;
            let hi = (i + 1).min(base + keys).saturating_sub(base).max(lo);
            let lse = call.lse[(t0 + r / g) * h + kh * g + r % g];
            let mean = rows::dot(isa, d, call.d_out[out(r)..].as_ptr(), call.out[out(r)..].as_ptr());
            let bias = Bias::new(plan.shape.slope(kh * g + r % g), base, i);
            Row { lo: lo.min(keys), hi: hi.min(keys), bias, lse, mean }
        };
        for r in (0..m).step_by(O::VALUES) {
            let next = (O::VALUES == 2 && r + 1 < m).then(|| row(r + 1));
            softmax_gradient::<O>(isa, layout, r, keys, plan.cap(), row(r), next, a.scores, a.slopes);
        }
        if task.of.keys() {
            let words = O::words(m);
            // Where the words of probabilities and of their gradients lie.
            let (of_values, of_keys) =
                if O::VALUES == 1 { (a.scores, a.slopes) } else { (a.scores, a.scores.add(LDP)) };
            let step = LDP * O::VALUES;
            for (e, e0) in (0..d).step_by(KC * O::VALUES).enumerate() {
                let n = (d - e0).min(KC * O::VALUES);
                for (rows, room, of, to) in [(a.g, a.gw, of_values, a.dv), (a.q, a.qw, of_keys, a.dk)] {
                    let rows = rows.add(e * m * LDP).cast::<O::Value>().cast_const();
                    let (right, ldr) = O::stacked(isa, m, n, rows, LDP * O::VALUES, room);
                    for (s, k0) in (0..keys).step_by(KC).enumerate() {
                        let (k, at) = ((keys - k0).min(KC), (offset + k0) * d + e0);
                        let left = of.add(s * layout * LDP).cast_const();
                        gemm_tn::<O>(isa, words, k, n, left, step, right, ldr, to.add(at), d, 1.0, true);
                    }
                }
            }
        }
        if !task.of.queries() {
            return;
        }
        weighted::<O>(isa, m, layout, d, keys, a.slopes, a.k.add(O::words(offset) * d), a.dq);
        // Earlier runs have left their sum where the gradient goes; the run of the diagonal is the last.
        let (opens, closes) = (plan.shape.first_key(i0) >= run.first, i1 <= run.first + run.count);
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
            let part = (call.blocks_before[reader] + q0 / plan.block()) * plan.shape.kv_heads + kh;
            std::ptr::copy_nonoverlapping(a.gain, call.q_parts.at(part * d), d);
        }
    }
}
