//! Transformers' `get_scheduler`, rate for rate.

use burnish_optim::{Arguments, OptimError, Schedule, ScheduleKind};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};

#[test]
fn recorded_rates_exactly() {
    for (i, (file, case)) in
        cases("schedules.json", |case| recordings::parses::<ScheduleKind>(case, "lr_scheduler_type"))
            .into_iter()
            .enumerate()
    {
        let kind: ScheduleKind = case["lr_scheduler_type"].as_str().unwrap().parse().unwrap();
        let (warmup, total) = (count(&case["warmup"]), count(&case["total_steps"]));
        let schedule = Schedule::new(kind, number(&case["learning_rate"]), warmup as u64, total as u64);
        let rates = numbers(&case["rates"]);
        assert_eq!(rates.len(), total + 1);
        for (step, want) in rates.into_iter().enumerate() {
            let got = schedule.rate(step as u64);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{} case {i}, step {step}: {got} is not {want}",
                file.display()
            );
        }
    }
}

#[test]
fn the_rate_stays_where_it_ended() {
    for (kind, end) in
        [(ScheduleKind::Linear, 0.0), (ScheduleKind::Constant, 0.5), (ScheduleKind::ConstantWithWarmup, 0.5)]
    {
        assert_eq!(Schedule::new(kind, 0.5, 2, 8).rate(1000), end, "{kind:?}");
    }
}

fn arguments(case: &Value) -> Arguments {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pairs = case["lr_scheduler_kwargs"].as_object().unwrap().iter();
    pairs.map(|(name, value)| (name.clone(), text(value))).collect()
}

fn parses(case: &Value) -> Result<(), String> {
    recordings::parses::<ScheduleKind>(case, "lr_scheduler_type")
}

/// A few roundings of a product whose order Python does not fix: one part in 2^52 each.
fn near(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-15 * want.abs().max(1e-4), "{what}: {got} is not {want}");
}

#[test]
fn recorded_rates_with_arguments() {
    let all = ["schedule_kwargs.json", "deepspeed_schedules.json"].map(|file| cases(file, parses));
    for (i, (file, case)) in all.into_iter().flatten().enumerate() {
        let kind: ScheduleKind = case["lr_scheduler_type"].as_str().unwrap().parse().unwrap();
        let (warmup, total) = (count(&case["warmup"]) as u64, count(&case["total_steps"]) as u64);
        let peak = number(&case["learning_rate"]);
        let schedule = Schedule::with(kind, &arguments(&case), peak, warmup, total).unwrap();
        for (step, want) in numbers(&case["rates"]).into_iter().enumerate() {
            near(
                schedule.rate(step as u64),
                want,
                &format!("{} case {i} {kind}, step {step}", file.display()),
            );
        }
        assert!(schedule.state().is_none());
    }
}

/// Every rate after every observation, and again where state went through a checkpoint before each.
#[test]
fn recorded_rates_that_follow_a_metric() {
    for (i, (file, case)) in cases("adaptive.json", parses).into_iter().enumerate() {
        let kind: ScheduleKind = case["lr_scheduler_type"].as_str().unwrap().parse().unwrap();
        let peak = number(&case["learning_rate"]);
        let fresh = || Schedule::with(kind, &arguments(&case), peak, 0, 40).unwrap();
        let (mut schedule, mut moved) = (fresh(), 0);
        assert_eq!((schedule.rate(7), schedule.factor(7)), (peak, 1.0));
        for (k, (metric, want)) in
            numbers(&case["metrics"]).into_iter().zip(numbers(&case["rates"])).enumerate()
        {
            let saved = serde_json::to_string(schedule.state().unwrap()).unwrap();
            schedule = fresh();
            schedule.restore(serde_json::from_str(&saved).unwrap());
            schedule.observe(metric);
            let got = schedule.rate(k as u64);
            assert_eq!(got.to_bits(), want.to_bits(), "{} case {i} {kind}, observation {k}", file.display());
            moved += usize::from(got != peak);
        }
        let slow = case["lr_scheduler_kwargs"] == serde_json::json!({});
        assert!(moved > 0 || slow, "case {i} never moves");
    }
}

#[test]
fn arguments_are_the_schedules_own() {
    let fault = |kind: &str, pairs: &[(&str, &str)], peak: f64| {
        let kind: ScheduleKind = kind.parse().unwrap();
        let pairs = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Schedule::with(kind, &pairs, peak, 0, 10).unwrap_err().to_string()
    };
    for (kind, pairs, words) in [
        ("linear", &[("num_cycles", "2")][..], &["num_cycles", "lr_scheduler_type: linear"][..]),
        ("cosine", &[("min_lr", "0")], &["min_lr", "takes num_cycles"]),
        ("cosine", &[("num_cycles", "many")], &["num_cycles", "many"]),
        ("cosine_with_min_lr", &[], &["min_lr", "min_lr_rate"]),
        ("cosine_with_min_lr", &[("min_lr", "0"), ("min_lr_rate", "0")], &["exactly one"]),
        ("warmup_stable_decay", &[], &["num_decay_steps"]),
        (
            "warmup_stable_decay",
            &[("num_decay_steps", "3"), ("decay_type", "steep")],
            &["decay_type", "1-sqrt"],
        ),
        ("polynomial", &[("lr_end", "1")], &["lr_end", "learning_rate"]),
        ("reduce_lr_on_plateau", &[("factor", "1")], &["factor", "below 1"]),
        ("greedy", &[("mode", "least")], &["mode", "min or max"]),
    ] {
        let message = fault(kind, pairs, 1e-3);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = "exponential".parse::<ScheduleKind>().unwrap_err();
    assert!(matches!(&error, OptimError::UnknownName { got: name, .. } if name == "exponential"));
    let message = error.to_string();
    for known in ["exponential", "polynomial", "linear", "cosine", "constant", "constant_with_warmup"] {
        assert!(message.contains(known), "{message}");
    }
}
