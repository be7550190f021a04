//! A step whose gradients are not finite does not happen.

use burnish_core::{Dtype, Role};
use burnish_ops::AnyTensor;
use burnish_optim::{AdamW, AdamWOptions};

use crate::store::{Store, normal, registry, slot, step, tensor};

const SHAPES: [&[usize]; 2] = [&[3, 4], &[5]];

fn fresh() -> (AdamW, Store) {
    let registry = registry(&[(Role::Matrix, SHAPES[0], Dtype::F32), (Role::Norm, SHAPES[1], Dtype::F32)]);
    let store = Store::new([tensor(&normal("a", 12), SHAPES[0]), tensor(&normal("b", 5), SHAPES[1])]);
    (AdamW::new(&registry, AdamWOptions { weight_decay: 0.1, ..AdamWOptions::default() }), store)
}

fn gradients(k: usize, spoil: Option<(usize, f32)>) -> Vec<AnyTensor> {
    let mut all = normal(&format!("g{k}"), 17);
    if let Some((at, value)) = spoil {
        all[at] = value;
    }
    vec![tensor(&all[..12], SHAPES[0]), tensor(&all[12..], SHAPES[1])]
}

type Snapshot = (u64, [Vec<f32>; 2], Vec<Option<Vec<f32>>>);

fn snapshot(optimizer: &AdamW, store: &Store) -> Snapshot {
    let slots = optimizer.slots();
    let moments = ["p0", "p1"].iter().flat_map(|p| ["exp_avg", "exp_avg_sq"].map(|s| slot(&slots, p, s)));
    (optimizer.steps(), [store.f32(0), store.f32(1)], moments.collect())
}

#[test]
fn nothing_changes_and_the_next_step_is_as_if_it_had_not_been() {
    let (mut clean, clean_store) = fresh();
    let (mut other, other_store) = fresh();
    for k in 0..4 {
        for (at, value) in [(0, f32::NAN), (11, f32::INFINITY), (12, f32::NEG_INFINITY), (16, f32::NAN)] {
            let before = snapshot(&other, &other_store);
            assert_eq!(
                step(&mut other, &other_store, gradients(k, Some((at, value))), Some(1.0), 0.01),
                None
            );
            assert_eq!(snapshot(&other, &other_store), before, "{value} at {at}");
        }
        let a = step(&mut clean, &clean_store, gradients(k, None), Some(1.0), 0.01).unwrap();
        let b = step(&mut other, &other_store, gradients(k, None), Some(1.0), 0.01).unwrap();
        assert_eq!(a, b);
        assert_eq!(snapshot(&clean, &clean_store), snapshot(&other, &other_store));
    }
    assert_eq!(other.steps(), 4);
}

/// Squares of large finite gradients overflow f32, not the norm.
#[test]
fn large_finite_gradients_are_not_skipped() {
    let (mut optimizer, store) = fresh();
    let applied = step(&mut optimizer, &store, gradients(0, Some((3, 3e38))), Some(1.0), 0.01).unwrap();
    assert!((applied.grad_norm / 3e38 - 1.0).abs() < 1e-6, "{}", applied.grad_norm);
    assert!(store.f32(0).iter().chain(&store.f32(1)).all(|v| v.is_finite()));
}
