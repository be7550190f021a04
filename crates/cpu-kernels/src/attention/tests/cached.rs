//! Prefill and decoding equal attention over the whole sequence.

use super::case::{Case, Problem};
use super::{assert_close, for_each_path, pool, widen};
use crate::attention::{AttentionShape, KvCache, Rotary, append_kv, attention_cached, attention_forward};
use std::ops::Range;

/// Feeds rows `take[i]` of each document as one call, appends and attends; results go to their place in `out`.
fn step(p: &Problem, cache: &mut KvCache, take: &[Range<usize>], out: &mut [f32]) {
    let (shape, w, ow) = (p.shape(), p.shape().qkv_width(), p.shape().out_width());
    let rows: Vec<usize> =
        take.iter().zip(shape.documents).flat_map(|(t, d)| (d.start + t.start)..(d.start + t.end)).collect();
    let qkv: Vec<f32> = rows.iter().flat_map(|&r| p.qkv[r * w..(r + 1) * w].to_vec()).collect();
    let mut documents = vec![];
    let mut at = 0;
    for t in take {
        documents.push(at..at + t.len());
        at += t.len();
    }
    let rotary = p.rotary();
    let positions: Vec<u32> =
        rows.iter().map(|&r| rotary.as_ref().map_or(0, |rotary| rotary.positions[r])).collect();
    let rotary = rotary.map(|r| Rotary { positions: &positions, ..r });
    let shape = AttentionShape { documents: &documents, ..shape };
    append_kv(&qkv, &shape, rotary.as_ref(), p.norm().as_ref(), cache);
    let got = attention_cached(&qkv, &shape, rotary.as_ref(), p.norm().as_ref(), cache);
    for (i, &r) in rows.iter().enumerate() {
        out[r * ow..(r + 1) * ow].copy_from_slice(&got[i * ow..(i + 1) * ow]);
    }
}

fn decode(p: &Problem, prefill: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; p.case.rows * p.shape().out_width()];
    let mut cache = KvCache::new(p.case.kv_heads, p.case.head_dim, p.case.documents.len());
    let first: Vec<Range<usize>> = prefill.iter().map(|&n| 0..n).collect();
    step(p, &mut cache, &first, &mut out);
    loop {
        let take: Vec<Range<usize>> = p
            .case
            .documents
            .iter()
            .enumerate()
            .map(|(i, d)| cache.len(i)..(cache.len(i) + 1).min(d.len()))
            .collect();
        if take.iter().all(|t| t.is_empty()) {
            return out;
        }
        step(p, &mut cache, &take, &mut out);
    }
}

#[test]
fn prefill_then_decoding_equals_the_whole() {
    for_each_path(|| {
        for (case, prefill) in [
            (Case::new(4, 2, 64, &[40, 7, 33]).rotary(64), vec![30, 1, 0]),
            (Case::new(3, 1, 6, &[70, 66]).rotary(4).norm().window(9), vec![64, 3]),
            (Case::new(8, 8, 32, &[20]).softcap(2.0), vec![20]),
            (Case::new(8, 8, 32, &[20]).slopes(), vec![20]),
            (Case::new(8, 2, 32, &[20, 1100]).sinks().window(1050), vec![12, 1095]),
            (Case::new(8, 1, 80, &[1100, 40]).rotary(80).norm(), vec![1090, 35]),
        ] {
            let p = case.problem(21);
            let whole = attention_forward(&p.qkv, &p.shape(), p.rotary().as_ref(), p.norm().as_ref()).out;
            assert_close(&format!("{:?}", p.case), &decode(&p, &prefill), &widen(&whole), 1e-6);
        }
    });
}

#[test]
fn decoding_does_not_depend_on_threads() {
    let p = Case::new(4, 2, 32, &[200, 90]).rotary(32).problem(4);
    let one = pool(1).install(|| decode(&p, &[190, 80]));
    assert!(one == pool(7).install(|| decode(&p, &[190, 80])));
}

#[test]
fn sequences_can_be_dropped_copied_and_shortened() {
    let p = Case::new(2, 1, 16, &[50, 50, 50]).rotary(16).problem(8);
    let ow = p.shape().out_width();
    let want = decode(&p, &[40, 40, 40]);
    let mut cache = KvCache::new(1, 16, 3);
    let mut out = vec![0.0; want.len()];
    step(&p, &mut cache, &[0..45, 0..45, 0..45], &mut out);
    cache.truncate(2, 33);
    cache.reorder(&[2, 0, 2]);
    assert_eq!([cache.len(0), cache.len(1), cache.len(2)], [33, 45, 33]);
    cache.remove(1);
    assert_eq!(cache.sequences(), 2);
    // Both remaining sequences are the third document, cut at 33; continue it in both at once.
    let mut q = Case::new(2, 1, 16, &[50, 50, 50]).rotary(16).problem(8);
    q.case.documents = vec![100..150, 100..150];
    let mut again = vec![0.0; want.len()];
    step(&q, &mut cache, &[33..50, 33..50], &mut again);
    assert_eq!(cache.len(0), 50);
    let at = 133 * ow..150 * ow;
    assert_close("continued", &again[at.clone()], &widen(&want[at]), 1e-6);
}

#[test]
fn storage_doubles() {
    let mut cache = KvCache::new(2, 8, 1);
    cache.reserve(0, 33);
    assert_eq!(cache.bytes(), 2 * 2 * 64 * 8 * 4);
    cache.reserve(0, 65);
    assert_eq!(cache.bytes(), 2 * 2 * 128 * 8 * 4);
    assert!(cache.is_empty());
}
