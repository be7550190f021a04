//! The conformance suite over threads, plainly and under a decorator that delays and reorders.

use std::time::Duration;

use burnish_comm::World;
use burnish_comm::local::{links, run_worlds};
use burnish_comm::transport::conformance::checks;
use burnish_comm::transport::{FaultPlan, Faulty};

fn conform(ranks: usize, worlds: impl Fn() -> Vec<World>) {
    let mut failures = Vec::new();
    for check in checks() {
        for result in run_worlds(worlds(), |world| check.run(world.with_deadline(Duration::from_secs(60)))) {
            match result {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => failures.push(failure.to_string()),
                Err(panic) => failures.push(format!("{}: {panic}", check.name())),
            }
        }
    }
    assert!(failures.is_empty(), "{ranks} ranks:\n{}", failures.join("\n"));
}

#[test]
fn threads_conform_at_1_and_2() {
    for ranks in [1, 2] {
        conform(ranks, || World::local(ranks));
    }
}

#[test]
fn threads_conform_at_3_and_4() {
    for ranks in [3, 4] {
        conform(ranks, || World::local(ranks));
    }
}

#[test]
fn threads_conform_at_8() {
    conform(8, || World::local(8));
}

#[test]
fn threads_conform_with_checksums() {
    conform(3, || World::local(3).into_iter().map(World::with_checksums).collect());
}

#[test]
fn threads_conform_under_delays() {
    for ranks in [1, 2, 3, 4, 8] {
        conform(ranks, || {
            let plan = FaultPlan::new(ranks as u64).delays(Duration::from_micros(300));
            links(ranks)
                .into_iter()
                .map(|link| World::over(Box::new(Faulty::new(link, plan.clone()))))
                .collect()
        });
    }
}
