//! What is written loads again with the same logits.

use std::path::{Path, PathBuf};

use burnish_core::random::Stream;
use burnish_core::{Dtype, Role};
use burnish_models::{Model, ModelFolder, ModelPlan, Tuning, load, to_device};
use burnish_peft::{AdapterFolder, AdapterTensors, LoraConfig, merge_adapter};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::json;
use tempfile::TempDir;

use crate::recordings::{close, device, fixtures, json as read_json, logits};

const ROWS: [&[u32]; 2] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[5, 3, 5]];

pub(crate) fn answers(model: &Model) -> Vec<f32> {
    logits(&model.decoder, &ROWS.map(<[u32]>::to_vec))
}

pub(crate) fn answers_of(folder: &Path) -> Vec<f32> {
    answers(&load(folder, &device()).unwrap_or_else(|e| panic!("{}: {e}", folder.display())))
}

/// A writer, and the folder it makes (inside the guard's).
pub(crate) fn target() -> (TempDir, PathBuf, FolderWriter) {
    let guard = tempfile::tempdir().unwrap();
    let path = guard.path().join("out");
    let writer = FolderWriter::new_folder(&path).unwrap();
    (guard, path, writer)
}

const FOLDERS: [&str; 10] = [
    "llama",
    "llama-bias",
    "llama-bf16",
    "llama-f16",
    "llama-sharded",
    "llama-tied",
    "qwen2-tied",
    "qwen3",
    "phi3",
    "phi3-window",
];

#[test]
fn full_models_in_fp32_keep_every_bit() {
    for name in FOLDERS {
        let folder = ModelFolder::open(fixtures().join(name)).unwrap();
        let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
        for shard in [u64::MAX, 4096] {
            let (_guard, path, writer) = target();
            let mut writer = writer.max_shard_size(shard);
            model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
            writer.commit().unwrap();
            assert_eq!(answers_of(&path), answers(&model), "{name}");
            assert_eq!(path.join("model.safetensors.index.json").is_file(), shard == 4096, "{name}");
            let config = read_json(&path.join("config.json"));
            assert_eq!((&config["dtype"], config.get("torch_dtype")), (&json!("float32"), None));
            // A tied head is not stored.
            let stored = WeightFolder::open(&path).unwrap();
            assert_eq!(stored.contains("lm_head.weight"), !folder.spec().tied, "{name}");
            let kept = "generation_config.json";
            assert_eq!(
                std::fs::read(path.join(kept)).unwrap(),
                std::fs::read(folder.path().join(kept)).unwrap()
            );
        }
    }
}

#[test]
fn full_models_in_bf16_round_once() {
    for name in FOLDERS {
        let folder = ModelFolder::open(fixtures().join(name)).unwrap();
        let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
        let (_guard, path, mut writer) = target();
        model.write_full(&folder, &mut writer, Dtype::Bf16).unwrap();
        writer.commit().unwrap();
        assert_eq!(read_json(&path.join("config.json"))["dtype"], "bfloat16");
        let (from, to) = (WeightFolder::open(folder.path()).unwrap(), WeightFolder::open(&path).unwrap());
        for tensor in to.names() {
            assert_eq!(
                to.read(tensor).unwrap(),
                from.read(tensor).unwrap().cast(Dtype::Bf16),
                "{name}: {tensor}"
            );
        }
        // Written again from what was read: the same bytes.
        let again = ModelFolder::open(&path).unwrap();
        let copy = Model::load(&again, &Tuning::Full, Dtype::Bf16, 0, &device()).unwrap();
        let (_guard, second, mut writer) = target();
        copy.write_full(&again, &mut writer, Dtype::Bf16).unwrap();
        writer.commit().unwrap();
        let bytes = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
        assert_eq!(bytes(&path), bytes(&second), "{name}");
        assert_eq!(answers_of(&second), answers_of(&path), "{name}");
        close(name, &answers_of(&path), &answers(&model), 0.3);
    }
}

/// A fresh adapter whose every trained value is random, so that each part of it shows.
pub(crate) fn adapted(base: &str, config: &str) -> (ModelFolder, Model) {
    let folder = ModelFolder::open(fixtures().join(base)).unwrap();
    let config = LoraConfig::from_json(config).unwrap();
    let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 3).unwrap();
    let registry = planned.registry().clone();
    let (model, resident) = planned.resident(&device()).unwrap();
    for (index, parameter) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
        let stream = Stream::new(17, &parameter.name);
        let old = model.host(index).to_f32();
        // A gain stays near 1, a factor gets a size that moves the logits.
        let size = if parameter.role == Role::Adapter { 0.3 } else { 0.1 };
        let values: Vec<f32> =
            old.iter().enumerate().map(|(i, x)| x + size * stream.normal(i as u64)).collect();
        let tensor = HostTensor::from_f32(&values, &parameter.shape, parameter.precision.store).unwrap();
        resident.write(index, to_device(tensor, &device()));
    }
    (folder, model)
}

const PLAIN: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}"#;
const IA3: &str = r#"{"peft_type": "IA3", "target_modules": ["k_proj", "o_proj", "down_proj", "lm_head"],
    "feedforward_modules": ["down_proj"]}"#;
const OFT: &str =
    r#"{"peft_type": "OFT", "oft_block_size": 8, "target_modules": ["k_proj", "o_proj", "lm_head"]}"#;
const CAYLEY: &str = r#"{"peft_type": "OFT", "oft_block_size": 0, "r": 4, "block_share": true,
    "use_cayley_neumann": false, "target_modules": ["k_proj", "o_proj"]}"#;
const BOFT: &str = r#"{"peft_type": "BOFT", "boft_block_size": 4, "boft_n_butterfly_factor": 2,
    "target_modules": ["k_proj", "down_proj", "lm_head"]}"#;
const LOHA: &str =
    r#"{"peft_type": "LOHA", "r": 3, "alpha": 5, "target_modules": ["k_proj", "o_proj", "lm_head"]}"#;
const LOKR: &str = r#"{"peft_type": "LOKR", "r": 1, "alpha": 2, "decompose_both": true, "decompose_factor": 8,
    "target_modules": ["k_proj", "down_proj", "lm_head"]}"#;
const VERA: &str = r#"{"peft_type": "VERA", "r": 4, "projection_prng_key": 3, "d_initial": 0.5,
    "target_modules": ["k_proj", "down_proj", "lm_head"]}"#;
const VERA_DRAWN: &str =
    r#"{"peft_type": "VERA", "r": 3, "save_projection": false, "target_modules": ["q_proj", "o_proj"]}"#;
const C3A: &str = r#"{"peft_type": "C3A", "block_size": 8, "block_size_pattern": {"o_proj": 4},
    "target_modules": ["k_proj", "o_proj", "down_proj", "lm_head"]}"#;
const RANDLORA: &str = r#"{"peft_type": "RANDLORA", "r": 5, "randlora_alpha": 4, "projection_prng_key": 3,
    "target_modules": ["k_proj", "down_proj", "lm_head"]}"#;
const RANDLORA_DRAWN: &str = r#"{"peft_type": "RANDLORA", "r": 4, "randlora_alpha": 4, "very_sparse": true,
    "save_projection": false, "target_modules": ["q_proj", "up_proj"]}"#;
const VBLORA: &str = r#"{"peft_type": "VBLORA", "r": 2, "num_vectors": 7, "vector_length": 8, "topk": 2,
    "init_vector_bank_bound": 0.9, "target_modules": ["k_proj", "down_proj", "lm_head"]}"#;
const NORMS: &str = r#"{"peft_type": "LN_TUNING", "target_modules": ["input_layernorm", "norm"]}"#;
const TOKENS: &str = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
    "trainable_token_indices": [5, 1, 40]}"#;
const TOKENS_ALONE: &str = r#"{"peft_type": "TRAINABLE_TOKENS", "token_indices": [9, 3]}"#;
const HEAD: &str =
    r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "q_proj", "down_proj"]}"#;
const EMBEDDING: &str =
    r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "v_proj"]}"#;
const SAVED: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["v_proj"],
    "modules_to_save": ["lm_head", "norm"]}"#;
const BIASED: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj"],
    "bias": "all", "lora_bias": true}"#;

const DORA: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear",
    "use_dora": true, "use_rslora": true, "bias": "lora_only"}"#;
const DORA_ENDS: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true,
    "target_modules": ["embed_tokens", "lm_head", "q_proj"]}"#;

/// Base, adapter, whether merging unties the head.
const PACKED: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8,
    "target_modules": ["qkv_proj", "gate_up_proj"], "use_dora": true}"#;

const ADAPTERS: [(&str, &str, bool); 42] = [
    ("llama", PLAIN, false),
    ("llama", HEAD, false),
    ("llama", EMBEDDING, false),
    ("llama", SAVED, false),
    ("llama-bias", BIASED, false),
    ("llama-bf16", PLAIN, false),
    ("llama", DORA, false),
    ("llama-bias", DORA, false),
    ("llama-bf16", DORA, false),
    ("llama", DORA_ENDS, false),
    ("llama-tied", DORA_ENDS, true),
    ("llama-tied", PLAIN, false),
    ("llama-tied", HEAD, true),
    ("llama-tied", EMBEDDING, true),
    ("qwen3-tied", SAVED, true),
    ("phi3", PLAIN, false),
    ("phi3-window", PACKED, false),
    ("llama-bias", IA3, false),
    ("llama-tied", IA3, true),
    ("llama-bias", OFT, false),
    ("llama-tied", OFT, true),
    ("llama", CAYLEY, false),
    ("llama-bias", BOFT, false),
    ("llama-tied", BOFT, true),
    ("llama-bf16", LOHA, false),
    ("llama-bias", LOKR, false),
    ("llama-bias", VERA, false),
    ("llama-tied", VERA, true),
    ("llama-bf16", VERA_DRAWN, false),
    ("llama-bias", C3A, false),
    ("llama-tied", C3A, true),
    ("llama-bias", RANDLORA, false),
    ("llama-tied", RANDLORA, true),
    ("llama-bf16", RANDLORA_DRAWN, false),
    ("llama-bias", VBLORA, false),
    ("llama-tied", VBLORA, true),
    ("llama", NORMS, false),
    ("stablelm", NORMS, false),
    ("llama", TOKENS, false),
    ("llama-tied", TOKENS, false),
    ("llama-bf16", TOKENS_ALONE, false),
    ("qwen2-tied", TOKENS_ALONE, false),
];

#[test]
fn adapters_keep_every_bit() {
    for (base, config, _) in ADAPTERS {
        let (folder, model) = adapted(base, config);
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&path).unwrap();
        let again = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
        let what = format!("{base} {config}");
        assert_eq!(answers(&again), answers(&model), "{what}");
        let plain = answers_of(folder.path());
        let moved = answers(&model).iter().zip(&plain).any(|(a, b)| (a - b).abs() > 0.05);
        assert!(moved, "{what}: the adapter changes nothing");
    }
}

#[test]
fn merged_models_equal_base_and_adapter() {
    for (base, config, unties) in ADAPTERS {
        let (folder, model) = adapted(base, config);
        let what = format!("{base} {config}");
        for shard in [u64::MAX, 4096] {
            let (_guard, path, writer) = target();
            let mut writer = writer.max_shard_size(shard);
            model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
            writer.commit().unwrap();
            close(&what, &answers_of(&path), &answers(&model), 2e-5);
            let stored = WeightFolder::open(&path).unwrap();
            assert_eq!(stored.contains("lm_head.weight"), unties || !folder.spec().tied, "{what}");
            let tied = read_json(&path.join("config.json"))["tie_word_embeddings"] == true;
            assert_eq!(tied, folder.spec().tied && !unties, "{what}");
        }
        // In bf16: the fp32 sum, rounded once.
        let (_guard, path, mut writer) = target();
        model.write_merged(&folder, &mut writer, Dtype::Bf16).unwrap();
        writer.commit().unwrap();
        close(&what, &answers_of(&path), &answers(&model), 0.5);
    }
}

/// Two ways to one merge: written from memory, and by `burnish_peft` from the adapter's files.
#[test]
fn merging_agrees_with_the_adapter_library() {
    for (base, config, unties) in ADAPTERS {
        let (folder, model) = adapted(base, config);
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let plan = model.plan.as_ref().unwrap();
        let tensors: AdapterTensors = AdapterFolder::open(&path).unwrap().load(plan).unwrap();
        let weights = WeightFolder::open(folder.path()).unwrap();
        let read = |name: &str| -> Result<Option<HostTensor>, burnish_peft::PeftError> {
            let stored = if weights.contains(name) { name } else { "model.embed_tokens.weight" };
            Ok(Some(weights.read(stored).unwrap().cast(Dtype::F32)))
        };
        let wanted = merge_adapter(plan, &tensors, read).unwrap();
        assert_eq!(!wanted.untied.is_empty(), unties, "{base} {config}");

        let (_guard, path, mut writer) = target();
        model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let written = WeightFolder::open(&path).unwrap();
        for name in written.names() {
            let got = written.read(name).unwrap();
            match wanted.tensors.get(name) {
                Some(tensor) => assert_eq!(got, tensor.cast(Dtype::F32), "{base} {config}: {name}"),
                None => assert_eq!(got, read(name).unwrap().unwrap(), "{base} {config}: {name}"),
            }
        }
    }
}

#[test]
fn the_base_under_an_adapter_is_written_untouched() {
    let (folder, model) = adapted("llama-tied", HEAD);
    let (_guard, path, mut writer) = target();
    model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    assert_eq!(answers_of(&path), answers_of(folder.path()));
    // Without an adapter, merged is full.
    let plain = load(folder.path(), &device()).unwrap();
    let (_guard, merged, mut writer) = target();
    plain.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
    plain.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let bytes = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(bytes(&path), bytes(&merged));
    assert!(!merged.join("adapter_config.json").exists());
}

#[test]
fn random_models_are_a_function_of_the_seed() {
    let folder = ModelFolder::open_untrained(fixtures().join("llama-tied")).unwrap();
    assert!(!folder.has_weights());
    let with = |seed| answers(&Model::load(&folder, &Tuning::Full, Dtype::F32, seed, &device()).unwrap());
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}
