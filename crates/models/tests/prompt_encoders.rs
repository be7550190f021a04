//! Encoders of virtual tokens (P-tuning, prefix tuning with a projection): they train as PEFT's, and files have what they give.

use std::path::PathBuf;
use std::sync::Arc;

use burnish_core::{Dtype, Registry};
use burnish_models::{DropoutStep, LocalParams, Model, ModelFolder, Reloaded, Tuning, to_device};
use burnish_ops::Parameters;
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::{HostTensor, WeightFolder};

use crate::dora::{loss_and_gradients, planned_model};
use crate::recordings::{close, device, fixtures, floats, ids, json, logits};
use crate::round_trips::target;

const CASES: [(&str, &str); 3] =
    [("p_tuning", "gpt2"), ("p_tuning_lstm", "qwen2"), ("prefix_projection", "qwen2")];

fn case(name: &str) -> PathBuf {
    fixtures().join("peft").join(name)
}

/// A fresh adapter of a case's configuration.
fn fresh(name: &str, base: &str) -> (ModelFolder, Registry, Model, Arc<LocalParams>) {
    let config = LoraConfig::read(case(name)).unwrap();
    planned_model(base, &Tuning::NewAdapter(&config))
}

fn write(resident: &LocalParams, index: usize, values: &[f32]) {
    let shape = resident.registry().at(index).shape.clone();
    let tensor = HostTensor::from_f32(values, &shape, Dtype::F32).unwrap();
    resident.write(index, to_device(tensor, &device()));
}

/// The loss and every gradient, at PEFT's parameters and after each of three steps; and PEFT's file.
#[test]
fn encoders_train_as_peft_s() {
    for (name, base) in CASES {
        let expected = json(&case(name).join("expected_logits.json"));
        let (folder, registry, model, resident) = fresh(name, base);
        let recorded = |stem| WeightFolder::open_stem(case(name), stem).unwrap();
        let (encoder, gradients) = (recorded("encoder"), recorded("gradients"));
        let trained: Vec<usize> = (0..registry.len()).filter(|&i| registry.at(i).trainable).collect();
        assert_eq!(trained.len(), encoder.names().count(), "{name}");
        for &index in &trained {
            let parameter = registry.at(index);
            let start = encoder.read(&parameter.name).unwrap();
            assert_eq!(start.shape, parameter.shape, "{name}: {}", parameter.name);
            write(&resident, index, &start.to_f32());
        }
        // PEFT's own file, and read again.
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let files =
            [case(name), path.clone()].map(|path| WeightFolder::open_stem(path, "adapter_model").unwrap());
        let [wanted, written] = files.map(|file| {
            assert_eq!(file.names().collect::<Vec<_>>(), ["prompt_embeddings"], "{name}");
            file.read("prompt_embeddings").unwrap()
        });
        assert_eq!(written.shape, wanted.shape, "{name}");
        close(name, &written.to_f32(), &wanted.to_f32(), 1e-6);
        let config = |path: PathBuf| json(&path.join("adapter_config.json"));
        for key in ["encoder_hidden_size", "num_virtual_tokens", "token_dim", "prefix_projection"] {
            assert_eq!(config(path.clone()).get(key), config(case(name)).get(key), "{name}: {key}");
        }
        let adapter = AdapterFolder::open(&path).unwrap();
        let again = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
        let row = ids(&expected["input_ids"][0]);
        let texts = [row.clone(), vec![7, 3]];
        assert_eq!(logits(&again.decoder, &texts), logits(&model.decoder, &texts), "{name}");
        // What goes on from files alone has no encoder.
        let refused = adapter.config.check_training().unwrap_err().to_string();
        assert!(refused.contains("resume_from_checkpoint"), "{name}: {refused}");
        let reloaded = Reloaded::open(&model.exporter(), &path).unwrap();
        let of_encoder = registry.at(trained[0]);
        assert!(!model.exporter().keeps(of_encoder) && reloaded.rows(of_encoder, 0..1).is_err());

        let denominator = row.len() as f32 - 1.0;
        let (losses, rate) = (floats(&expected["losses"]), expected["rate"].as_f64().unwrap() as f32);
        for (step, wanted) in losses.iter().enumerate() {
            let (loss, found) =
                loss_and_gradients(&model, &resident, std::slice::from_ref(&row), denominator, 0, None);
            assert!((loss - wanted).abs() < 1e-4, "{name}, step {step}: {loss} and {wanted}");
            assert_eq!(found.len(), trained.len(), "{name}");
            for (&index, (parameter, gradient)) in trained.iter().zip(&found) {
                assert_eq!(*parameter, registry.at(index).name);
                if step == 0 {
                    let want = gradients.read(parameter).unwrap().to_f32();
                    let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    assert!(largest > 0.0, "{name}: {parameter}");
                    close(&format!("{name}: {parameter}"), gradient, &want, 1e-5 * largest.max(1e-3));
                }
                let mut values = model.host(index).to_f32();
                values.iter_mut().zip(gradient).for_each(|(x, g)| *x -= rate * g);
                write(&resident, index, &values);
            }
        }
    }
}

/// PyTorch's distributions; a prefix that starts from zeros does.
#[test]
fn fresh_encoders_are_as_pytorch_fills_them() {
    let spread = |values: &[f32]| (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
    for (name, base) in CASES {
        let mut config = json(&case(name).join("adapter_config.json"));
        config["num_virtual_tokens"] = 40.into();
        let config = LoraConfig::from_json(&config.to_string()).unwrap();
        let (_, registry, model, _) = planned_model(base, &Tuning::NewAdapter(&config));
        for (index, parameter) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
            let (values, name) = (model.host(index).to_f32(), &parameter.name);
            if name.ends_with("embedding.weight") {
                assert!((spread(&values) - 1.0).abs() < 0.1, "{name}: {}", spread(&values));
                continue;
            }
            let weight = name.replace("bias", "weight");
            let inputs = match name.contains("lstm") {
                true => parameter.shape[0] / 4,
                false => registry.get(&weight).unwrap().shape[1],
            };
            let bound = 1.0 / (inputs as f32).sqrt();
            let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            assert!(largest <= bound && largest > 0.7 * bound, "{name}: {largest} of {bound}");
            let uniform = bound / 3.0_f32.sqrt();
            assert!(
                (spread(&values) / uniform - 1.0).abs() < 0.3,
                "{name}: {} of {uniform}",
                spread(&values)
            );
        }
    }
    let mut config = json(&case("prefix_projection").join("adapter_config.json"));
    config["init_weights"] = "zero".into();
    let config = LoraConfig::from_json(&config.to_string()).unwrap();
    let (_, _, model, _) = planned_model("qwen2", &Tuning::NewAdapter(&config));
    let given = model.decoder.encoded_prompt().unwrap().unwrap();
    assert!(given.to_f32().iter().all(|&x| x == 0.0));
}

/// An LSTM drops between its layers, as the step says, in training alone; an MLP drops nothing whatever its configuration
/// says, and has three layers.
#[test]
fn an_lstm_drops_between_layers_and_an_mlp_nowhere() {
    let of = |name: &str, base: &str, layers: usize, dropout: f64| {
        let mut config = json(&case(name).join("adapter_config.json"));
        config["encoder_dropout"] = dropout.into();
        config["encoder_num_layers"] = layers.into();
        let config = LoraConfig::from_json(&config.to_string()).unwrap();
        let (_, registry, model, resident) = planned_model(base, &Tuning::NewAdapter(&config));
        let drops = model.plan.as_ref().unwrap().drops_out();
        let loss = |step: Option<u64>| {
            let dropout = step.map(|step| DropoutStep { seed: 1, step });
            loss_and_gradients(&model, &resident, &[vec![3, 1, 4, 1, 5]], 4.0, 0, dropout).0
        };
        (loss(None), loss(Some(1)), loss(Some(1)), loss(Some(2)), drops, registry.trainable().count())
    };
    let (plain, one, same, other, drops, parts) = of("p_tuning_lstm", "qwen2", 3, 0.4);
    assert!(drops && plain != one && one == same && one != other, "{plain} {one} {same} {other}");
    assert_eq!(parts, 1 + 3 * 8 + 4);
    // The last layer's outputs stay.
    let (plain, one, ..) = of("p_tuning_lstm", "qwen2", 1, 0.4);
    assert_eq!(plain, one);
    let (plain, one, _, _, drops, parts) = of("p_tuning", "gpt2", 5, 0.4);
    assert!(!drops && plain == one, "{plain} {one}");
    assert_eq!(parts, 1 + 6);
}

#[test]
fn encoders_that_cannot_be_are_refused() {
    for (key, value, says) in [
        ("encoder_reparameterization_type", serde_json::json!("GRU"), "MLP or LSTM"),
        ("encoder_hidden_size", serde_json::json!(0), "from 1 to 65536"),
        ("encoder_num_layers", serde_json::json!(0), "from 1 to 1024"),
        ("encoder_dropout", serde_json::json!(1.0), "a probability"),
    ] {
        let mut config = json(&case("p_tuning_lstm").join("adapter_config.json"));
        config[key] = value;
        let config = LoraConfig::from_json(&config.to_string()).unwrap();
        let error = config.check(burnish_peft::Purpose::Create).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
}
