//! TRL's supervised losses as functions of log-probabilities.

use burnish_losses::{MetricSums, TokenLoss};
use recordings::{has_keys, parses};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::problem::assert_close;

/// Sums of ten f32 numbers, as recorded.
const TOLERANCE: f64 = 1e-6;
const KEYS: [&str; 9] =
    ["loss_type", "num_items_in_batch", "mask", "log_probs", "entropy", "is_top1", "loss", "grad", "metrics"];

fn flat(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().flat_map(numbers).collect()
}

fn flags(v: &Value) -> Vec<bool> {
    v.as_array().unwrap().iter().flat_map(|r| r.as_array().unwrap()).map(|b| b.as_bool().unwrap()).collect()
}

#[test]
fn recorded_losses_gradients_and_metrics() {
    for (i, (file, case)) in
        cases("sft.json", |case| has_keys(case, &KEYS).and_then(|()| parses::<TokenLoss>(case, "loss_type")))
            .into_iter()
            .enumerate()
    {
        let name = format!("{} case {i}", file.display());
        let keys: Vec<&str> = case.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS, "{name}: an unknown kind of case");
        let kind: TokenLoss =
            case["loss_type"].as_str().unwrap().parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        let (mask, top) = (flags(&case["mask"]), flags(&case["is_top1"]));
        let (log_probs, entropy) = (flat(&case["log_probs"]), flat(&case["entropy"]));
        let here = mask.iter().filter(|&&m| m).count();
        let denominator =
            if case["num_items_in_batch"].is_null() { here } else { count(&case["num_items_in_batch"]) }
                as f64;

        let mut tally = MetricSums::new();
        for at in (0..mask.len()).filter(|&at| mask[at]) {
            tally.add("loss", kind.numerator(log_probs[at] as f32), 1.0);
            tally.add("entropy", entropy[at], 1.0);
            tally.add("mean_token_accuracy", f64::from(u8::from(top[at])), 1.0);
        }
        let loss = tally.sums("loss").map_or(0.0, |(sum, _)| sum) / denominator.max(1.0);
        assert_close(&[loss as f32], &[number(&case["loss"])], TOLERANCE, &format!("{name}: loss"));
        for (key, want) in case["metrics"].as_object().unwrap() {
            match key.as_str() {
                "entropy" | "mean_token_accuracy" => {
                    let got = tally.mean(key).unwrap_or(0.0);
                    assert_close(&[got as f32], &[number(want)], TOLERANCE, &format!("{name}: {key}"));
                }
                // Tokens that the model read: one more per row than it was asked to predict. The trainer counts them.
                "num_tokens" => assert_eq!(count(want), mask.len() + case["mask"].as_array().unwrap().len()),
                other => panic!("{name}: no test for metric {other}"),
            }
        }
        let gradient: Vec<f32> =
            log_probs.iter().map(|&lp| kind.coefficient(lp as f32, denominator)).collect();
        assert_close(&gradient, &flat(&case["grad"]), TOLERANCE, &format!("{name}: grad"));
    }
}

#[test]
fn loss_types_by_name() {
    for (name, kind) in [("nll", TokenLoss::Nll), ("chunked_nll", TokenLoss::Nll), ("dft", TokenLoss::Dft)] {
        assert_eq!(name.parse(), Ok(kind));
    }
    let error = "focal".parse::<TokenLoss>().unwrap_err();
    assert_eq!(error, burnish_losses::UnknownLoss("focal".to_owned()));
    assert_eq!(error.to_string(), "unknown loss_type `focal`; expected nll, dft or chunked_nll");
}

#[test]
fn tallies_add_up_and_divide_once() {
    let (mut a, mut b) = (MetricSums::new(), MetricSums::new());
    a.add("loss", 3.0, 2.0);
    b.add("loss", 9.0, 4.0);
    b.add("entropy", 0.0, 0.0);
    a.merge(&b);
    assert_eq!(a.sums("loss"), Some((12.0, 6.0)));
    assert_eq!(a.means().collect::<Vec<_>>(), [("entropy", 0.0), ("loss", 2.0)]);
    assert_eq!(a.mean("num_tokens"), None);
}
