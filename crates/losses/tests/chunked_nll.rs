//! The fused loss equals the chunked reference.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_losses::TokenLoss;
use burnish_ops::{AnyTensor, HeadOptions, embedding};

use crate::long_hand::{CHUNK_TOKENS, chunked_nll};
use crate::problem::{LOW_RANK_SCALE, Problem, Weight, assert_same, labelled_loss, tensor};

/// Of the largest element: sums of up to 700 products in f32 (6e-8 each), in two orders.
const TOLERANCE: f32 = 1e-5;

fn problems() -> Vec<(&'static str, Problem)> {
    let plain = Problem::new();
    let options = |softcap, logit_scale, temperature| HeadOptions {
        softcap,
        logit_scale,
        temperature,
        ..HeadOptions::default()
    };
    vec![
        ("trained", plain.clone()),
        ("frozen", Problem { weight: Weight::Frozen, ..plain.clone() }),
        ("bias", Problem { bias: true, ..plain.clone() }),
        ("frozen, bias", Problem { bias: true, weight: Weight::Frozen, ..plain.clone() }),
        ("softcap", Problem { options: options(Some(3.0), 1.0, 1.0), ..plain.clone() }),
        ("logit scale", Problem { options: options(None, 0.25, 1.0), ..plain.clone() }),
        ("temperature", Problem { options: options(None, 1.0, 0.7), ..plain.clone() }),
        ("all options", Problem { bias: true, options: options(Some(5.0), 2.0, 1.3), ..plain.clone() }),
        ("low rank", Problem { rank: Some(4), weight: Weight::Frozen, ..plain.clone() }),
        (
            "low rank, trained, all options",
            Problem { rank: Some(3), bias: true, options: options(Some(5.0), 2.0, 1.3), ..plain.clone() },
        ),
        ("one chunk", Problem { tokens: 40, ..plain.clone() }),
        ("one token", Problem { tokens: 1, ..plain }),
    ]
}

#[test]
fn values_and_gradients_agree() {
    for (name, problem) in problems() {
        let labels = problem.labels();
        let count = labels.iter().flatten().count();
        assert!(count > 0 && count % CHUNK_TOKENS != 0, "{name}: {count}");
        // The step has more tokens than this micro-batch.
        let denominator = count as f64 + 13.0;

        let fused = problem.tensors();
        let out = labelled_loss(
            TokenLoss::Nll,
            &fused.hidden,
            &fused.head(),
            &labels,
            problem.options,
            denominator,
        );
        let out = out.unwrap();
        let mut gradients = out.loss.rank::<1>().unwrap().backward();

        let chunked = problem.tensors();
        let mut weight = chunked.weight.clone();
        if let Some((a, b)) = &chunked.low_rank {
            let delta = b.rank::<2>().unwrap().matmul(a.rank::<2>().unwrap()) * LOW_RANK_SCALE;
            weight = AnyTensor::new(weight.rank::<2>().unwrap() + delta);
        }
        let bias = chunked.bias.as_ref();
        let loss =
            chunked_nll(&chunked.hidden, &weight, bias, &labels, problem.options, denominator).unwrap();
        let mut reference = loss.rank::<1>().unwrap().backward();

        assert_same(&out.loss.to_f32(), &loss.to_f32(), TOLERANCE, name);
        let (sum, tokens) = out.facts.tally().sums("loss").unwrap();
        assert_eq!(tokens, count as f64, "{name}");
        assert_same(&[(sum / denominator) as f32], &loss.to_f32(), TOLERANCE, name);

        for ((what, got), (_, want)) in
            fused.gradients(&mut gradients).into_iter().zip(chunked.gradients(&mut reference))
        {
            let frozen = what == "weight" && problem.weight == Weight::Frozen;
            assert_eq!((got.is_none(), want.is_none()), (frozen, frozen), "{name}: {what}");
            if let (Some(got), Some(want)) = (got, want) {
                assert_same(&got, &want, TOLERANCE, &format!("{name}: {what}"));
            }
        }
        if let Some((row, _)) = labels.iter().enumerate().find(|(_, l)| l.is_none()) {
            // An ignored row gets nothing, exactly.
            let fused = problem.tensors();
            let out = labelled_loss(
                TokenLoss::Nll,
                &fused.hidden,
                &fused.head(),
                &labels,
                problem.options,
                denominator,
            );
            let mut gradients = out.unwrap().loss.rank::<1>().unwrap().backward();
            let hidden = fused.hidden.take_gradient(&mut gradients).unwrap().to_f32();
            assert!(
                hidden[row * problem.dim..][..problem.dim].iter().all(|&g| g == 0.0),
                "{name}: row {row}"
            );
        }
    }
}

/// One weight embeds the tokens and projects the hidden states: its two gradients add.
#[test]
fn tied_weights() {
    let problem = Problem { bias: true, ..Problem::new() };
    let labels = problem.labels();
    let ids: Arc<Vec<u32>> = Arc::new((0..problem.tokens).map(|i| (i * 7 % problem.vocab) as u32).collect());
    let denominator = labels.iter().flatten().count() as f64;
    let run = |fused: bool| {
        let tensors = problem.tensors();
        let embedded = embedding(&ids, &tensors.weight, None).unwrap().rank::<2>().unwrap();
        let hidden = AnyTensor::new(tensors.hidden.rank::<2>().unwrap() + embedded);
        let loss = if fused {
            let out = labelled_loss(
                TokenLoss::Nll,
                &hidden,
                &tensors.head(),
                &labels,
                problem.options,
                denominator,
            );
            out.unwrap().loss
        } else {
            let bias = tensors.bias.as_ref();
            chunked_nll(&hidden, &tensors.weight, bias, &labels, problem.options, denominator).unwrap()
        };
        let mut gradients = loss.rank::<1>().unwrap().backward();
        (loss.to_f32(), tensors.gradients(&mut gradients))
    };
    let ((got, got_gradients), (want, want_gradients)) = (run(true), run(false));
    assert_same(&got, &want, TOLERANCE, "loss");
    for ((what, got), (_, want)) in got_gradients.into_iter().zip(want_gradients) {
        assert_same(&got.unwrap(), &want.unwrap(), TOLERANCE, what);
    }
}

/// A head at rest in 16 bits is computed in f32: the same as the f32 head of its rounded values.
#[test]
fn sixteen_bit_heads() {
    let problem = Problem { tokens: 90, weight: Weight::Frozen, ..Problem::new() };
    let labels = problem.labels();
    for dtype in [DType::BF16, DType::F16] {
        let rounded = tensor("weight", &[problem.vocab, problem.dim], 0.4).to_data().convert_dtype(dtype);
        let device = burn::tensor::Device::flex();
        let run = |data| {
            let mut tensors = problem.tensors();
            tensors.weight = AnyTensor::from_data(data, &device);
            let out = labelled_loss(
                TokenLoss::Nll,
                &tensors.hidden,
                &tensors.head(),
                &labels,
                problem.options,
                1.0,
            );
            let loss = out.unwrap().loss;
            let mut gradients = loss.rank::<1>().unwrap().backward();
            (loss.to_f32(), tensors.gradients(&mut gradients))
        };
        assert_eq!(run(rounded.clone()), run(rounded.convert_dtype(DType::F32)), "{dtype:?}");
    }
}
