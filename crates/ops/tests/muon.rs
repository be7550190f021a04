//! Muon's elementwise and rowwise parts: kernels against the reference bodies.

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_ops::{
    AnyTensor, Momentum, Noise, muon_adapt, muon_apply, muon_momentum, reference, row_squares, scale_rows,
    signs,
};

use crate::case::{assert_close, tensor, to_f64};

/// A few roundings of values near one.
const CLOSE: f64 = 1e-6;

fn f64(t: &AnyTensor) -> AnyTensor {
    t.cast(FloatDType::F64)
}

fn noise(n: u64) -> Noise {
    Noise { stream: Stream::new(8, "noise").at(2), runs: vec![3..10, 40..40 + n - 7] }
}

#[test]
fn momentum() {
    let shape = [5, 27];
    let (m, g) = (tensor("m", &shape), tensor("g", &shape));
    let held = (m.to_f32(), g.to_f32());
    for nesterov in [true, false] {
        let step = Momentum { beta: 0.95, nesterov, grad_scale: 0.3 };
        let (m1, u1) = muon_momentum(m.clone(), g.clone(), &step, &noise(135));
        let (m2, u2) = reference::muon_momentum(f64(&m), f64(&g), &step, &noise(135));
        assert_close(&to_f64(&m1), &to_f64(&m2), CLOSE, "momentum");
        assert_close(&to_f64(&u1), &to_f64(&u2), CLOSE, "update");
        assert_eq!((m1.shape(), u1.shape()), (shape.to_vec(), shape.to_vec()));
        assert_eq!((m.to_f32(), g.to_f32()), held, "what others hold does not change");

        let narrow = m.cast(FloatDType::BF16);
        let (m1, u1) = muon_momentum(narrow.clone(), g.clone(), &step, &noise(135));
        let (m2, u2) = reference::muon_momentum(narrow, g.clone(), &step, &noise(135));
        assert_eq!((m1.dtype(), u1.dtype()), (Some(Dtype::Bf16), Some(Dtype::F32)));
        // The sums before rounding may differ by a last bit of f32, which seldom decides.
        let apart = m1.to_f32().iter().zip(m2.to_f32()).filter(|(a, b)| **a != *b).count();
        assert!(apart <= 1, "{apart} of 135");
        assert_close(&to_f64(&u1), &to_f64(&u2), CLOSE, "update of a narrow momentum");
    }
}

#[test]
fn update_and_second_moments() {
    let shape = [3, 4, 9];
    let (p, o) = (tensor("p", &shape), tensor("o", &shape));
    let held = (p.to_f32(), o.to_f32());
    let got = muon_apply(p.clone(), &o, 0.99, 0.05);
    let want = reference::muon_apply(f64(&p), &f64(&o), 0.99, 0.05);
    assert_close(&to_f64(&got), &to_f64(&want), CLOSE, "apply");

    let v = AnyTensor::new(p.rank::<3>().unwrap().powi_scalar(2));
    let (o1, v1) = muon_adapt(o.clone(), v.clone(), 0.9, 1e-3);
    let (o2, v2) = reference::muon_adapt(f64(&o), f64(&v), 0.9, 1e-3);
    assert_close(&to_f64(&o1), &to_f64(&o2), CLOSE, "adapted");
    assert_close(&to_f64(&v1), &to_f64(&v2), CLOSE, "second moment");

    let squares = row_squares(&o);
    assert_eq!(squares.len(), 12);
    assert_close(&squares, &reference::row_squares(&f64(&o)), CLOSE, "squares");
    let factors: Vec<f32> = (0..12).map(|i| i as f32 * 0.5 - 2.0).collect();
    let scaled = scale_rows(o.clone(), &factors);
    let want = reference::scale_rows(f64(&o), &factors);
    assert_eq!((scaled.shape(), want.shape()), (shape.to_vec(), shape.to_vec()));
    assert_close(&to_f64(&scaled), &to_f64(&want), CLOSE, "scaled");
    assert_eq!((p.to_f32(), o.to_f32()), held, "what others hold does not change");

    let some = AnyTensor::from_elements(vec![-3.0_f32, 0.0, 1e-30, -0.0, 2.0, -1e-30], &[2, 3], &o.device());
    assert_eq!(signs(&some).to_f32(), [-1.0, 0.0, 1.0, 0.0, 1.0, -1.0]);
}
