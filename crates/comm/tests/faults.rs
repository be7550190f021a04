//! Each fault of the decorator: every rank stops in time, and the messages name rank, operation and parameter.

use std::time::{Duration, Instant};

use burnish_comm::local::{links, run_worlds};
use burnish_comm::transport::{Fault, FaultPlan, Faulty};
use burnish_comm::{Bucket, CommError, Reduction, World};

const DEADLINE: Duration = Duration::from_millis(600);
const NAME: &str = "lm_head.weight";

fn worlds(ranks: usize, plan: &FaultPlan) -> Vec<World> {
    let faulty = links(ranks).into_iter().map(|link| Faulty::new(link, plan.clone()));
    faulty.map(|link| World::over(Box::new(link)).with_deadline(DEADLINE)).collect()
}

/// Ten large and small calls; how many succeeded, and the error.
fn program(world: &World) -> (usize, Result<(), CommError>) {
    let group = world.group();
    let counts = vec![10_000; group.size()];
    for step in 0..10 {
        let elements = if step % 2 == 0 { 3 } else { 50_000 };
        let expected = (0..group.size()).map(|rank| rank as f32).sum::<f32>();
        let done = group
            .all_reduce(Bucket::new(vec![group.rank() as f32; elements]), Reduction::Sum, NAME)
            .wait()
            .map(|sum| assert!(sum.as_slice().iter().all(|&x| x == expected)))
            .and_then(|()| group.all_gather_v(Bucket::new(vec![1_u8; 10_000]), &counts, NAME).wait())
            .map(|all| assert!(all.iter().all(|part| part.iter().all(|&x| x == 1))));
        if let Err(error) = done {
            return (step, Err(error));
        }
    }
    (10, Ok(()))
}

/// Everybody must have stopped, soon after the deadline; gives the errors' texts by rank.
fn stopped(worlds: Vec<World>) -> Vec<String> {
    let start = Instant::now();
    let results = run_worlds(worlds, |world| program(&world));
    assert!(start.elapsed() < DEADLINE * 6, "{:?}", start.elapsed());
    results
        .into_iter()
        .map(|result| match result {
            Ok((_, outcome)) => outcome.expect_err("every rank stops").to_string(),
            Err(panic) => panic.to_string(),
        })
        .collect()
}

#[test]
fn a_lost_message_is_silence_or_a_gap_in_the_order() {
    for ranks in [2, 3, 4] {
        for call in [0, 5, 6, 7] {
            let texts = stopped(worlds(ranks, &FaultPlan::new(1).at(1, call, Fault::Drop)));
            for text in &texts {
                assert!(text.contains("rank 1") && text.contains(NAME), "{text}");
            }
            assert!(texts[0].contains("rank 1 is silent") || texts[0].contains("failed"), "{}", texts[0]);
        }
    }
}

#[test]
fn a_late_message_within_the_deadline_is_no_fault() {
    let plan = FaultPlan::new(2).at(0, 3, Fault::Delay(DEADLINE / 4)).at(2, 6, Fault::Delay(DEADLINE / 3));
    for result in run_worlds(worlds(3, &plan), |world| program(&world)) {
        let (steps, outcome) = result.unwrap();
        outcome.unwrap();
        assert_eq!(steps, 10);
    }
}

#[test]
fn a_late_message_beyond_the_deadline_is_silence() {
    for text in stopped(worlds(3, &FaultPlan::new(3).at(2, 4, Fault::Delay(DEADLINE * 3)))) {
        assert!(text.contains("rank 2") && text.contains(NAME), "{text}");
    }
}

#[test]
fn damage_names_sender_and_call() {
    for call in [4, 5, 6] {
        let plan = FaultPlan::new(4).at(1, call, Fault::Corrupt);
        let worlds = worlds(3, &plan).into_iter().map(World::with_checksums).collect();
        let texts = stopped(worlds);
        for text in &texts {
            assert!(text.contains("what rank 1 sent") && text.contains("damaged"), "{text}");
            assert!(text.contains(NAME), "{text}");
        }
    }
}

#[test]
fn damage_without_checksums_goes_unseen() {
    // what the checksums are for: the same fault, in the gather of bytes, only changes a number
    let plan = FaultPlan::new(4).at(1, 0, Fault::Corrupt);
    let results = run_worlds(worlds(2, &plan), |world| {
        let group = world.group();
        let all = group.all_gather_v(Bucket::new(vec![0_u8; 100]), &[100, 100], NAME).wait().unwrap();
        all.of(1).iter().map(|byte| byte.count_ones()).sum::<u32>()
    });
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_panic_reaches_all_ranks_at_once() {
    for ranks in [2, 3, 8] {
        let start = Instant::now();
        let plan = FaultPlan::new(5).at(ranks - 1, 9, Fault::Panic);
        let long = worlds(ranks, &plan).into_iter().map(|world| world.with_deadline(Duration::from_secs(60)));
        let results = run_worlds(long.collect(), |world| program(&world));
        assert!(start.elapsed() < Duration::from_secs(10));
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Err(CommError::Panicked { rank: named, message }) => {
                    assert_eq!((rank, named), (ranks - 1, ranks - 1));
                    assert!(message.contains("killed by the fault plan at call 9: all_gather"), "{message}");
                }
                Err(other) => panic!("{other}"),
                Ok((_, outcome)) => {
                    let text = outcome.unwrap_err().to_string();
                    assert!(text.contains(&format!("rank {} failed", ranks - 1)), "{text}");
                    assert!(text.contains("it panicked: killed by the fault plan"), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_vanishes_is_missed() {
    for ranks in [2, 4] {
        let texts = stopped(worlds(ranks, &FaultPlan::new(6).at(0, 7, Fault::Vanish)));
        assert!(texts[0].contains("vanished by its fault plan at call 7"), "{}", texts[0]);
        for text in &texts[1..] {
            assert!(text.contains("rank 0 is silent") && text.contains(NAME), "{text}");
        }
    }
}

#[test]
fn every_call_may_be_the_one_that_fails() {
    for call in [0, 1, 2, 3, 4, 8, 13, 19] {
        for fault in [Fault::Panic, Fault::Vanish] {
            let texts = stopped(worlds(3, &FaultPlan::new(7).at(1, call, fault)));
            assert!(texts.iter().all(|text| text.contains("rank 1")), "{call}, {fault:?}: {texts:?}");
        }
    }
}
