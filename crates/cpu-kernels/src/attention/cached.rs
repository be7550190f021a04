//! Attention of new tokens over a cache: prefill and decoding.

use super::block::{CHUNK, Keys, Plan, Work, attend, output, sum_len};
use super::cache::{KvCache, Lane};
use super::forward::{Task, tasks};
use super::rows;
use super::shape::{AttentionShape, HeadNorm, Rotary};
use super::sinks;
use crate::operand::Fp32;
use crate::scratch::{Ptr, scratch};
use crate::tasks::few_tasks;
use rayon::prelude::*;

/// New rows up to which appending them is done by one thread.
const FEW_ROWS: usize = 32;

fn check(plan: &Plan<'_, Fp32>, cache: &KvCache) {
    let s = &plan.shape;
    assert!(
        cache.kv_heads() == s.kv_heads && cache.head_dim() == s.head_dim,
        "kv cache: made for {} heads of {}, expected {} heads of {}",
        cache.kv_heads(),
        cache.head_dim(),
        s.kv_heads,
        s.head_dim
    );
    assert!(s.parents.is_empty(), "kv cache: a sequence's past lies in its cache, expected no parents");
    assert!(
        s.documents.len() == cache.sequences(),
        "kv cache: {} row ranges for {} sequences, expected one each (empty where a sequence has no new row)",
        s.documents.len(),
        cache.sequences()
    );
}

/// Appends the keys (normed and rotated) and values of new rows: `shape.documents[i]` are those of sequence `i`.
///
/// `qkv`, `rotary` and `head_norm` are as in [`crate::attention_forward`]; `rotary.positions` are those of the new
/// rows in their sequences.
///
/// # Panics
/// If buffer lengths, head counts or the number of sequences disagree.
pub fn append_kv(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
    cache: &mut KvCache,
) {
    let plan = Plan::new(qkv, shape, rotary, head_norm);
    check(&plan, cache);
    for (i, rows) in shape.documents.iter().enumerate() {
        cache.reserve(i, rows.len());
    }
    let d = shape.head_dim;
    let append = |mut lane: Lane<'_>| {
        let rows = &shape.documents[lane.sequence];
        let mut key = vec![0.0; d];
        for t in rows.clone() {
            let x = plan.head(t, shape.heads + lane.head);
            // SAFETY: the row and its table were checked by `Plan::new`; `key` holds a row.
            unsafe { rows::apply(plan.isa, plan.key, x, plan.table(t), key.as_mut_ptr()) };
            let v = plan.offset(t, shape.heads + shape.kv_heads + lane.head);
            lane.push(&key, &qkv[v..v + d]);
        }
    };
    // A decoding step has a row of each sequence: no work to share.
    if plan.rows() <= FEW_ROWS {
        cache.lanes().into_iter().for_each(append);
    } else {
        cache.lanes().into_par_iter().for_each(append);
    }
    for (i, rows) in shape.documents.iter().enumerate() {
        cache.advance(i, rows.len());
    }
}

/// Attention of the newest rows of every sequence over its cache, to which [`append_kv`] has added them.
///
/// `shape.documents[i]` are the rows of sequence `i`, its last `documents[i].len()` positions; empty ranges are
/// skipped. One row per sequence is decoding: it runs at the speed of reading the cache, in parallel over sequences
/// and key heads. Products are of fp32 whatever the shape's `compute`: reading the cache is what takes the time. Returns `[rows, heads·head_dim]`, equal to [`crate::attention_forward`] over whole sequences up
/// to rounding.
///
/// # Panics
/// If buffer lengths, head counts or the number of sequences disagree, or a sequence holds fewer tokens than rows.
pub fn attention_cached(
    qkv: &[f32],
    shape: &AttentionShape<'_>,
    rotary: Option<&Rotary<'_>>,
    head_norm: Option<&HeadNorm<'_>>,
    cache: &KvCache,
) -> Vec<f32> {
    let plan = Plan::new(qkv, shape, rotary, head_norm);
    check(&plan, cache);
    for (i, rows) in shape.documents.iter().enumerate() {
        assert!(
            cache.len(i) >= rows.len(),
            "kv cache: sequence {i} holds {} tokens, expected its {} new rows among them; call append_kv first",
            cache.len(i),
            rows.len()
        );
    }
    let mut out = output(&plan, shape.out_width());
    let o = Ptr(out.as_mut_ptr());
    let wanted = 2 * rayon::current_num_threads();
    let all = tasks(&plan, wanted);
    let seen = |task: &Task| {
        let before = cache.len(task.sequence) - shape.documents[task.sequence].len();
        (task.to - task.from) * plan.visible(before + task.from, before + task.to).len()
    };
    let products = 2 * shape.group() * shape.head_dim * all.iter().map(seen).sum::<usize>();
    few_tasks(all.len(), products, |i| {
        let task = &all[i];
        let (d, g, kh) = (shape.head_dim, shape.group(), task.kh);
        let sizes = [plan.packed_len(), plan.scores_len(), sum_len(&plan), d, plan.block() * shape.heads];
        scratch(sizes.iter().sum(), |w| {
            let mut at = 0;
            let [q, scores, sum, row, lse] = sizes.map(|n| {
                at += n;
                w.wrapping_add(at - n)
            });
            let (keys, values) = (cache.keys(task.sequence, kh), cache.values(task.sequence, kh));
            let before = cache.len(task.sequence) - shape.documents[task.sequence].len();
            let mut p0 = task.from;
            while p0 < task.to {
                let p1 = (p0 + plan.block()).min(task.to);
                let (t, i0, i1) = (task.start + p0, before + p0, before + p1);
                let seen = plan.visible(i0, i1);
                // SAFETY: the cache holds keys and values up to `i1`; rows of the task are its own.
                unsafe {
                    plan.pack_queries(t, p1 - p0, kh, row, q);
                    let mut first = seen.start / CHUNK * CHUNK;
                    while first < seen.end {
                        let run = Keys {
                            head: kh,
                            first,
                            count: (seen.end - first).min(CHUNK),
                            panels: keys[first * d..].as_ptr(),
                            values: values[first * d..].as_ptr(),
                        };
                        let to = o.at(t * shape.out_width() + kh * g * d);
                        let work = Work { scores, sum, peaks: std::ptr::null_mut() };
                        attend(&plan, i0, i1, q, run, work, to, lse);
                        first += CHUNK;
                    }
                    sinks::take(&plan, kh, p1 - p0, o.at(t * shape.out_width() + kh * g * d), lse);
                }
                p0 = p1;
            }
        });
    });
    out
}
