//! Attention: documents, shared prompts, grouped heads, rotation, norms, window, cap.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{
    AnyTensor, AttentionShape, Documents, HeadNorm, KvCache, Rotary, attention, attention_with_peaks,
    reference,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

#[derive(Clone, Copy, Debug, Default)]
struct With {
    norms: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    slopes: bool,
    sinks: bool,
    /// All documents but the first continue it.
    tree: bool,
    /// The largest score of each head instead of the output.
    peaks: bool,
}

/// Cosines and sines of each position.
fn table(dim: usize, positions: usize) -> Vec<f32> {
    let half = dim / 2;
    let mut table = Vec::new();
    for position in 0..positions {
        let angle = |i: usize| position as f32 * 10_000f32.powf(-(i as f32) / half as f32);
        table.extend((0..half).map(|i| angle(i).cos()));
        table.extend((0..half).map(|i| angle(i).sin()));
    }
    table
}

/// Positions restart with each document, or go on from the one that it continues.
fn rotary(dim: usize, tree: bool, documents: &[Range<usize>], tokens: usize) -> Rotary {
    let mut positions = vec![0; tokens];
    for (i, document) in documents.iter().enumerate() {
        let before = if tree && i > 0 { documents[0].len() } else { 0 };
        for (position, token) in document.clone().enumerate() {
            positions[token] = (before + position) as u32;
        }
    }
    Rotary::new(Arc::new(table(dim, tokens)), Arc::new(positions), dim)
}

fn case(
    with: With,
    dtype: DType,
    [heads, kv_heads, head_dim]: [usize; 3],
    documents: &[Range<usize>],
    tokens: usize,
) -> Case {
    let parents =
        if with.tree { (0..documents.len()).map(|i| (i > 0).then_some(0)).collect() } else { vec![] };
    let shape = AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: with.softcap,
        slopes: Arc::new(
            (0..if with.slopes { heads } else { 0 }).map(|h| 0.5 * 0.5f32.powi(h as i32)).collect(),
        ),
        window: with.window,
        parents: Arc::new(parents),
        compute: Default::default(),
    };
    let documents = Documents::from(documents.to_vec());
    let rotary = rotary(head_dim, with.tree, &documents, tokens);
    let width = (heads + 2 * kv_heads) * head_dim;
    let mut inputs = vec![Input::new("qkv", &[tokens, width], 1.0).held(dtype)];
    if with.peaks {
        inputs[0].tracked = false;
    }
    if with.norms {
        inputs.push(Input::new("q_norm", &[head_dim], 0.3).shifted(1.0));
        inputs.push(Input::new("k_norm", &[head_dim], 0.3).shifted(1.0));
    }
    if with.sinks {
        inputs.push(Input::new("sinks", &[heads], 2.0));
    }
    let run = move |body: Body, t: &[AnyTensor]| {
        let sinks = with.sinks.then(|| &t[t.len() - 1]);
        let norm = with.norms.then(|| HeadNorm { q: t[1].clone(), k: t[2].clone(), eps: 1e-6 });
        let (rotary, norm) = (Some(&rotary), norm.as_ref());
        match (body, with.peaks) {
            (Body::Device, false) => attention(&t[0], &shape, &documents, rotary, norm, sinks),
            (Body::Reference, false) => reference::attention(&t[0], &shape, &documents, rotary, norm, sinks),
            (Body::Device, true) => {
                row(attention_with_peaks(&t[0], &shape, &documents, rotary, norm, sinks)?.1)
            }
            (Body::Reference, true) => {
                row(reference::attention_with_peaks(&t[0], &shape, &documents, rotary, norm, sinks)?.1)
            }
        }
    };
    Case { inputs, run: Box::new(run) }
}

/// Two sequences of 70 and 40 rows piece by piece over a cache, against both whole; what has been said outgrows its room.
fn cached(with: With, dtype: DType) -> Case {
    let whole = [0..70, 70..110];
    let case = case(with, dtype, [4, 2, 16], &whole, 110);
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        softcap: None,
        slopes: Arc::default(),
        window: with.window,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let Case { mut inputs, run } = case;
    inputs.iter_mut().for_each(|input| input.tracked = false);
    let run = move |body: Body, t: &[AnyTensor]| {
        if body == Body::Reference {
            return run(body, t);
        }
        let sinks = with.sinks.then(|| &t[t.len() - 1]);
        let norm = with.norms.then(|| HeadNorm { q: t[1].clone(), k: t[2].clone(), eps: 1e-6 });
        let mut cache = KvCache::new(shape.clone(), 2);
        let mut parts = [Vec::new(), Vec::new()];
        for pieces in [[0..60, 70..71], [60..61, 71..71], [61..70, 71..110]] {
            let own: Vec<Range<usize>> =
                pieces.iter().zip(&whole).map(|(p, w)| p.start - w.start..p.end - w.start).collect();
            let positions = own.iter().cloned().flatten().map(|position| position as u32).collect();
            let rotary = Rotary::new(Arc::new(table(16, 110)), Arc::new(positions), 16);
            let (first, both) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
            let rows = super::rows_of(&t[0], &pieces)?;
            let y = cache.attend(&rows, &[0..first, first..both], Some(&rotary), norm.as_ref(), sinks)?;
            let y = y.rank::<2>()?;
            parts[0].push(y.clone().narrow(0, 0, first));
            if both > first {
                parts[1].push(y.narrow(0, first, both - first));
            }
        }
        Ok(super::one_behind_the_other(parts))
    };
    Case { inputs, run: Box::new(run) }
}

/// Two sequences that begin with the same 70 rows, held once, taken apart and put together again between steps, against
/// documents that continue one.
fn shared_cache(dtype: DType) -> Case {
    let whole = [0..70, 70..110, 110..131];
    let Case { mut inputs, run } =
        case(With { tree: true, norms: true, ..With::default() }, dtype, [4, 2, 16], &whole, 131);
    inputs.iter_mut().for_each(|input| input.tracked = false);
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let run = move |body: Body, t: &[AnyTensor]| {
        if body == Body::Reference {
            return run(body, t);
        }
        let norm = HeadNorm { q: t[1].clone(), k: t[2].clone(), eps: 1e-6 };
        let attend = |cache: &mut KvCache, pieces: &[Range<usize>]| {
            let position = |row: usize| if row < 110 { row as u32 } else { row as u32 - 40 };
            let positions = pieces.iter().cloned().flatten().map(position).collect();
            let rotary = Rotary::new(Arc::new(table(16, 131)), Arc::new(positions), 16);
            let mut at = 0;
            let own: Vec<Range<usize>> = pieces
                .iter()
                .map(|piece| {
                    at += piece.len();
                    at - piece.len()..at
                })
                .collect();
            let y = cache.attend(&super::rows_of(&t[0], pieces)?, &own, Some(&rotary), Some(&norm), None)?;
            y.rank::<2>()
        };
        let mut cache = KvCache::new(shape.clone(), 1);
        let first = attend(&mut cache, &whole[..1])?;
        cache.reorder(&[0, 0])?;
        let second = attend(&mut cache, &[70..75, 110..111])?;
        let tail = cache.split_off(1);
        cache.append(tail);
        let third = attend(&mut cache, &[75..110, 111..131])?;
        let parts = vec![
            first,
            second.clone().narrow(0, 0, 5),
            third.clone().narrow(0, 0, 35),
            second.narrow(0, 5, 1),
            third.narrow(0, 35, 20),
        ];
        Ok(AnyTensor::new(burn::tensor::Tensor::cat(parts, 0)))
    };
    Case { inputs, run: Box::new(run) }
}

fn row(vector: AnyTensor) -> Result<AnyTensor, burnish_ops::OpsError> {
    Ok(AnyTensor::new(vector.rank::<1>()?.unsqueeze::<2>()))
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    let kinds = [
        ("causal", With::default()),
        ("head norms", With { norms: true, ..With::default() }),
        ("window", With { window: Some(20), ..With::default() }),
        ("cap", With { softcap: Some(1.5), ..With::default() }),
        ("linear biases", With { slopes: true, ..With::default() }),
        ("sinks", With { sinks: true, window: Some(50), ..With::default() }),
        ("shared prompt", With { tree: true, norms: true, ..With::default() }),
    ];
    // One document, some with gaps and out of order, and one that is longer than a block of queries.
    let whole = |tokens: usize| std::iter::once(0..tokens).collect::<Vec<_>>();
    let layouts = [
        ("one document", [4, 2, 16], whole(70), 70),
        ("packed", [6, 2, 12], vec![40..97, 3..20, 25..25, 30..31], 110),
        ("long", [2, 1, 64], whole(1200), 1200),
    ];
    for (name, with) in kinds {
        for dtype in [DType::F32, DType::BF16] {
            for (layout, heads, documents, tokens) in layouts.clone() {
                let title = format!("attention {name}, {layout}, {}", name_of(dtype));
                let bound = if dtype == DType::F32 { Bound::Product } else { Bound::HalfActivations };
                all.push(check(title, bound, move || case(with, dtype, heads, &documents, tokens)));
            }
        }
    }
    let peaks = With { peaks: true, norms: true, window: Some(30), ..With::default() };
    all.push(check("attention, largest scores, f32", Bound::Product, move || {
        case(peaks, DType::F32, [4, 2, 16], &[0..40, 40..101], 101)
    }));
    for dtype in [DType::F32, DType::BF16] {
        let bound = if dtype == DType::F32 { Bound::Product } else { Bound::HalfActivations };
        let kinds = [
            ("head norms", With { norms: true, ..With::default() }),
            ("window, sinks", With { window: Some(20), sinks: true, ..With::default() }),
        ];
        for (name, with) in kinds {
            let title = format!("attention over a cache, {name}, {}", name_of(dtype));
            all.push(check(title, bound, move || cached(with, dtype)));
        }
        let title = format!("attention over a cache, shared prompt, {}", name_of(dtype));
        all.push(check(title, bound, move || shared_cache(dtype)));
    }
    all
}
