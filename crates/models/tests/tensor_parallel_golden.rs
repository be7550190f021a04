//! Transformers' and PEFT's tensor parallelism, recorded on two gloo ranks by `record/tensor_parallel.py`: the numbers of
//! what works there. `outcomes.json` says what does not.

use std::path::PathBuf;

use burnish_models::{ModelFolder, Tuning};
use burnish_peft::AdapterFolder;
use burnish_weight_files::WeightFolder;
use serde_json::Value;

use crate::part::{greatest, on_ranks};
use crate::recordings::{close, fixtures, ids, json};

/// fp32 sums in another order.
const TOLERANCE: f32 = 1e-5;
const BASES: [&str; 2] = ["llama", "qwen3"];
const RANKS: [usize; 4] = [1, 2, 3, 4];

fn golden() -> PathBuf {
    fixtures().join("../golden/tensor_parallel")
}

/// The script's own record, and the row it ran on.
fn outcomes() -> (Value, Vec<u32>) {
    let record = json(&golden().join("outcomes.json"));
    let row = ids(&record["input_ids"]);
    (record, row)
}

#[test]
fn logits_loss_and_every_gradient_are_those_of_transformers_on_two_ranks() {
    let (record, row) = outcomes();
    for base in BASES {
        let apart = &record["outcomes"][format!("full {base}")]["greatest difference from one process"];
        assert!(apart.as_f64().unwrap() < 1e-5, "recorded where it works: {apart}");
        let recorded = WeightFolder::open_stem(golden(), base).unwrap();
        let want = |name: &str| recorded.read(name).unwrap().to_f32();
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        for ranks in RANKS {
            let what = format!("{base} over {ranks} ranks");
            let found = on_ranks(ranks, &folder, &Tuning::Full, |part| {
                (part.logits(&row), part.found(&[std::slice::from_ref(&row)], row.len() as f32 - 1.0, None))
            });
            for (logits, found) in found {
                let expected = want("logits");
                close(&what, &logits, &expected, TOLERANCE * greatest(&expected).max(1.0));
                close(&what, &[found.loss], &want("loss"), TOLERANCE * found.loss.max(1.0));
                // Logits, loss, and nothing but the gradients.
                assert_eq!(found.gradients.len() + 2, recorded.names().count(), "{what}");
                for (name, got) in &found.gradients {
                    let expected = want(name);
                    close(
                        &format!("{what}: {name}"),
                        got,
                        &expected,
                        TOLERANCE * greatest(&expected).max(1.0),
                    );
                }
            }
        }
    }
}

#[test]
fn column_parallel_adapters_train_as_peft_s_on_two_ranks() {
    let (record, row) = outcomes();
    let (steps, rate) =
        (record["steps"].as_u64().unwrap() as usize, record["learning_rate"].as_f64().unwrap() as f32);
    for base in BASES {
        let apart = &record["outcomes"][format!("lora {base}")]["greatest difference from one process"];
        assert!(apart.as_f64().unwrap() < 1e-5, "recorded where it works: {apart}");
        let recorded = WeightFolder::open_stem(golden(), &format!("{base}-lora")).unwrap();
        let want = |kind: &str, name: &str| {
            recorded.read(&format!("{kind} base_model.model.{name}")).unwrap().to_f32()
        };
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let adapter = AdapterFolder::open(golden().join(format!("{base}-lora"))).unwrap();
        for ranks in RANKS {
            let what = format!("{base} over {ranks} ranks");
            let denominator = row.len() as f32 - 1.0;
            let found = on_ranks(ranks, &folder, &Tuning::Adapter(&adapter), |part| {
                let before = part.found(&[std::slice::from_ref(&row)], denominator, None);
                let step = |_| part.step(std::slice::from_ref(&row), denominator, rate);
                let losses: Vec<f32> = (0..steps - 1).map(step).collect();
                let last = part.found(&[std::slice::from_ref(&row)], denominator, None);
                let _ = part.step(std::slice::from_ref(&row), denominator, rate);
                (before, losses, last, part.trained())
            });
            for (before, mut losses, last, trained) in found {
                losses.push(last.loss);
                for (step, loss) in losses.iter().enumerate() {
                    let expected = recorded.read(&format!("loss {step}")).unwrap().to_f32();
                    close(&format!("{what}, step {step}"), &[*loss], &expected, TOLERANCE * loss.max(1.0));
                }
                for (step, found) in [(0, before), (steps - 1, last)] {
                    assert_eq!(found.gradients.len(), adapter.keys().count());
                    for (name, got) in found.gradients {
                        let expected = want(&format!("gradient {step}"), &name);
                        close(
                            &format!("{what}, step {step}: {name}"),
                            &got,
                            &expected,
                            TOLERANCE * greatest(&expected).max(1.0),
                        );
                    }
                }
                for (name, got) in trained {
                    let expected = want("trained", &name);
                    close(
                        &format!("{what}: {name}"),
                        &got,
                        &expected,
                        TOLERANCE * greatest(&expected).max(1.0),
                    );
                }
            }
        }
    }
}
