//! TRL's advantages.

use burnish_losses::{Advantages, GrpoAdvantages, LossError, Rewards, RlooAdvantages};
use recordings::has_keys;
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::padded::assert_keys;

const GRPO: [&str; 8] = ["name", "algo", "agg", "scale", "G", "weights", "rewards", "advantages"];
const RLOO: [&str; 9] =
    ["name", "algo", "beta", "seq_kl", "normalize", "G", "weights", "rewards", "advantages"];

fn values(rewards: &Value) -> Vec<f64> {
    let rows = rewards.as_array().unwrap().iter();
    rows.flat_map(|r| r.as_array().unwrap()).map(|v| v.as_f64().unwrap_or(f64::NAN)).collect()
}

fn known(case: &Value) -> Result<(), String> {
    match case["algo"].as_str() {
        Some("grpo") => has_keys(case, &GRPO),
        Some("rloo") => has_keys(case, &RLOO),
        other => Err(format!("an unknown kind of case, `algo` {other:?}")),
    }
}

#[test]
fn recorded_advantages() {
    for (i, (file, case)) in cases("advantages.json", known).into_iter().enumerate() {
        let name = format!("{} case {i}", file.display());
        let (weights, values) = (numbers(&case["weights"]), values(&case["rewards"]));
        let names: Vec<String> = (0..weights.len()).map(|k| format!("f{k}")).collect();
        let rewards = Rewards { names: &names, weights: &weights, values: &values, group: count(&case["G"]) };
        let got = match case["algo"].as_str().unwrap() {
            "grpo" => {
                assert_keys(&case, &GRPO, &name);
                let word = |key: &str| case[key].as_str().unwrap();
                let how = GrpoAdvantages {
                    aggregation: word("agg").parse().unwrap_or_else(|e: LossError| panic!("{name}: {e}")),
                    scale: word("scale").parse().unwrap_or_else(|e: LossError| panic!("{name}: {e}")),
                };
                how.advantages(&rewards).unwrap()
            }
            "rloo" => {
                assert_keys(&case, &RLOO, &name);
                let how = RlooAdvantages {
                    beta: number(&case["beta"]),
                    normalize: case["normalize"].as_bool().unwrap(),
                    clip_range: None,
                };
                how.advantages(&rewards, &numbers(&case["seq_kl"]), 40.0).unwrap()
            }
            other => panic!("{name}: an unknown kind of case, {other}"),
        };
        // Recorded in fp32, where differences of rewards about 2 are rounded at 2e-7.
        for (row, (got, want)) in got.advantages.iter().zip(numbers(&case["advantages"])).enumerate() {
            assert!((got - want).abs() <= 1e-5 * want.abs() + 5e-7, "{name} [{row}]: {got} is not {want}");
        }
    }
}

fn of(values: &[f64], group: usize) -> Advantages {
    let names = ["f".to_owned()];
    GrpoAdvantages::default().advantages(&Rewards { names: &names, weights: &[1.0], values, group }).unwrap()
}

#[test]
fn metrics() {
    let names = ["a".to_owned(), "b".to_owned()];
    let nan = f64::NAN;
    let values = [1.0, nan, 3.0, 2.0, nan, nan, 1.0, 0.0, 4.0, nan, 4.0, nan];
    let rewards = Rewards { names: &names, weights: &[1.0, 0.5], values: &values, group: 3 };
    let got = GrpoAdvantages::default().advantages(&rewards).unwrap();
    assert!(got.rewards[2].is_nan());
    assert_eq!([&got.rewards[..2], &got.rewards[3..]].concat(), [1.0, 4.0, 1.0, 4.0, 4.0]);
    let mean = |name: &str| got.tally.sums(name);
    assert_eq!(mean("rewards/a/mean"), Some((13.0 / 5.0, 1.0)));
    assert_eq!(mean("rewards/b/mean"), Some((1.0, 1.0)));
    assert_eq!(mean("rewards/b/std"), Some((2f64.sqrt(), 1.0)));
    assert_eq!(mean("reward"), Some((14.0 / 5.0, 1.0)));
    assert_eq!(mean("frac_reward_zero_std"), Some((0.0, 1.0)));
    assert_eq!(of(&[2.0, 2.0, 1.0, 2.0], 2).tally.mean("frac_reward_zero_std"), Some(0.5));
}

/// What cannot be compared has no advantage, and nothing is NaN.
#[test]
fn nothing_to_compare() {
    let nan = f64::NAN;
    assert_eq!(of(&[1.0, nan], 2).advantages, [0.0, 0.0]);
    assert_eq!(of(&[nan, nan], 2).advantages, [0.0, 0.0]);
    assert_eq!(of(&[nan, nan], 2).tally.sums("reward"), None);
    assert_eq!(of(&[3.0, 5.0], 1).advantages, [0.0, 0.0]);
    let names = ["f".to_owned()];
    let rloo = RlooAdvantages { beta: 0.0, ..RlooAdvantages::default() };
    let get = |values: &[f64], group| {
        rloo.advantages(&Rewards { names: &names, weights: &[1.0], values, group }, &[], 0.0)
            .unwrap()
            .advantages
    };
    assert_eq!(get(&[1.0, nan, 2.0, 5.0], 2), [0.0, 0.0, -3.0, 3.0]);
    assert_eq!(get(&[1.0, 2.0], 1), [0.0, 0.0]);
}

/// Rewards are clipped before the KL divergence is taken off.
#[test]
fn clipped_rewards() {
    let names = ["f".to_owned()];
    let rewards = Rewards { names: &names, weights: &[1.0], values: &[9.0, -9.0], group: 2 };
    let how = RlooAdvantages { beta: 0.5, clip_range: Some((-1.0, 1.0)), normalize: false };
    let got = how.advantages(&rewards, &[2.0, 0.0], 8.0).unwrap();
    assert_eq!(got.advantages, [1.0, -1.0]);
    assert_eq!(got.tally.sums("kl"), Some((0.25, 1.0)));
}

#[test]
fn lists_that_do_not_fit() {
    let names = ["f".to_owned()];
    let refuse = |weights: &[f64], values: &[f64], group, message: &str| {
        let got = GrpoAdvantages::default().advantages(&Rewards { names: &names, weights, values, group });
        assert_eq!(got.unwrap_err().to_string(), message);
    };
    refuse(
        &[1.0, 2.0],
        &[1.0, 2.0],
        2,
        "`reward_weights`: 2 values, expected 1; they belong to the same reward functions",
    );
    refuse(
        &[1.0],
        &[1.0, 2.0, 3.0],
        2,
        "rewards: 3 values, expected 4; they belong to the same groups of `num_generations` completions by reward \
         functions",
    );
    let message = "`num_generations` is 0; use at least 1, and at least 2 in training: an advantage compares \
                   completions of one prompt";
    refuse(&[1.0], &[1.0], 0, message);
}
