//! Operations on rows: embedding, selection, norm; and a segment around them.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{
    AnyTensor, EmbeddingLowRank, Linear, LinearInput, NoWeights, Run, embedding, linears, reference,
    rms_norm, segment, select_rows,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

fn table(dtype: DType, low_rank: bool) -> Case {
    let (tokens, vocab, hidden, rank) = (97, 301, 48, 4);
    let ids = Arc::new((0..tokens).map(|i| (i * 53 % vocab) as u32).collect::<Vec<_>>());
    let mut inputs = vec![Input::new("table", &[vocab, hidden], 1.0).held(dtype)];
    if low_rank {
        inputs[0].tracked = false;
        inputs.push(Input::new("a", &[rank, vocab], 0.3));
        inputs.push(Input::new("b", &[hidden, rank], 0.5));
    }
    let run = move |body: Body, t: &[AnyTensor]| {
        let low = low_rank.then(|| EmbeddingLowRank {
            a: t[1].clone(),
            b: t[2].clone(),
            scale: 0.75,
            magnitude: None,
        });
        match body {
            Body::Device => embedding(&ids, &t[0], low.as_ref()),
            Body::Reference => reference::embedding(&ids, &t[0], low.as_ref()),
        }
    };
    Case { inputs, run: Box::new(run) }
}

fn selected() -> Case {
    let rows: Arc<Vec<usize>> = Arc::new((0..40).map(|i| i * 17 % 90).collect());
    let run = move |body: Body, t: &[AnyTensor]| match body {
        Body::Device => select_rows(&t[0], &rows),
        Body::Reference => reference::select_rows(&t[0], &rows),
    };
    Case { inputs: vec![Input::new("x", &[90, 33], 1.0)], run: Box::new(run) }
}

fn norm() -> Case {
    let run = |body: Body, t: &[AnyTensor]| match body {
        Body::Device => rms_norm(&t[0], &t[1], 1e-6),
        Body::Reference => reference::rms_norm(&t[0], &t[1], 1e-6),
    };
    let inputs = vec![Input::new("x", &[130, 257], 2.0), Input::new("gamma", &[257], 0.3).shifted(1.0)];
    Case { inputs, run: Box::new(run) }
}

/// A block that is recomputed in its backward.
fn recomputed() -> Case {
    let inputs = vec![
        Input::new("x", &[64, 96], 1.0),
        Input::new("gamma", &[96], 0.3).shifted(1.0),
        Input::new("w0", &[128, 96], 0.1),
        Input::new("w1", &[96, 64], 0.1),
    ];
    let run = move |body: Body, t: &[AnyTensor]| {
        let block: Run = Arc::new(move |t, _| {
            let normed = LinearInput::RmsNorm { x: t[0].clone(), gamma: t[1].clone(), eps: 1e-5 };
            let (up, down) = (Linear::new(t[2].clone()), Linear::new(t[3].clone()));
            match body {
                Body::Device => {
                    let inner = linears(&normed, &[up], None)?;
                    linears(&LinearInput::SwiGlu(inner), &[down], Some(&t[0]))
                }
                Body::Reference => {
                    let inner = reference::linears(&normed, &[up], None)?;
                    reference::linears(&LinearInput::SwiGlu(inner), &[down], Some(&t[0]))
                }
            }
        });
        match body {
            Body::Device => segment("block", t, Arc::new(NoWeights), false, block),
            Body::Reference => block(t, &[]),
        }
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        let name = name_of(dtype);
        let plain = if dtype == DType::F32 { Bound::Plain } else { Bound::PlainHalf };
        all.push(check(format!("embedding, {name}"), plain, move || table(dtype, false)));
        all.push(check(format!("embedding, LoRA, {name}"), Bound::of(dtype), move || table(dtype, true)));
    }
    all.push(check("select rows", Bound::Plain, selected));
    all.push(check("RMS norm", Bound::Plain, norm));
    all.push(check("segment: norm, linears, SwiGLU, residual", Bound::Product, recomputed));
    all
}
