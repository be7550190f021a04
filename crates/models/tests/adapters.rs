//! Adapters written by PEFT give the logits that PEFT recorded.

use std::path::{Path, PathBuf};

use burnish_core::{Coded, Dtype, ErrorCode};
use burnish_models::{Model, ModelError, ModelFolder, Tuning, load};
use burnish_peft::{AdapterFolder, LoraConfig};

use crate::recordings::{close, device, fixtures, floats, ids, json, logits};

const TOLERANCE: f32 = 1e-5;

fn open(base: &Path, adapter: &Path) -> Result<Model, ModelError> {
    let folder = ModelFolder::open(base)?;
    let adapter = AdapterFolder::open(adapter)?;
    Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device())
}

fn last_logits(model: &Model, expected: &serde_json::Value) -> (Vec<f32>, f64) {
    let row = match &expected["input_ids"][0] {
        serde_json::Value::Array(_) => ids(&expected["input_ids"][0]),
        _ => ids(&expected["input_ids"]),
    };
    let all = logits(&model.decoder, &[row]);
    let vocab = model.decoder.spec().vocab;
    (all[all.len() - vocab..].to_vec(), all.iter().map(|&l| f64::from(l)).sum())
}

fn adapters(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()) {
        for candidate in [entry.clone(), entry.join("nonzero")] {
            if candidate.join("adapter_config.json").is_file() {
                all.push(candidate);
            }
        }
    }
    all.sort();
    all
}

/// Compares an adapter's logits with those recorded.
fn same_logits(name: &str, model: &Model, expected: &serde_json::Value) {
    let (last, sum) = last_logits(model, expected);
    close(name, &last, &floats(&expected["last_token_logits"]), TOLERANCE);
    let rows = expected["logits_shape"][1].as_u64().unwrap_or_default() as usize;
    if rows > expected["input_ids"][0].as_array().map_or(rows, Vec::len) {
        // The sum is over virtual tokens too, which give no logits here.
        return;
    }
    let wanted = expected["sum_all_logits"].as_f64().unwrap();
    assert!((sum - wanted).abs() < 1e-2, "{name}: sum {sum}, expected {wanted}");
}

fn replay(root: &Path) -> usize {
    let mut replayed = 0;
    for adapter in adapters(root) {
        let expected = json(&adapter.join("expected_logits.json"));
        let base = root.join(expected["base_model"].as_str().unwrap());
        let name = adapter.strip_prefix(root).unwrap().display().to_string();
        let model = open(&base, &adapter).unwrap_or_else(|e| panic!("{name}: {e}"));
        same_logits(&name, &model, &expected);
        replayed += 1;
    }
    replayed
}

/// Whether an error is a word about what burnish does not compute, and not a failure.
fn is_refusal(error: &ModelError) -> bool {
    use burnish_peft::PeftError::{UnsupportedKey, UnsupportedMethod};
    match error {
        ModelError::Unsupported { .. } | ModelError::Family { .. } => true,
        ModelError::Peft(error) => matches!(error, UnsupportedKey { .. } | UnsupportedMethod { .. }),
        _ => false,
    }
}

/// Replays what can be of a folder that may hold any adapters, with or without their bases.
fn replay_given(root: &Path) -> (usize, usize) {
    let mut told = recordings::Replay::of(root.display().to_string());
    for adapter in adapters(root) {
        let name = adapter.strip_prefix(root).unwrap().display().to_string();
        if !adapter.join("expected_logits.json").is_file() {
            told.refused(name, "no logits are recorded");
            continue;
        }
        let expected = json(&adapter.join("expected_logits.json"));
        let base = root.join(expected["base_model"].as_str().unwrap());
        if !base.is_dir() {
            told.refused(name, format!("its base {} is not there", expected["base_model"]));
            continue;
        }
        match open(&base, &adapter) {
            Ok(model) => {
                same_logits(&name, &model, &expected);
                told.replayed();
            }
            Err(error) if is_refusal(&error) => told.refused(name, error),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    told.finish()
}

#[test]
fn adapters_give_the_recorded_logits() {
    assert!(replay(&fixtures().join("peft")) >= 20);
    if let Some(root) = recordings::given("peft-fixtures") {
        replay_given(&root);
    }
}

/// A folder with a base and three adapters: one that is replayed, one of another method, one without its base.
#[test]
fn a_folder_of_recordings_may_hold_any_part_and_any_kind() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        let to = folder.path().join(to);
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(fixtures().join("peft").join(from)).unwrap().map(|e| e.unwrap().path())
        {
            if file.is_file() {
                std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
            }
        }
        to
    };
    let edit = |file: PathBuf, key: &str, value: serde_json::Value| {
        let mut all = json(&file);
        all[key] = value;
        std::fs::write(file, all.to_string()).unwrap();
    };
    copy("tiny-llama-1l", "tiny-llama-1l");
    copy("out_default", "known");
    edit(copy("out_default", "poly").join("adapter_config.json"), "peft_type", "POLY".into());
    let blocks = serde_json::json!({"nblocks": 2});
    edit(copy("out_default", "blocks").join("adapter_config.json"), "use_bdlora", blocks);
    edit(copy("out_default", "alone").join("expected_logits.json"), "base_model", "elsewhere".into());
    assert_eq!(replay_given(folder.path()), (1, 3));
}

/// A mixture of adapters that a classifier weighs is refused with what can be done with its adapters.
#[test]
fn x_lora_is_refused_with_a_mend() {
    let config = r#"{"peft_type": "XLORA", "hidden_size": 32, "adapters": {"a": "./a", "b": "./b"}}"#;
    let error = LoraConfig::from_json(config).unwrap_err();
    assert_eq!(error.code(), ErrorCode::UnsupportedAdapter);
    let said = error.to_string();
    assert!(
        said.contains("XLORA") && said.contains("lora_modules") && said.contains("weighted sum"),
        "{said}"
    );
}

/// Virtual tokens stand before every text: packed ones equal single ones, decoding equals scoring, base and adapter are
/// apart, and there is nothing to merge.
#[test]
fn virtual_tokens_stand_before_every_text() {
    for (name, base) in [
        ("prompt_tuning", "qwen2"),
        ("p_tuning", "gpt2"),
        ("p_tuning_lstm", "qwen2"),
        ("prefix_tuning", "qwen2"),
        ("prefix_normed", "qwen3"),
        ("prefix_positions", "gpt2"),
        ("prefix_projection", "qwen2"),
    ] {
        let case = fixtures().join("peft").join(name);
        let model = open(&fixtures().join(base), &case).unwrap();
        let texts = [vec![3, 1, 4], vec![9, 2, 6, 5, 3], vec![7]];
        let packed = logits(&model.decoder, &texts);
        let single: Vec<f32> =
            texts.iter().flat_map(|t| logits(&model.decoder, std::slice::from_ref(t))).collect();
        close(name, &packed, &single, 1e-5);
        let vocab = model.decoder.spec().vocab;
        let (mut decoding, mut at) = (burnish_models::Decoding::new(&model.decoder, 3), 0);
        let first = decoding.logits(&[&texts[0][..2], &texts[1][..2], &texts[2][..1]]).unwrap();
        let mut want = Vec::new();
        for (text, taken) in texts.iter().zip([2, 2, 1]) {
            want.extend_from_slice(&packed[(at + taken - 1) * vocab..(at + taken) * vocab]);
            at += text.len();
        }
        close(name, &first, &want, 1e-5);
        decoding.reorder(&[0, 1]).unwrap();
        let second = decoding.logits(&[&texts[0][2..3], &texts[1][2..3]]).unwrap();
        let want = [&packed[2 * vocab..3 * vocab], &packed[5 * vocab..6 * vocab]].concat();
        close(name, &second, &want, 1e-5);
        assert_eq!(decoding.len(1), 3);
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let target = tempfile::tempdir().unwrap();
        let mut writer =
            burnish_weight_files::FolderWriter::new_folder(target.path().join("merged")).unwrap();
        let error = model.write_merged(&folder, &mut writer, Dtype::F32).unwrap_err().to_string();
        assert!(error.contains("changes no weight"), "{error}");
    }
    let config = r#"{"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2}"#;
    let config = burnish_peft::LoraConfig::from_json(config).unwrap();
    for (base, why) in [("gemma", "the factor of embeddings"), ("score-llama", "task_type")] {
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let error = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Keys and values stand before those of the text alone where every block has its own, and of its model's shape.
#[test]
fn prefixes_are_of_blocks_with_keys_of_their_own() {
    let fresh = |more: &str| {
        let config = format!(r#"{{"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 2{more}}}"#);
        burnish_peft::LoraConfig::from_json(&config).unwrap()
    };
    for (base, more, why) in [
        ("mixtral", "", "experts"),
        ("deepseek-v2", "", "attention"),
        ("lfm2", "", "attention"),
        ("mpt", "", "alibi"),
        ("gptj", "", "rotation"),
        ("llama-rope-yarn", "", "rope_scaling"),
        ("score-llama", "", "task_type"),
        ("qwen2", r#", "num_layers": 3"#, "num_layers"),
        ("qwen2", r#", "init_weights": "ones""#, "init_weights"),
        ("qwen2", r#", "prefix_projection": true, "encoder_hidden_size": 0"#, "encoder_hidden_size"),
    ] {
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let error = Model::load(&folder, &Tuning::NewAdapter(&fresh(more)), Dtype::F32, 0, &device());
        let error = error.err().unwrap_or_else(|| panic!("{base} {more}")).to_string();
        assert!(error.contains(why), "{base} {more}: {error}");
    }
    // Zeros are keys too: they take part of every softmax.
    let folder = ModelFolder::open(fixtures().join("qwen2")).unwrap();
    let config = fresh(r#", "init_weights": "zero""#);
    let model = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device()).unwrap();
    let base = load(folder.path(), &device()).unwrap();
    let texts = [vec![3, 1, 4]];
    assert_ne!(logits(&model.decoder, &texts), logits(&base.decoder, &texts));
    let written = &model.plan.as_ref().unwrap().config.to_json();
    assert!(written.contains(r#""token_dim": 16"#) && written.contains(r#""num_layers": 2"#), "{written}");
}

/// What AdaLoRA has allocated is used, and merges; it does not grow again.
#[test]
fn allocated_ranks_are_used_and_do_not_go_on() {
    let case = fixtures().join("peft").join("adalora_ranks");
    let adapter = AdapterFolder::open(&case).unwrap();
    let error = adapter.config.check_training().unwrap_err().to_string();
    assert!(error.contains("rank_pattern") && error.contains("resume_from_checkpoint"), "{error}");
    let model = open(&fixtures().join("qwen2"), &case).unwrap();
    // A module that was left no rank, and one with two of three.
    let plan = model.plan.as_ref().unwrap();
    let ranks: Vec<usize> = plan.changes.iter().map(|site| site.parts[0].shape[0]).collect();
    assert_eq!(ranks, [1, 1, 2, 0]);
    // Merged it gives the same logits.
    let folder = ModelFolder::open(fixtures().join("qwen2")).unwrap();
    let target = tempfile::tempdir().unwrap();
    let path = target.path().join("merged");
    let mut writer = burnish_weight_files::FolderWriter::new_folder(&path).unwrap();
    model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    let merged = load(&path, &device()).unwrap();
    same_logits("merged", &merged, &json(&case.join("expected_logits.json")));
}

#[test]
fn bases_give_the_recorded_logits() {
    for name in ["tiny-llama", "tiny-llama-1l", "tiny-llama-1l-tied", "tiny-qwen3"] {
        let folder = fixtures().join("peft").join(name);
        let expected = json(&folder.join("expected_logits.json"));
        let model = load(&folder, &device()).unwrap();
        let (last, _) = last_logits(&model, &expected);
        close(name, &last, &floats(&expected["last_token_logits"]), TOLERANCE);
    }
}
