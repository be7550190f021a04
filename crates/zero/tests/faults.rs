//! Ranks that diverge, fail or give nonsense: errors that name it, on every rank, and no hang.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burnish_comm::{CommError, Group, World, local};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::ParamStorage;
use burnish_zero::{ShardedParams, Stage, ZeroError};

use crate::toy_model::{Run, STAGES, bits, gradient, initial, odd, share};

fn store(run: &Run, group: &Group) -> ShardedParams {
    let device = Device::flex();
    ShardedParams::new(run.plan(group.size()), group, &device, |i, rows| {
        Ok::<_, Infallible>(initial(run.registry.at(i), rows, &device))
    })
    .unwrap()
}

fn run(stage: Stage) -> Run {
    let (registry, units) = odd();
    Run::new(registry, units, stage)
}

fn worlds(ranks: usize) -> Vec<World> {
    World::local(ranks).into_iter().map(|w| w.with_deadline(Duration::from_secs(5))).collect()
}

/// One rank leaves out two blocks (the first was started ahead everywhere, and does no harm): the others name the gather, and reads give zeros of the right shape from then on.
#[test]
fn a_rank_that_skips_a_block_is_an_error_on_every_rank() {
    let run = run(Stage::Three);
    let begun = Instant::now();
    let ends = local::run_worlds(worlds(3), |w| {
        let store = store(&run, &w.group());
        store.begin_micro_batch(true);
        for (number, unit) in run.units.iter().enumerate() {
            if !(w.rank() == 1 && (number == 2 || number == 3)) {
                store.read_all(&unit.parameters);
            }
        }
        let error = store.end_micro_batch().unwrap_err();
        let index = run.registry.index_of("b.prime").unwrap();
        let after = store.read(index);
        assert_eq!((after.shape(), after.to_f32()), (vec![17, 3], vec![0.0; 51]));
        // The same error again, whatever is called.
        assert_eq!(store.gradients().unwrap_err().to_string(), error.to_string());
        assert_eq!(store.all_gather_params().unwrap_err().to_string(), error.to_string());
        assert_eq!(store.sum_squares(&[]).unwrap_err().to_string(), error.to_string());
        error
    });
    for end in ends {
        let error = end.unwrap();
        let message = error.to_string();
        assert!(matches!(error, ZeroError::Comm(CommError::Disagreement { .. })), "{message}");
        assert!(message.contains("unit 3: gather") && message.contains("unit 4: gather"), "{message}");
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "disagreement needs no deadline");
}

/// One rank takes a micro-batch less: the others do not wait for ever.
#[test]
fn a_rank_that_stops_is_an_error_within_the_deadline() {
    for stage in STAGES {
        let run = run(stage);
        let worlds =
            World::local(2).into_iter().map(|w| w.with_deadline(Duration::from_millis(300))).collect();
        let ends = local::run_worlds(worlds, |w| {
            let store = store(&run, &w.group());
            if w.rank() == 1 {
                // Present, but silent.
                std::thread::sleep(Duration::from_millis(900));
                return None;
            }
            store.begin_micro_batch(true);
            run.micro_batch(&store, 0, 0..12);
            let ended = store.end_micro_batch();
            Some(ended.and_then(|()| store.gradients().map(drop)).unwrap_err())
        });
        let error = ends.into_iter().next().unwrap().unwrap().unwrap();
        let message = error.to_string();
        assert!(message.contains("rank 1"), "stage {stage}: {message}");
    }
}

#[test]
fn a_panicking_rank_is_named_by_the_others() {
    for stage in STAGES {
        let run = run(stage);
        let ends = local::run_worlds(worlds(3), |w| {
            let store = store(&run, &w.group());
            store.begin_micro_batch(true);
            assert!(w.rank() != 2, "the third rank gives up");
            run.micro_batch(&store, 0, share(24, w.rank(), 3));
            let ended = store.end_micro_batch();
            ended.and_then(|()| store.gradients().map(drop)).unwrap_err().to_string()
        });
        for (rank, end) in ends.into_iter().enumerate() {
            let message = if rank == 2 { end.unwrap_err().to_string() } else { end.unwrap() };
            assert!(message.contains("the third rank gives up"), "stage {stage}, rank {rank}: {message}");
        }
    }
}

/// A forward that fails on every rank: the step is given up, and the next one is as if nothing had been.
#[test]
fn a_failed_forward_leaves_a_store_that_goes_on() {
    for stage in STAGES {
        let run = run(stage);
        let ends = local::run_worlds(worlds(3), |w| {
            let group = w.group();
            let gradients = |failed: bool| {
                let store = store(&run, &group);
                if failed {
                    // One whole micro-batch and half of another.
                    store.begin_micro_batch(false);
                    run.micro_batch(&store, 7, share(24, group.rank(), 3));
                    store.end_micro_batch()?;
                    store.begin_micro_batch(true);
                    for unit in &run.units {
                        store.read_all(&unit.parameters);
                    }
                    let head = run.registry.index_of("head").unwrap();
                    store.accumulate(head, gradient(run.registry.at(head), 3, &[1]));
                    store.discard()?;
                }
                store.begin_micro_batch(true);
                run.micro_batch(&store, 0, share(24, group.rank(), 3));
                let gradients = store.gradients()?;
                let norm = gradients.unscale(1.0, |s| store.sum_squares(s))?;
                Ok::<_, ZeroError>(format!("{norm:?}"))
            };
            Ok::<_, ZeroError>((gradients(false)?, gradients(true)?))
        });
        for end in ends {
            let (plain, after) = end.unwrap().unwrap();
            assert_eq!(plain, after, "stage {stage}");
        }
    }
}

#[test]
fn a_micro_batch_that_did_not_end_is_told() {
    let run = run(Stage::Two);
    let store = store(&run, &Group::alone());
    store.begin_micro_batch(false);
    store.begin_micro_batch(true);
    assert!(matches!(store.check(), Err(ZeroError::Open)));
}

#[test]
fn a_gradient_of_another_shape_is_told() {
    let run = run(Stage::One);
    let store = store(&run, &Group::alone());
    let wrong = AnyTensor::from_elements(vec![0.0_f32; 6], &[3, 2], &Device::flex());
    store.accumulate(0, wrong);
    let message = store.check().unwrap_err().to_string();
    assert!(message.contains("`embed`: the gradient has shape [3, 2]"), "{message}");
}

#[test]
fn loading_faults_name_the_parameter_and_its_rows() {
    let run = run(Stage::Three);
    let group = Group::alone();
    let device = Device::flex();
    let missing = ShardedParams::new(run.plan(1), &group, &device, |i, rows| match i {
        2 => Err(std::io::Error::other("no such file")),
        _ => Ok(initial(run.registry.at(i), rows, &device)),
    });
    let message = missing.unwrap_err().to_string();
    assert_eq!(message, "parameter `a.two`, rows 0..2: no such file");
    let wrong = ShardedParams::new(run.plan(1), &group, &device, |_, _| {
        Ok::<_, Infallible>(AnyTensor::from_elements(vec![0.0_f32; 2], &[2], &device))
    });
    let message = wrong.unwrap_err().to_string();
    assert!(message.contains("`embed`: the loaded value has shape [2]"), "{message}");
}

#[test]
fn a_value_that_an_update_has_taken_cannot_be_read() {
    let run = run(Stage::Zero);
    let store = store(&run, &Group::alone());
    let before = bits(&store.read(0));
    let taken = store.take(0);
    assert!(matches!(store.saved_rows(0), Err(ZeroError::Taken { .. })));
    store.put(0, taken);
    assert_eq!(bits(&store.saved_rows(0).unwrap().1), before);
    store.check().unwrap();
}

/// At every stage every row is saved by one rank.
#[test]
fn saved_rows_are_every_row_once() {
    for stage in STAGES {
        let run = run(stage);
        let plan = run.plan(3);
        let device = Device::flex();
        let ranks = local::run(3, |w| {
            let group = w.group();
            let store = ShardedParams::new(Arc::clone(&plan), &group, &device, |i, rows| {
                Ok::<_, Infallible>(initial(run.registry.at(i), rows, &device))
            })?;
            (0..run.registry.len()).map(|i| store.saved_rows(i)).collect::<Result<Vec<_>, ZeroError>>()
        });
        let ranks: Vec<_> = ranks.into_iter().map(|r| r.unwrap().unwrap()).collect();
        for (index, parameter) in run.registry.iter().enumerate() {
            let mut next = 0;
            for rank in &ranks {
                let (rows, value) = &rank[index];
                assert_eq!(rows.start, next);
                assert_eq!(bits(value), bits(&initial(parameter, rows.clone(), &device)));
                next = rows.end;
            }
            assert_eq!(next, parameter.shape[0]);
        }
    }
}
