//! What optimizers do to tensors.

use burn::tensor::{DType, FloatDType, Tensor};
use burnish_core::Dtype;
use burnish_ops::{Adam, AdamState, AnyTensor, accumulate, adam_step, reference, sum_of_squares};

use crate::case::{Input, assert_close, device, tensor, to_f64};

/// A few roundings per step, each 6e-8 of a value near 1.
const STEPS: f64 = 1e-6;

fn hyper(decoupled: bool, step: u64) -> Adam {
    let (lr, weight_decay) = (0.05, 0.1);
    Adam { lr, beta1: 0.9, beta2: 0.99, eps: 1e-6, weight_decay, decoupled, step, grad_scale: 0.5 }
}

fn in_f64(t: &AnyTensor) -> AnyTensor {
    t.cast(FloatDType::F64)
}

#[test]
fn adam_kernels_are_the_reference() {
    let shape = [5, 27];
    for decoupled in [true, false] {
        let zeros = || AnyTensor::new(Tensor::<2>::zeros(shape, &device()));
        let start = tensor("master", &shape);
        let mut fused = (start.clone(), None);
        let mut plain = (start.clone(), AdamState { exp_avg: zeros(), exp_avg_sq: zeros() });
        let mut wide =
            (in_f64(&start), AdamState { exp_avg: in_f64(&zeros()), exp_avg_sq: in_f64(&zeros()) });
        for step in 1..=8 {
            let gradient = tensor(["g0", "g1", "g2", "g3"][step as usize % 4], &shape);
            let h = hyper(decoupled, step);
            let (p, s) = adam_step(fused.0, fused.1, &gradient, &h);
            fused = (p, Some(s));
            plain = reference::adam_step(plain.0, plain.1, &gradient, &h);
            wide = reference::adam_step(wide.0, wide.1, &in_f64(&gradient), &h);
            let state = fused.1.as_ref().unwrap();
            for (got, want) in [
                (&fused.0, &wide.0),
                (&plain.0, &wide.0),
                (&state.exp_avg, &wide.1.exp_avg),
                (&state.exp_avg_sq, &wide.1.exp_avg_sq),
            ] {
                assert_eq!(got.shape(), shape);
                assert_close(
                    &to_f64(got),
                    &to_f64(want),
                    STEPS,
                    &format!("step {step}, decoupled {decoupled}"),
                );
            }
        }
        assert_eq!(start.to_f32(), tensor("master", &shape).to_f32(), "what others hold does not change");
    }
}

/// A view is updated in its own order, and its base is not touched.
#[test]
fn views() {
    let base = tensor("base", &[6, 4]);
    let view = AnyTensor::new(base.rank::<2>().unwrap().transpose().narrow(1, 2, 3));
    let gradient = tensor("g", &[4, 3]);
    let packed = AnyTensor::from_data(view.to_data(), &device());
    let h = hyper(true, 1);
    let (got, _) = adam_step(view.clone(), None, &gradient, &h);
    let (want, _) = adam_step(packed.clone(), None, &gradient, &h);
    assert_eq!((got.shape(), got.to_f32()), (vec![4, 3], want.to_f32()));

    let sum = accumulate(Some(view.clone()), gradient.clone());
    assert_eq!(sum.to_f32(), accumulate(Some(packed.clone()), gradient.clone()).to_f32());
    assert_eq!(accumulate(Some(gradient), view.clone()).to_f32(), sum.to_f32());
    assert_eq!(sum_of_squares(&view), sum_of_squares(&packed));
    assert_eq!(base.to_f32(), tensor("base", &[6, 4]).to_f32());
}

#[test]
fn accumulation_adds_in_f32() {
    let (a, b) = (tensor("a", &[3, 5]), tensor("b", &[3, 5]));
    let want: Vec<f32> = a.to_f32().iter().zip(b.to_f32()).map(|(a, b)| a + b).collect();
    assert_eq!(accumulate(None, a.clone()).to_f32(), a.to_f32());
    assert_eq!(accumulate(Some(a.clone()), b.clone()).to_f32(), want);
    for (narrow, dtype) in [(FloatDType::BF16, Dtype::Bf16), (FloatDType::F16, Dtype::F16)] {
        let b = b.cast(narrow);
        assert_eq!(b.dtype(), Some(dtype));
        let want: Vec<f32> = a.to_f32().iter().zip(b.to_f32()).map(|(a, b)| a + b).collect();
        let first = accumulate(None, b.clone());
        assert_eq!((first.dtype(), first.to_f32()), (Some(Dtype::F32), b.to_f32()));
        assert_eq!(accumulate(Some(a.clone()), b).to_f32(), want);
    }
    let wide = accumulate(Some(in_f64(&a)), in_f64(&b));
    assert_eq!(wide.dtype(), Some(Dtype::F64));
    let want: Vec<f64> = to_f64(&a).iter().zip(to_f64(&b)).map(|(a, b)| a + b).collect();
    assert_eq!(to_f64(&wide), want);
}

#[test]
fn squares() {
    for shape in [vec![1], vec![300], vec![17, 1009]] {
        let t = tensor("t", &shape);
        let want: f64 = to_f64(&t).iter().map(|x| x * x).sum();
        for got in [sum_of_squares(&t), sum_of_squares(&in_f64(&t))] {
            assert!((got / want - 1.0).abs() < 1e-6, "{shape:?}: {got} is not {want}");
        }
    }
    let large = Input { scale: 0.0, shift: 1e30, ..Input::new("large", &[3], 0.0) };
    let large = AnyTensor::from_data(
        burn::tensor::TensorData::new(vec![large.shift; 3], large.shape).convert_dtype(DType::F32),
        &device(),
    );
    assert!((sum_of_squares(&large) / 3e60 - 1.0).abs() < 1e-6, "squares beyond f32 are not infinite");
    for spoiled in [f32::NAN, f32::INFINITY] {
        let t = AnyTensor::new(Tensor::<1>::from_data([1.0, spoiled], &device()));
        assert!(!sum_of_squares(&t).is_finite());
    }
}
