//! Attention: rotation, head norms, window, softcap, documents.

use std::ops::Range;
use std::sync::Arc;

use burnish_ops::{
    AnyTensor, AttentionShape, Documents, HeadNorm, Rotary, attention, attention_with_peaks, gpu, reference,
};

use crate::case::{Body, Case, Input, device, tensor, to_f64};

#[derive(Clone, Copy, Debug, Default)]
struct With {
    rotary_dim: usize,
    norms: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    slopes: bool,
    sinks: bool,
    /// All documents but the first continue it.
    tree: bool,
}

fn case(
    name: &str,
    with: With,
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
        slopes: slopes(with.slopes, heads),
        window: with.window,
        parents: Arc::new(parents),
        compute: Default::default(),
    };
    let documents = Documents::from(documents.to_vec());
    let rotary = (with.rotary_dim > 0).then(|| rotary(&with, &documents, tokens));
    let mut inputs = vec![Input::new("qkv", &[tokens, (heads + 2 * kv_heads) * head_dim], 1.0)];
    if with.norms {
        inputs.push(Input { shift: 1.0, ..Input::new("q_norm", &[head_dim], 0.3) });
        inputs.push(Input { shift: 1.0, ..Input::new("k_norm", &[head_dim], 0.3) });
    }
    if with.sinks {
        inputs.push(Input::new("sinks", &[heads], 2.0));
    }
    let run = move |body: Body, t: &[AnyTensor]| {
        let sinks = with.sinks.then(|| &t[t.len() - 1]);
        let norm = with.norms.then(|| HeadNorm { q: t[1].clone(), k: t[2].clone(), eps: 1e-6 });
        match body {
            Body::Fused => attention(&t[0], &shape, &documents, rotary.as_ref(), norm.as_ref(), sinks),
            Body::Reference => {
                reference::attention(&t[0], &shape, &documents, rotary.as_ref(), norm.as_ref(), sinks)
            }
            Body::Gpu => gpu::attention(&t[0], &shape, &documents, rotary.as_ref(), norm.as_ref(), sinks),
        }
    };
    Case { name: name.to_owned(), inputs, run: Box::new(run) }
}

/// A slope of its own for each head.
fn slopes(with: bool, heads: usize) -> Arc<Vec<f32>> {
    Arc::new((0..if with { heads } else { 0 }).map(|head| 0.5 * 0.4f32.powi(head as i32)).collect())
}

/// Positions restart with each document, or go on from the one that it continues.
fn rotary(&With { rotary_dim, tree, .. }: &With, documents: &[Range<usize>], tokens: usize) -> Rotary {
    let half = rotary_dim / 2;
    let mut table = Vec::new();
    for position in 0..tokens {
        let angle = |i: usize| position as f32 * 100f32.powf(-(i as f32) / half as f32);
        table.extend((0..half).map(|i| 1.2 * angle(i).cos()));
        table.extend((0..half).map(|i| 1.2 * angle(i).sin()));
    }
    let mut positions = vec![0; tokens];
    for (i, document) in documents.iter().enumerate() {
        let before = if tree && i > 0 { documents[0].len() } else { 0 };
        for (position, token) in document.clone().enumerate() {
            positions[token] = (before + position) as u32;
        }
    }
    Rotary::new(Arc::new(table), Arc::new(positions), rotary_dim)
}

fn cases(heads: [usize; 3], documents: &[Range<usize>], tokens: usize) -> Vec<Case> {
    let d = heads[2];
    let all = With {
        rotary_dim: d,
        norms: true,
        window: Some(3),
        softcap: Some(1.5),
        slopes: true,
        sinks: true,
        tree: false,
    };
    [
        ("plain", With::default()),
        ("rotary", With { rotary_dim: d, ..With::default() }),
        ("partial rotary", With { rotary_dim: d / 2, ..With::default() }),
        ("head norms", With { norms: true, ..With::default() }),
        ("window", With { window: Some(4), ..With::default() }),
        ("window of one", With { window: Some(1), rotary_dim: d, ..With::default() }),
        ("softcap", With { softcap: Some(0.8), ..With::default() }),
        ("slopes", With { slopes: true, ..With::default() }),
        ("sinks", With { sinks: true, ..With::default() }),
        ("sinks and window", With { sinks: true, window: Some(3), rotary_dim: d, ..With::default() }),
        ("everything", all),
        ("everything, partial rotary", With { rotary_dim: d / 2, ..all }),
    ]
    .map(|(name, with)| case(&format!("{name}, {documents:?}"), with, heads, documents, tokens))
    .into()
}

#[test]
fn kernels_are_the_reference() {
    for (heads, tokens, documents) in [
        ([4, 2, 8], 9, vec![0..9]),
        // Not in order, with gaps before, between and after, one empty, one of a single token.
        ([4, 1, 16], 90, vec![40..77, 3..20, 25..25, 30..31]),
        ([3, 3, 12], 150, vec![0..150]),
    ] {
        for case in cases(heads, &documents, tokens) {
            case.agrees();
        }
    }
}

#[test]
fn the_reference_differentiates() {
    for case in
        cases([2, 1, 4], &[5..9, 1..4], 10).into_iter().chain(trees([2, 1, 4], &[5..9, 1..4, 9..10], 10))
    {
        case.differentiates();
    }
}

fn trees(heads: [usize; 3], documents: &[Range<usize>], tokens: usize) -> [Case; 5] {
    let with = With { rotary_dim: heads[2], norms: true, tree: true, ..With::default() };
    [
        ("tree", with),
        ("tree and window", With { window: Some(5), ..with }),
        ("tree and cap", With { softcap: Some(0.9), ..with }),
        ("tree and slopes", With { slopes: true, ..with }),
        ("tree and sinks", With { sinks: true, ..with }),
    ]
    .map(|(name, with)| case(&format!("{name}, {documents:?}"), with, heads, documents, tokens))
}

/// Longer than the blocks of queries that GPUs take.
#[test]
fn rows_of_several_blocks_are_the_reference() {
    let with = With { rotary_dim: 4, norms: true, ..With::default() };
    for (name, with) in [("long", with), ("long, window", With { window: Some(300), ..with })] {
        case(name, with, [2, 1, 4], &[1..560, 560..600, 610..650], 651).agrees();
    }
}

#[test]
fn continued_documents_are_the_reference() {
    for (heads, tokens, documents) in [
        ([4, 2, 8], 12, vec![0..5, 5..7, 7..12]),
        // A first document behind the others, one that is empty, a row of none.
        ([4, 1, 16], 90, vec![40..77, 3..20, 25..25, 30..31]),
        ([3, 3, 12], 9, vec![2..2, 0..2, 2..9]),
    ] {
        for case in trees(heads, &documents, tokens) {
            case.agrees();
        }
    }
}

#[test]
fn rows_outside_documents_are_zero_and_get_nothing() {
    let case = case("gaps", With { rotary_dim: 4, ..With::default() }, [2, 1, 4], &[2..4, 6..7], 8);
    for body in [Body::Fused, Body::Reference, Body::Gpu] {
        let found = case.find(body, false, &[true]);
        let gradient = found.gradients[0].as_ref().unwrap();
        for row in [0, 1, 4, 5, 7] {
            assert!(found.value[row * 8..][..8].iter().all(|&v| v == 0.0), "{body:?}, row {row}");
            assert!(gradient[row * 16..][..16].iter().all(|&v| v == 0.0), "{body:?}, row {row}");
        }
        for row in [2, 3, 6] {
            assert!(found.value[row * 8..][..8].iter().all(|&v| v != 0.0), "{body:?}, row {row}");
        }
    }
}

#[test]
fn no_document_at_all() {
    let case = case("none", With::default(), [2, 1, 4], &[], 3);
    for body in [Body::Fused, Body::Gpu] {
        let found = case.find(body, false, &[true]);
        assert_eq!((found.value, found.gradients[0].clone()), (vec![0.0; 24], Some(vec![0.0; 48])));
    }
}

/// The largest scaled score of each head over pairs that the mask shows, before the cap; one loop per index.
fn naive_peaks(
    qkv: &[f64],
    shape: &AttentionShape,
    documents: &[Range<usize>],
    rotary: Option<&Rotary>,
) -> Vec<f64> {
    let (h, kv, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let head = |t: usize, i: usize| -> Vec<f64> {
        let x = &qkv[(t * (h + 2 * kv) + i) * d..][..d];
        let Some(r) = rotary else { return x.to_vec() };
        let angles = r.of(t);
        let half = angles.len() / 2;
        let mut y = x.to_vec();
        for i in 0..half {
            let (c, s) = (f64::from(angles[i]), f64::from(angles[half + i]));
            (y[i], y[half + i]) = (x[i] * c - x[half + i] * s, x[half + i] * c + x[i] * s);
        }
        y
    };
    let mut peaks = vec![f64::NEG_INFINITY; h];
    for document in documents {
        for i in document.clone() {
            for j in document.start..=i {
                if shape.window.is_some_and(|w| i - j >= w) {
                    continue;
                }
                for (q, peak) in peaks.iter_mut().enumerate() {
                    let k = h + q / (h / kv);
                    let dot: f64 = head(i, q).iter().zip(head(j, k)).map(|(a, b)| a * b).sum();
                    *peak = peak.max(dot * f64::from(shape.scale));
                }
            }
        }
    }
    peaks
}

#[test]
fn peaks_are_the_largest_visible_scores_in_both_bodies() {
    let documents = Documents::from(vec![40..77, 3..20, 25..25, 30..31]);
    for (heads, kv_heads, head_dim) in [(4, 2, 8), (6, 1, 16), (3, 3, 12)] {
        for (rotary_dim, window, softcap) in [
            (0, None, None),
            (head_dim, None, None),
            (head_dim / 2, Some(4), None),
            (head_dim, Some(9), Some(0.7)),
        ] {
            let scale = 1.0 / (head_dim as f32).sqrt();
            let shape = AttentionShape {
                slopes: Arc::default(),
                heads,
                kv_heads,
                head_dim,
                scale,
                softcap,
                window,
                parents: Arc::default(),
                compute: Default::default(),
            };
            let what = format!("{shape:?}, rotary {rotary_dim}");
            let turn =
                (rotary_dim > 0).then(|| rotary(&With { rotary_dim, ..With::default() }, &documents, 90));
            let qkv = tensor("qkv", &[90, (heads + 2 * kv_heads) * head_dim]);
            let want = naive_peaks(&to_f64(&qkv), &shape, &documents, turn.as_ref());
            for qkv in [qkv.clone(), qkv.leaf()] {
                let plain = attention(&qkv, &shape, &documents, turn.as_ref(), None, None).unwrap();
                let fused =
                    attention_with_peaks(&qkv, &shape, &documents, turn.as_ref(), None, None).unwrap();
                let other =
                    reference::attention_with_peaks(&qkv, &shape, &documents, turn.as_ref(), None, None)
                        .unwrap();
                assert_eq!(to_f64(&fused.0), to_f64(&plain), "{what}");
                let gpu =
                    gpu::attention_with_peaks(&qkv, &shape, &documents, turn.as_ref(), None, None).unwrap();
                for (out, peaks) in [fused, other, gpu] {
                    assert_eq!((out.is_tracked(), peaks.is_tracked()), (qkv.is_tracked(), false), "{what}");
                    let got = to_f64(&peaks);
                    assert_eq!(got.len(), want.len(), "{what}");
                    for (g, w) in got.iter().zip(&want) {
                        assert!(
                            (g - w).abs() <= 1e-6 * w.abs().max(1.0),
                            "{what}: {got:?}, expected {want:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn peaks_of_nothing_and_of_what_is_not_finite() {
    let shape = AttentionShape {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let mut values = to_f64(&tensor("qkv", &[3, 16])).iter().map(|&x| x as f32).collect::<Vec<_>>();
    let bodies = |values: &[f32], documents: Vec<Range<usize>>| {
        let qkv = AnyTensor::from_elements(values.to_vec(), &[3, 16], &device());
        let documents = Documents::from(documents);
        [attention_with_peaks, reference::attention_with_peaks, gpu::attention_with_peaks]
            .map(|body| to_f64(&body(&qkv, &shape, &documents, None, None, None).unwrap().1))
    };
    assert_eq!(bodies(&values, vec![]), [[f64::NEG_INFINITY; 2]; 3]);
    for bad in [f32::NAN, f32::INFINITY] {
        // The second query head of the second row.
        values[16 + 4] = bad;
        for peaks in bodies(&values, vec![0..3]) {
            assert!(peaks[0].is_finite() && peaks[1].is_nan(), "{peaks:?}");
        }
        // It lies in no document.
        for peaks in bodies(&values, vec![0..1, 2..3]) {
            assert!(peaks.iter().all(|p| p.is_finite()), "{peaks:?}");
        }
    }
}
