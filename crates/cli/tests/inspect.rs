//! `burnish inspect`: what it says of what burnish writes and reads.

use std::path::Path;

use serde_json::Value;

use crate::preferences::LORA;
use crate::program::{fails, model, ok, rows};

fn inspect(path: &Path, more: &[&str]) -> String {
    let mut words = vec!["inspect".to_owned(), path.display().to_string()];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    ok(&words)
}

fn facts(path: &Path) -> Value {
    serde_json::from_str(&inspect(path, &["--json"])).unwrap()
}

#[test]
fn a_run_its_checkpoint_its_adapter_and_its_model_are_told() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let mut words = vec![
        "sft".to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows("prompt_completion.jsonl").display()),
        format!("--output_dir={}", out.display()),
    ];
    let more = ["--max_steps=2", "--save_steps=1", "--logging_steps=1", "--learning_rate=3e-3"];
    words.extend(more.iter().chain(&LORA).map(|word| (*word).to_owned()));
    ok(&words);

    let run = facts(&out);
    assert_eq!(run["holds"], serde_json::json!(["an output folder", "an adapter"]));
    assert_eq!(run["checkpoints"], serde_json::json!(["checkpoint-1", "checkpoint-2"]));
    assert_eq!((&run["last"]["step"], &run["run"]["learning_rate"]), (&2.into(), &3e-3.into()));
    assert!(run["run"].get("zero_stage").is_none(), "defaults are left out: {}", run["run"]);
    assert_eq!(run["adapter"]["peft_type"], "LORA");

    let checkpoint = out.join("checkpoint-2");
    let told = facts(&checkpoint);
    assert_eq!((&told["checkpoint"]["step"], &told["checkpoint"]["of_steps"]), (&2.into(), &2.into()));
    assert!(told["checkpoint"]["damage"].as_str().unwrap().starts_with("none"), "{told}");
    let state = std::fs::read_dir(checkpoint.join("state")).unwrap().flatten();
    let state =
        state.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let state = state.unwrap();
    let mut bytes = std::fs::read(&state).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let damage = facts(&checkpoint)["checkpoint"]["damage"].as_str().unwrap().to_owned();
    assert!(damage.contains("checksum") && !damage.starts_with("none"), "{damage}");

    let base = facts(&model());
    assert_eq!(base["holds"], serde_json::json!(["a model"]));
    assert_eq!(base["architecture"]["model_type"], "llama");
    let elements = base["weights"]["elements"].as_u64().unwrap();
    let all: u64 = base["weights"]["dtypes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(elements, all);
    let tensors = inspect(&model().join("model.safetensors"), &["--tensors"]);
    assert!(tensors.contains("model.embed_tokens.weight"), "{tensors}");
}

#[test]
fn rows_are_told_and_what_is_not_there_is_an_error() {
    let data = facts(&rows("preference.jsonl"));
    assert_eq!(data["holds"], serde_json::json!(["rows"]));
    assert!(data["data"]["first_row"].as_str().unwrap().starts_with("preference"), "{data}");
    assert_eq!(data["columns"]["chosen"], "text");
    let count = std::fs::read_to_string(rows("preference.jsonl")).unwrap().lines().count();
    assert_eq!(data["data"]["rows"], count);
    fails(&["inspect".to_owned(), "no/such/path".to_owned()], &["no/such/path"]);
    fails(&["inspect".to_owned()], &["path"]);
    // A model of a kind that is not supported is one line of what is told, not an end.
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("config.json"), "{\"model_type\": \"rwkv\"}").unwrap();
    let refused = facts(root.path())["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains("rwkv"), "{refused}");
}

#[test]
fn dtypes_that_are_not_read_by_themselves_are_told() {
    let root = tempfile::tempdir().unwrap();
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]},
        "w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[6,10]}}"#;
    let file = root.path().join("model.safetensors");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0x38; 10]].concat();
    std::fs::write(&file, bytes).unwrap();
    let said = inspect(&file, &["--tensors"]);
    assert!(said.contains("F8_E4M3 [2, 3]") && said.contains("float32 [1, 1]"), "{said}");
}
