//! Ranks that made different plans find out before anything else happens.

use std::sync::Arc;
use std::time::Duration;

use burnish_comm::{World, local};
use burnish_core::Dtype;
use burnish_zero::{Plan, Policy, ShardedParams, Stage, ZeroError};

use crate::toy_model::{odd, trained};

/// What each of three ranks gets when rank 1 has another plan.
fn answers(other: impl Fn() -> Plan + Sync) -> Vec<Result<(), ZeroError>> {
    let worlds = World::local(3).into_iter().map(|w| w.with_deadline(Duration::from_secs(20))).collect();
    let (registry, units) = odd();
    let answers = local::run_worlds(worlds, |w| {
        let plan = match w.rank() {
            1 => other(),
            _ => Plan::new(&registry, units.clone(), 3, Policy::new(Stage::Two)).unwrap(),
        };
        plan.agree(&w.group())
    });
    answers.into_iter().map(|a| a.unwrap()).collect()
}

#[test]
fn equal_plans_agree() {
    let (registry, units) = odd();
    let same = || Plan::new(&registry, units.clone(), 3, Policy::new(Stage::Two)).unwrap();
    answers(same).into_iter().for_each(|a| a.unwrap());
}

#[test]
fn the_first_parameter_that_differs_is_named_on_every_rank() {
    let (mut registry, units) = odd();
    registry.get_mut("b.prime").unwrap().precision.store = Dtype::Bf16;
    registry.get_mut("c.vector").unwrap().trainable = false;
    let other = || Plan::new(&registry, units.clone(), 3, Policy::new(Stage::Two)).unwrap();
    for (rank, answer) in answers(other).into_iter().enumerate() {
        let Err(ZeroError::Plans { ranks, parameter }) = answer else { panic!("{answer:?}") };
        assert_eq!(parameter.as_deref(), Some("b.prime"));
        assert_eq!(ranks, if rank == 1 { vec![0, 2] } else { vec![1] });
    }
}

#[test]
fn another_number_of_parameters_is_named_too() {
    let (mut registry, mut units) = odd();
    let index = registry.add(trained("extra", &[3])).unwrap();
    units[1].parameters.push(index);
    let other = || Plan::new(&registry, units.clone(), 3, Policy::new(Stage::Two)).unwrap();
    for (rank, answer) in answers(other).into_iter().enumerate() {
        let message = answer.unwrap_err().to_string();
        let name = if rank == 1 { "`extra`" } else { "`number 13, which this rank does not have`" };
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn another_policy_is_told_apart() {
    let (registry, units) = odd();
    let other = || {
        let policy = Policy { bucket_elements: 5, ..Policy::new(Stage::Two) };
        Plan::new(&registry, units.clone(), 3, policy).unwrap()
    };
    for answer in answers(other) {
        let message = answer.unwrap_err().to_string();
        assert!(message.contains("equal parameters but other units or another policy"), "{message}");
    }
}

#[test]
fn a_plan_for_another_world_is_refused() {
    let (registry, units) = odd();
    let plan = Arc::new(Plan::new(&registry, units, 3, Policy::default()).unwrap());
    let alone = burnish_comm::Group::alone();
    assert!(matches!(plan.agree(&alone), Err(ZeroError::World { plan: 3, group: 1 })));
    let load = |_, _| -> Result<burnish_ops::AnyTensor, std::convert::Infallible> { unreachable!() };
    let store = ShardedParams::new(plan, &alone, &burn::tensor::Device::flex(), load);
    assert!(matches!(store, Err(ZeroError::World { plan: 3, group: 1 })));
}
