//! Ten steps of `torch.optim.Muon` and of the variants, step for step.

use burnish_core::{Dtype, Role};
use burnish_ops::{Form, NewtonSchulz};
use burnish_optim::{
    AdamWOptions, LearningRates, LocalMatrices, MuonOptions, Optimizer, OptimizerKind, Variant,
};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::store::{Store, assert_close, registry, slot, step_with, tensor};

/// Both sides round to f32 (6e-8) in every product of the five steps, whose slope at zero is 485; weights are near 1 and
/// change by some percent a step.
const CLOSE: f64 = 1e-5;

fn lists(v: &Value) -> Vec<Vec<f64>> {
    v.as_array().unwrap().iter().map(numbers).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn options(case: &Value, form: Form) -> MuonOptions {
    let text = |key: &str| case[key].as_str().unwrap();
    MuonOptions {
        momentum: number(&case["momentum"]),
        nesterov: case["nesterov"].as_bool().unwrap(),
        weight_decay: number(&case["weight_decay"]),
        newton_schulz: NewtonSchulz {
            polynomials: text("polynomials").parse().unwrap(),
            form,
            ..NewtonSchulz::default()
        },
        scale: text("scale").parse().unwrap(),
        variant: text("variant").parse().unwrap(),
        beta2: number(&case["beta2"]),
        eps: number(&case["eps"]),
        ..MuonOptions::default()
    }
}

fn replay(case: &Value, form: Form, name: &str) {
    let options = options(case, form);
    let shapes: Vec<Vec<usize>> = case["shapes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_array().unwrap().iter().map(count).collect())
        .collect();
    let parameters: Vec<_> = shapes.iter().map(|s| (Role::Matrix, s.as_slice(), Dtype::F32)).collect();
    let registry = registry(&parameters);
    let mut optimizer =
        Optimizer::muon(&registry, &registry, options, AdamWOptions::default(), &|_| true).unwrap();
    assert_eq!(optimizer.assignment().count(OptimizerKind::Muon).0, shapes.len());
    let mut here = LocalMatrices::new(&registry);
    let store = Store::new(lists(&case["start"]).iter().zip(&shapes).map(|(v, s)| tensor(&narrow(v), s)));
    let rates = numbers(&case["learning_rates"]);
    let steps = case["steps"].as_array().unwrap();
    assert_eq!((steps.len(), rates.len()), (10, 10));
    for (k, (recorded, rate)) in steps.iter().zip(rates).enumerate() {
        let gradients = lists(&recorded["gradients"]);
        let gradients = gradients.iter().zip(&shapes).map(|(g, s)| tensor(&narrow(g), s)).enumerate();
        // Nothing here is AdamW's.
        let rates = LearningRates { adam: f64::NAN, muon: rate };
        let applied = step_with(&mut optimizer, &store, gradients.collect(), None, rates, &mut here).unwrap();
        assert_eq!((applied.parameters, applied.orthogonalised), (shapes.len(), shapes.len()));
        for (i, want) in lists(&recorded["values"]).iter().enumerate() {
            assert_close(&store.f32(i), want, CLOSE, 1.0, &format!("{name}, step {k}, tensor {i}"));
        }
    }
    assert_eq!(optimizer.steps(), 10);
    let slots = optimizer.slots();
    for (i, want) in lists(&case["momentum_buffer"]).iter().enumerate() {
        let got = slot(&slots, &format!("p{i}"), "momentum_buffer").unwrap();
        assert_close(&got, want, 1e-6, 1.0, &format!("{name}, momentum of tensor {i}"));
    }
    let each = if options.variant == Variant::Muon { 1 } else { 2 };
    if each == 2 {
        for (i, want) in lists(&case["second_momentum_buffer"]).iter().enumerate() {
            let got = slot(&slots, &format!("p{i}"), "second_momentum_buffer").unwrap();
            assert_close(&got, want, CLOSE, 1.0, &format!("{name}, second moment of tensor {i}"));
        }
    }
    assert_eq!(slots.len(), each * shapes.len(), "{name}: nothing else is kept");
}

#[test]
fn recorded_steps() {
    let mut seen = [0, 0];
    for (i, (file, case)) in
        cases("muon.json", |case| recordings::one_of(case, "source", &["torch.optim.Muon", "reference"]))
            .into_iter()
            .enumerate()
    {
        let name = format!("{} case {i}", file.display());
        match case["source"].as_str().unwrap() {
            "torch.optim.Muon" => seen[0] += 1,
            "reference" => seen[1] += 1,
            other => panic!("{name}: no test for source {other}"),
        }
        for form in [Form::Auto, Form::Standard, Form::Gram] {
            replay(&case, form, &format!("{name}, {form:?}"));
        }
    }
    assert!(seen[0] >= 11 && seen[1] >= 7, "{seen:?}");
}

#[test]
fn names_of_choices() {
    use burnish_ops::Polynomials;
    use burnish_optim::{MomentumDtype, OptimError, Scale};
    for name in ["match_rms_adamw", "original", "spectral"] {
        assert_eq!(name.parse::<Scale>().unwrap().to_string(), name);
    }
    for name in ["muon", "normuon", "adamuon"] {
        assert_eq!(name.parse::<Variant>().unwrap().to_string(), name);
    }
    for name in ["float32", "bfloat16"] {
        assert_eq!(name.parse::<MomentumDtype>().unwrap().to_string(), name);
    }
    for name in ["quintic", "polar_express"] {
        assert_eq!(name.parse::<Polynomials>().unwrap().to_string(), name);
    }
    let error = "keller".parse::<Scale>().unwrap_err();
    assert!(matches!(&error, OptimError::UnknownName { got, .. } if got == "keller"));
    assert!(error.to_string().contains("match_rms_adamw, original or spectral"), "{error}");
    assert!("polar".parse::<Polynomials>().unwrap_err().to_string().contains("quintic or polar_express"));
}
