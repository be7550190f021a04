//! No target at all: the loss is 0 and every gradient is zero, exactly.

use burnish_losses::TokenLoss;
use burnish_ops::AnyTensor;

use crate::long_hand::chunked_nll;
use crate::problem::{Problem, Tensors, labelled_loss, tensor};

fn problem() -> (Problem, Vec<Option<u32>>) {
    (Problem { tokens: 5, bias: true, rank: Some(2), ..Problem::new() }, vec![None; 5])
}

fn assert_all_zero(loss: &AnyTensor, tensors: &Tensors, names: &[&str]) {
    assert_eq!(loss.to_f32(), [0.0]);
    let mut gradients = loss.rank::<1>().unwrap().backward();
    let found = tensors.gradients(&mut gradients);
    assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    let shapes = [&tensors.hidden, &tensors.weight].into_iter().chain(&tensors.bias);
    let shapes = shapes.chain(tensors.low_rank.iter().flat_map(|(a, b)| [a, b])).map(AnyTensor::shape);
    for ((name, gradient), shape) in found.into_iter().zip(shapes) {
        let gradient = gradient.unwrap_or_else(|| panic!("{name} has no gradient"));
        assert_eq!(gradient, vec![0.0; shape.iter().product()], "{name}");
    }
}

#[test]
fn fused() {
    let (problem, labels) = problem();
    for kind in [TokenLoss::Nll, TokenLoss::Dft] {
        for denominator in [0.0, 17.0] {
            let tensors = problem.tensors();
            let out =
                labelled_loss(kind, &tensors.hidden, &tensors.head(), &labels, problem.options, denominator);
            let out = out.unwrap();
            assert_all_zero(&out.loss, &tensors, &["hidden", "weight", "bias", "a", "b"]);
            for metric in ["loss", "entropy", "mean_token_accuracy"] {
                assert_eq!(
                    (out.facts.tally().sums(metric), out.facts.tally().mean(metric)),
                    (Some((0.0, 0.0)), Some(0.0)),
                    "{metric}"
                );
            }
            assert!(out.facts.stats().log_prob.is_empty());
        }
    }
}

#[test]
fn chunked() {
    let (mut problem, labels) = problem();
    problem.rank = None;
    let mut tensors = problem.tensors();
    // Nothing is computed from a hidden state that is not asked for, not even 0 * infinity.
    tensors.hidden =
        AnyTensor::new(tensor("hidden", &[5, problem.dim], 1.0).rank::<2>().unwrap() / 0.0).leaf();
    let loss =
        chunked_nll(&tensors.hidden, &tensors.weight, tensors.bias.as_ref(), &labels, problem.options, 0.0)
            .unwrap();
    assert_all_zero(&loss, &tensors, &["hidden", "weight", "bias"]);
}

/// Untracked, as in evaluation.
#[test]
fn without_a_tape() {
    let (problem, labels) = problem();
    let tensors = problem.tensors();
    let mut head = tensors.head();
    head.weight = head.weight.plain();
    head.bias = head.bias.map(|b| b.plain());
    head.low_rank = None;
    let out =
        labelled_loss(TokenLoss::Nll, &tensors.hidden.plain(), &head, &labels, problem.options, 3.0).unwrap();
    assert!(!out.loss.is_tracked());
    assert_eq!(out.loss.to_f32(), [0.0]);
}
