//! Transformers' `get_scheduler`, rate for rate.

use burnish_optim::{OptimError, Schedule, ScheduleKind};

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

#[test]
fn unknown_names_list_the_known_ones() {
    let error = "polynomial".parse::<ScheduleKind>().unwrap_err();
    assert!(matches!(&error, OptimError::UnknownName { got: name, .. } if name == "polynomial"));
    let message = error.to_string();
    for known in ["polynomial", "linear", "cosine", "constant", "constant_with_warmup"] {
        assert!(message.contains(known), "{message}");
    }
}
