//! Mixtures of experts over quantised bases, against Transformers' and bitsandbytes'.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burnish_comm::local;
use burnish_core::{Dtype, Quantization, QuantizeOnLoad, Role, Scheme};
use burnish_models::{ExpertSharding, Mode, Model, ModelFolder, ModelPlan, Tokens, Tuning, load};
use burnish_peft::LoraConfig;
use burnish_tp::Tp;
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

use crate::quantized::gradients;
use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};

fn folder(name: &str) -> PathBuf {
    fixtures().join("quantized-experts").join(name)
}

fn on_load(scheme: Scheme, nested: bool, experts: bool) -> QuantizeOnLoad {
    QuantizeOnLoad { quantization: Quantization { scheme, nested }, experts }
}

fn recorded(name: &str) -> (Vec<u32>, Vec<f32>) {
    let expected = read_json(&folder(name).join("expected.json"));
    (ids(&expected["ids"]), floats(&expected["logits"]))
}

#[test]
fn logits_are_those_of_the_dequantised_values() {
    for name in ["plain", "nf4", "each-nf4", "each-int8", "mxfp4"] {
        let (ids, expected) = recorded(name);
        let model = load(folder(name), &device()).unwrap();
        close(name, &logits(&model.decoder, &[ids]), &expected, 1e-4);
    }
}

#[test]
fn what_rests_in_few_bits_is_what_the_files_have_so() {
    for (name, experts, linears) in [
        ("nf4", None, Some(Scheme::Nf4)),
        ("each-nf4", Some(Scheme::Nf4), Some(Scheme::Nf4)),
        ("each-int8", Some(Scheme::Int8), Some(Scheme::Int8)),
        ("mxfp4", Some(Scheme::Mxfp4), None),
    ] {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
        for parameter in planned.registry().iter() {
            let expected = match parameter.role {
                Role::Expert => experts,
                Role::Matrix => linears,
                _ => None,
            };
            let scheme = parameter.quantization.map(|own| own.scheme);
            assert_eq!(scheme, expected, "{name}: {}", parameter.name);
            assert!(
                scheme.is_none() || parameter.precision.store == Dtype::Bf16,
                "{name}: {}",
                parameter.name
            );
        }
    }
}

/// Quantised as it is read it is the folder that is quantised: with its experts left alone that of Transformers, and with
/// them that of each expert's own matrices.
#[test]
fn quantised_on_load_is_the_quantised_folder() {
    for (name, how) in [
        ("nf4", on_load(Scheme::Nf4, false, false)),
        ("each-nf4", on_load(Scheme::Nf4, true, true)),
        ("each-int8", on_load(Scheme::Int8, false, true)),
    ] {
        let opened = ModelFolder::open(folder("plain")).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::NewAdapter(&adapter(true)), Dtype::Bf16, 0).unwrap();
        let planned = planned.quantized(how, Dtype::Bf16).unwrap();
        let theirs = ModelFolder::open(folder(name)).unwrap();
        for (index, parameter) in planned.registry().iter().enumerate() {
            let Some(quantization) = parameter.quantization else { continue };
            let (ours, theirs) =
                (planned.quantize(index, quantization).unwrap(), theirs.packed(parameter).unwrap());
            let theirs = theirs.unwrap_or_else(|| panic!("{name}: {}", parameter.name));
            assert_eq!(ours.quantization(), theirs.quantization(), "{name}: {}", parameter.name);
            for (ours, theirs) in ours.parts().iter().zip(theirs.parts()) {
                assert_eq!(ours.codes(), theirs.codes(), "{name}: {}", parameter.name);
            }
            // Means of nested scales are rounded once here and summed in another order there.
            let (ours, theirs): (Vec<f32>, Vec<f32>) = (ours.values(), theirs.values());
            close(&parameter.name, &ours, &theirs, 1e-6);
        }
        let (ids, expected) = recorded(name);
        let model = planned.resident(&device()).unwrap().0;
        close(name, &logits(&model.decoder, &[ids]), &expected, 1e-3);
    }
}

fn tensors(path: &Path) -> BTreeMap<String, HostTensor> {
    let weights = WeightFolder::open(path).unwrap();
    weights.names().map(|name| (name.to_owned(), weights.read(name).unwrap())).collect()
}

#[test]
fn written_folders_have_the_tensors_of_theirs() {
    for (name, how) in [
        ("nf4", on_load(Scheme::Nf4, false, false)),
        ("each-nf4", on_load(Scheme::Nf4, true, true)),
        ("each-int8", on_load(Scheme::Int8, false, true)),
    ] {
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        ModelFolder::open(folder("plain")).unwrap().quantize_to(&mut writer, None, how).unwrap();
        writer.commit().unwrap();
        let (ours, theirs) = (tensors(out.path()), tensors(&folder(name)));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, ours) in &ours {
            let theirs = &theirs[tensor];
            // Descriptions and nested scales are compared by what they read as, above and below.
            if !tensor.contains(".quant_state.") && !tensor.contains(".nested_absmax") {
                assert_eq!((ours.dtype, &ours.shape), (theirs.dtype, &theirs.shape), "{name}: {tensor}");
                assert_eq!(ours.bytes, theirs.bytes, "{name}: {tensor}");
            }
        }
        let (ids, expected) = recorded(name);
        let again = load(out.path(), &device()).unwrap();
        close(name, &logits(&again.decoder, &[ids]), &expected, 1e-3);
    }
}

/// On attention and, in PEFT's `target_parameters`, on the experts.
/// `fresh` it changes nothing.
fn adapter(fresh: bool) -> LoraConfig {
    let text = r#"{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "init_lora_weights": FRESH,
        "target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}"#;
    LoraConfig::from_json(&text.replace("FRESH", &fresh.to_string())).unwrap()
}

#[test]
fn gradients_of_an_adapter_are_those_over_the_values() {
    let out = tempfile::tempdir().unwrap();
    for name in ["each-nf4", "each-int8", "mxfp4"] {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let path = out.path().join(name);
        let mut writer = FolderWriter::in_place(&path).unwrap();
        load(folder(name), &device()).unwrap().write_full(&opened, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let (packed, plain) = (gradients(&folder(name), &adapter(false)), gradients(&path, &adapter(false)));
        assert_eq!(packed.len(), 2 * 6, "{name}");
        for ((parameter, got), (_, expected)) in packed.iter().zip(&plain) {
            let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            assert!(largest > 0.0, "{name}: {parameter}");
            close(&format!("{name}: {parameter}"), got, expected, 1e-5 * largest);
        }
    }
}

/// A rank's part of an expert has the codes that it has in the whole.
#[test]
fn ranks_that_share_experts_say_what_one_says() {
    for (name, how) in [
        ("plain", Some(on_load(Scheme::Nf4, true, true))),
        ("each-int8", None),
        ("each-nf4", None),
        ("mxfp4", None),
    ] {
        let hidden_over = |tp: Option<&Tp>, sharding: ExpertSharding| {
            let opened = ModelFolder::open(folder(name)).unwrap();
            let config = adapter(false);
            let mut planned = ModelPlan::new(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 3).unwrap();
            if let Some(how) = how {
                planned = planned.quantized(how, Dtype::Bf16).unwrap();
            }
            if let Some(tp) = tp {
                planned = planned.sharing_experts(sharding).over(tp).unwrap();
            }
            let model: Model = planned.resident(&device()).unwrap().0;
            let pass = model.decoder.pass(Mode::Score);
            let hidden = model.decoder.hidden(&Tokens::from_sequences(&[recorded(name).0]), &pass).unwrap();
            model.decoder.final_norm(&hidden, &pass).unwrap().to_f32()
        };
        let one = hidden_over(None, ExpertSharding::Parts);
        use ExpertSharding::{Exchanged, Parts, Whole};
        for (ranks, sharding) in [2, 3, 4].into_iter().flat_map(|n| [Parts, Whole, Exchanged].map(|s| (n, s)))
        {
            let results = local::run(ranks, |world| {
                let tp = Tp::new(&world.group());
                hidden_over(Some(&tp), sharding)
            });
            for result in results {
                close(&format!("{name} over {ranks}, {sharding:?}"), &result.unwrap(), &one, 1e-4);
            }
        }
    }
}
