//! `torch.optim.Adam` and `AdamW`, step for step.

use burnish_core::{Dtype, Role};
use burnish_ops::{Adam, adam_step};
use burnish_optim::{AdamW, AdamWOptions};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::store::{Store, assert_close, registry, slot, step, tensor, tensor_f64};

/// Both sides round each value to f32 once per step, half a unit in the last place (6e-8) each time, so values and
/// moments stay within 1e-6 of PyTorch's over ten steps.
const F32: f64 = 1e-6;
/// The same with f64's unit (1.1e-16), ten steps, and room for another order of operations.
const F64: f64 = 1e-14;

struct Case<'a>(&'a Value);

impl Case<'_> {
    fn floats(&self, key: &str) -> Vec<f64> {
        numbers(&self.0[key])
    }

    fn shapes(&self) -> Vec<Vec<usize>> {
        self.0["shapes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_array().unwrap().iter().map(count).collect())
            .collect()
    }

    fn lists(v: &Value) -> Vec<Vec<f64>> {
        v.as_array().unwrap().iter().map(numbers).collect()
    }

    fn decoupled(&self) -> bool {
        match self.0["optimizer"].as_str().unwrap() {
            "adamw" => true,
            "adam" => false,
            other => panic!("no test for optimizer {other}"),
        }
    }

    fn options(&self) -> AdamWOptions {
        let betas = self.floats("betas");
        AdamWOptions {
            beta1: betas[0],
            beta2: betas[1],
            eps: number(&self.0["eps"]),
            weight_decay: self.floats("weight_decay").into_iter().fold(0.0, f64::max),
            decoupled: self.decoupled(),
        }
    }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn replay_f32(case: &Case<'_>, name: &str) {
    let (shapes, options, decay) = (case.shapes(), case.options(), case.floats("weight_decay"));
    // A tensor that does not decay where others do is a norm.
    let roles = decay.iter().map(|&d| if d == options.weight_decay { Role::Matrix } else { Role::Norm });
    assert!(decay.iter().all(|&d| d == options.weight_decay || d == 0.0), "{name}: two weight decays");
    let parameters: Vec<_> = roles.zip(&shapes).map(|(r, s)| (r, s.as_slice(), Dtype::F32)).collect();
    let mut optimizer = AdamW::new(&registry(&parameters), options);
    let start = Case::lists(&case.0["start"]);
    let store = Store::new(start.iter().zip(&shapes).map(|(v, s)| tensor(&narrow(v), s)));
    // Updates are not relative to a value that passes through zero.
    let floor: Vec<f64> = start.iter().map(|v| v.iter().fold(0.1, |a, &b| b.abs().max(a))).collect();
    let steps = case.0["steps"].as_array().unwrap();
    assert_eq!(steps.len(), case.floats("learning_rates").len());
    for (k, (recorded, lr)) in steps.iter().zip(case.floats("learning_rates")).enumerate() {
        let gradients = Case::lists(&recorded["gradients"]);
        let gradients = gradients.iter().zip(&shapes).map(|(g, s)| tensor(&narrow(g), s)).collect();
        let applied = step(&mut optimizer, &store, gradients, None, lr).unwrap();
        assert_eq!(applied.parameters, shapes.len());
        for (i, want) in Case::lists(&recorded["values"]).iter().enumerate() {
            assert_close(&store.f32(i), want, F32, floor[i], &format!("{name}, step {k}, tensor {i}"));
        }
    }
    assert_eq!(optimizer.steps(), steps.len() as u64);
    let slots = optimizer.slots();
    for moment in ["exp_avg", "exp_avg_sq"] {
        for (i, want) in Case::lists(&case.0[moment]).iter().enumerate() {
            let got = slot(&slots, &format!("p{i}"), moment).unwrap();
            let scale = want.iter().fold(0.0, |a: f64, &b| b.abs().max(a));
            assert_close(&got, want, F32, scale, &format!("{name}, {moment} of tensor {i}"));
        }
    }
    assert_eq!(slots.len(), 2 * shapes.len(), "{name}: an f32 parameter is its own master");
}

/// The reference body, which f64 tensors run on: the optimizer itself keeps f32 by declaration.
fn replay_f64(case: &Case<'_>, name: &str) {
    let (options, decay) = (case.options(), case.floats("weight_decay"));
    for (i, shape) in case.shapes().iter().enumerate() {
        let mut value = tensor_f64(&Case::lists(&case.0["start"])[i], shape);
        let mut state = None;
        for (k, recorded) in case.0["steps"].as_array().unwrap().iter().enumerate() {
            let hyper = Adam {
                lr: case.floats("learning_rates")[k],
                beta1: options.beta1,
                beta2: options.beta2,
                eps: options.eps,
                weight_decay: decay[i],
                decoupled: options.decoupled,
                step: k as u64 + 1,
                grad_scale: 1.0,
            };
            let gradient = tensor_f64(&Case::lists(&recorded["gradients"])[i], shape);
            let (next, moments) = adam_step(value, state.take(), &gradient, &hyper);
            (value, state) = (next, Some(moments));
            assert_eq!(value.dtype(), Some(Dtype::F64));
            let got: Vec<f64> = value.to_data().try_into_vec().unwrap();
            for (g, w) in got.iter().zip(&Case::lists(&recorded["values"])[i]) {
                assert!(
                    (g - w).abs() <= F64 * w.abs().max(1.0),
                    "{name}, step {k}, tensor {i}: {g} is not {w}"
                );
            }
        }
        let state = state.unwrap();
        for (moment, tensor) in [("exp_avg", &state.exp_avg), ("exp_avg_sq", &state.exp_avg_sq)] {
            let got: Vec<f64> = tensor.to_data().try_into_vec().unwrap();
            for (g, w) in got.iter().zip(&Case::lists(&case.0[moment])[i]) {
                assert!((g - w).abs() <= F64, "{name}, {moment} of tensor {i}: {g} is not {w}");
            }
        }
    }
}

#[test]
fn recorded_steps() {
    let mut seen = [0, 0];
    for (i, (file, case)) in
        cases("adamw.json", |case| recordings::one_of(case, "dtype", &["float32", "float64"]))
            .into_iter()
            .enumerate()
    {
        let (case, name) = (Case(&case), format!("{} case {i}", file.display()));
        match case.0["dtype"].as_str().unwrap() {
            "float32" => {
                seen[0] += 1;
                replay_f32(&case, &name);
            }
            "float64" => {
                seen[1] += 1;
                replay_f64(&case, &name);
            }
            other => panic!("{name}: no test for dtype {other}"),
        }
    }
    assert!(seen[0] >= 12 && seen[1] >= 2, "{seen:?}");
}

/// A gradient of a parameter that is not trained moves nothing, and norms and biases do not decay.
#[test]
fn roles_and_frozen_parameters() {
    let mut registry = registry(&[
        (Role::Matrix, &[2], Dtype::F32),
        (Role::Bias, &[2], Dtype::F32),
        (Role::Matrix, &[2], Dtype::F32),
    ]);
    registry.get_mut("p2").unwrap().trainable = false;
    let mut optimizer = AdamW::new(&registry, AdamWOptions { weight_decay: 0.5, ..AdamWOptions::default() });
    let store = Store::new((0..3).map(|_| tensor(&[1.0, -2.0], &[2])));
    let zero = || (0..3).map(|_| tensor(&[0.0, 0.0], &[2])).collect();
    let applied = step(&mut optimizer, &store, zero(), None, 0.1).unwrap();
    assert_eq!(applied.parameters, 2);
    assert_eq!(store.f32(0), [0.95, -1.9]);
    assert_eq!(store.f32(1), [1.0, -2.0]);
    assert_eq!(store.f32(2), [1.0, -2.0]);
}

#[test]
fn declared_slots() {
    let optimizer = AdamW::new(&registry(&[(Role::Matrix, &[2], Dtype::Bf16)]), AdamWOptions::default());
    let names: Vec<_> = optimizer.schema().into_iter().map(|s| (s.name, s.dtype)).collect();
    let declared = ["master", "exp_avg", "exp_avg_sq"].map(|n| (n.to_owned(), Dtype::F32));
    assert_eq!(names, declared);
    assert!(optimizer.slots().is_empty(), "nothing is kept before the first step");
}
