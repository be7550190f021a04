//! Bad input gets one clear error that names what, where and the mend.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{LORA, burnish, copy, fails, metrics, model, ok, rows, sft, stderr};

fn broken_model(root: &Path, change: impl Fn(&Path)) -> PathBuf {
    let folder = root.join("model");
    copy(&model(), &folder);
    change(&folder);
    folder
}

fn with_model(output: &Path, folder: &Path) -> Vec<String> {
    let mut words = sft(output, "text.jsonl", &["--max_steps=1"]);
    words[2] = folder.display().to_string();
    words
}

fn with_rows(root: &Path, text: &str, more: &[&str]) -> Vec<String> {
    let file = root.join("rows.jsonl");
    fs::write(&file, text).unwrap();
    let mut words = sft(&root.join("out"), "text.jsonl", more);
    words[4] = file.display().to_string();
    words
}

#[test]
fn a_misspelt_option_names_the_nearest_and_every_fault_at_once() {
    let root = tempfile::tempdir().unwrap();
    let words = sft(root.path(), "text.jsonl", &["--learning_rat=1", "--max_steps=many"]);
    fails(&words, &["learning_rat", "learning_rate", "max_steps", "many"]);
    fails(&["sfd".to_owned()], &["sfd", "burnish sft"]);
}

#[test]
fn a_missing_or_damaged_model_is_named() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    fails(&with_model(&out, &root.path().join("nowhere")), &["nowhere", "no folder"]);
    for (change, parts) in [
        (
            (|f: &Path| fs::remove_file(f.join("model.safetensors")).unwrap()) as fn(&Path),
            vec!["model.safetensors"],
        ),
        (
            |f: &Path| {
                let bytes = fs::read(f.join("model.safetensors")).unwrap();
                fs::write(f.join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
            },
            vec!["model.safetensors", "bytes"],
        ),
        (
            |f: &Path| {
                let text = fs::read_to_string(f.join("config.json")).unwrap();
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let mut json = json;
                json["intermediate_size"] = 7.into();
                json["num_hidden_layers"] = 9.into();
                fs::write(f.join("config.json"), json.to_string()).unwrap();
            },
            vec!["gate_proj", "expected", "is missing"],
        ),
        (|f: &Path| fs::remove_file(f.join("tokenizer.json")).unwrap(), vec!["tokenizer.json"]),
    ] {
        let folder = broken_model(root.path(), change);
        fails(&with_model(&out, &folder), &parts);
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_bad_row_names_its_line() {
    let root = tempfile::tempdir().unwrap();
    fails(&with_rows(root.path(), "{\"text\": \"a\"}\n{\"text\": \n", &[]), &["rows.jsonl", "2"]);
    fails(&with_rows(root.path(), "{\"text\": \"a\"}\n{\"text\": 3}\n", &[]), &["rows.jsonl", "2"]);
    fails(&with_rows(root.path(), "", &[]), &["rows.jsonl"]);
    let mut words = with_rows(root.path(), "x", &[]);
    words[4] = root.path().join("missing.jsonl").display().to_string();
    fails(&words, &["missing.jsonl"]);
}

#[test]
fn everything_filtered_out_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let long = "word ".repeat(200);
    let text = format!("{{\"prompt\": \"{long}\", \"completion\": \"yes\"}}\n");
    fails(&with_rows(root.path(), &text, &["--max_length=16"]), &["max_length"]);
}

#[test]
fn a_raising_template_names_the_row_and_what_it_said() {
    let root = tempfile::tempdir().unwrap();
    let folder = broken_model(root.path(), |f| {
        fs::write(f.join("chat_template.jinja"), "{{ raise_exception('only polite users') }}").unwrap();
    });
    let mut words = with_model(&root.path().join("out"), &folder);
    words[4] = rows("messages.jsonl").display().to_string();
    fails(&words, &["only polite users", "messages.jsonl", "1"]);
}

#[test]
fn a_dead_pattern_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let words = sft(root.path(), "text.jsonl", &["--use_peft", "--lora_target_modules=q_proj,qq_proj"]);
    fails(&words, &["qq_proj", "q_proj"]);
}

#[test]
fn nothing_to_train_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let words = ["--use_peft", "--lora_target_modules=q_proj", "--exclude_modules=q_proj"];
    fails(&sft(root.path(), "text.jsonl", &words), &["no module is left to adapt", "exclude_modules"]);
}

#[test]
fn an_exploding_run_stops_and_the_last_checkpoint_stays() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    // A rate that throws the weights out of the range of floats.
    let words = sft(
        &out,
        "text.jsonl",
        &[
            "--max_steps=40",
            "--learning_rate=1e30",
            "--lr_scheduler_type=constant",
            "--save_steps=1",
            "--max_grad_norm=0",
        ],
    );
    fails(&words, &["training stopped", "learning_rate", "checkpoint-"]);
    let steps = metrics(&out).len() as u64;
    assert!(out.join(format!("checkpoint-{steps}/trainer_state.json")).is_file());
}

#[test]
fn a_folder_that_is_not_ours_is_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), "irreplaceable").unwrap();
    let words = sft(root.path(), "text.jsonl", &["--max_steps=1"]);
    fails(&words, &["thesis.tex", "overwrite_output_dir"]);
    let mut into_model = sft(&model(), "text.jsonl", &["--max_steps=1"]);
    into_model[6] = model().display().to_string();
    fails(&into_model, &["output"]);
    let file = root.path().join("file");
    fs::write(&file, "x").unwrap();
    fails(&sft(&file, "text.jsonl", &[]), &["file"]);
}

#[test]
fn another_run_cannot_be_resumed() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let mut words = vec!["--max_steps=2", "--save_steps=1"];
    words.extend(LORA);
    ok(&sft(&out, "text.jsonl", &words));
    words.extend(["--resume_from_checkpoint=true", "--gradient_accumulation_steps=2"]);
    fails(&sft(&out, "text.jsonl", &words), &["checkpoint-2", "global batch"]);
    let nothing = root.path().join("nothing");
    fails(&sft(&nothing, "text.jsonl", &["--resume_from_checkpoint=true"]), &["nothing"]);
}

#[test]
fn a_full_disk_loses_nothing() {
    // A file system of 3 MB: room for one checkpoint of the model, not for two.
    let root = tempfile::tempdir().unwrap();
    let disk = root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1500k", "tmpfs"])
        .arg(&disk)
        .output()
        .unwrap();
    if !mount.status.success() {
        // Without the right to mount, the store's own tests fill a simulated disk.
        println!("cannot mount a small disk here: {}", String::from_utf8_lossy(&mount.stderr));
        return;
    }
    let out = disk.join("out");
    let result = std::panic::catch_unwind(|| {
        let words = sft(&out, "text.jsonl", &["--max_steps=30", "--save_steps=1"]);
        fails(&words, &["space"]);
        let newest = burnish_checkpoint::latest(&out).unwrap().checkpoint.unwrap();
        assert!(newest.step() >= 1);
    });
    assert!(std::process::Command::new("umount").arg(&disk).status().unwrap().success());
    result.unwrap();
}

/// Whether AMX is left alone has two answers; kernels are asked nothing by others.
#[test]
fn a_word_about_amx_that_is_no_answer_is_refused() {
    for (said, fine) in [("0", true), ("1", true), ("", false), ("off", false)] {
        let output = burnish().arg("--help").env("BURNISH_AMX", said).output().unwrap();
        assert_eq!(output.status.success(), fine, "{said:?}: {}", stderr(&output));
        assert!(fine || stderr(&output).contains("BURNISH_AMX is"), "{}", stderr(&output));
    }
}
