//! Gradients are the derivatives of values, for every option whose value holds all of its gradient.

use burnish_losses::{
    Correction, Grpo, GrpoOptions, HighEntropy, ImportanceLevel, PolicyLoss, PolicyStep, Rollout,
};
use burnish_ops::TokenStats;

const LOG_PROBS: [f32; 7] = [-1.0, -0.3, -2.1, -0.6, -1.7, -0.9, -0.2];
const OLD: [f32; 7] = [-1.1, -0.32, -1.6, -0.9, -1.75, -0.8, -0.5];
const REFERENCE: [f32; 7] = [-0.7, -0.5, -2.4, -0.2, -1.3, -1.2, -0.3];
const STEP: f32 = 1.0 / 1024.0;

fn value(grpo: &Grpo, log_prob: &[f32]) -> (f64, Vec<f32>) {
    let stats = TokenStats { log_prob: log_prob.to_vec(), entropy: vec![0.4; 7], ..TokenStats::default() };
    let rollout = |targets: std::ops::Range<usize>, advantage| Rollout {
        advantage,
        old: Some(&OLD[targets.clone()]),
        reference: Some(&REFERENCE[targets.clone()]),
        correction: Correction::Sequence(0.9),
        targets,
        ..Rollout::default()
    };
    let step = PolicyStep {
        sequences: 2.0,
        tokens: 7.0,
        generation_tokens: 14.0,
        part: 0.5,
        high_entropy: None::<HighEntropy>,
        entropy_coef: None,
    };
    let terms = grpo.terms(&stats, &[rollout(0..3, 1.2), rollout(3..7, -0.8)], &step).unwrap();
    (terms.value, terms.log_prob_gradient().to_vec())
}

#[test]
fn policy_gradients_are_derivatives() {
    let losses = PolicyLoss::ALL.into_iter().filter(|l| !matches!(l, PolicyLoss::Cispo | PolicyLoss::Vespo));
    let mut checked = 0;
    for loss_type in losses {
        for importance_sampling_level in [ImportanceLevel::Token, ImportanceLevel::Sequence] {
            for (beta, use_bias_correction_kl) in [(0.0, true), (0.3, true), (0.3, false)] {
                for delta in [None, Some(1.1)] {
                    let options = GrpoOptions {
                        loss_type,
                        importance_sampling_level,
                        beta,
                        use_bias_correction_kl,
                        delta,
                        ..GrpoOptions::default()
                    };
                    let grpo = Grpo::new(options).unwrap();
                    let (_, gradient) = value(&grpo, &LOG_PROBS);
                    for (t, &got) in gradient.iter().enumerate() {
                        let moved = |by: f32| {
                            let mut log_probs = LOG_PROBS;
                            log_probs[t] += by;
                            (value(&grpo, &log_probs).0, f64::from(log_probs[t]))
                        };
                        let ((high, right), (low, left)) = (moved(STEP), moved(-STEP));
                        let want = (high - low) / (right - left);
                        assert!(
                            (f64::from(got) - want).abs() < 2e-6,
                            "{options:?} [{t}]: {got} is not {want}"
                        );
                        checked += usize::from(got != 0.0);
                    }
                }
            }
        }
    }
    assert!(checked > 300, "{checked} slopes were not zero");
}
