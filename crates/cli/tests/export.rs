//! `burnish export`: files that are read back, looked at and not replaced unasked.

use std::path::Path;

use serde_json::Value;

use crate::preferences::LORA;
use crate::program::{fails, model, ok, rows};

fn export(output: &Path, more: &[&str]) -> Vec<String> {
    let mut words = vec![
        "export".to_owned(),
        model().display().to_string(),
        format!("--output_file={}", output.display()),
    ];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

fn facts(path: &Path) -> Value {
    let words =
        ["inspect".to_owned(), path.display().to_string(), "--json".to_owned(), "--tensors".to_owned()];
    serde_json::from_str(&ok(&words)).unwrap()
}

#[test]
fn a_model_and_its_adapter_become_files() {
    let root = tempfile::tempdir().unwrap();
    let tuned = root.path().join("tuned");
    let mut words = vec![
        "sft".to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows("prompt_completion.jsonl").display()),
        format!("--output_dir={}", tuned.display()),
        "--max_steps=2".to_owned(),
        "--learning_rate=3e-3".to_owned(),
    ];
    words.extend(LORA.map(str::to_owned));
    ok(&words);

    let file = root.path().join("files/m.gguf");
    for outtype in ["f32", "bf16", "f16", "q8_0", "q4_0", "q4_k_m"] {
        ok(&export(&file, &["--overwrite_output_file", &format!("--outtype={outtype}")]));
    }
    let told = facts(&file);
    assert_eq!(told["holds"], serde_json::json!(["a model in GGUF"]));
    let metadata = &told["metadata"];
    assert_eq!(metadata["general.architecture"], "llama");
    assert_eq!(metadata["general.file_type"], "15");
    assert_eq!(metadata["tokenizer.ggml.model"], "gpt2");
    assert_eq!(metadata["tokenizer.ggml.pre"], "gpt-2");
    assert!(metadata["tokenizer.ggml.tokens"].as_str().unwrap().starts_with("300 elements: <|endoftext|>"));
    assert!(metadata["tokenizer.chat_template"].is_string(), "{metadata}");
    assert!(told["weights"]["all"]["blk.0.attn_q.weight"].is_string(), "{told}");

    // What is there is not replaced unasked.
    fails(&export(&file, &[]), &["--overwrite_output_file"]);
    assert_eq!(std::fs::read_dir(root.path().join("files")).unwrap().count(), 1);

    let adapter = format!("--adapter_name_or_path={}", tuned.display());
    let folded = root.path().join("folded.gguf");
    ok(&export(&folded, &[&adapter]));
    let alone = root.path().join("lora.gguf");
    ok(&export(&alone, &[&adapter, "--adapter_only"]));
    let told = facts(&alone);
    assert_eq!(told["holds"], serde_json::json!(["an adapter in GGUF"]));
    assert_eq!(told["metadata"]["adapter.type"], "lora");
    let names: Vec<&String> = told["weights"]["all"].as_object().unwrap().keys().collect();
    assert!(names.iter().all(|name| name.ends_with(".lora_a") || name.ends_with(".lora_b")), "{names:?}");

    fails(&export(&alone, &["--adapter_only"]), &["adapter_name_or_path"]);
    fails(&export(&alone, &[&adapter, "--adapter_only", "--outtype=q4_0"]), &["outtype", "f16"]);
    fails(&export(&alone, &["--outtype=q3_k"]), &["q4_k_m"]);

    std::fs::write(&file, &std::fs::read(&file).unwrap()[..200]).unwrap();
    fails(&["inspect".to_owned(), file.display().to_string()], &["GGUF", "ends within"]);
}

#[test]
fn an_adapter_of_experts_gets_factors_of_each() {
    let root = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let (base, adapter) = (fixtures.join("qwen2-moe"), fixtures.join("peft/lora_experts"));
    let out = root.path().join("by-expert");
    let words = |more: &[&str]| -> Vec<String> {
        let mut words = vec![
            "export".to_owned(),
            base.display().to_string(),
            "--format=per_expert".to_owned(),
            format!("--output_file={}", out.display()),
        ];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    let adapter = format!("--adapter_name_or_path={}", adapter.display());
    ok(&words(&[&adapter]));
    let tensors = facts(&out.join("adapter_model.safetensors")).to_string();
    assert!(tensors.contains("mlp.experts.0.gate_proj.lora_A.weight"), "{tensors}");
    assert!(!tensors.contains("gate_up_proj"), "{tensors}");
    fails(&words(&[&adapter]), &["is there already"]);
    ok(&words(&[&adapter, "--overwrite_output_file", "--outtype=bf16"]));
    fails(&words(&[]), &["adapter_name_or_path", "per_expert"]);
    fails(&words(&[&adapter, "--outtype=q8_0"]), &["outtype", "f32, f16 or bf16"]);
}
