//! N ranks and one rank: the same bits where sums are exact, the same numbers where they are rounded.

use burnish_core::{Dtype, Parameter, Role};
use burnish_zero::{Policy, ReduceWhen, Stage};
use proptest::prelude::*;

use crate::net::{Net, TOLERANCE};
use crate::toy_model::{Run, STAGES, odd, registry};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 8];

/// Odd shapes, ten steps of AdamW, every stage, every world: weights, moments, masters and norms bit by bit.
#[test]
fn every_stage_over_every_world_equals_one_rank_bit_by_bit() {
    let (registry, units) = odd();
    let reference = Run::new(registry.clone(), units.clone(), Stage::Zero).alone();
    assert_eq!(reference.reports.len(), 10);
    assert!(reference.reports.iter().all(|r| r.grad_norm > 1.0));
    for stage in STAGES {
        for world in WORLDS {
            let run = Run::new(registry.clone(), units.clone(), stage);
            assert_eq!(run.over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// Buckets, persistence, prefetch, kept roots and the time of reduction change when things travel, not what comes out.
#[test]
fn policies_do_not_change_results() {
    let (registry, units) = odd();
    let reference = Run { steps: 4, ..Run::new(registry.clone(), units.clone(), Stage::Zero) }.alone();
    for stage in STAGES {
        for change in 0..6 {
            let mut run = Run { steps: 4, ..Run::new(registry.clone(), units.clone(), stage) };
            let policy = &mut run.policy;
            match change {
                0 => policy.bucket_elements = 1,
                1 => policy.bucket_elements = 20,
                2 => policy.persist_below = 20,
                3 => policy.prefetch = false,
                4 => policy.keep_root = false,
                _ => policy.reduce = ReduceWhen::Step,
            }
            assert_eq!(run.over(3), reference, "stage {stage}, change {change}");
        }
    }
}

/// Whole matrices on one rank each, for an optimizer that needs them.
#[test]
fn owned_matrices_equal_one_rank_bit_by_bit() {
    let (registry, units) = odd();
    let reference = Run { steps: 4, ..Run::new(registry.clone(), units.clone(), Stage::Zero) }.alone();
    for stage in STAGES {
        let owners = |p: &Parameter| p.shape.len() > 1 && p.name != "embed";
        let run = Run { steps: 4, owners, ..Run::new(registry.clone(), units.clone(), stage) };
        let plan = run.plan(3);
        let wide = registry.index_of("a.wide").unwrap();
        assert_eq!(plan.placement(wide).layout.owner().is_some(), stage != Stage::Three);
        assert_eq!(run.over(3), reference, "stage {stage}");
    }
}

/// Ranks that are early and late in turn: when a message comes changes nothing.
#[test]
fn delays_do_not_change_results() {
    let (registry, units) = odd();
    for stage in STAGES {
        let run = Run { steps: 3, micro_batches: 2, ..Run::new(registry.clone(), units.clone(), stage) };
        let delayed = Run { delays: true, ..run.clone() };
        assert_eq!(delayed.over(4), run.over(4), "stage {stage}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Any shapes, dtypes, units, policy and accumulation, over any world: the bits of one rank.
    #[test]
    fn any_model_equals_one_rank_bit_by_bit(
        world in 2usize..6,
        stage in 0usize..4,
        micro_batches in 1usize..4,
        each in any::<bool>(),
        (keep_root, prefetch) in any::<(bool, bool)>(),
        cap in 1usize..100,
        persist_below in 0usize..30,
        max_norm in prop::option::of(0.5f64..50.0),
        parameters in prop::collection::vec(
            (prop::collection::vec(0usize..7, 1..4), 0usize..3, any::<bool>(), any::<bool>()),
            1..10,
        ),
    ) {
        let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
        let mut groups = vec![Vec::new()];
        for (number, (shape, dtype, trainable, cut)) in parameters.into_iter().enumerate() {
            if cut {
                groups.push(Vec::new());
            }
            let name = format!("p{number}");
            let parameter = Parameter { trainable, ..Parameter::new(name, &shape, Role::Matrix, dtypes[dtype]) };
            groups.last_mut().unwrap().push(parameter);
        }
        let (registry, units) = registry(groups);
        let reduce = if each { ReduceWhen::MicroBatch } else { ReduceWhen::Step };
        let stage = STAGES[stage];
        let policy = Policy { stage, reduce, persist_below, keep_root, bucket_elements: cap, prefetch };
        let run = Run { policy, micro_batches, max_norm, steps: 2, ..Run::new(registry, units, stage) };
        prop_assert_eq!(run.over(world), run.alone());
    }
}

/// Four micro-batches equal one of their samples, whenever gradients are summed.
#[test]
fn accumulation_equals_one_batch_bit_by_bit() {
    let (registry, units) = odd();
    let one = Run { steps: 5, ..Run::new(registry.clone(), units.clone(), Stage::Zero) }.alone();
    for stage in STAGES {
        for reduce in [ReduceWhen::Step, ReduceWhen::MicroBatch] {
            for world in [1, 2, 3] {
                let mut run =
                    Run { steps: 5, micro_batches: 4, ..Run::new(registry.clone(), units.clone(), stage) };
                run.policy.reduce = reduce;
                assert_eq!(run.over(world), one, "stage {stage}, {reduce:?}, over {world}");
            }
        }
    }
}

/// The norm is of logical parameters, each counted once; clipping by it equals one rank's.
#[test]
fn clipping_equals_one_rank_bit_by_bit() {
    let (registry, units) = odd();
    let free = Run { steps: 5, ..Run::new(registry.clone(), units.clone(), Stage::Zero) }.alone();
    let clipped =
        |stage| Run { steps: 5, max_norm: Some(0.5), ..Run::new(registry.clone(), units.clone(), stage) };
    let reference = clipped(Stage::Zero).alone();
    assert_ne!(reference.slots, free.slots, "clipping changes moments");
    for stage in STAGES {
        for world in [2, 3, 8] {
            assert_eq!(clipped(stage).over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// A model with real forward and backward, recomputed and not, over ten steps: bit for bit one rank that takes the ranks'
/// samples one after the other, and close to one that takes them at once.
#[test]
fn a_net_trains_as_on_one_rank() {
    for recompute in [true, false] {
        let net = Net { recompute, ..Net::default() };
        let at_once = net.train(1, &Policy::default());
        assert!(at_once.losses[9] < 0.8 * at_once.losses[0], "{:?}", at_once.losses);
        for world in WORLDS {
            let reference = net.accumulated(world);
            reference.assert_close(&at_once, TOLERANCE, &format!("{world} micro-batches"));
            for stage in STAGES {
                let policy = Policy { persist_below: 0, ..Policy::new(stage) };
                net.train(world, &policy).assert_same(&reference, &format!("stage {stage} over {world}"));
            }
        }
    }
}

/// The same under accumulation, clipping and persistence.
#[test]
fn a_net_accumulates_and_clips_as_on_one_rank() {
    let net = Net { micro_batches: 3, max_norm: Some(0.1), ..Net::default() };
    let reference = net.train(1, &Policy::default());
    for stage in STAGES {
        for reduce in [ReduceWhen::Step, ReduceWhen::MicroBatch] {
            let policy = Policy { persist_below: 10, reduce, ..Policy::new(stage) };
            net.train(4, &policy).assert_close(&reference, TOLERANCE, &format!("stage {stage}, {reduce:?}"));
        }
    }
    let whole = Net { micro_batches: 1, ..net }.train(1, &Policy::default());
    whole.assert_close(&reference, TOLERANCE, "one micro-batch");
}
