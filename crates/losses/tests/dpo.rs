//! TRL's DPO losses.

use burnish_losses::{Divergence, Dpo, DpoOptions, FirstPass, Pair, PairCounts, PairSums, PreferenceLoss};
use burnish_ops::TokenStats;
use recordings::{has_keys, parses};
use serde_json::Value;

use crate::golden::{cases, number, numbers};
use crate::padded::{Layout, assert_keys, assert_metrics, assert_value, assert_values};

const KEYS: [&str; 21] = [
    "loss_type",
    "loss_weights",
    "f_divergence_type",
    "f_alpha_divergence_coef",
    "label_smoothing",
    "beta",
    "ld_alpha",
    "use_weighting",
    "discopop_tau",
    "completion_mask",
    "attention_mask",
    "per_token_logps",
    "entropy",
    "mean_logits",
    "is_top1",
    "log_sum_sq_probs",
    "ref_chosen_logps",
    "ref_rejected_logps",
    "loss",
    "grad_per_token_logps",
    "metrics",
];

fn known(case: &Value) -> Result<(), String> {
    has_keys(case, &KEYS)?;
    parses::<PreferenceLoss>(case, "loss_type")?;
    parses::<Divergence>(case, "f_divergence_type")
}

fn options(case: &Value, name: &str) -> DpoOptions {
    let kind = |v: &Value| v.as_str().unwrap().parse().unwrap_or_else(|e| panic!("{name}: {e}"));
    let divergence = case["f_divergence_type"].as_str().unwrap().parse();
    DpoOptions {
        loss_type: case["loss_type"].as_array().unwrap().iter().map(kind).collect(),
        loss_weights: (!case["loss_weights"].is_null()).then(|| numbers(&case["loss_weights"])),
        beta: number(&case["beta"]),
        label_smoothing: number(&case["label_smoothing"]),
        f_divergence_type: divergence.unwrap_or_else(|e| panic!("{name}: {e}")),
        f_alpha_divergence_coef: number(&case["f_alpha_divergence_coef"]),
        ld_alpha: case["ld_alpha"].as_f64(),
        use_weighting: case["use_weighting"].as_bool().unwrap(),
        discopop_tau: number(&case["discopop_tau"]),
    }
}

/// The whole step's pairs, with their matches.
pub(crate) fn pairs(
    dpo: &Dpo,
    stats: &TokenStats,
    sides: &[[std::ops::Range<usize>; 2]],
    references: &[[f64; 2]],
) -> Vec<Pair> {
    let sums: Vec<PairSums> = sides
        .iter()
        .zip(references)
        .map(|([c, r], reference)| {
            let [chosen, rejected] = dpo.sums(&stats.log_prob[c.clone()], &stats.log_prob[r.clone()]);
            PairSums { chosen, rejected, reference_chosen: reference[0], reference_rejected: reference[1] }
        })
        .collect();
    let matches = dpo.matches(&sums);
    let sorts = dpo.needs() == FirstPass::Scores;
    let all = sides.iter().zip(references).zip(matches);
    all.map(|(([c, r], &reference), matched)| Pair {
        chosen: c.clone().into(),
        rejected: r.clone().into(),
        reference,
        matched: sorts.then_some(matched),
    })
    .collect()
}

#[test]
fn recorded_losses_gradients_and_metrics() {
    let mut seen = std::collections::HashSet::new();
    for (i, (file, case)) in cases("dpo.json", known).into_iter().enumerate() {
        let name = format!("{} case {i}, {}", file.display(), case["loss_type"]);
        assert_keys(&case, &KEYS, &name);
        let options = options(&case, &name);
        seen.extend(options.loss_type.iter().copied());
        let dpo = Dpo::new(options).unwrap();
        let layout = Layout::new(&case["completion_mask"], 1);
        let stats = layout.stats(&case, "entropy");
        let (chosen, rejected) = (numbers(&case["ref_chosen_logps"]), numbers(&case["ref_rejected_logps"]));
        let count = chosen.len();
        let targets = &layout.targets;
        let sides: Vec<_> = (0..count).map(|i| [targets[i].clone(), targets[count + i].clone()]).collect();
        let references: Vec<_> = (0..count).map(|i| [chosen[i], rejected[i]]).collect();
        let pairs = pairs(&dpo, &stats, &sides, &references);
        let counts = PairCounts { pairs: count as f64, chosen_targets: targets[count - 1].end as f64 };
        let terms = dpo.terms(&stats, &pairs, counts).unwrap();
        assert_value(terms.value, number(&case["loss"]), &name);
        assert_values(terms.log_prob_gradient(), &layout.gradient(&case["grad_per_token_logps"]), &name);
        assert!(terms.entropy_gradient().iter().all(|&g| g == 0.0), "{name}");
        assert_metrics(&terms, &dpo.metrics(), &case, &["num_tokens"], &name);
    }
    for loss in PreferenceLoss::ALL {
        assert!(seen.contains(&loss), "no recorded case of {}", loss.name());
    }
}

fn one_pair(options: DpoOptions) -> (f64, Vec<f32>) {
    let dpo = Dpo::new(options).unwrap();
    let stats = TokenStats {
        log_prob: vec![-0.4, -1.2, -0.3, -2.0, -0.7],
        log_sum_sq_probs: vec![-0.6, -0.9, -1.3, -0.2, -1.1],
        ..TokenStats::default()
    };
    let pair =
        Pair { chosen: (0..2).into(), rejected: (2..5).into(), reference: [-1.9, -2.6], matched: None };
    let counts = PairCounts { pairs: 1.0, chosen_targets: 2.0 };
    let terms = dpo.terms(&stats, &[pair], counts).unwrap();
    (terms.value, terms.log_prob_gradient().to_vec())
}

/// Where TRL stops with an error: the weight multiplies the chosen tokens of its pair.
#[test]
fn weighting_with_a_supervised_term() {
    let likely = |log_probs: &[f64], squares: &[f64]| {
        let sum: f64 = log_probs.iter().zip(squares).map(|(l, s)| l - s).sum();
        (sum / log_probs.len() as f64).exp()
    };
    let weight = likely(&[-0.4, -1.2], &[-0.6, -0.9]) * likely(&[-0.3, -2.0, -0.7], &[-1.3, -0.2, -1.1]);
    let (value, gradient) = one_pair(DpoOptions {
        loss_type: vec![PreferenceLoss::Sft],
        use_weighting: true,
        ..DpoOptions::default()
    });
    assert_value(value, weight * 0.8, "sft");
    assert_values(&gradient, &[-weight / 2.0, -weight / 2.0, 0.0, 0.0, 0.0], "sft");

    let both = DpoOptions {
        loss_type: vec![PreferenceLoss::Sigmoid, PreferenceLoss::Sft],
        loss_weights: Some(vec![0.5, 2.0]),
        use_weighting: true,
        ..DpoOptions::default()
    };
    let x: f64 = 0.1 * ((-1.6 + 1.9) - (-3.0 + 2.6));
    let (value, _) = one_pair(both);
    assert_value(value, weight * (0.5 * (1.0 + (-x).exp()).ln() + 2.0 * 0.8), "both");
}

/// An alpha of 1 is the reverse KL; far ratios stay finite.
#[test]
fn divergences_at_their_limits() {
    let options = |f_divergence_type, f_alpha_divergence_coef| DpoOptions {
        f_divergence_type,
        f_alpha_divergence_coef,
        ..DpoOptions::default()
    };
    let with = |divergence, coefficient| one_pair(options(divergence, coefficient));
    assert_eq!(with(Divergence::Alpha, 1.0), with(Divergence::ReverseKl, 0.5));
    let near = with(Divergence::Alpha, 1.0 + 1e-4);
    assert!((near.0 - with(Divergence::ReverseKl, 0.5).0).abs() < 1e-4);

    let dpo = Dpo::new(options(Divergence::Alpha, 3.0));
    let stats = TokenStats { log_prob: vec![-1.0, -1.0], ..TokenStats::default() };
    let pair =
        Pair { chosen: (0..1).into(), rejected: (1..2).into(), reference: [-500.0, -1.0], matched: None };
    let counts = PairCounts { pairs: 1.0, chosen_targets: 1.0 };
    let terms = dpo.unwrap().terms(&stats, &[pair], counts).unwrap();
    assert!(terms.value.is_finite());
    assert!(terms.gradient.iter().all(|g| g.is_finite()), "{:?}", terms.gradient);
}

/// At the first step, when policy and reference agree, the loss is ln 2 and all rewards are 0.
#[test]
fn first_step() {
    let dpo = Dpo::new(DpoOptions { ld_alpha: Some(0.3), ..DpoOptions::default() }).unwrap();
    let stats = TokenStats { log_prob: vec![-0.4, -1.2, -0.3, -2.0, -0.7], ..TokenStats::default() };
    let reference = dpo.sums(&stats.log_prob[..3], &stats.log_prob[3..]);
    let pair = Pair { chosen: (0..3).into(), rejected: (3..5).into(), reference, matched: None };
    let terms = dpo.terms(&stats, &[pair], PairCounts { pairs: 1.0, chosen_targets: 3.0 }).unwrap();
    assert_eq!(terms.value, 2f64.ln());
    for metric in ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"] {
        assert_eq!(terms.tally.mean(metric), Some(0.0), "{metric}");
    }
}
