//! Recorded cases are padded `[rows, columns]`; the losses take targets one after another.

use std::ops::Range;

use burnish_losses::{LossTerms, Metrics};
use burnish_ops::TokenStats;
use serde_json::Value;

use crate::golden::{number, numbers};

/// Relative; the floor is the rounding of fp32 sums of numbers about 1.
const TOLERANCE: f64 = 1e-5;
const FLOOR: f64 = 3e-7;

/// Where a padded table has targets.
pub(crate) struct Layout {
    pub(crate) mask: Vec<Vec<bool>>,
    /// Per row.
    pub(crate) targets: Vec<Range<usize>>,
}

impl Layout {
    /// From a mask `[rows, columns]`, its first `skip` columns left out.
    pub(crate) fn new(mask: &Value, skip: usize) -> Self {
        let row = |v: &Value| numbers(v).into_iter().skip(skip).map(|m| m != 0.0).collect::<Vec<bool>>();
        let mask: Vec<Vec<bool>> = mask.as_array().unwrap().iter().map(row).collect();
        let mut end = 0;
        let targets = mask.iter().map(|row| {
            let start = end;
            end += row.iter().filter(|&&m| m).count();
            start..end
        });
        Self { targets: targets.collect(), mask }
    }

    /// The values at targets, one after another.
    pub(crate) fn flat<T>(&self, table: &Value, value: impl Fn(&Value) -> T) -> Vec<T> {
        let rows = table.as_array().unwrap();
        assert_eq!(rows.len(), self.mask.len());
        let mut out = Vec::new();
        for (row, mask) in rows.iter().zip(&self.mask) {
            let row = row.as_array().unwrap();
            assert_eq!(row.len(), mask.len());
            out.extend(row.iter().zip(mask).filter(|(_, m)| **m).map(|(v, _)| value(v)));
        }
        out
    }

    pub(crate) fn floats(&self, table: &Value) -> Vec<f32> {
        self.flat(table, |v| number(v) as f32)
    }

    /// The facts of a case; what it does not have is empty.
    pub(crate) fn stats(&self, case: &Value, entropy: &str) -> TokenStats {
        let or_none = |key: &str| if case[key].is_null() { Vec::new() } else { self.floats(&case[key]) };
        TokenStats {
            log_prob: self.floats(&case["per_token_logps"]),
            entropy: or_none(entropy),
            log_sum_sq_probs: or_none("log_sum_sq_probs"),
            mean_logit: or_none("mean_logits"),
            is_top1: if case["is_top1"].is_null() {
                Vec::new()
            } else {
                self.flat(&case["is_top1"], |v| v.as_bool().unwrap())
            },
        }
    }

    /// The recorded gradient at targets.
    pub(crate) fn gradient(&self, table: &Value) -> Vec<f64> {
        self.flat(table, number)
    }
}

#[track_caller]
pub(crate) fn assert_value(got: f64, want: f64, what: &str) {
    let bound = TOLERANCE * want.abs() + FLOOR;
    assert!((got - want).abs() <= bound, "{what}: {got} is not {want}");
}

#[track_caller]
pub(crate) fn assert_values(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert_value(f64::from(g), w, &format!("{what} [{i}]"));
    }
}

/// Every recorded metric but those that are not a loss's.
#[track_caller]
pub(crate) fn assert_metrics(
    terms: &LossTerms,
    names: &Metrics,
    case: &Value,
    not_here: &[&str],
    what: &str,
) {
    // As ranks exchange them.
    let mut tally = names.tally(&names.sums_of(&terms.tally), &names.extremes_of(&terms.tally));
    tally.settle();
    let mut direct = terms.tally.clone();
    direct.settle();
    assert_eq!(tally, direct, "{what}: a metric that the loss does not name");
    let metrics = case["metrics"].as_object().unwrap();
    for (key, want) in metrics {
        if !not_here.contains(&key.as_str()) {
            let got = tally.mean(key).unwrap_or_else(|| panic!("{what}: no metric {key}"));
            assert_value(got, number(want), &format!("{what}: {key}"));
        }
    }
    for (key, _) in tally.means() {
        assert!(metrics.contains_key(key), "{what}: {key} is not a metric of TRL's here");
    }
}

/// The keys of a case are those that the test reads: anything else is an unknown kind of case.
#[track_caller]
pub(crate) fn assert_keys(case: &Value, keys: &[&str], what: &str) {
    let found: Vec<&str> = case.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, keys, "{what}: an unknown kind of case");
}
