//! Adapters of a head that stays its embedding (`ensure_weight_tying`), against PEFT's.

use burnish_core::Dtype;
use burnish_models::{Model, ModelFolder, Tuning, to_device};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

use crate::dora::{loss_and_gradients, planned_model};
use crate::recordings::{close, device, fixtures, floats, ids, json, logits};

const CASES: [&str; 2] = ["tying_saved", "tying_factors"];
const BASE: &str = "llama-tied";

/// Logits, loss, gradients, and the losses of steps of plain gradient descent, where those are not steep.
#[test]
fn what_trains_of_one_is_the_other_s() {
    for name in CASES {
        let case = fixtures().join("peft").join(name);
        let expected = json(&case.join("expected_logits.json"));
        let adapter = AdapterFolder::open(&case).unwrap();
        let (_, registry, model, resident) = planned_model(BASE, &Tuning::Adapter(&adapter));
        let row = ids(&expected["input_ids"][0]);
        let got = logits(&model.decoder, std::slice::from_ref(&row));
        let last = floats(&expected["last_token_logits"]);
        close(name, &got[got.len() - last.len()..], &last, 1e-4);
        let recorded = WeightFolder::open_stem(&case, "gradients").unwrap();
        let (rate, mut losses) = (expected["rate"].as_f64().unwrap() as f32, Vec::new());
        for step in 0..2 {
            let rows = std::slice::from_ref(&row);
            let (loss, gradients) =
                loss_and_gradients(&model, &resident, rows, row.len() as f32 - 1.0, 0, None);
            losses.push(loss);
            assert_eq!(gradients.len(), recorded.names().count(), "{name}");
            for (parameter, got) in gradients {
                let plain = parameter.strip_prefix("modules_to_save.").unwrap_or(&parameter);
                let want = recorded.read(&format!("base_model.model.{plain}")).unwrap().to_f32();
                let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                if step == 0 {
                    close(&format!("{name}: {parameter}"), &got, &want, 2e-5 * largest.max(1e-3));
                }
                let index = registry.index_of(&parameter).unwrap();
                let mut value = model.host(index).to_f32();
                value.iter_mut().zip(&got).for_each(|(x, g)| *x -= rate * g);
                let value = HostTensor::from_f32(&value, &registry.at(index).shape, Dtype::F32).unwrap();
                resident.write(index, to_device(value, &device()));
            }
        }
        close(name, &losses, &floats(&expected["losses"])[..2], 1e-3);
    }
}

/// What is written is read again, by names as PEFT's; what is merged stays tied, and says the same.
#[test]
fn files_and_merged_models_stay_tied() {
    for name in CASES {
        let case = fixtures().join("peft").join(name);
        let adapter = AdapterFolder::open(&case).unwrap();
        let (folder, _, model, _) = planned_model(BASE, &Tuning::Adapter(&adapter));
        let row = vec![vec![3, 1, 4, 1, 5, 9, 2, 6]];
        let said = logits(&model.decoder, &row);
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("adapter");
        let mut writer = FolderWriter::new_folder(&path).unwrap();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let (ours, theirs) = (
            WeightFolder::open_stem(&path, "adapter_model").unwrap(),
            WeightFolder::open_stem(&case, "adapter_model").unwrap(),
        );
        for key in ours.names() {
            assert_eq!(ours.read(key).unwrap(), theirs.read(key).unwrap(), "{name}: {key}");
        }
        assert_eq!(ours.names().any(|key| key == "base_model.model.lm_head.weight"), name == "tying_saved");
        let again = AdapterFolder::open(&path).unwrap();
        let again = Model::load(&folder, &Tuning::Adapter(&again), Dtype::F32, 0, &device()).unwrap();
        assert_eq!(logits(&again.decoder, &row), said, "{name}");

        let merged = out.path().join("merged");
        let mut writer = FolderWriter::new_folder(&merged).unwrap();
        model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        assert!(ModelFolder::open(&merged).unwrap().spec().tied, "{name}");
        let merged = burnish_models::load(&merged, &device()).unwrap();
        close(name, &logits(&merged.decoder, &row), &said, 1e-4);
    }
}

/// A fresh adapter changes nothing, has the parameters of one table, and dropout is the head's alone.
#[test]
fn fresh_ones_begin_as_the_base() {
    let row = vec![vec![3, 1, 4, 1, 5]];
    let base = burnish_models::load(fixtures().join(BASE), &device()).unwrap();
    for (more, own) in [
        (
            r#""target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]"#,
            "modules_to_save.model.embed_tokens.weight",
        ),
        (
            r#""target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]"#,
            "modules_to_save.model.embed_tokens.weight",
        ),
        (r#""target_modules": ["q_proj", "lm_head"]"#, "model.embed_tokens.lora_embedding_A"),
        (
            r#""target_modules": ".*(q_proj|embed_tokens)", "lora_dropout": 0.5"#,
            "model.embed_tokens.lora_embedding_B",
        ),
    ] {
        let config = LoraConfig::from_json(&format!(
            r#"{{"peft_type": "LORA", "r": 2, "ensure_weight_tying": true, {more}}}"#
        ))
        .unwrap();
        let (_, registry, model, _) = planned_model(BASE, &Tuning::NewAdapter(&config));
        assert_eq!(logits(&model.decoder, &row), logits(&base.decoder, &row), "{more}");
        let trained: Vec<&str> = registry.trainable().map(|p| p.name.as_str()).collect();
        assert!(trained.contains(&own), "{more}: {trained:?}");
        assert!(trained.iter().all(|name| !name.contains("lm_head")), "{more}: {trained:?}");
    }
}

#[test]
fn what_cannot_stay_tied_is_refused() {
    let refused = |base: &str, more: &str| {
        let text = format!(r#"{{"peft_type": "LORA", "r": 2, "ensure_weight_tying": true, {more}}}"#);
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let config = LoraConfig::from_json(&text).unwrap();
        let loaded = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device());
        loaded.err().unwrap().to_string()
    };
    let none = refused(BASE, r#""target_modules": ["q_proj"]"#);
    assert!(none.contains("unless modules_to_save or target_modules names the embedding"), "{none}");
    let own = refused("llama", r#""target_modules": ["embed_tokens"]"#);
    assert!(own.contains("a weight of its own"), "{own}");
    let dora = refused(BASE, r#""target_modules": ["embed_tokens"], "use_dora": true"#);
    assert!(dora.contains("use_dora") && dora.contains("ensure_weight_tying"), "{dora}");
}
