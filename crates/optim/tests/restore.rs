//! State leaves and comes back.

use burn::tensor::{DType, Device};
use burnish_core::{Dtype, Registry, Role};
use burnish_ops::AnyTensor;
use burnish_optim::{AdamW, AdamWOptions, OptimError};

use crate::store::{Store, normal, registry, rounded, slot, step, tensor};

const SHAPES: [&[usize]; 3] = [&[4, 3], &[3], &[2, 5]];

type Slots = Vec<(String, String, AnyTensor)>;

fn model() -> Registry {
    registry(&[
        (Role::Matrix, SHAPES[0], Dtype::Bf16),
        (Role::Norm, SHAPES[1], Dtype::F32),
        (Role::Adapter, SHAPES[2], Dtype::F32),
    ])
}

fn start() -> Store {
    Store::new([
        rounded(&normal("a", 12), SHAPES[0], DType::BF16),
        tensor(&normal("b", 3), SHAPES[1]),
        tensor(&normal("c", 10), SHAPES[2]),
    ])
}

fn new() -> AdamW {
    AdamW::new(&model(), AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() })
}

fn train(optimizer: &mut AdamW, store: &Store, steps: std::ops::Range<usize>) {
    for k in steps {
        let gradients = SHAPES
            .iter()
            .enumerate()
            .map(|(i, s)| tensor(&normal(&format!("g{i}/{k}"), s.iter().product()), s));
        step(optimizer, store, gradients.collect(), Some(1.0), 0.01).unwrap();
    }
}

/// As a checkpoint does: through host memory, in another order.
fn saved(optimizer: &AdamW) -> Slots {
    let copy = |t: &AnyTensor| AnyTensor::from_data(t.to_data(), &Device::flex());
    optimizer
        .slots()
        .iter()
        .rev()
        .map(|s| (s.parameter.clone(), s.slot.to_owned(), copy(&s.tensor.clone().into_tensor().unwrap())))
        .collect()
}

fn bits(optimizer: &AdamW, store: &Store) -> Vec<Vec<u32>> {
    let values = (0..3).map(|i| store.f32(i)).chain(optimizer.slots().into_iter().map(|s| s.tensor.to_f32()));
    values.map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
}

#[test]
fn a_restored_run_continues_bit_for_bit() {
    let (mut whole, whole_store) = (new(), start());
    train(&mut whole, &whole_store, 0..10);

    let (mut first, store) = (new(), start());
    train(&mut first, &store, 0..6);
    let slots = saved(&first);
    assert_eq!(slots.len(), 7, "two moments each and one master");
    let mut second = new();
    second.restore(first.steps(), slots).unwrap();
    drop(first);
    assert_eq!(second.steps(), 6);
    train(&mut second, &store, 6..10);

    assert_eq!(second.steps(), whole.steps());
    assert_eq!(bits(&second, &store), bits(&whole, &whole_store));
}

/// What the optimizer held before is forgotten, also for parameters that the checkpoint does not name.
#[test]
fn restoring_into_a_used_optimizer() {
    let (mut used, store) = (new(), start());
    train(&mut used, &store, 0..3);
    used.restore(0, Vec::new()).unwrap();
    assert_eq!((used.steps(), used.slots().len()), (0, 0));
}

#[test]
fn wrong_state_is_refused_and_changes_nothing() {
    let (mut optimizer, store) = (new(), start());
    train(&mut optimizer, &store, 0..2);
    let before = bits(&optimizer, &store);
    let good = saved(&optimizer);
    let at =
        |parameter: &str, slot: &str| good.iter().position(|(p, s, _)| p == parameter && s == slot).unwrap();
    let mut refuse = |change: &dyn Fn(&mut Slots)| -> OptimError {
        let mut slots = good.clone();
        change(&mut slots);
        let error = optimizer.restore(99, slots).unwrap_err();
        assert_eq!(optimizer.steps(), 2, "{error}");
        assert_eq!(bits(&optimizer, &store), before, "{error}");
        error
    };

    let error = refuse(&|slots| slots[0].0 = "q".to_owned());
    assert!(matches!(&error, OptimError::UnknownSlot { parameter, .. } if parameter == "q"), "{error}");

    let error = refuse(&|slots| {
        slots.push(("p1".to_owned(), "momentum_buffer".to_owned(), slots[at("p1", "exp_avg")].2.clone()))
    });
    assert!(error.to_string().contains("`p1` has no slot `momentum_buffer`"), "{error}");

    let error = refuse(&|slots| slots[at("p2", "exp_avg")].2 = tensor(&[0.0; 10], &[5, 2]));
    let message = error.to_string();
    assert!(message.contains("slot `exp_avg` of `p2` has shape [5, 2], expected [2, 5]"), "{message}");

    let error = refuse(&|slots| slots[at("p0", "master")].2 = rounded(&[0.0; 12], SHAPES[0], DType::BF16));
    let message = error.to_string();
    assert!(
        message.contains("slot `master` of `p0`") && message.contains("declared as float32"),
        "{message}"
    );
    assert!(matches!(error, OptimError::SlotDtype { got: Some(Dtype::Bf16), expected: Dtype::F32, .. }));

    for missing in ["exp_avg", "exp_avg_sq"] {
        let error = refuse(&|slots| drop(slots.remove(at("p1", missing))));
        assert!(
            matches!(&error, OptimError::MissingSlot { parameter, slot } if parameter == "p1" && *slot == missing),
            "{error}"
        );
    }
    assert!(slot(&optimizer.slots(), "p0", "master").is_some());
}
