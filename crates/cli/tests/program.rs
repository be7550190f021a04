//! Running the program on small models and data.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burnish_core::ErrorCode;
use serde_json::Value;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainers/tests/fixtures")
}

pub(crate) fn model() -> PathBuf {
    fixtures().join("models/llama")
}

pub(crate) fn rows(name: &str) -> PathBuf {
    fixtures().join("data").join(name)
}

/// The program, with products of float32 on every machine: ranks equal one to its last bits, not to those of bfloat16.
pub(crate) fn burnish() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnish"));
    command.env("ACCELERATE_MIXED_PRECISION", "no");
    command
}

pub(crate) fn run(words: &[String]) -> Output {
    burnish().args(words).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs and expects success; standard output.
#[track_caller]
pub(crate) fn ok(words: &[String]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{words:?}\n{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a shipped example with more words.
#[track_caller]
pub(crate) fn run_example(command: &str, config: &str, output: &Path, more: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let said = burnish()
        .current_dir(&root)
        .args([command, "--config", config])
        .arg(format!("--output_dir={}", output.display()))
        .args(more)
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", stderr(&said));
}

/// Runs and expects one clear error that holds all of `parts`, with its class, and no panic.
#[track_caller]
pub(crate) fn fails(words: &[String], parts: &[&str]) -> ErrorCode {
    let output = run(words);
    let said = stderr(&output);
    assert!(!output.status.success(), "{words:?} succeeded");
    assert!(!said.contains("panicked"), "{said}");
    for part in parts {
        assert!(said.contains(part), "missing `{part}` in:\n{said}");
    }
    let code = said.lines().find_map(|line| line.strip_prefix("help: burnish explain "));
    code.unwrap_or_else(|| panic!("no code in:\n{said}")).parse().unwrap()
}

/// `sft` on the small model, with more words.
pub(crate) fn sft(output: &Path, data: &str, more: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = vec![
        "sft".into(),
        "--model_name_or_path".into(),
        model().display().to_string(),
        "--dataset_name".into(),
        rows(data).display().to_string(),
        "--output_dir".into(),
        output.display().to_string(),
        "--per_device_train_batch_size=2".into(),
        "--max_length=48".into(),
        "--learning_rate=1e-2".into(),
        "--logging_steps=1".into(),
    ];
    words.extend(more.iter().map(|w| (*w).to_owned()));
    words
}

/// The folder of an adapter that has learned something.
pub(crate) fn adapter(output: &Path, more: &[&str]) -> String {
    let common = ["--max_steps=6", "--save_strategy=no", "--use_peft", "--lora_dropout=0"];
    ok(&sft(output, "prompt_completion.jsonl", &[&common, more].concat()));
    output.display().to_string()
}

pub(crate) const LORA: [&str; 5] =
    ["--use_peft", "--lora_r=4", "--lora_alpha=8", "--lora_target_modules=all-linear", "--lora_dropout=0.1"];

/// The log lines, without what depends on the clock and the machine.
pub(crate) fn metrics(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        for key in [
            "step_time",
            "tokens_per_second",
            "peak_memory_bytes",
            "eval_runtime",
            "eval_samples_per_second",
            "eval_steps_per_second",
        ] {
            line.remove(key);
        }
    }
    lines
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
