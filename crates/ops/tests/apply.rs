//! Custom operations on the tape.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, MOST_INPUTS, OpsError, apply};

use crate::case::{device, tensor};

/// `sum_i (i + 1) * x_i`, with a count of its backwards.
fn weighted(inputs: &[AnyTensor], backwards: &Arc<AtomicUsize>) -> Result<AnyTensor, OpsError> {
    let backwards = backwards.clone();
    apply("weighted", inputs, move |plain, wanted| {
        assert!(plain.iter().all(|t| !t.is_tracked()));
        let mut sum = Tensor::<2>::zeros([2, 2], &device());
        for (i, t) in plain.iter().enumerate() {
            sum = sum + t.rank::<2>()? * (i + 1) as f32;
        }
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            assert!(!upstream.is_tracked());
            backwards.fetch_add(1, Ordering::Relaxed);
            let upstream = upstream.rank::<2>().unwrap();
            let gradient = |i: usize| AnyTensor::new(upstream.clone() * (i + 1) as f32);
            wanted.iter().enumerate().map(|(i, &w)| w.then(|| gradient(i))).collect()
        };
        Ok((AnyTensor::new(sum), Box::new(backward)))
    })
}

fn ones() -> AnyTensor {
    AnyTensor::new(Tensor::<2>::ones([2, 2], &device()))
}

fn sum(t: &AnyTensor) -> Tensor<1> {
    t.rank::<2>().unwrap().sum()
}

#[test]
fn gradients_of_the_tracked_inputs_only() {
    let count = Arc::default();
    let inputs: Vec<AnyTensor> = (0..5).map(|i| if i % 2 == 0 { ones().leaf() } else { ones() }).collect();
    let out = weighted(&inputs, &count).unwrap();
    assert_eq!(out.to_f32(), [15.0; 4]);
    let mut gradients = (sum(&out) * 2.0).backward();
    for (i, input) in inputs.iter().enumerate() {
        if i % 2 == 0 {
            assert_eq!(input.take_gradient(&mut gradients).unwrap().to_f32(), [2.0 * (i + 1) as f32; 4]);
        } else {
            assert!(!input.is_tracked());
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn what_nothing_is_wanted_of_stands_beside_what_is_tracked() {
    let count = Arc::default();
    let constant = weighted(&[ones().untracked(), ones()], &count).unwrap();
    assert!(!constant.is_tracked());
    let leaf = ones().leaf();
    let both = constant.rank::<2>().unwrap() * leaf.rank::<2>().unwrap();
    let mut gradients = both.sum().backward();
    assert_eq!(leaf.take_gradient(&mut gradients).unwrap().to_f32(), [3.0; 4]);
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn nothing_is_recorded_without_tracked_inputs() {
    let count = Arc::default();
    let out = weighted(&[ones(), ones()], &count).unwrap();
    assert!(!out.is_tracked());
    assert_eq!(Arc::strong_count(&count), 1, "its backward is dropped");
}

#[test]
fn uses_of_one_tensor_add() {
    let x = ones().leaf();
    let out = weighted(&[x.clone(), ones(), x.clone()], &Arc::default()).unwrap();
    let mut gradients = sum(&out).backward();
    assert_eq!(x.take_gradient(&mut gradients).unwrap().to_f32(), [4.0; 4]);

    // In several operations, and in one of Burn's.
    let x = ones().leaf();
    let a = weighted(std::slice::from_ref(&x), &Arc::default()).unwrap();
    let b = weighted(&[a.clone(), x.clone()], &Arc::default()).unwrap();
    let out = sum(&b) + sum(&x) * 10.0 + sum(&a) * 100.0;
    let mut gradients = out.backward();
    assert_eq!(x.take_gradient(&mut gradients).unwrap().to_f32(), [1.0 + 2.0 + 10.0 + 100.0; 4]);
}

#[test]
fn between_operations_of_burn() {
    let x = tensor("x", &[2, 2]).leaf();
    let before = AnyTensor::new(x.rank::<2>().unwrap().exp());
    let out = weighted(&[ones(), before], &Arc::default()).unwrap();
    let out = out.rank::<2>().unwrap().powi_scalar(2).sum();
    let mut gradients = out.backward();
    // d/dx (1 + 2 e^x)^2 = 4 e^x (1 + 2 e^x)
    for (g, x) in x.take_gradient(&mut gradients).unwrap().to_f32().into_iter().zip(x.to_f32()) {
        let want = 4.0 * x.exp() * (1.0 + 2.0 * x.exp());
        assert!((g - want).abs() < 1e-5 * want.abs(), "{g} is not {want}");
    }
}

#[test]
fn as_many_inputs_as_fit() {
    let leaves: Vec<AnyTensor> = (0..MOST_INPUTS).map(|_| ones().leaf()).collect();
    let mut gradients = sum(&weighted(&leaves, &Arc::default()).unwrap()).backward();
    for (i, leaf) in leaves.iter().enumerate() {
        assert_eq!(leaf.take_gradient(&mut gradients).unwrap().to_f32(), [(i + 1) as f32; 4]);
    }
    // Inputs that are not tracked do not count.
    let mut mixed = leaves.clone();
    mixed.extend((0..10).map(|_| ones()));
    assert!(weighted(&mixed, &Arc::default()).unwrap().is_tracked());

    let many: Vec<AnyTensor> = (0..=MOST_INPUTS).map(|_| ones().leaf()).collect();
    let error = apply("many", &many, |_, _| unreachable!("nothing runs")).unwrap_err();
    assert!(matches!(error, OpsError::TooManyInputs { got: 25, most: 24, .. }));
    assert_eq!(error.to_string(), "many: 25 tracked inputs, at most 24 are supported");
}

#[test]
fn the_forward_may_fail() {
    let error = apply("fails", &[ones().leaf()], |plain, _| {
        plain[0].rank::<3>()?;
        unreachable!("a matrix has rank 2")
    });
    assert_eq!(error.unwrap_err().to_string(), "expected a tensor of rank 3, got shape [2, 2]");
}

#[test]
fn not_under_burns_own_checkpointing() {
    let device = device().autodiff().gradient_checkpointing();
    let x = AnyTensor::new(Tensor::<2>::ones([2, 2], &device).require_grad());
    assert!(x.is_tracked());
    let error = weighted(&[x], &Arc::default()).unwrap_err();
    assert!(matches!(error, OpsError::Checkpointing { op: "weighted" }), "{error}");
    assert!(error.to_string().contains("Burn's balanced gradient checkpointing"), "{error}");
}
