#![allow(clippy::unwrap_used, reason = "tests")]

use burnish_comm::{Op, Traffic};
use burnish_core::{Dtype, Precision, Role};
use burnish_optim::SlotSpec;
use proptest::prelude::*;

use super::*;

const H: usize = 8;
const VOCAB: usize = 33;
const BLOCKS: usize = 3;

/// An embedding, blocks of two matrices and a norm, a norm and a head; all trained and stored in `store`.
fn model(store: Dtype, tied: bool, trainable: bool) -> (Registry, Vec<Unit>) {
    let mut registry = Registry::new();
    let mut add = |name: String, shape: &[usize], role| {
        let mut p = Parameter::new(name, shape, role, store);
        p.trainable = trainable;
        registry.add(p).unwrap()
    };
    let mut units = vec![Unit::root("embed", vec![add("embed".into(), &[VOCAB, H], Role::Embedding)])];
    for b in 0..BLOCKS {
        let parameters = vec![
            add(format!("{b}.up"), &[4 * H, H], Role::Matrix),
            add(format!("{b}.down"), &[H, 4 * H], Role::Matrix),
            add(format!("{b}.norm"), &[H], Role::Norm),
        ];
        units.push(Unit::block(format!("block {b}"), parameters));
    }
    let norm = add("norm".into(), &[H], Role::Norm);
    let head = add("head".into(), &[VOCAB, H], Role::Head);
    if tied {
        registry.get_mut("head").unwrap().alias_of = Some("embed".into());
    }
    units.push(Unit::root("head", vec![norm, head]));
    (registry, units)
}

fn policy(stage: Stage) -> Policy {
    Policy { persist_below: 0, ..Policy::new(stage) }
}

fn slots(names: &[&str]) -> Vec<SlotSpec> {
    names.iter().map(|&name| SlotSpec { name: name.into(), dtype: Dtype::F32 }).collect()
}

fn adamw(_: usize) -> Vec<SlotSpec> {
    slots(&["master", "exp_avg", "exp_avg_sq"])
}

fn elements(traffic: &Traffic, op: Op, dtype: Dtype) -> u64 {
    traffic.of(op, dtype).elements
}

/// Elements per step, in units of the model: stages 1 and 2 two, stage 3 three less the roots (kept) per micro-batch.
#[test]
fn stages_1_and_2_move_two_models_and_stage_3_three() {
    let (registry, units) = model(Dtype::Bf16, false, true);
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as u64;
    let roots = (2 * VOCAB * H + H) as u64;
    for world in [2, 3, 4, 8] {
        for accumulation in [1, 4] {
            let of = |p| Plan::new(&registry, units.clone(), world, p).unwrap().traffic(accumulation);
            let g = accumulation as u64;
            let zero = of(policy(Stage::Zero));
            assert_eq!(elements(&zero, Op::AllReduce, Dtype::F32), psi);
            assert_eq!(elements(&zero, Op::AllGather, Dtype::Bf16), 0);
            for stage in [Stage::One, Stage::Two] {
                let rows = of(policy(stage));
                assert_eq!(elements(&rows, Op::ReduceScatter, Dtype::F32), psi);
                assert_eq!(elements(&rows, Op::AllGather, Dtype::Bf16), psi);
                assert_eq!(elements(&rows, Op::AllReduce, Dtype::F32), 0);
            }
            let each = of(Policy { reduce: ReduceWhen::MicroBatch, ..policy(Stage::Two) });
            assert_eq!(elements(&each, Op::ReduceScatter, Dtype::F32), g * psi);
            let three = of(policy(Stage::Three));
            assert_eq!(elements(&three, Op::ReduceScatter, Dtype::F32), g * psi);
            assert_eq!(elements(&three, Op::AllGather, Dtype::Bf16), g * (2 * psi - roots));
            let lean = of(Policy { reduce: ReduceWhen::Step, ..policy(Stage::Three) });
            assert_eq!(elements(&lean, Op::ReduceScatter, Dtype::F32), psi);
        }
    }
}

#[test]
fn without_roots_stage_3_moves_three_models_less_the_turning_point() {
    let (registry, mut units) = model(Dtype::F32, false, true);
    units.iter_mut().for_each(|u| u.root = false);
    let plan = Plan::new(&registry, units, 2, policy(Stage::Three)).unwrap();
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as u64;
    let turn = (VOCAB * H + H) as u64;
    let rows = plan.traffic(1);
    assert_eq!(elements(&rows, Op::AllGather, Dtype::F32), 2 * psi - turn);
    assert_eq!(elements(&rows, Op::ReduceScatter, Dtype::F32), psi);
}

#[test]
fn one_rank_has_no_traffic_at_any_stage() {
    let (registry, units) = model(Dtype::F32, true, true);
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        let plan = Plan::new(&registry, units.clone(), 1, policy(stage)).unwrap();
        assert_eq!(plan.traffic(4), Traffic::default());
        assert_eq!(
            plan.memory(0, 1, &adamw).weights,
            4 * (registry.iter().map(Parameter::elements).sum::<usize>() - VOCAB * H) as u64
        );
    }
}

/// The formulas of ZeRO (arXiv:1910.02054, section 5) with f32 gradients: bf16 weights 2, gradients 4, AdamW 12 bytes per parameter.
#[test]
fn memory_at_rest_is_the_formula() {
    let (registry, units) = model(Dtype::Bf16, false, true);
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as f64;
    for world in [2, 4, 8] {
        let n = world as f64;
        for (stage, bytes) in [
            (Stage::Zero, 18.0),
            (Stage::One, 2.0 + 16.0 / n),
            (Stage::Two, 2.0 + 16.0 / n),
            (Stage::Three, 18.0 / n),
        ] {
            let plan = Plan::new(&registry, units.clone(), world, policy(stage)).unwrap();
            let total: u64 = (0..world).map(|r| plan.memory(r, 1, &adamw).rest()).sum();
            assert_eq!(total as f64 / n, bytes * psi, "stage {stage} over {world}");
            // Uneven rows cost at most the widest row, 12 + 4 + 2 bytes an element.
            for rank in 0..world {
                let rest = plan.memory(rank, 1, &adamw).rest() as f64;
                assert!(rest <= bytes * psi + 18.0 * (4 * H) as f64, "rank {rank}: {rest}");
            }
        }
    }
}

#[test]
fn f32_weights_have_no_second_master() {
    let (registry, units) = model(Dtype::F32, false, true);
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as u64;
    let plan = Plan::new(&registry, units, 1, policy(Stage::Zero)).unwrap();
    assert_eq!(plan.memory(0, 1, &adamw).optimizer, 8 * psi);
}

#[test]
fn frozen_parameters_are_sharded_and_never_reduced() {
    let (registry, units) = model(Dtype::Bf16, false, false);
    let plan = Plan::new(&registry, units, 4, policy(Stage::Three)).unwrap();
    assert!(plan.traffic(1).rows().all(|(key, _)| key.op == Op::AllGather));
    assert!(plan.publishes().is_empty() && plan.reduce_order().is_empty());
    let memory = plan.memory(0, 1, &adamw);
    assert_eq!((memory.gradients, memory.optimizer, memory.summing), (0, 0, 0));
}

#[test]
fn small_parameters_stay_whole_in_one_bucket_per_dtype() {
    let (mut registry, units) = model(Dtype::Bf16, false, true);
    registry.get_mut("1.norm").unwrap().precision = Precision::stored(Dtype::F32);
    let plan =
        Plan::new(&registry, units, 2, Policy { persist_below: H + 1, ..policy(Stage::Three) }).unwrap();
    assert_eq!(plan.placement(registry.index_of("0.norm").unwrap()).residency, ParamStorageMode::Whole);
    assert_eq!(plan.placement(registry.index_of("0.up").unwrap()).residency, ParamStorageMode::Sharded);
    let published: Vec<(Dtype, usize)> = plan.publishes().iter().map(|b| (b.dtype, b.elements())).collect();
    assert_eq!(published, [(Dtype::F32, H), (Dtype::Bf16, 3 * H)]);
}

#[test]
fn a_tied_parameter_is_its_target_everywhere_and_counted_once() {
    let (registry, units) = model(Dtype::F32, true, true);
    let (embed, head) = (registry.index_of("embed").unwrap(), registry.index_of("head").unwrap());
    let plan = Plan::new(&registry, units, 3, policy(Stage::Three)).unwrap();
    assert_eq!(plan.placement(head), plan.placement(embed));
    assert_eq!(plan.units()[BLOCKS + 1].parameters, [registry.index_of("norm").unwrap()]);
    let reduced: usize =
        (0..plan.units().len()).flat_map(|u| plan.reduces(u)).map(BucketPlan::elements).sum();
    assert_eq!(reduced, registry.trainable().map(Parameter::elements).sum::<usize>());
}

fn matrices(_: usize, parameter: &Parameter) -> Option<OrthoCost> {
    let elements = parameter.elements();
    (parameter.role == Role::Matrix).then_some(OrthoCost { flops: elements as f64, elements })
}

/// Elements per step with owners are those without, to the last one.
#[test]
fn owners_have_whole_matrices_and_nothing_more_travels() {
    let (registry, units) = model(Dtype::F32, false, true);
    for stage in [Stage::Zero, Stage::One, Stage::Two] {
        let plan = Plan::with_owners(&registry, units.clone(), 3, policy(stage), matrices).unwrap();
        let mut owners = std::collections::BTreeSet::new();
        for (index, parameter) in registry.iter().enumerate() {
            let owner = plan.placement(index).layout.owner();
            assert_eq!(plan.work(index).is_some(), parameter.role == Role::Matrix);
            if parameter.role == Role::Matrix {
                owners.insert(owner.unwrap());
            }
        }
        assert_eq!(owners.len(), 3);
        let without = Plan::new(&registry, units.clone(), 3, policy(stage)).unwrap();
        for accumulation in [1, 4] {
            assert_eq!(plan.traffic(accumulation), without.traffic(accumulation), "stage {stage}");
        }
        assert_ne!(plan.digest(), without.digest());
    }
}

#[test]
fn stage_3_deals_matrices_by_rows() {
    let (registry, units) = model(Dtype::F32, false, true);
    let with = Plan::with_owners(&registry, units.clone(), 3, policy(Stage::Three), matrices).unwrap();
    let without = Plan::new(&registry, units, 3, policy(Stage::Three)).unwrap();
    for index in 0..registry.len() {
        assert_eq!(with.placement(index), without.placement(index));
    }
}

/// What does not train is nobody's to orthogonalise, and what is tied is its target.
#[test]
fn frozen_and_tied_matrices_have_no_owner() {
    let (mut registry, units) = model(Dtype::F32, true, true);
    registry.get_mut("1.up").unwrap().trainable = false;
    let all = |_: usize, p: &Parameter| Some(OrthoCost { flops: 1.0, elements: p.elements() });
    let plan = Plan::with_owners(&registry, units, 2, policy(Stage::Two), all).unwrap();
    let (frozen, head) = (registry.index_of("1.up").unwrap(), registry.index_of("head").unwrap());
    assert_eq!((plan.work(frozen), plan.work(head)), (None, None));
    assert!(plan.placement(frozen).layout.owner().is_none());
    assert_eq!(plan.placement(head), plan.placement(0));
    assert!(plan.placement(0).layout.owner().is_some());
}

/// Muon keeps one moment where AdamW keeps two; whole matrices at stage 3 are a step's, and its least where sums are more.
#[test]
fn memory_counts_slots_by_parameter_and_whole_matrices_while_they_are() {
    let (registry, units) = model(Dtype::Bf16, false, true);
    let both = |index: usize| match registry.at(index).role {
        Role::Matrix => slots(&["master", "momentum_buffer"]),
        _ => adamw(index),
    };
    let of = |role: fn(&Parameter) -> bool| -> u64 {
        registry.iter().filter(|p| role(p)).map(|p| p.elements() as u64).sum()
    };
    let (all, muon) = (of(|_| true), of(|p| p.role == Role::Matrix));
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        let world = 4;
        let plan = Plan::with_owners(&registry, units.clone(), world, policy(stage), matrices).unwrap();
        let memory: Vec<Memory> = (0..world).map(|rank| plan.memory(rank, 1, &both)).collect();
        let sum = |of: fn(&Memory) -> u64| memory.iter().map(of).sum::<u64>();
        let times = if stage == Stage::Zero { world as u64 } else { 1 };
        assert_eq!(sum(|m| m.optimizer), times * (12 * all - 4 * muon), "stage {stage}");
        // At stage 3 every matrix once; all fits one round, in which three quarters of each are sent and received.
        let whole = if stage == Stage::Three { muon } else { 0 };
        assert_eq!(sum(|m| m.updating), 4 * (whole + 2 * whole * 3 / 4), "stage {stage}");
        for m in &memory {
            assert_eq!(m.peak(), m.rest() + (m.gathered + m.summing).max(m.updating));
        }
        assert_eq!(plan.describe(1, &both).memory, memory);
    }
    let alone = Plan::with_owners(&registry, units, 1, policy(Stage::Three), matrices).unwrap();
    assert_eq!((alone.memory(0, 1, &both).updating, alone.routes()), (0, None));
}

/// What is left of the others' rows goes where least is.
#[test]
fn remaining_rows_count_what_owners_have() {
    let mut registry = Registry::new();
    for (name, shape, role) in [("m", [4, 4], Role::Matrix), ("e", [5, 2], Role::Embedding)] {
        let p = Parameter { trainable: true, ..Parameter::new(name, &shape, role, Dtype::F32) };
        registry.add(p).unwrap();
    }
    let units = vec![Unit::block("all", vec![0, 1])];
    let plan = Plan::with_owners(&registry, units, 2, policy(Stage::Two), matrices).unwrap();
    assert_eq!((plan.rows(0, 0), plan.rows(0, 1)), (0..4, 4..4));
    assert_eq!((plan.rows(1, 0), plan.rows(1, 1)), (0..2, 2..5));
}

#[test]
fn blocks_are_reduced_as_backward_meets_them_and_roots_last() {
    let (registry, units) = model(Dtype::F32, false, true);
    let plan = Plan::new(&registry, units, 2, policy(Stage::Two)).unwrap();
    assert_eq!(plan.reduce_order(), [3, 2, 1, 4, 0]);
}

#[test]
fn what_no_unit_lists_has_a_place_behind_the_others() {
    let (registry, mut units) = model(Dtype::F32, false, true);
    units[1].parameters.remove(0);
    let plan = Plan::new(&registry, units, 2, policy(Stage::Three)).unwrap();
    let index = registry.index_of("0.up").unwrap();
    assert_eq!(plan.placement(index).unit, BLOCKS + 2);
    assert_eq!(plan.units()[BLOCKS + 2].name, "0.up");
    assert!(
        !plan.reads(true).contains(&(BLOCKS + 2))
            && !plan.gathered(&plan.reads(true)).contains(&(BLOCKS + 2))
    );
    assert!(plan.reduce_order().contains(&(BLOCKS + 2)));
}

/// A plan of a world that no machine here has, as data.
#[test]
fn a_plan_describes_itself() {
    let (registry, units) = model(Dtype::Bf16, true, true);
    let plan = Plan::new(&registry, units, 1024, policy(Stage::Three)).unwrap();
    let described = plan.describe(2, &adamw);
    let psi = registry.iter().filter(|p| p.alias_of.is_none()).map(Parameter::elements).sum::<usize>() as u64;
    assert_eq!((described.world, described.elements, described.trained), (1024, psi, psi));
    assert_eq!(described.memory.iter().map(Memory::rest).sum::<u64>(), 18 * psi);
    assert_eq!(described.units.iter().map(|u| u.sharded).sum::<u64>(), psi);
    let json = serde_json::to_value(&described).unwrap();
    assert_eq!(json["policy"]["stage"], 3);
    assert_eq!(json["traffic"][0]["op"], "all_reduce");
    assert_eq!(json["units"][1]["buckets"][0]["dtype"], "bfloat16");
    assert_eq!(json["units"][1]["buckets"][0]["counts"].as_array().unwrap().len(), 1024);
}

#[test]
fn faults_name_parameter_and_unit() {
    let (registry, units) = model(Dtype::F32, false, true);
    let of = |units| Plan::new(&registry, units, 2, policy(Stage::Two)).unwrap_err();
    let mut twice = units.clone();
    twice[1].parameters.push(0);
    assert_eq!(
        of(twice).to_string(),
        "parameter `embed` is in unit `embed` and again in `block 0`; list it once (a tied copy has its own index)"
    );
    let mut far = units.clone();
    far[0].parameters.push(99);
    assert!(matches!(of(far), PlanError::Index { index: 99, .. }));
    assert_eq!(Plan::new(&registry, units.clone(), 0, policy(Stage::Two)).unwrap_err(), PlanError::NoRanks);
    let mut narrow = registry.clone();
    narrow.get_mut("norm").unwrap().precision.reduce = Dtype::F64;
    assert!(matches!(
        Plan::new(&narrow, units.clone(), 2, policy(Stage::Two)).unwrap_err(),
        PlanError::Dtype { field: "reduce", .. }
    ));
    let (mut tied, units) = model(Dtype::F32, true, true);
    tied.get_mut("head").unwrap().trainable = false;
    assert!(matches!(Plan::new(&tied, units, 2, policy(Stage::Two)).unwrap_err(), PlanError::Tied { .. }));
}

#[test]
fn the_digest_sees_every_fact() {
    let (registry, units) = model(Dtype::F32, false, true);
    let of = |registry: &Registry, units: &[Unit], world, policy| {
        Plan::new(registry, units.to_vec(), world, policy).unwrap().digest()
    };
    let first = of(&registry, &units, 2, policy(Stage::Two));
    assert_eq!(first, of(&registry, &units, 2, policy(Stage::Two)));
    assert_ne!(first, of(&registry, &units, 3, policy(Stage::Two)));
    assert_ne!(first, of(&registry, &units, 2, policy(Stage::Three)));
    assert_ne!(first, of(&registry, &units, 2, Policy { bucket_elements: 7, ..policy(Stage::Two) }));
    let mut other = registry.clone();
    other.get_mut("1.up").unwrap().precision.store = Dtype::F16;
    assert_ne!(first, of(&other, &units, 2, policy(Stage::Two)));
    let mut renamed = units.clone();
    renamed[1].name = "x".into();
    assert_ne!(first, of(&registry, &renamed, 2, policy(Stage::Two)));
}

proptest! {
    /// Whatever the model: rows cover every parameter once, and every summed or gathered element is in one bucket.
    #[test]
    fn every_element_is_in_one_place(
        world in 1usize..6,
        stage in 0u8..4,
        cap in 1usize..300,
        persist in 0usize..40,
        shapes in prop::collection::vec((prop::collection::vec(0usize..9, 1..4), any::<bool>()), 1..12),
        cuts in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut registry = Registry::new();
        let mut units = vec![Unit::root("u0", vec![])];
        for (i, (shape, trainable)) in shapes.iter().enumerate() {
            let mut p = Parameter::new(format!("p{i}"), shape, Role::Matrix, Dtype::F32);
            p.trainable = *trainable;
            let index = registry.add(p).unwrap();
            if cuts[i] {
                units.push(Unit::block(format!("u{}", i + 1), vec![]));
            }
            units.last_mut().unwrap().parameters.push(index);
        }
        let policy = Policy { persist_below: persist, bucket_elements: cap, ..Policy::new(Stage::try_from(stage).unwrap()) };
        let plan = Plan::new(&registry, units, world, policy).unwrap();
        for index in 0..registry.len() {
            let rows: usize = (0..world).map(|r| plan.placement(index).layout.rows(r).len()).sum();
            prop_assert_eq!(rows, registry.at(index).shape[0]);
            let in_buckets = |all: Vec<&BucketPlan>| -> usize {
                all.iter().flat_map(|b| &b.pieces).filter(|p| p.parameter == index).count()
            };
            let units = 0..plan.units().len();
            let gathered = in_buckets(units.clone().flat_map(|u| plan.gathers(u)).collect());
            let reduced = in_buckets(units.flat_map(|u| plan.reduces(u)).collect());
            let published = in_buckets(plan.publishes().iter().collect());
            let trained = registry.at(index).trainable;
            prop_assert_eq!(gathered, usize::from(plan.sharded(index)));
            prop_assert_eq!(reduced, usize::from(trained && world > 1));
            let by_rows = plan.placement(index).summed == GradReduction::ByRows;
            prop_assert_eq!(published, usize::from(by_rows && !plan.sharded(index)));
        }
    }
}
