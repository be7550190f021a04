//! Parameters that are used twice, not at all, or by some ranks only.

use std::convert::Infallible;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::local;
use burnish_core::{Dtype, Parameter};
use burnish_ops::Parameters;
use burnish_optim::{AdamW, Unscale};
use burnish_zero::{Plan, Policy, ShardedParams, Stage, ZeroError};

use crate::net::{Net, TOLERANCE};
use crate::toy_model::{Run, STAGES, bits, gradient, initial, odd, options, registry, share, trained};

fn tied() -> Run {
    let head = Parameter { alias_of: Some("embed".into()), ..trained("head", &[13, 5]) };
    let (registry, units) = registry(vec![
        vec![trained("embed", &[13, 5])],
        vec![trained("a", &[4, 5])],
        vec![trained("b", &[3])],
        vec![trained("norm", &[5]), head],
    ]);
    Run { steps: 6, max_norm: Some(2.0), ..Run::new(registry, units, Stage::Zero) }
}

#[test]
fn tied_weights_are_one_parameter() {
    let run = tied();
    let reference = run.alone();
    assert_eq!(reference.weights["head"], reference.weights["embed"]);
    assert!(reference.slots.keys().all(|(name, _)| name != "head"));
    // The norm of the first step, from the definition: embed's gradient is the sum of both uses.
    let samples: Vec<usize> = (0..run.samples).collect();
    let of = |name: &str| gradient(run.registry.get(name).unwrap(), 0, &samples).to_f32();
    let both: Vec<f32> = of("embed").iter().zip(of("head")).map(|(a, b)| a + b).collect();
    let squares = |values: &[f32]| values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    let norm = (squares(&both) + ["a", "b", "norm"].iter().map(|n| squares(&of(n))).sum::<f64>()).sqrt();
    assert_eq!(reference.reports[0].grad_norm, norm);
    for stage in STAGES {
        for world in [2, 3, 8] {
            let mut run = run.clone();
            run.policy.stage = stage;
            assert_eq!(run.over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// A tied head in a net: both uses send their gradient through the tape.
#[test]
fn a_net_with_a_tied_head_trains_as_on_one_rank() {
    let net = Net { tied: true, ..Net::default() };
    let unsharded = net.train(3, &Policy::default());
    unsharded.assert_close(&net.train(1, &Policy::default()), TOLERANCE, "three ranks");
    for stage in STAGES {
        for keep_root in [true, false] {
            let policy = Policy { persist_below: 0, keep_root, ..Policy::new(stage) };
            net.train(3, &policy).assert_same(&unsharded, &format!("stage {stage}, roots kept: {keep_root}"));
        }
    }
}

#[test]
fn parameters_of_several_uses_equal_one_rank() {
    let (registry, units) = odd();
    let once = Run { steps: 4, ..Run::new(registry.clone(), units.clone(), Stage::Zero) }.alone();
    for stage in STAGES {
        for micro_batches in [1, 2] {
            let run = Run {
                passes: 2,
                steps: 4,
                micro_batches,
                ..Run::new(registry.clone(), units.clone(), stage)
            };
            assert_eq!(run.over(3), once, "stage {stage}, {micro_batches} micro-batches");
        }
    }
}

#[test]
fn frozen_parameters_stay_as_they_are() {
    let (mut registry, units) = odd();
    for name in ["embed", "a.wide", "b.prime", "norm"] {
        registry.get_mut(name).unwrap().trainable = false;
    }
    let run = Run { steps: 3, ..Run::new(registry, units, Stage::Zero) };
    let reference = run.alone();
    let device = Device::flex();
    for parameter in run.registry.iter() {
        let before = bits(&initial(parameter, 0..parameter.shape[0], &device));
        let same = reference.weights[&parameter.name] == before;
        assert_eq!(same, !parameter.trainable || parameter.elements() == 0, "{}", parameter.name);
    }
    for stage in STAGES {
        let mut run = run.clone();
        run.policy.stage = stage;
        assert_eq!(run.over(3), reference, "stage {stage}");
    }
}

/// A second plan takes its values from the first store: parameters thaw, and the stage changes, in mid-run.
#[test]
fn a_model_thaws_in_mid_run() {
    let (mut cold, units) = odd();
    cold.get_mut("b.prime").unwrap().trainable = false;
    let (warm, _) = odd();
    let train = |world: usize, first: Stage, second: Stage| {
        let runs =
            [Run::new(cold.clone(), units.clone(), first), Run::new(warm.clone(), units.clone(), second)];
        let plans = [runs[0].plan(world), runs[1].plan(world)];
        let ends = local::run(world, |w| {
            let (group, device) = (w.group(), Device::flex());
            let cold_store = ShardedParams::new(plans[0].clone(), &group, &device, |i, rows| {
                Ok::<_, Infallible>(initial(cold.at(i), rows, &device))
            })?;
            steps(&runs[0], &cold_store, &group, 0..2)?;
            let warm_store = ShardedParams::new(plans[1].clone(), &group, &device, |i, rows| {
                let row = cold.at(i).shape[1..].iter().product::<usize>();
                let shape: Vec<usize> =
                    std::iter::once(rows.len()).chain(cold.at(i).shape[1..].to_vec()).collect();
                Ok::<_, Infallible>(cold_store.read(i).piece(rows.start * row..rows.end * row, &shape))
            })?;
            cold_store.check()?;
            steps(&runs[1], &warm_store, &group, 2..4)?;
            Ok::<_, ZeroError>((0..warm.len()).map(|i| bits(&warm_store.read(i))).collect::<Vec<_>>())
        });
        let ends: Vec<_> = ends.into_iter().map(|e| e.unwrap().unwrap()).collect();
        assert!(ends.iter().all(|e| *e == ends[0]));
        ends[0].clone()
    };
    let reference = train(1, Stage::Zero, Stage::Zero);
    let prime = warm.index_of("b.prime").unwrap();
    assert_ne!(reference[prime], bits(&initial(warm.at(prime), 0..17, &Device::flex())));
    for (first, second) in
        [(Stage::Three, Stage::Three), (Stage::One, Stage::Three), (Stage::Three, Stage::Two)]
    {
        assert_eq!(train(3, first, second), reference, "{first} then {second}");
    }
}

fn steps(
    run: &Run,
    store: &ShardedParams,
    group: &burnish_comm::Group,
    steps: std::ops::Range<usize>,
) -> Result<(), ZeroError> {
    let mut optimizer = AdamW::new(&store.local_registry(), options());
    for step in steps {
        store.begin_micro_batch(true);
        run.micro_batch(store, step, share(run.samples, group.rank(), group.size()));
        store.end_micro_batch()?;
        let Unscale::Finite(finite) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? else {
            panic!("integers are finite")
        };
        optimizer.step(finite.clip(None), store, 0.01);
        store.all_gather_params()?;
    }
    Ok(())
}

/// Samples 12 and up alone use `b.prime`, 20 and up alone `embed`; nobody uses `c.vector`. Ranks that lack a gradient
/// reduce zeros; what no rank has is not updated, not even decayed.
#[test]
fn parameters_used_on_some_ranks_only_equal_one_rank() {
    fn uses(sample: usize, parameter: &str) -> bool {
        match parameter {
            "b.prime" => sample >= 12,
            "embed" => sample >= 20,
            "a.one" => sample < 3,
            _ => parameter != "c.vector",
        }
    }
    let (registry, units) = odd();
    let run = Run { uses, steps: 4, ..Run::new(registry.clone(), units, Stage::Zero) };
    let reference = run.alone();
    let unused = registry.get("c.vector").unwrap();
    assert_eq!(reference.weights["c.vector"], bits(&initial(unused, 0..19, &Device::flex())));
    assert!(reference.slots.keys().all(|(name, _)| name != "c.vector"));
    for stage in STAGES {
        for (world, micro_batches) in [(2, 1), (3, 2), (8, 1)] {
            let mut run = Run { micro_batches, ..run.clone() };
            run.policy.stage = stage;
            assert_eq!(run.over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// A model of which nothing trains has no reductions and no update, and reads at every stage.
#[test]
fn a_frozen_model_reads_at_every_stage() {
    let (mut registry, units) = odd();
    registry.iter_mut().for_each(|p| p.trainable = false);
    registry.get_mut("embed").unwrap().precision.store = Dtype::Bf16;
    for stage in STAGES {
        let run = Run { steps: 1, ..Run::new(registry.clone(), units.clone(), stage) };
        let plan: Arc<Plan> = run.plan(3);
        let reads = local::run(3, |w| {
            let device = Device::flex();
            let store = ShardedParams::new(plan.clone(), &w.group(), &device, |i, rows| {
                Ok::<_, Infallible>(initial(registry.at(i), rows, &device))
            })?;
            for _ in 0..2 {
                for (i, parameter) in registry.iter().enumerate() {
                    assert_eq!(
                        bits(&store.read(i)),
                        bits(&initial(parameter, 0..parameter.shape[0], &device))
                    );
                }
            }
            store.begin_micro_batch(true);
            assert_eq!(
                store.gradients()?.unscale(1.0, |s| store.sum_squares(s)).map(|u| match u {
                    Unscale::Finite(g) => g.norm(),
                    Unscale::Skipped { norm } => norm,
                })?,
                0.0
            );
            store.all_gather_params()
        });
        reads.into_iter().for_each(|r| r.unwrap().unwrap());
    }
}
