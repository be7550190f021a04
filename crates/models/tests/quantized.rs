//! Folders that are quantised already, and those that are written so, against Transformers' and bitsandbytes'.

use std::collections::BTreeMap;
use std::path::Path;

use burnish_core::{Dtype, Quantization, QuantizeOnLoad, Scheme};
use burnish_models::{Mode, Model, ModelError, ModelFolder, ModelPlan, Tokens, Tuning, load};
use burnish_ops::{AnyTensor, Parameters};
use burnish_peft::LoraConfig;
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::{Value, json};

use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};
use crate::refused::{copy, reweighted};

const FOLDERS: [&str; 6] = ["nf4", "nf4-nested", "fp4-skipped", "int8", "gptq", "awq"];

fn folder(name: &str) -> std::path::PathBuf {
    fixtures().join("quantized").join(name)
}

fn quantization(scheme: Scheme, nested: bool) -> Quantization {
    Quantization { scheme, nested }
}

fn on_load(quantization: Quantization) -> QuantizeOnLoad {
    QuantizeOnLoad { quantization, experts: false }
}

#[test]
fn logits_are_those_of_the_dequantised_values() {
    for name in FOLDERS {
        let expected = read_json(&folder(name).join("expected.json"));
        let model = load(folder(name), &device()).unwrap();
        let got = logits(&model.decoder, &[ids(&expected["ids"])]);
        close(name, &got, &floats(&expected["logits"]), 1e-4);
        let plain = read_json(&folder("plain").join("expected.json"));
        let apart =
            got.iter().zip(floats(&plain["logits"])).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart > 1e-2, "{name}: the model in full says the same");
    }
}

#[test]
fn what_rests_in_16_bits_and_no_fewer_is_widened() {
    let opened = ModelFolder::open(folder("fp4-skipped")).unwrap();
    let plan = || ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
    let of = |planned: &ModelPlan<'_>, module: &str| {
        planned.registry().iter().find(|p| p.name.contains(module)).unwrap().precision.store
    };
    let (files, widened) = (plan(), plan().widening(true));
    assert_eq!([of(&files, "down_proj"), of(&widened, "down_proj")], [Dtype::Bf16, Dtype::F32]);
    assert_eq!([of(&files, "up_proj"), of(&widened, "up_proj")], [Dtype::Bf16; 2]);
    let down = widened.registry().iter().position(|p| p.name.contains("down_proj")).unwrap();
    let [from, to] = [files, widened].map(|planned| planned.rows(down, 0..8).unwrap());
    assert_eq!(to.dtype, Dtype::F32);
    assert_eq!(to.to_f32(), from.to_f32());
}

#[test]
fn matrices_stay_as_the_files_have_them() {
    let all = |name: &str| -> Vec<(String, Option<Quantization>, Dtype)> {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
        let known = planned.registry().iter().filter(|p| p.shape.len() == 2);
        known.map(|p| (p.name.clone(), p.quantization, p.precision.store)).collect()
    };
    let of = |name: &str, module: &str| {
        let found = all(name).into_iter().find(|(own, ..)| own.contains(module)).unwrap();
        (found.1, found.2)
    };
    assert_eq!(of("nf4", "up_proj"), (Some(quantization(Scheme::Nf4, false)), Dtype::Bf16));
    assert_eq!(of("nf4-nested", "q_proj"), (Some(quantization(Scheme::Nf4, true)), Dtype::Bf16));
    assert_eq!(of("fp4-skipped", "up_proj"), (Some(quantization(Scheme::Fp4, false)), Dtype::Bf16));
    assert_eq!(of("fp4-skipped", "down_proj"), (None, Dtype::Bf16));
    assert_eq!(of("int8", "o_proj"), (Some(quantization(Scheme::Int8, false)), Dtype::Bf16));
    let int4 = |group, ordered| Some(quantization(Scheme::Int4 { group, ordered }, false));
    assert_eq!(of("gptq", "k_proj"), (int4(32, true), Dtype::F16));
    assert_eq!(of("awq", "k_proj"), (int4(16, false), Dtype::F16));
    for name in FOLDERS {
        assert_eq!((of(name, "embed_tokens").0, of(name, "lm_head").0), (None, None), "{name}");
    }
}

fn tensors(path: &Path) -> BTreeMap<String, HostTensor> {
    let weights = WeightFolder::open(path).unwrap();
    weights.names().map(|name| (name.to_owned(), weights.read(name).unwrap())).collect()
}

/// The JSON of a description, its offset aside.
fn state(tensor: &HostTensor) -> (Value, f64) {
    let mut state: Value = serde_json::from_slice(&tensor.bytes).unwrap();
    let offset = state.as_object_mut().unwrap().remove("nested_offset");
    (state, offset.and_then(|offset| offset.as_f64()).unwrap_or(0.0))
}

#[test]
fn written_folders_are_bitsandbytes_own() {
    let plain = ModelFolder::open(folder("plain")).unwrap();
    for (name, how) in [
        ("nf4", quantization(Scheme::Nf4, false)),
        ("nf4-nested", quantization(Scheme::Nf4, true)),
        ("int8", quantization(Scheme::Int8, false)),
    ] {
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        plain.quantize_to(&mut writer, None, on_load(how)).unwrap();
        writer.commit().unwrap();
        let (ours, theirs) = (tensors(out.path()), tensors(&folder(name)));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, ours) in &ours {
            let theirs = &theirs[tensor];
            if tensor.contains(".quant_state.") {
                let ((ours, own), (theirs, offset)) = (state(ours), state(theirs));
                assert_eq!(ours, theirs, "{name}: {tensor}");
                // A mean, rounded once here and summed in another order there.
                assert!((own - offset).abs() <= 2e-7 * offset.abs(), "{name}: {tensor}: {own}, {offset}");
                continue;
            }
            assert_eq!((ours.dtype, &ours.shape), (theirs.dtype, &theirs.shape), "{name}: {tensor}");
            if tensor.ends_with(".nested_absmax") {
                let pairs = ours.to_f32().into_iter().zip(theirs.to_f32());
                assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{name}: {tensor}");
            } else {
                assert_eq!(ours.bytes, theirs.bytes, "{name}: {tensor}");
            }
        }
        let config = |path: &Path| {
            let mut config = read_json(&path.join("config.json"));
            // Ours computes in the model's dtype, as its own option says.
            config["quantization_config"].as_object_mut().unwrap().remove("bnb_4bit_compute_dtype");
            config
        };
        assert_eq!(config(out.path()), config(&folder(name)), "{name}");
        let expected = read_json(&folder(name).join("expected.json"));
        let again = load(out.path(), &device()).unwrap();
        close(name, &logits(&again.decoder, &[ids(&expected["ids"])]), &floats(&expected["logits"]), 1e-4);
    }
}

pub(crate) fn adapter(extra: &str) -> LoraConfig {
    let text = format!(
        r#"{{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, {extra}
            "target_modules": ["q_proj", "down_proj"]}}"#
    );
    LoraConfig::from_json(&text).unwrap()
}

#[test]
fn an_adapter_is_merged_over_what_it_was_trained_over() {
    for (name, again) in [
        ("nf4-nested", Some(quantization(Scheme::Nf4, true))),
        ("int8", Some(quantization(Scheme::Int8, false))),
        ("gptq", None),
    ] {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let config = adapter(r#""init_lora_weights": false,"#);
        let model = Model::load(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 3, &device()).unwrap();
        let tokens = vec![vec![1, 5, 9, 30, 2, 47, 12, 8, 60, 33]];
        let before = logits(&model.decoder, &tokens);
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_merged(&opened, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        assert!(read_json(&out.path().join("config.json")).get("quantization_config").is_none());
        let merged = load(out.path(), &device()).unwrap();
        close(name, &logits(&merged.decoder, &tokens), &before, 2e-4);

        let Some(how) = again else { continue };
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_quantized(&opened, &mut writer, None, how).unwrap();
        writer.commit().unwrap();
        let merged = load(out.path(), &device()).unwrap();
        let after = logits(&merged.decoder, &tokens);
        let worst = after.iter().zip(&before).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(worst > 1e-4, "{name}: nothing is lost");
        close(name, &after, &before, 2.0);
        // What the adapter does not touch has the codes that it had.
        let (ours, theirs) = (tensors(out.path()), tensors(&folder(name)));
        let untouched = "model.layers.0.self_attn.o_proj.weight";
        if how.scheme == Scheme::Int8 {
            assert_eq!(ours[untouched].shape, theirs[untouched].shape);
        }
        assert_ne!(
            ours["model.layers.0.mlp.down_proj.weight"].bytes,
            theirs["model.layers.0.mlp.down_proj.weight"].bytes
        );
    }
}

/// What is said of a folder, its own path written as `DIR`.
pub(crate) fn error(path: &Path) -> String {
    let opened = ModelFolder::open(path);
    let said =
        opened.and_then(|folder| Model::load(&folder, &Tuning::None, Dtype::F32, 0, &device()).map(drop));
    said.unwrap_err().to_string().replace(&path.display().to_string(), "DIR")
}

const MATRIX: &str = "model.layers.0.mlp.down_proj";

/// What is said of a copy with one tensor changed.
pub(crate) fn with_tensor(name: &str, tensor: &str, change: impl FnOnce(&mut HostTensor)) -> String {
    let folder = reweighted(name, |all| {
        let found = all.iter_mut().find(|(own, _)| own == tensor);
        change(&mut found.unwrap_or_else(|| panic!("no {tensor}")).1);
    });
    error(folder.path())
}

fn with(name: &str, tensor: &str, change: impl FnOnce(&mut HostTensor)) -> String {
    with_tensor(&format!("quantized/{name}"), &format!("{MATRIX}{tensor}"), change)
}

fn said(name: &str, tensor: &str, text: &str) -> String {
    with(name, tensor, |state| {
        *state = HostTensor::from_slice(text.as_bytes(), &[text.len()]).unwrap();
    })
}

const NF4: &str = ".weight.quant_state.bitsandbytes__nf4";

#[test]
fn damaged_matrices_are_refused() {
    let of = format!("DIR: the quantised matrix `{MATRIX}.weight`: ");
    let short = |tensor: &mut HostTensor| {
        *tensor = HostTensor::zeros(tensor.dtype, &[tensor.shape[0] - 1]);
    };
    assert_eq!(
        with("nf4", ".weight.absmax", short),
        format!("{of}tensor `{MATRIX}.weight.absmax` is float32 [95], expected float32 [96]")
    );
    assert_eq!(
        with("nf4-nested", ".weight.absmax", |t| *t = HostTensor::zeros(Dtype::F32, &[96])),
        format!("{of}tensor `{MATRIX}.weight.absmax` is float32 [96], expected uint8 [96]")
    );
    assert_eq!(
        with("nf4", ".weight", |t| *t = HostTensor::zeros(Dtype::U8, &[3071, 1])),
        format!("{of}tensor `{MATRIX}.weight` is uint8 [3071, 1], expected 3072 bytes, two elements to each")
    );
    assert!(with("nf4", ".weight.quant_map", |t| t.bytes[1] ^= 1).contains("`: a value is "));
    assert!(
        with("nf4", ".weight.absmax", |t| t.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes()))
            .contains("scale (absmax) 0 is NaN, expected a finite number")
    );
    let text = |more: &str| {
        format!(r#"{{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 96]{more}}}"#)
    };
    let wrong = |from: &str, to: &str| said("nf4", NF4, &text("").replace(from, to));
    let named = format!("{of}`{MATRIX}{NF4}`: ");
    assert_eq!(wrong("64, \"d", "128, \"d"), format!("{named}blocksize is 128, expected 64"));
    assert_eq!(wrong("[64, 96]", "[96, 64]"), format!("{named}shape is [96, 64], expected [64, 96]"));
    assert_eq!(
        wrong("bfloat16", "int8"),
        format!("{named}dtype is int8, expected float32, bfloat16 or float16")
    );
    assert_eq!(wrong("\"nf4\"", "\"fp4\""), format!("{named}quant_type is fp4, expected nf4"));
    assert!(wrong("{", "").starts_with(&format!("{named}the JSON is ")));
    let nested = said("nf4", NF4, &text(r#", "nested_blocksize": 64, "nested_offset": 0.1"#));
    assert_eq!(nested, format!("{named}nested_blocksize is 64, expected 256"));
    let long = said("nf4", NF4, &text(&" ".repeat(5000)));
    assert!(long.ends_with("expected up to 4096 bytes of JSON"), "{long}");
    assert_eq!(
        with("int8", ".SCB", short),
        format!("{of}tensor `{MATRIX}.SCB` is float32 [63], expected float32 [64]")
    );
    assert_eq!(
        with("int8", ".weight_format", |t| t.bytes[0] = 1),
        format!("{of}`{MATRIX}.weight_format`: the layout is another, expected 0 (rows)")
    );
    assert_eq!(
        with("gptq", ".g_idx", |t| t.bytes[0] = 200),
        format!("{of}input 0 is of group 200, and there are 3 groups")
    );
    assert_eq!(
        with("gptq", ".qzeros", |t| *t = HostTensor::zeros(Dtype::I32, &[2, 8])),
        format!("{of}tensor `{MATRIX}.qzeros` is int32 [2, 8], expected int32 [3, 8]")
    );
    assert_eq!(
        with("awq", ".scales", |t| t.bytes[..2].copy_from_slice(&[0, 0x7c])),
        format!("{of}scale 0 is inf, expected a finite number")
    );
    // Without its description a matrix is bytes.
    let bare = reweighted("quantized/nf4", |all| all.retain(|(name, _)| !name.ends_with(NF4)));
    assert!(error(bare.path()).contains("is uint8, expected float32, bfloat16 or float16"));
}

/// AutoRound has GPTQ's and AWQ's words under a name of its own (`packing_format`).
#[test]
fn auto_round_is_read_by_the_words_that_it_names() {
    for (name, format) in
        [("gptq", Some("auto_round:auto_gptq")), ("gptq", None), ("awq", Some("auto_round:auto_awq"))]
    {
        let folder = copy(&format!("quantized/{name}"), |config| {
            let own = &mut config["quantization_config"];
            own["quant_method"] = json!("auto-round");
            own["data_type"] = json!("int");
            if let Some(format) = format {
                own["packing_format"] = json!(format);
            }
        });
        let expected = read_json(&fixtures().join("quantized").join(name).join("expected.json"));
        let model = load(folder.path(), &device()).unwrap();
        close(name, &logits(&model.decoder, &[ids(&expected["ids"])]), &floats(&expected["logits"]), 1e-4);
    }
    let says = |key: &str, value: Value| {
        error(
            copy("quantized/gptq", |config| {
                config["quantization_config"]["quant_method"] = json!("auto-round");
                config["quantization_config"][key] = value;
            })
            .path(),
        )
    };
    assert!(
        says("packing_format", json!("auto_round:fp8_static"))
            .contains("packing_format` = auto_round:fp8_static")
    );
    assert!(says("data_type", json!("mx_fp")).contains("data_type` = mx_fp"));
    assert!(says("bits", json!(2)).contains("bits` = 2"));
}

#[test]
fn other_formats_and_uses_are_refused() {
    let config = |name: &str, key: &str, value: Value| {
        error(copy(&format!("quantized/{name}"), |c| c["quantization_config"][key] = value).path())
    };
    assert_eq!(
        config("nf4", "quant_method", json!("hqq")),
        "config.json: `quantization_config.quant_method` = hqq is not supported; supported: bitsandbytes in four and eight \
         bits, gptq, awq and auto-round in four, compressed-tensors, fp8; or a folder of unquantised weights"
    );
    assert_eq!(
        config("gptq", "bits", json!(8)),
        "config.json: `quantization_config.bits` = 8 is not supported; supported: 4"
    );
    assert!(config("gptq", "group_size", json!(0)).contains("`quantization_config.group_size` = 0"));
    assert!(config("gptq", "checkpoint_format", json!("marlin")).contains("supported: gptq, gptq_v2"));
    assert!(config("awq", "version", json!("gemv")).contains("supported: gemm"));
    let whole = ModelFolder::open(folder("nf4")).unwrap();
    let said = |tuning: &Tuning<'_>| ModelPlan::new(&whole, tuning, Dtype::F32, 0).err().unwrap().to_string();
    assert!(said(&Tuning::Full).ends_with(
        "is quantised already (nf4), and the whole model cannot train: train an adapter (use_peft)"
    ));
    let pissa = adapter(r#""init_lora_weights": "pissa","#);
    assert!(
        said(&Tuning::NewAdapter(&pissa)).ends_with("no start can change it: take another init_lora_weights")
    );
    let planned = || ModelPlan::new(&whole, &Tuning::None, Dtype::F32, 0).unwrap();
    assert!(matches!(
        planned().quantized(on_load(quantization(Scheme::Int8, false)), Dtype::F32),
        Err(ModelError::Quantized { .. })
    ));
    // Four bits are four bits: the folder's own.
    let same = planned().quantized(on_load(quantization(Scheme::Fp4, true)), Dtype::F32).unwrap();
    assert!(same.registry().iter().any(|p| p.quantization == Some(quantization(Scheme::Nf4, false))));
    let mut writer = FolderWriter::in_place(tempfile::tempdir().unwrap().path()).unwrap();
    let twice = whole.quantize_to(&mut writer, None, on_load(quantization(Scheme::Nf4, false)));
    assert!(twice.unwrap_err().to_string().contains("is not quantised twice"));
}

/// The gradients of an adapter over the model at `path`, of the sum of squares of what the head would read.
pub(crate) fn gradients(path: &Path, config: &LoraConfig) -> Vec<(String, Vec<f32>)> {
    let folder = ModelFolder::open(path).unwrap();
    let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(config), Dtype::F32, 3).unwrap();
    let (model, resident) = planned.resident(&device()).unwrap();
    let tokens = Tokens::from_sequences(&[vec![1, 5, 9, 30, 2, 47, 12, 8]]);
    let pass = model.decoder.pass(Mode::Train { recompute: true, dropout: None });
    let hidden = model.decoder.hidden(&tokens, &pass).unwrap();
    let hidden = model.decoder.final_norm(&hidden, &pass).unwrap().rank::<2>().unwrap();
    let sum = (hidden.clone() * hidden).sum();
    pass.backward(&AnyTensor::new(sum)).unwrap();
    let named = resident.registry().iter().enumerate();
    named.filter_map(|(index, p)| Some((p.name.clone(), resident.take_gradient(index)?.to_f32()))).collect()
}

/// Compares an adapter's gradients over a quantised model with those over its values in full.
pub(crate) fn gradients_are_those_over_the_values(name: &str, path: &Path, tensors: usize) {
    let out = tempfile::tempdir().unwrap();
    let config = adapter(r#""init_lora_weights": false,"#);
    let opened = ModelFolder::open(path).unwrap();
    let base = load(path, &device()).unwrap();
    let mut writer = FolderWriter::in_place(out.path().join("values")).unwrap();
    base.write_full(&opened, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    let (packed, plain) = (gradients(path, &config), gradients(&out.path().join("values"), &config));
    assert_eq!((packed.len(), plain.len()), (tensors, tensors), "{name}");
    for ((parameter, got), (_, expected)) in packed.iter().zip(&plain) {
        let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(largest > 0.0, "{name}: {parameter}");
        close(&format!("{name}: {parameter}"), got, expected, 1e-5 * largest);
    }
}

#[test]
fn gradients_of_an_adapter_are_those_over_the_values() {
    for name in FOLDERS {
        gradients_are_those_over_the_values(name, &folder(name), 4);
    }
}
