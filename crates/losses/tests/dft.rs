//! Dynamic fine-tuning against its formula: `-sum sg(p) log p / N`, the weight outside the tape.

use std::sync::Arc;

use burnish_losses::TokenLoss;
use burnish_ops::{AnyTensor, reference};

use crate::problem::{Problem, assert_same, labelled_loss};

#[test]
fn equals_the_formula_on_the_reference_head() {
    let problem = Problem { tokens: 300, bias: true, rank: Some(2), ..Problem::new() };
    let labels: Vec<Option<u32>> = problem.labels().into_iter().map(|l| l.or(Some(3))).collect();
    let denominator = 411.0;

    let fused = problem.tensors();
    let out =
        labelled_loss(TokenLoss::Dft, &fused.hidden, &fused.head(), &labels, problem.options, denominator)
            .unwrap();
    let mut gradients = out.loss.rank::<1>().unwrap().backward();

    let formula = problem.tensors();
    let targets: Arc<Vec<u32>> = Arc::new(labels.iter().copied().flatten().collect());
    let (both, _) =
        reference::head_log_probs(&formula.hidden, &formula.head(), None, &targets, problem.options).unwrap();
    let log_probs = both.rank::<2>().unwrap().narrow(0, 0, 1);
    let weight = AnyTensor::new(log_probs.clone()).plain().rank::<2>().unwrap().exp();
    let loss = (weight * log_probs).sum().neg() / denominator;
    let mut reference = loss.backward();

    assert_same(&out.loss.to_f32(), &AnyTensor::new(loss).to_f32(), 1e-5, "loss");
    for ((what, got), (_, want)) in
        fused.gradients(&mut gradients).into_iter().zip(formula.gradients(&mut reference))
    {
        assert_same(&got.unwrap(), &want.unwrap(), 1e-5, what);
    }
}
