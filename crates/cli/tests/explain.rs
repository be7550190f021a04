//! `explain`, and the classes of errors that users meet first.

use std::fs;
use std::path::Path;

use burnish_core::ErrorCode;

use crate::program::{LORA, fails, model, ok, rows, run, sft};

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

#[test]
fn a_code_is_explained_and_all_are_listed() {
    let text = ok(&words(&["explain", "out-of-memory"]));
    assert!(text.starts_with("out-of-memory: ") && text.contains("What helps: "), "{text}");
    let listed = ok(&words(&["explain"]));
    for code in ErrorCode::ALL {
        assert!(listed.contains(&format!("  {code} ")), "{code}");
    }
    assert_eq!(fails(&words(&["explain", "no-row"]), &["`no-rows`"]), ErrorCode::UnknownCommand);
}

#[test]
fn an_error_closes_with_its_class() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let file = |name: &str, text: &str| {
        let path = root.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let sft = |place: usize, word: &str, more: &[&str]| {
        let mut words = sft(&out, "prompt_completion.jsonl", more);
        words[place] = word.to_owned();
        words
    };
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let here = empty.display().to_string();
    let config = format!("--config={}", file("run.yaml", "learning_rate: [1"));
    let nothing = format!("--adapter_name_or_path={here}");
    let text = rows("text.jsonl").display().to_string();
    let base = model().display().to_string();
    let dpo = ["dpo", "--model_name_or_path", &base, "--dataset_name", &text];
    for (words, expected) in [
        (words(&["sfd"]), ErrorCode::UnknownCommand),
        (sft(0, "sft", &["--learning_rat=1"]), ErrorCode::UnknownOption),
        (sft(0, "sft", &["--learning_rate=fast"]), ErrorCode::BadValue),
        (words(&["sft"]), ErrorCode::MissingOption),
        (sft(0, "sft", &["--cp_size=2"]), ErrorCode::UnsupportedOption),
        (sft(0, "sft", &[&config]), ErrorCode::BadConfig),
        (sft(2, &here, &[]), ErrorCode::NotAModel),
        (sft(4, &here, &[]), ErrorCode::NoRows),
        (sft(4, &file("a.jsonl", "{\"text\""), &[]), ErrorCode::BadRows),
        (sft(4, &file("b.jsonl", "{\"texts\": \"a\"}\n"), &[]), ErrorCode::WrongColumns),
        (sft(0, "sft", &["--dataset_train_split=train[1"]), ErrorCode::NoSplit),
        (words(&[&dpo[..], &["--output_dir", out.to_str().unwrap()]].concat()), ErrorCode::WrongRows),
        (sft(0, "sft", &["--use_peft", "--lora_target_modules=nowhere"]), ErrorCode::NoTarget),
        (sft(0, "sft", &[&nothing]), ErrorCode::NotAnAdapter),
        (sft(6, &base, &[]), ErrorCode::OutputExists),
        (words(&["inspect", "nowhere"]), ErrorCode::NotFound),
        (sft(0, "sft", &["--resume_from_checkpoint=true"]), ErrorCode::NoCheckpoint),
    ] {
        assert_eq!(fails(&words, &["error: "]), expected, "{words:?}");
    }
    assert!(!out.join("model.safetensors").exists(), "a run began");
}

#[test]
fn a_damaged_checkpoint_and_another_run_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let steps = ["--max_steps=1", "--save_steps=1"];
    ok(&sft(&out, "text.jsonl", &[&steps[..], &LORA].concat()));
    let resumed = |more: &[&str]| {
        let words = [&["--max_steps=2", "--resume_from_checkpoint=true"][..], &LORA, more].concat();
        sft(&out, "text.jsonl", &words)
    };
    assert_eq!(fails(&resumed(&["--seed=3"]), &["seed"]), ErrorCode::CannotResume);
    damaged(&out.join("checkpoint-1"));
    let code = fails(&resumed(&[]), &["checkpoint-1"]);
    assert!(matches!(code, ErrorCode::DamagedCheckpoint | ErrorCode::NoCheckpoint), "{code}");
    assert!(run(&resumed(&[])).stdout.is_empty());
}

fn damaged(checkpoint: &Path) {
    let file = fs::read_dir(checkpoint)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
}
