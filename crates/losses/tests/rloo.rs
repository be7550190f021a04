//! TRL's RLOO loss.

use burnish_losses::{Rloo, Sampled};
use recordings::has_keys;

use crate::golden::{cases, number, numbers};
use crate::padded::{Layout, assert_keys, assert_metrics, assert_value, assert_values};

const KEYS: [&str; 10] = [
    "epsilon",
    "epsilon_high",
    "mask",
    "per_token_logps",
    "old_logps",
    "advantages",
    "entropies",
    "loss",
    "grad_logps",
    "metrics",
];

#[test]
fn recorded_losses_gradients_and_metrics() {
    for (i, (file, case)) in cases("rloo.json", |case| has_keys(case, &KEYS)).into_iter().enumerate() {
        let name = format!("{} case {i}", file.display());
        assert_keys(&case, &KEYS, &name);
        let rloo = Rloo::new(number(&case["epsilon"]), case["epsilon_high"].as_f64()).unwrap();
        let layout = Layout::new(&case["mask"], 0);
        let stats = layout.stats(&case, "entropies");
        let (old, advantages) = (numbers(&case["old_logps"]), numbers(&case["advantages"]));
        let sampled: Vec<Sampled> = (0..old.len())
            .map(|i| Sampled { targets: layout.targets[i].clone(), advantage: advantages[i], old: old[i] })
            .collect();
        let terms = rloo.terms(&stats, &sampled, old.len() as f64).unwrap();
        assert_value(terms.value, number(&case["loss"]), &name);
        assert_values(terms.log_prob_gradient(), &layout.gradient(&case["grad_logps"]), &name);
        assert_metrics(&terms, &rloo.metrics(), &case, &[], &name);
    }
}
