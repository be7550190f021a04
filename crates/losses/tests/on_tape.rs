//! A host-side loss on the tape of the fused head.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use burnish_losses::{
    Dpo, DpoOptions, Grpo, GrpoOptions, LossTerms, Pair, PairCounts, PolicyStep, Reward, Rollout,
};
use burnish_ops::{AnyTensor, HeadOptions, head_log_probs};

use crate::problem::{Problem, assert_same};

/// Value and gradient arrive at the hidden states as those of the same sum in Burn's own operations.
#[test]
fn gradients_reach_the_head() {
    let problem = Problem { tokens: 9, ..Problem::new() };
    let targets: Arc<Vec<u32>> = Arc::new((0..9).map(|i| i * 11 % 101).collect());
    let score = |tensors: &crate::problem::Tensors| {
        head_log_probs(&tensors.hidden, &tensors.head(), None, &targets, HeadOptions::default()).unwrap()
    };
    let tensors = problem.tensors();
    let (scores, stats) = score(&tensors);

    let dpo = Dpo::new(DpoOptions::default()).unwrap();
    let pair =
        Pair { chosen: (0..4).into(), rejected: (4..9).into(), reference: [-20.0, -21.0], matched: None };
    let preference = dpo.terms(&stats, &[pair], PairCounts { pairs: 1.0, chosen_targets: 4.0 }).unwrap();
    let step = PolicyStep {
        sequences: 1.0,
        tokens: 9.0,
        generation_tokens: 9.0,
        part: 1.0,
        high_entropy: None,
        entropy_coef: Some(0.5),
    };
    let rollout = Rollout { targets: 0..9, advantage: -1.3, ..Rollout::default() };
    let policy = Grpo::new(GrpoOptions::default()).unwrap().terms(&stats, &[rollout], &step).unwrap();
    assert!(policy.entropy_gradient().iter().all(|&g| g != 0.0));
    drop(scores);

    for terms in [preference, policy] {
        let ours = problem.tensors();
        let loss = terms.on_tape(&score(&ours).0).unwrap();
        assert_eq!(loss.to_f32(), [terms.value as f32]);
        // Twice the loss, so that what comes from above counts.
        let mut gradients = (loss.rank::<1>().unwrap() * 2.0).backward();
        let got = ours.gradients(&mut gradients);

        let theirs = problem.tensors();
        let (scores, _) = score(&theirs);
        let coefficients: Vec<f32> = terms.gradient.iter().map(|g| g * 2.0).collect();
        let coefficients = Tensor::<1>::from_floats(coefficients.as_slice(), &Device::flex()).reshape([2, 9]);
        let mut gradients = (scores.rank::<2>().unwrap() * coefficients).sum().backward();
        for ((what, got), (_, want)) in got.into_iter().zip(theirs.gradients(&mut gradients)) {
            assert_same(&got.unwrap(), &want.unwrap(), 1e-6, what);
        }
    }
}

#[test]
fn rewards() {
    let device = Device::flex();
    let scores = AnyTensor::new(Tensor::<1>::from_floats([0.5, 0.1], &device)).leaf();
    let terms = Reward::new(None).unwrap().terms(&[0.5], &[0.1], None, 1.0).unwrap();
    let loss = terms.on_tape(&scores).unwrap();
    let mut gradients = loss.rank::<1>().unwrap().backward();
    assert_eq!(scores.take_gradient(&mut gradients).unwrap().to_f32(), terms.gradient);
    // Without a tape the value alone.
    assert!(!terms.on_tape(&scores.plain()).unwrap().is_tracked());
}

/// A rank without rows takes part with nothing.
#[test]
fn nothing() {
    let empty = LossTerms::default();
    let scores = AnyTensor::new(Tensor::<2>::zeros([2, 0], &Device::flex())).leaf();
    let loss = empty.on_tape(&scores).unwrap();
    assert_eq!(loss.to_f32(), [0.0]);
    let mut gradients = loss.rank::<1>().unwrap().backward();
    assert_eq!(scores.take_gradient(&mut gradients).unwrap().shape(), [2, 0]);

    let wrong = AnyTensor::new(Tensor::<2>::zeros([2, 3], &Device::flex()));
    assert!(empty.on_tape(&wrong).is_err());
}
