//! Attention: documents, shared prompts, grouped heads, rotation, norms, window, cap.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{AnyTensor, AttentionShape, HeadNorm, Rotary, attention, attention_with_peaks, reference};

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

/// Positions restart with each document, or go on from the one that it continues.
fn rotary(dim: usize, tree: bool, documents: &[Range<usize>], tokens: usize) -> Rotary {
    let half = dim / 2;
    let mut table = Vec::new();
    for position in 0..tokens {
        let angle = |i: usize| position as f32 * 10_000f32.powf(-(i as f32) / half as f32);
        table.extend((0..half).map(|i| angle(i).cos()));
        table.extend((0..half).map(|i| angle(i).sin()));
    }
    let mut positions = vec![0; tokens];
    for (i, document) in documents.iter().enumerate() {
        let before = if tree && i > 0 { documents[0].len() } else { 0 };
        for (position, token) in document.clone().enumerate() {
            positions[token] = (before + position) as u32;
        }
    }
    Rotary::new(Arc::new(table), Arc::new(positions), dim)
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
    let documents = Arc::new(documents.to_vec());
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
    all
}
