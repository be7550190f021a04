//! TRL's GRPO losses.

use std::collections::HashSet;

use burnish_losses::{Correction, Grpo, GrpoOptions, ImportanceLevel, PolicyLoss, PolicyStep, Rollout};
use burnish_ops::TokenStats;
use recordings::{has_keys, parses};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::padded::{Layout, assert_keys, assert_metrics, assert_value, assert_values};

const KEYS: [&str; 28] = [
    "loss_type",
    "importance_sampling_level",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "use_bias_correction_kl",
    "vllm_is",
    "off_policy_mask_threshold",
    "top_entropy_quantile",
    "entropy_coef",
    "grad_accum",
    "steps_per_generation",
    "num_processes",
    "max_completion_length",
    "mask",
    "per_token_logps",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "entropies",
    "advantages",
    "num_items_in_batch",
    "loss",
    "grad_logps",
    "grad_entropy",
    "metrics",
];

fn known(case: &Value) -> Result<(), String> {
    has_keys(case, &KEYS)?;
    parses::<PolicyLoss>(case, "loss_type")?;
    parses::<ImportanceLevel>(case, "importance_sampling_level")?;
    match case["num_processes"].as_u64() {
        Some(1) => Ok(()),
        other => Err(format!("`num_processes` is {other:?}")),
    }
}

fn options(case: &Value, name: &str) -> GrpoOptions {
    let level = case["importance_sampling_level"].as_str().unwrap().parse();
    GrpoOptions {
        loss_type: case["loss_type"].as_str().unwrap().parse().unwrap_or_else(|e| panic!("{name}: {e}")),
        importance_sampling_level: level.unwrap_or_else(|e| panic!("{name}: {e}")),
        beta: number(&case["beta"]),
        epsilon: number(&case["epsilon"]),
        epsilon_high: case["epsilon_high"].as_f64(),
        delta: case["delta"].as_f64(),
        use_bias_correction_kl: case["use_bias_correction_kl"].as_bool().unwrap(),
        off_policy_mask_threshold: case["off_policy_mask_threshold"].as_f64(),
        top_entropy_quantile: number(&case["top_entropy_quantile"]),
        max_completion_length: count(&case["max_completion_length"]),
        ..GrpoOptions::default()
    }
}

/// Padded positions have no gradient in the record either.
fn assert_none_off_mask(layout: &Layout, table: &Value, name: &str) {
    for (row, mask) in table.as_array().unwrap().iter().zip(&layout.mask) {
        for (value, _) in numbers(row).into_iter().zip(mask).filter(|(_, m)| !**m) {
            assert_eq!(value, 0.0, "{name}");
        }
    }
}

#[test]
fn recorded_losses_gradients_and_metrics() {
    let mut seen = HashSet::new();
    for (i, (file, case)) in cases("grpo.json", known).into_iter().enumerate() {
        let name = format!("{} case {i}, {}", file.display(), case["loss_type"]);
        assert_keys(&case, &KEYS, &name);
        assert_eq!(count(&case["num_processes"]), 1, "{name}: an unknown kind of case");
        let options = options(&case, &name);
        seen.insert(options.loss_type);
        let grpo = Grpo::new(options).unwrap();
        let layout = Layout::new(&case["mask"], 0);
        let stats = layout.stats(&case, "entropies");
        let (rows, tokens) = (layout.targets.len(), stats.log_prob.len());

        let list = |key: &str| (!case[key].is_null()).then(|| layout.floats(&case[key]));
        let (old, reference) = (list("old_per_token_logps"), list("ref_per_token_logps"));
        let (sampling, ratio) = (list("sampling_per_token_logps"), list("importance_sampling_ratio"));
        let corrected = case["vllm_is"].as_bool().unwrap();
        assert_eq!(corrected, ratio.is_some(), "{name}: an unknown kind of case");
        fn part(list: &Option<Vec<f32>>, targets: std::ops::Range<usize>) -> Option<&[f32]> {
            list.as_ref().map(|l| &l[targets])
        }
        let advantages = numbers(&case["advantages"]);
        let rollouts: Vec<Rollout<'_>> = (0..rows)
            .map(|row| {
                let targets = layout.targets[row].clone();
                let ratios = part(&ratio, targets.clone());
                Rollout {
                    advantage: advantages[row],
                    old: part(&old, targets.clone()),
                    reference: part(&reference, targets.clone()),
                    sampling: part(&sampling, targets.clone()),
                    correction: ratios.map_or(Correction::None, |r| {
                        Correction::Tokens(r.iter().map(|&r| f64::from(r)).collect())
                    }),
                    targets,
                }
            })
            .collect();
        // A recorded case is one of `grad_accum` micro-batches that are all like it.
        let accumulation = number(&case["grad_accum"]);
        let coefficient = number(&case["entropy_coef"]);
        let step = PolicyStep {
            sequences: rows as f64 * accumulation,
            tokens: tokens as f64 * accumulation,
            generation_tokens: number(&case["num_items_in_batch"]),
            part: accumulation / number(&case["steps_per_generation"]),
            high_entropy: grpo.high_entropy(&stats.entropy),
            entropy_coef: (coefficient != 0.0).then_some(coefficient),
        };
        let terms = grpo.terms(&stats, &rollouts, &step).unwrap();
        assert_value(terms.value, number(&case["loss"]), &name);
        assert_values(terms.log_prob_gradient(), &layout.gradient(&case["grad_logps"]), &name);
        assert_none_off_mask(&layout, &case["grad_logps"], &name);
        if case["grad_entropy"].is_null() {
            assert!(terms.entropy_gradient().iter().all(|&g| g == 0.0), "{name}");
        } else {
            assert_values(terms.entropy_gradient(), &layout.gradient(&case["grad_entropy"]), &name);
            assert_none_off_mask(&layout, &case["grad_entropy"], &name);
        }
        assert_metrics(&terms, &grpo.metrics(), &case, &["entropy_coef"], &name);
        if let Some(recorded) = case["metrics"].get("entropy_coef") {
            assert_eq!(number(recorded), coefficient, "{name}");
        }
    }
    for loss in PolicyLoss::ALL {
        assert!(seen.contains(&loss), "no recorded case of {}", loss.name());
    }
}

/// Sequences that are masked as cut off have no targets: they count in means over sequences and nowhere else.
#[test]
fn truncated_completions() {
    let stats = TokenStats { log_prob: vec![-1.0, -0.5], entropy: vec![0.3, 0.4], ..TokenStats::default() };
    let step = PolicyStep {
        sequences: 2.0,
        tokens: 2.0,
        generation_tokens: 2.0,
        part: 1.0,
        high_entropy: None,
        entropy_coef: None,
    };
    let rollouts = [
        Rollout { targets: 0..2, advantage: 1.0, ..Rollout::default() },
        Rollout { targets: 2..2, advantage: -1.0, ..Rollout::default() },
    ];
    for (loss, want) in [
        (PolicyLoss::Grpo, -0.5),
        (PolicyLoss::Bnpo, -1.0),
        (PolicyLoss::Dapo, -1.0),
        (PolicyLoss::DrGrpo, -1.0 / 8.0),
        (PolicyLoss::Luspo, -1.0),
    ] {
        for level in ["token", "sequence"] {
            let grpo = Grpo::new(GrpoOptions {
                loss_type: loss,
                importance_sampling_level: level.parse().unwrap(),
                max_completion_length: 8,
                ..GrpoOptions::default()
            });
            let mut terms = grpo.unwrap().terms(&stats, &rollouts, &step).unwrap();
            assert_value(terms.value, want, loss.name());
            terms.tally.settle();
            assert_eq!(terms.tally.mean("entropy"), Some((f64::from(0.3f32) + f64::from(0.4f32)) / 2.0));
            assert_eq!(terms.tally.mean("clip_ratio/low_min"), Some(0.0));
        }
    }
    assert!(burnish_losses::is_truncated(&[5, 6], &[1, 2]));
    assert!(!burnish_losses::is_truncated(&[5, 2], &[1, 2]));
    assert!(!burnish_losses::is_truncated(&[], &[1]));
}

/// A sampler's log-probability that is not a number says nothing about drift.
#[test]
fn drift_passes_over_unscored_tokens() {
    let grpo = Grpo::new(GrpoOptions {
        off_policy_mask_threshold: Some(0.1),
        loss_type: PolicyLoss::Bnpo,
        ..GrpoOptions::default()
    })
    .unwrap();
    let stats = TokenStats { log_prob: vec![-1.0, -0.5], entropy: vec![0.3, 0.4], ..TokenStats::default() };
    let step = PolicyStep {
        sequences: 1.0,
        tokens: 2.0,
        generation_tokens: 2.0,
        part: 1.0,
        high_entropy: None,
        entropy_coef: None,
    };
    let value = |advantage: f64, sampling: &[f32]| {
        let rollout = Rollout { targets: 0..2, advantage, sampling: Some(sampling), ..Rollout::default() };
        grpo.terms(&stats, &[rollout], &step).unwrap().value
    };
    assert_eq!(value(-1.0, &[-0.9, f32::NAN]), 1.0);
    assert_eq!(value(-1.0, &[-0.7, f32::NAN]), 0.0);
    assert_eq!(value(1.0, &[-0.7, f32::NAN]), -1.0);
}
