#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn an_epoch_takes_every_row_once_whatever_the_cut() {
    let rows = |s: Sampler| s.steps(Cursor::default()).unwrap().take(s.steps_per_epoch()).collect::<Vec<_>>();
    let whole = rows(Sampler::new(37, Order::Random, 5).per_device(8));
    let mut all: Vec<usize> = whole.iter().flat_map(|s| s.rows.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..37).collect::<Vec<_>>());
    for (ranks, per_device, accumulation) in [(1, 1, 8), (1, 2, 4), (2, 2, 2), (4, 1, 2), (8, 1, 1)] {
        let s =
            Sampler::new(37, Order::Random, 5).ranks(ranks).per_device(per_device).accumulation(accumulation);
        let steps = rows(s);
        assert_eq!(steps.len(), whole.len());
        for (a, b) in steps.iter().zip(&whole) {
            assert_eq!(a.rows, b.rows);
            let micro = (0..a.micro_steps()).flat_map(|m| (0..ranks).map(move |r| (m, r)));
            let cut: Vec<usize> = micro.flat_map(|(m, r)| a.slice(r, m)).collect();
            assert_eq!(cut, (0..a.rows.len()).collect::<Vec<_>>());
        }
    }
}

#[test]
fn epochs_differ_and_follow_the_seed() {
    let s = Sampler::new(100, Order::Random, 1);
    assert_ne!(s.epoch(0), s.epoch(1));
    assert_eq!(s.epoch(3), Sampler::new(100, Order::Random, 1).epoch(3));
    assert_ne!(s.epoch(0), Sampler::new(100, Order::Random, 2).epoch(0));
    assert_eq!(Sampler::new(4, Order::Sequential, 1).epoch(9), [0, 1, 2, 3]);
}

#[test]
fn resuming_at_any_step_continues_the_same_sequence() {
    let s = Sampler::new(23, Order::Random, 7).per_device(2).accumulation(2);
    let all: Vec<Step> = s.steps(Cursor::default()).unwrap().take(20).collect();
    for done in 0..20 {
        let mut first = s.steps(Cursor::default()).unwrap();
        first.by_ref().take(done).for_each(drop);
        let saved = serde_json::to_string(&first.cursor()).unwrap();
        let cursor: Cursor = serde_json::from_str(&saved).unwrap();
        assert_eq!(cursor, s.after(done), "after {done} steps");
        let rest: Vec<Step> = s.steps(cursor).unwrap().take(20 - done).collect();
        assert_eq!(rest, all[done..]);
    }
}

#[test]
fn arithmetic_of_the_trainer() {
    // 10 rows in micro-batches of 3: 4 micro-batches, 2 steps of 2.
    let s = Sampler::new(10, Order::Sequential, 0).per_device(3).accumulation(2);
    assert_eq!((s.micro_steps_per_epoch(), s.steps_per_epoch()), (4, 2));
    assert_eq!((s.total_steps(3.0, -1), s.total_steps(0.3, -1), s.total_steps(3.0, 5)), (6, 1, 5));
    let steps: Vec<Step> = s.steps(Cursor::default()).unwrap().take(2).collect();
    assert_eq!((steps[0].micro_steps(), steps[1].micro_steps()), (2, 2));
    assert_eq!((steps[1].slice(0, 0), steps[1].slice(0, 1)), (0..3, 3..4));
    assert_eq!((steps[0].epochs, steps[1].epochs), (0.5, 1.0));
    // Five micro-batches, so the second step has one.
    let s = Sampler::new(10, Order::Sequential, 0).per_device(2).accumulation(4);
    assert_eq!((s.micro_steps_per_epoch(), s.steps_per_epoch()), (5, 2));
    assert_eq!(s.steps(Cursor::default()).unwrap().nth(1).unwrap().micro_steps(), 1);
    // Dropping the last rows.
    let s = Sampler::new(10, Order::Sequential, 0).per_device(3).drop_last(true);
    assert_eq!((s.rows_per_epoch(), s.steps_per_epoch()), (9, 3));
    assert!(Sampler::new(2, Order::Sequential, 0).per_device(3).drop_last(true).check().is_err());
    assert!(Sampler::new(2, Order::Sequential, 0).per_device(0).check().is_err());
}

#[test]
fn a_rank_without_rows_gets_an_empty_slice() {
    let s = Sampler::new(5, Order::Sequential, 0).ranks(4);
    let last = s.steps(Cursor::default()).unwrap().nth(1).unwrap();
    assert_eq!(last.micro_steps(), 1);
    assert_eq!((last.slice(0, 0), last.slice(1, 0), last.slice(3, 0)), (0..1, 1..1, 1..1));
}

#[test]
fn a_cursor_of_other_data_is_an_error() {
    let e = Sampler::new(5, Order::Sequential, 0).steps(Cursor { epoch: 0, index: 6 }).unwrap_err();
    assert!(e.to_string().contains("row 6") && e.to_string().contains("5 rows"), "{e}");
}

#[test]
fn a_global_batch_is_the_same_for_any_number_of_ranks() {
    let steps = |ranks: usize, per_device: usize| -> Vec<(Vec<usize>, String)> {
        let sampler = Sampler::new(23, Order::Random, 5).per_device(per_device).ranks(ranks).global(Some(6));
        sampler.steps(Cursor::default()).unwrap().take(9).map(|s| (s.rows, s.epochs.to_string())).collect()
    };
    let one = steps(1, 2);
    for (ranks, per_device) in [(2, 2), (3, 1), (4, 4), (8, 1)] {
        assert_eq!(steps(ranks, per_device), one);
    }
    // Every row of a step is in exactly one slice, also where ranks and micro-batches do not divide it.
    for (ranks, per_device) in [(4, 1), (5, 2), (3, 4)] {
        let sampler =
            Sampler::new(23, Order::Sequential, 5).per_device(per_device).ranks(ranks).global(Some(6));
        for step in sampler.steps(Cursor::default()).unwrap().take(5) {
            let mut seen = vec![0; step.rows.len()];
            for micro in 0..step.micro_steps() {
                for rank in 0..ranks {
                    step.slice(rank, micro).for_each(|i| seen[i] += 1);
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{ranks} ranks, {per_device} rows: {seen:?}");
        }
    }
}
