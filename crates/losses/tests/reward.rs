//! TRL's reward loss.

use burnish_losses::Reward;
use recordings::has_keys;

use crate::golden::{cases, number, numbers};
use crate::padded::{assert_keys, assert_metrics, assert_value, assert_values};

const KEYS: [&str; 6] = ["margin", "center", "logits", "loss", "grad", "metrics"];

#[test]
fn recorded_losses_gradients_and_metrics() {
    for (i, (file, case)) in cases("reward.json", |case| has_keys(case, &KEYS)).into_iter().enumerate() {
        let name = format!("{} case {i}", file.display());
        assert_keys(&case, &KEYS, &name);
        let column =
            |key: &str| -> Vec<f64> { case[key].as_array().unwrap().iter().flat_map(numbers).collect() };
        let logits: Vec<f32> = column("logits").into_iter().map(|x| x as f32).collect();
        let (chosen, rejected) = logits.split_at(logits.len() / 2);
        let margins: Option<Vec<f32>> =
            (!case["margin"].is_null()).then(|| numbers(&case["margin"]).iter().map(|&m| m as f32).collect());
        let loss = Reward::new(case["center"].as_f64()).unwrap();
        let terms = loss.terms(chosen, rejected, margins.as_deref(), chosen.len() as f64).unwrap();
        assert_value(terms.value, number(&case["loss"]), &name);
        assert_values(&terms.gradient, &column("grad"), &name);
        assert_metrics(&terms, &loss.metrics(), &case, &["num_tokens"], &name);
    }
}
