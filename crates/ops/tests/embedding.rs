//! Embedding and row selection.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{AnyTensor, EmbeddingLowRank, Magnitude, embedding, gpu, reference, select_rows};

use crate::case::{Body, Case, Input, norms, tensor};

/// With repeated and unused ids.
fn ids(tokens: usize, vocab: usize) -> Arc<Vec<u32>> {
    Arc::new((0..tokens).map(|i| (i * i % (vocab - 1)) as u32).collect())
}

fn case(tokens: usize, vocab: usize, dim: usize, rank: usize, dtype: DType) -> Case {
    scaled(tokens, vocab, dim, rank, dtype, false)
}

fn scaled(tokens: usize, vocab: usize, dim: usize, rank: usize, dtype: DType, magnitude: bool) -> Case {
    let mut inputs = vec![Input { dtype, ..Input::new("weight", &[vocab, dim], 1.0) }];
    if rank > 0 {
        inputs.push(Input::new("a", &[rank, vocab], 0.5));
        inputs.push(Input::new("b", &[dim, rank], 0.5));
    }
    if magnitude {
        inputs.push(Input { shift: 1.5, ..Input::new("m", &[dim], 0.5) });
    }
    let ids = ids(tokens, vocab);
    let run = move |body: Body, t: &[AnyTensor]| {
        let low = (rank > 0).then(|| EmbeddingLowRank {
            a: t[1].clone(),
            b: t[2].clone(),
            scale: 0.75,
            magnitude: magnitude.then(|| Magnitude { value: t[3].clone(), norm: norms(dim) }),
        });
        match body {
            Body::Fused => embedding(&ids, &t[0], low.as_ref()),
            Body::Reference => reference::embedding(&ids, &t[0], low.as_ref()),
            Body::Gpu => gpu::embedding(&ids, &t[0], low.as_ref()),
        }
    };
    let name = format!("embedding of {tokens} tokens in [{vocab}, {dim}] {dtype:?}, rank {rank}");
    Case { name, inputs, run: Box::new(run) }
}

#[test]
fn embedding_kernels_are_the_reference() {
    for tokens in [1, 30] {
        for rank in [0, 1, 5] {
            case(tokens, 17, 11, rank, DType::F32).agrees();
            case(tokens, 17, 11, rank, DType::BF16).agrees();
            case(tokens, 17, 11, rank, DType::F16).agrees();
        }
        scaled(tokens, 17, 11, 2, DType::BF16, true).agrees();
    }
}

#[test]
fn embedding_reference_differentiates() {
    for rank in [0, 2] {
        case(6, 5, 3, rank, DType::F32).differentiates();
    }
    scaled(6, 5, 3, 2, DType::F32, true).differentiates();
}

fn select(tokens: usize, rows: Vec<usize>) -> Case {
    let rows = Arc::new(rows);
    let run = move |body: Body, t: &[AnyTensor]| match body {
        Body::Fused => select_rows(&t[0], &rows),
        Body::Reference => reference::select_rows(&t[0], &rows),
        Body::Gpu => gpu::select_rows(&t[0], &rows),
    };
    Case {
        name: "select_rows".to_owned(),
        inputs: vec![Input::new("x", &[tokens, 5], 1.0)],
        run: Box::new(run),
    }
}

#[test]
fn selection() {
    for rows in [vec![0], vec![6, 1, 6, 3], (0..7).collect(), (0..7).rev().collect()] {
        select(7, rows.clone()).agrees();
        select(7, rows).differentiates();
    }
}

#[test]
fn all_rows_in_order_are_the_tensor_itself() {
    let x = tensor("x", &[4, 3]).leaf();
    let y = select_rows(&x, &Arc::new(vec![0, 1, 2, 3])).unwrap();
    assert!(y.is_tracked());
    assert_eq!(y.to_f32(), x.to_f32());
    let mut gradients = y.rank::<2>().unwrap().sum().backward();
    assert_eq!(x.take_gradient(&mut gradients).unwrap().to_f32(), [1.0; 12]);
}

#[test]
fn no_rows() {
    for body in [Body::Fused, Body::Reference, Body::Gpu] {
        let found = select(4, Vec::new()).find(body, false, &[true]);
        assert_eq!((found.value, found.gradients[0].clone()), (vec![], Some(vec![0.0; 20])), "{body:?}");
    }
}
