//! GGUF files against those of llama.cpp's converter and quantiser (`record/gguf_files.py`), and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use burnish_gguf::{GgufFile, OutType, Value};
use burnish_models::{GgufAdapterExport, GgufExport, ModelError, ModelFolder};
use burnish_peft::AdapterFolder;
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::recordings::{fixtures, json as read_json, logits};

/// What the converter guesses of a folder's name and card, or writes of a key that llama.cpp sets itself.
const NOT_COMPARED: [&str; 8] = [
    "general.name",
    "general.basename",
    "general.finetune",
    "general.version",
    "general.license",
    "general.quantized_by",
    // llama.cpp puts its own in the place of this; what the model has is in `attn_factor`.
    "llama.rope.scaling.yarn_attn_factor",
    // The converter takes four times the width, whatever `n_inner` says.
    "gpt2.feed_forward_length",
];

/// What is another in config.json than in the fixture, as the recording script has it.
fn changes(name: &str) -> Json {
    match name {
        "gemma" | "olmo2" => json!({"attention_bias": false, "mlp_bias": false}),
        "smollm3" => json!({"attention_bias": false, "mlp_bias": false, "no_rope_layers": [1, 1]}),
        "gpt2" => json!({"n_ctx": 64}),
        "gemma2" | "gemma3" => json!({"query_pre_attn_scalar": 8}),
        _ => json!({}),
    }
}

/// A fixture with the tokenizer of all, and without what llama.cpp has not.
fn model(name: &str) -> TempDir {
    if name == "wide" {
        return wide();
    }
    let (folder, source) = (tempfile::tempdir().unwrap(), fixtures().join(name));
    let mut config = read_json(&source.join("config.json"));
    for (key, value) in changes(name).as_object().unwrap() {
        config[key] = value.clone();
    }
    let weights = WeightFolder::open(&source).unwrap();
    let biases = config["attention_bias"] != false || changes(name).get("attention_bias").is_none();
    let names = weights.names().filter(|name| biases || !name.ends_with(".bias"));
    let tensors: Vec<(String, HostTensor)> =
        names.map(|name| (name.to_owned(), weights.read(name).unwrap())).collect();
    write(folder.path(), &config, &tensors);
    folder
}

fn write(folder: &Path, config: &Json, tensors: &[(String, HostTensor)]) {
    let mut writer = FolderWriter::in_place(folder).unwrap();
    let views: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.view())).collect();
    writer.tensors("model", &views).unwrap();
    writer.json("config.json", config).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        writer.file(name, &fs::read(fixtures().join("gguf/tokenizer").join(name)).unwrap()).unwrap();
    }
    writer.commit().unwrap();
}

/// The value at a place of the model whose rows fill blocks of 256, as the recording script has it.
fn wide_value(tensor: usize, at: usize) -> f32 {
    let at = (at as u32).wrapping_add((tensor as u32).wrapping_mul(1_000_003));
    let mut mixed = at.wrapping_mul(2_654_435_761);
    mixed ^= mixed >> 15;
    mixed = mixed.wrapping_mul(2_246_822_519);
    mixed ^= mixed >> 13;
    let unit = (mixed >> 8) as f32 / (1 << 24) as f32 - 0.5;
    unit * unit * unit * 1.5
}

fn wide() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "bos_token_id": 1,
        "eos_token_id": 2, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32",
    });
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![64, 256]),
        ("lm_head.weight".to_owned(), vec![64, 256]),
        ("model.norm.weight".to_owned(), vec![256]),
    ]);
    for layer in 0..8 {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.insert(format!("model.layers.{layer}.{name}.weight"), shape.to_vec());
        };
        add("input_layernorm", &[256]);
        add("post_attention_layernorm", &[256]);
        add("self_attn.q_proj", &[256, 256]);
        add("self_attn.k_proj", &[128, 256]);
        add("self_attn.v_proj", &[128, 256]);
        add("self_attn.o_proj", &[256, 256]);
        add("mlp.gate_proj", &[512, 256]);
        add("mlp.up_proj", &[512, 256]);
        add("mlp.down_proj", &[256, 512]);
    }
    let tensors: Vec<(String, HostTensor)> = shapes
        .into_iter()
        .enumerate()
        .map(|(number, (name, shape))| {
            let one = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            let values: Vec<f32> =
                (0..shape.iter().product()).map(|at| wide_value(number, at) + one).collect();
            let tensor = HostTensor::from_slice(&values, &shape).unwrap();
            (name, tensor)
        })
        .collect();
    write(folder.path(), &config, &tensors);
    folder
}

/// The file of a folder, written, compared and named.
fn exported(folder: &Path, adapter: Option<&AdapterFolder>, out: OutType) -> PathBuf {
    let path = folder.join(format!("{out}.gguf"));
    let export = GgufExport::new(ModelFolder::open(folder).unwrap(), adapter, out).unwrap();
    let writer = export.write(&path, "m", None).unwrap();
    let back = export.read_back(writer.unfinished_path()).unwrap();
    export.compare(&back).unwrap();
    assert!(!path.exists());
    writer.commit().unwrap();
    path
}

/// A value of metadata as recordings have it.
fn plain(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::String(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::Array(_, values) => values.iter().map(plain).collect(),
        Value::I32(value) => json!(value),
        other => json!(other.as_u64().unwrap()),
    }
}

fn same(what: &str, got: &Json, expected: &Json) {
    match (got, expected) {
        (Json::Array(a), Json::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{what}");
            a.iter().zip(b).for_each(|(a, b)| same(what, a, b));
        }
        _ if got.is_f64() || expected.is_f64() => {
            let (a, b) = (got.as_f64().unwrap() as f32, expected.as_f64().unwrap() as f32);
            assert!(a == b || (a - b).abs() <= 1e-6 * b.abs(), "{what}: {a} {b}");
        }
        _ => assert_eq!(got, expected, "{what}"),
    }
}

/// Holds a file against what was recorded of another program's.
fn check(what: &str, path: &Path, recorded: &Json) {
    let file = GgufFile::open(path).unwrap();
    for (key, expected) in recorded["metadata"].as_object().unwrap() {
        if NOT_COMPARED.contains(&key.as_str()) {
            continue;
        }
        let got = file.get(key).unwrap_or_else(|| panic!("{what}: no {key}, expected {expected}"));
        same(&format!("{what}: {key}"), &plain(got), &expected[1]);
    }
    let expected = recorded["tensors"].as_object().unwrap();
    let names = |names: &mut dyn Iterator<Item = &str>| {
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    let got = names(&mut file.tensors().iter().map(|info| info.name.as_str()));
    assert_eq!(got, names(&mut expected.keys().map(String::as_str)), "{what}");
    for info in file.tensors() {
        let (name, of) = (&info.name, &expected[&info.name]);
        assert_eq!(json!(info.stored.name()), of[0], "{what}: {name}");
        assert_eq!(json!(info.shape), of[1], "{what}: {name}");
        if let Some(values) = of.get(3) {
            same(&format!("{what}: {name}"), &json!(file.values(name).unwrap()), values);
            continue;
        }
        let digest = blake3::hash(file.bytes(info)).to_hex();
        assert_eq!(json!(&digest[..16]), of[2], "{what}: {name} ({})", info.stored);
    }
}

#[test]
fn files_are_those_of_llama_cpps_converter() {
    let recorded = read_json(&fixtures().join("gguf/converted.json"));
    let mut compared = 0;
    for (key, recorded) in recorded.as_object().unwrap() {
        let (name, out) = key.trim_end_matches("-blocks").rsplit_once('-').unwrap();
        let folder = model(name);
        check(key, &exported(folder.path(), None, out.parse().unwrap()), recorded);
        compared += 1;
    }
    assert!(compared >= 35, "{compared}");
}

#[test]
fn adapters_are_those_of_llama_cpps_converter() {
    let recorded = read_json(&fixtures().join("gguf/adapters.json"));
    for (name, recorded) in recorded.as_object().unwrap() {
        let base = match name.as_str() {
            "lora_packed" => fixtures().join("phi3-window"),
            "tiny_ad/nonzero" => fixtures().join("peft/tiny-llama"),
            _ => fixtures().join("peft/tiny-llama-1l"),
        };
        let adapter = AdapterFolder::open(fixtures().join("peft").join(name)).unwrap();
        let export =
            GgufAdapterExport::new(ModelFolder::open(base).unwrap(), &adapter, OutType::F32).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let writer = export.write(&path, "a").unwrap();
        let (back, worst) = export.read_back(writer.unfinished_path()).unwrap();
        assert_eq!(worst.relative, 0.0, "{name}");
        let sample = [vec![1, 5, 9, 3]];
        assert_eq!(logits(&back, &sample), logits(export.source(), &sample), "{name}");
        writer.commit().unwrap();
        check(name, &path, recorded);
    }
}

#[test]
fn an_adapter_is_folded_in() {
    let base = fixtures().join("peft/tiny-llama");
    let adapter = AdapterFolder::open(fixtures().join("peft/tiny_ad/nonzero")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(base).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixtures().join("gguf/tokenizer").join(name), folder.path().join(name)).unwrap();
    }
    let export =
        GgufExport::new(ModelFolder::open(folder.path()).unwrap(), Some(&adapter), OutType::F32).unwrap();
    let path = folder.path().join("m.gguf");
    let writer = export.write(&path, "m", None).unwrap();
    let back = export.read_back(writer.unfinished_path()).unwrap();
    export.compare(&back).unwrap();
    let sample = [vec![1, 5, 9, 3, 7]];
    let (adapted, merged) = (logits(export.source(), &sample), logits(back.decoder(), &sample));
    let most = adapted.iter().zip(&merged).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most < 1e-4, "{most}");
    let plain = GgufExport::new(ModelFolder::open(folder.path()).unwrap(), None, OutType::F32).unwrap();
    let base = logits(plain.source(), &sample);
    let moved = adapted.iter().zip(&base).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 1e-2, "the adapter does something: {moved}");
}

/// Writes over the middle of a tensor's bytes.
fn spoil(path: &Path, tensor: &str) {
    let file = GgufFile::open(path).unwrap();
    let bytes = file.bytes(file.info(tensor).unwrap()).to_vec();
    drop(file);
    let mut all = Vec::new();
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.read_to_end(&mut all).unwrap();
    let at = all.windows(bytes.len()).position(|window| window == bytes).unwrap() + bytes.len() / 2;
    let at = at / 4 * 4;
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&9.0_f32.to_le_bytes()).unwrap();
}

#[test]
fn a_file_that_is_another_model_is_an_error() {
    let folder = model("llama");
    let path = folder.path().join("m.gguf");
    let export = GgufExport::new(ModelFolder::open(folder.path()).unwrap(), None, OutType::F32).unwrap();
    let writer = export.write(&path, "m", None).unwrap();
    spoil(writer.unfinished_path(), "blk.1.attn_q.weight");
    let back = export.read_back(writer.unfinished_path()).unwrap();
    let error = export.compare(&back).unwrap_err();
    assert!(
        matches!(&error, ModelError::GgufDiffers { what, .. } if what == "model.layers.1.self_attn.q_proj.weight"),
        "{error}"
    );
    drop((back, writer));
    assert!(!path.exists());
    let left = fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("gguf"));
    assert_eq!(left.count(), 0);
}

/// Why a folder is not exported.
fn refused(folder: &Path) -> String {
    let folder = ModelFolder::open(folder).unwrap();
    GgufExport::new(folder, None, OutType::F16).err().unwrap().to_string()
}

#[test]
fn what_llama_cpp_computes_otherwise_is_refused() {
    let error = refused(&fixtures().join("falcon"));
    assert!(error.contains("model_type falcon") && error.contains("llama, mistral"), "{error}");
    for (name, what) in [
        ("gemma", "attention_bias"),
        ("gemma2", "query_pre_attn_scalar"),
        ("smollm3", "attention_bias"),
        ("qwen3-tied", "attention_bias"),
        ("llama-rope-dynamic", "Dynamic"),
        ("gpt2-layers", "several kinds"),
        ("score-llama", "a score"),
        ("gemma3-vision", "several parts"),
    ] {
        let error = refused(&fixtures().join(name));
        assert!(error.contains(what), "{name}: {error}");
    }
}

#[test]
fn adapters_of_other_kinds_are_refused() {
    for (name, base, what) in [
        ("ia3", "../qwen2", "IA3"),
        ("out_dora", "tiny-llama-1l", "use_dora"),
        ("out_mts", "tiny-llama-1l", "modules_to_save"),
    ] {
        let adapter = AdapterFolder::open(fixtures().join("peft").join(name)).unwrap();
        let folder = ModelFolder::open(fixtures().join("peft").join(base)).unwrap();
        let error = match GgufAdapterExport::new(folder, &adapter, OutType::F32) {
            Ok(_) => panic!("{name} is exported"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(what), "{name}: {error}");
    }
}
