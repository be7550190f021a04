//! Every mix of dtypes trains, keeps each parameter's declared dtype and equals one rank.

use burnish_core::{Dtype, Parameter, Precision, Role};
use burnish_zero::{ParamStorageMode, Policy, Stage};

use crate::net::{Loss, Net, TOLERANCE};
use crate::toy_model::{Run, STAGES, registry};

const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
/// Between the small parameters (at most 7 elements) and the others.
const PERSIST: usize = 8;

fn parameter(name: String, shape: &[usize], dtype: Dtype, trainable: bool, reduce: Dtype) -> Parameter {
    let precision = Precision { reduce, ..Precision::stored(dtype) };
    Parameter { trainable, precision, ..Parameter::new(name, shape, Role::Matrix, dtype) }
}

/// Per dtype and unit: trained, frozen, and one of each that is small enough to persist; at the end tied copies.
fn mixed(order: [usize; 3], reduce: Dtype) -> Run {
    let unit = |u: usize| -> Vec<Parameter> {
        let of = |d: usize| {
            let dtype = DTYPES[d];
            [(true, "trained"), (false, "frozen")].into_iter().flat_map(move |(trainable, kind)| {
                let name = |size: &str| format!("{u}.{dtype}.{kind}.{size}");
                [
                    parameter(name("large"), &[5, 3], dtype, trainable, reduce),
                    parameter(name("small"), &[7], dtype, trainable, reduce),
                ]
            })
        };
        order.into_iter().flat_map(of).collect()
    };
    let mut groups = vec![unit(0), unit(1), unit(2)];
    for d in order {
        for (trainable, kind) in [(true, "trained"), (false, "frozen")] {
            let target = format!("0.{}.{kind}.large", DTYPES[d]);
            let tied = parameter(format!("{target}.tied"), &[5, 3], DTYPES[d], trainable, reduce);
            groups[2].push(Parameter { alias_of: Some(target), ..tied });
        }
    }
    let (registry, units) = registry(groups);
    Run { steps: 3, ..Run::new(registry, units, Stage::Zero) }
}

#[test]
fn every_mix_of_dtypes_equals_one_rank_and_keeps_its_dtypes() {
    for (number, order) in ORDERS.into_iter().enumerate() {
        for reduce in if number == 0 { DTYPES.to_vec() } else { vec![Dtype::F32] } {
            let run = mixed(order, reduce);
            let reference = run.alone();
            for parameter in run.registry.iter() {
                assert_eq!(reference.weights[&parameter.name].0, Some(parameter.precision.store));
            }
            for stage in STAGES {
                for persist_below in [0, PERSIST] {
                    for world in [2, 3] {
                        let policy = Policy { persist_below, ..Policy::new(stage) };
                        let got = Run { policy, ..run.clone() }.over(world);
                        assert_eq!(
                            got, reference,
                            "{order:?}, {reduce}, stage {stage}, {persist_below}, {world}"
                        );
                    }
                }
            }
        }
    }
}

/// A bf16 base with fp32 adapters at stage 3 (TRL 6091, DeepSpeed 8072): the gathers of a block hold both dtypes, in
/// persistent buckets and in others.
#[test]
fn mixed_dtype_coalesced_gather() {
    let net = Net { store: Dtype::Bf16, lora: true, ..Net::default() };
    let reference = net.train(1, &Policy::default());
    assert!(reference.losses[9] < reference.losses[0]);
    for (persist_below, whole) in [(0, 0), (13, 13), (100, 24)] {
        let policy = Policy { persist_below, ..Policy::new(Stage::Three) };
        let (registry, units) = net.registry();
        let plan = burnish_zero::Plan::new(&registry, units, 2, policy.clone()).unwrap();
        let persistent =
            (0..registry.len()).filter(|&i| plan.placement(i).residency == ParamStorageMode::Whole).count();
        assert_eq!(persistent, whole, "below {persist_below}");
        let gathers: Vec<Dtype> = plan.gathers(1).iter().map(|b| b.dtype).collect();
        if persist_below == 0 {
            assert_eq!(gathers, [Dtype::F32, Dtype::Bf16]);
        }
        for world in [2, 3, 4] {
            let got = net.train(world, &policy);
            got.assert_same(&net.accumulated(world), &format!("below {persist_below} over {world}"));
        }
    }
    // The base did not move and is what it was declared to be.
    for (name, (dtype, _)) in &reference.weights {
        let adapter = name.ends_with(".a") || name.ends_with(".b");
        let norm = name.ends_with("norm");
        assert_eq!(*dtype, Some(if adapter || norm { Dtype::F32 } else { Dtype::Bf16 }), "{name}");
    }
}

/// The loss multiplies by a head that is sharded, and by one that is tied to a sharded embedding (TRL 5873): it reads the
/// whole weight, in forward and in backward.
#[test]
fn chunked_nll_with_a_partitioned_head_and_with_a_tied_one() {
    for loss in [Loss::ChunkedNll, Loss::FusedNll] {
        for tied in [false, true] {
            let net = Net { loss, tied, steps: 6, ..Net::default() };
            let reference = net.train(1, &Policy::default());
            assert!(reference.losses[0] > 1.0);
            for (keep_root, world) in [(true, 2), (false, 3)] {
                let policy = Policy { persist_below: 0, keep_root, ..Policy::new(Stage::Three) };
                let got = net.train(world, &policy);
                let what = format!("{loss:?}, tied {tied}, over {world}");
                got.assert_same(&net.train(world, &Policy::default()), &what);
                got.assert_close(&reference, TOLERANCE, &what);
            }
        }
    }
}

/// Trained half-precision weights with f32 masters.
#[test]
fn half_precision_weights_train_as_on_one_rank() {
    for store in [Dtype::Bf16, Dtype::F16] {
        let net = Net { store, steps: 4, ..Net::default() };
        let reference = net.train(1, &Policy::default());
        assert!(reference.losses[3] < reference.losses[0]);
        let reference = net.accumulated(3);
        for stage in STAGES {
            let policy = Policy { persist_below: 7, ..Policy::new(stage) };
            net.train(3, &policy).assert_same(&reference, &format!("{store}, stage {stage}"));
        }
    }
}
