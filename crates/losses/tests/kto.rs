//! TRL's KTO losses.

use burnish_losses::{Kto, KtoLoss, KtoOptions, Labelled};
use recordings::{has_keys, parses};

use crate::golden::{cases, number, numbers};
use crate::padded::{Layout, assert_keys, assert_metrics, assert_value, assert_values};

const KEYS: [&str; 13] = [
    "loss_type",
    "beta",
    "desirable_weight",
    "undesirable_weight",
    "completion_mask",
    "per_token_logps",
    "label",
    "ref_logps",
    "KL_logps",
    "ref_KL_logps",
    "loss",
    "grad_per_token_logps",
    "metrics",
];

#[test]
fn recorded_losses_gradients_and_metrics() {
    for (i, (file, case)) in
        cases("kto.json", |case| has_keys(case, &KEYS).and_then(|()| parses::<KtoLoss>(case, "loss_type")))
            .into_iter()
            .enumerate()
    {
        let name = format!("{} case {i}", file.display());
        assert_keys(&case, &KEYS, &name);
        let kto = Kto::new(KtoOptions {
            loss_type: case["loss_type"].as_str().unwrap().parse().unwrap_or_else(|e| panic!("{name}: {e}")),
            beta: number(&case["beta"]),
            desirable_weight: number(&case["desirable_weight"]),
            undesirable_weight: number(&case["undesirable_weight"]),
        })
        .unwrap();
        let layout = Layout::new(&case["completion_mask"], 1);
        let stats = layout.stats(&case, "entropy");
        let kl = kto.kl(&numbers(&case["KL_logps"]), &numbers(&case["ref_KL_logps"])).unwrap();
        let references = numbers(&case["ref_logps"]);
        let examples: Vec<Labelled> = numbers(&case["label"])
            .into_iter()
            .enumerate()
            .map(|(row, label)| Labelled {
                completion: layout.targets[row].clone().into(),
                desirable: label != 0.0,
                reference: references[row],
            })
            .collect();
        let terms = kto.terms(&stats, &examples, kl, examples.len() as f64).unwrap();
        assert_value(terms.value, number(&case["loss"]), &name);
        assert_values(terms.log_prob_gradient(), &layout.gradient(&case["grad_per_token_logps"]), &name);
        assert!(terms.entropy_gradient().iter().all(|&g| g == 0.0), "{name}");
        // The recorded cases do not hold what entropy and mean logits were made from.
        assert_metrics(
            &terms,
            &kto.metrics(),
            &case,
            &["num_tokens", "entropy", "logits/chosen", "logits/rejected"],
            &name,
        );
    }
}

/// With one kind of completion only there is no margin.
#[test]
fn margins_need_both_kinds() {
    let kto = Kto::new(KtoOptions::default()).unwrap();
    let stats = burnish_ops::TokenStats { log_prob: vec![-1.0], ..Default::default() };
    let example = Labelled { completion: (0..1).into(), desirable: true, reference: -2.0 };
    let mut tally = kto.terms(&stats, &[example], 0.0, 1.0).unwrap().tally;
    tally.settle();
    assert_eq!(tally.mean("rewards/margins"), None);
    assert_eq!(tally.mean("rewards/rejected"), None);
    assert_eq!(tally.mean("rewards/chosen"), Some(0.1));
}

/// The KL term is never negative, and absent without a KL loss.
#[test]
fn kl_term() {
    let kto = Kto::new(KtoOptions::default()).unwrap();
    assert_eq!(kto.kl(&[-3.0, -1.0], &[-1.0, -1.0]).unwrap(), 0.0);
    assert_eq!(kto.kl(&[-1.0, -1.0], &[-3.0, -1.0]).unwrap(), 1.0);
    let apo = Kto::new(KtoOptions { loss_type: "apo_zero_unpaired".parse().unwrap(), ..Default::default() });
    let apo = apo.unwrap();
    assert!(!apo.needs_kl());
    assert_eq!(apo.kl(&[-1.0], &[-3.0]).unwrap(), 0.0);
}
