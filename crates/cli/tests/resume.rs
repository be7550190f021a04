//! Stopping and going on equals never stopping.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::program::{LORA, burnish, copy, fails, metrics, ok, rows, sft};

fn same_files(a: &Path, b: &Path, name: &str) {
    let same = std::fs::read(a.join(name)).unwrap() == std::fs::read(b.join(name)).unwrap();
    assert!(same, "{name} differs between {} and {}", a.display(), b.display());
}

/// Six steps at once, and from the checkpoint at step 3 on: the same model, the same log, the same lines of `beside`.
#[track_caller]
pub(crate) fn goes_on(words: impl Fn(&Path, &[&str]) -> Vec<String>, more: &[&str], beside: Option<&str>) {
    let root = tempfile::tempdir().unwrap();
    let (whole, parts) = (root.path().join("whole"), root.path().join("parts"));
    let mut all = vec!["--max_steps=6", "--save_steps=3", "--gradient_accumulation_steps=2"];
    all.extend(more);
    ok(&words(&whole, &all));
    copy(&whole.join("checkpoint-3"), &parts.join("checkpoint-3"));
    if let Some(file) = beside {
        std::fs::copy(whole.join(file), parts.join(file)).unwrap();
    }
    all.push("--resume_from_checkpoint=true");
    ok(&words(&parts, &all));
    let model = if more.contains(&"--use_peft") { "adapter_model.safetensors" } else { "model.safetensors" };
    std::iter::once(model).chain(beside).for_each(|name| same_files(&whole, &parts, name));
    let (a, b) = (metrics(&whole), metrics(&parts));
    assert_eq!(b.len(), 3);
    assert_eq!(a[3..], b[..], "{more:?}");
}

/// Eight steps at once, and four, then a resume from the checkpoint at step 3 (not a logging or epoch boundary).
fn check(data: &str, tensors: &str, more: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let (whole, parts) = (root.path().join("whole"), root.path().join("parts"));
    let mut words =
        vec!["--max_steps=8", "--save_steps=3", "--logging_steps=2", "--gradient_accumulation_steps=2"];
    words.extend(more);
    ok(&sft(&whole, data, &words));
    copy(&whole.join("checkpoint-3"), &parts.join("checkpoint-3"));
    words.push("--resume_from_checkpoint=true");
    ok(&sft(&parts, data, &words));
    same_files(&whole, &parts, tensors);
    same_files(&whole.join("checkpoint-8"), &parts.join("checkpoint-8"), tensors);
    let (a, b) = (metrics(&whole), metrics(&parts));
    assert_eq!(a[a.len() - b.len()..], b[..]);
    assert_eq!(b.first().unwrap()["step"], 4);
}

#[test]
fn a_resumed_adapter_run_equals_the_whole_one_bit_for_bit() {
    check("prompt_completion.jsonl", "adapter_model.safetensors", &LORA);
}

/// Encoders of virtual tokens: their parameters are in the checkpoint, and in no adapter folder, which cannot go on.
#[test]
fn resumed_encoders_equal_the_whole_ones_bit_for_bit() {
    let lstm = r#"--peft_config={"num_virtual_tokens": 3, "encoder_hidden_size": 8, "encoder_dropout": 0.2, "encoder_reparameterization_type": "LSTM"}"#;
    let projected =
        r#"--peft_config={"num_virtual_tokens": 3, "encoder_hidden_size": 8, "prefix_projection": true}"#;
    for (kind, config) in [("P_TUNING", lstm), ("PREFIX_TUNING", projected)] {
        let kind = format!("--peft_type={kind}");
        check("prompt_completion.jsonl", "adapter_model.safetensors", &["--use_peft", &kind, config]);
    }
    let root = tempfile::tempdir().unwrap();
    let (whole, other, best) =
        (root.path().join("whole"), root.path().join("other"), root.path().join("best"));
    let kind = ["--use_peft", "--peft_type=PREFIX_TUNING", projected];
    let given = [&kind[..], &["--max_steps=6", "--save_steps=2", "--global_batch_size=8"]].concat();
    ok(&sft(&whole, "prompt_completion.jsonl", &given));
    // On another mesh.
    copy(&whole.join("checkpoint-2"), &other.join("checkpoint-2"));
    let mesh = ["--resume_from_checkpoint=true", "--nproc=4", "--tp_size=2", "--zero_stage=3"];
    ok(&sft(&other, "prompt_completion.jsonl", &[&given[..], &mesh].concat()));
    crate::ranks::close_numbers("an encoder on another mesh", &whole, &other, 4);
    let adapter = format!("--adapter_name_or_path={}", whole.display());
    let refused = sft(&root.path().join("refused"), "prompt_completion.jsonl", &[&adapter]);
    fails(&refused, &["prefix_projection", "resume_from_checkpoint"]);
    // The best is put back whole, also of checkpoints that cannot go on; here the best is what has learned least.
    let eval = format!("--eval_dataset_name={}", rows("prompt_completion_eval.jsonl").display());
    let least =
        ["--eval_strategy=steps", "--eval_steps=2", "--greater_is_better=true", "--save_only_model", &eval];
    ok(&sft(&best, "prompt_completion.jsonl", &[&given[..], &least, &["--load_best_model_at_end"]].concat()));
    let state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(best.join("checkpoint-6/trainer_state.json")).unwrap())
            .unwrap();
    let step = state["best_global_step"].as_u64().unwrap();
    assert!(step < 6, "{state}");
    same_files(&best, &best.join(format!("checkpoint-{step}")), "adapter_model.safetensors");
}

/// AdaLoRA: importance and ranks are in the checkpoint, before its last allotment, and after it.
#[test]
fn resumed_allotments_equal_the_whole_ones_bit_for_bit() {
    for (tinit, tfinal) in [(1, 3), (0, 6)] {
        let config = format!(
            r#"--peft_config={{"init_r": 4, "target_r": 2, "tinit": {tinit}, "tfinal": {tfinal}, "deltaT": 2}}"#
        );
        let given = ["--use_peft", "--peft_type=ADALORA", "--lora_dropout=0.1", &config];
        check("prompt_completion.jsonl", "adapter_model.safetensors", &given);
        check("prompt_completion.jsonl", "adapter_config.json", &given);
    }
    let root = tempfile::tempdir().unwrap();
    let [one, many, other] = ["one", "many", "other"].map(|name| root.path().join(name));
    let config = r#"--peft_config={"init_r": 4, "target_r": 2, "tfinal": 2}"#;
    let kind = ["--use_peft", "--peft_type=ADALORA", config];
    let given = [&kind[..], &["--max_steps=6", "--save_steps=3", "--global_batch_size=8"]].concat();
    let sharded =
        [&given[..], &["--nproc=3", "--zero_stage=3", "--stage3_param_persistence_threshold=10"]].concat();
    ok(&sft(&one, "prompt_completion.jsonl", &given));
    ok(&sft(&many, "prompt_completion.jsonl", &sharded));
    crate::ranks::close("allotments of three ranks", &one, &many);
    // Of ranks that share layers, which write what one does and go on from it, and the other way round.
    let [divided, again, whole] = ["divided", "again", "whole"].map(|name| root.path().join(name));
    let shared = [&given[..], &["--nproc=4", "--tp_size=2", "--zero_stage=3"]].concat();
    ok(&sft(&divided, "prompt_completion.jsonl", &shared));
    crate::ranks::close("allotments of two ranks that share layers", &one, &divided);
    same_files(&one, &divided, "adapter_config.json");
    for (from, to, words) in [(&one, &again, &shared), (&divided, &whole, &given)] {
        copy(&from.join("checkpoint-3"), &to.join("checkpoint-3"));
        ok(&sft(to, "prompt_completion.jsonl", &[&words[..], &["--resume_from_checkpoint=true"]].concat()));
        crate::ranks::close_numbers("allotments that go on where layers are shared", &one, to, 3);
        same_files(&one, to, "adapter_config.json");
    }
    // On another mesh.
    copy(&many.join("checkpoint-3"), &other.join("checkpoint-3"));
    ok(&sft(&other, "prompt_completion.jsonl", &[&given[..], &["--resume_from_checkpoint=true"]].concat()));
    crate::ranks::close_numbers("allotments on another mesh", &one, &other, 3);
    same_files(&one, &other, "adapter_config.json");
    let refused = |more: &[&str], parts: &[&str]| {
        fails(&sft(&root.path().join("refused"), "prompt_completion.jsonl", more), parts);
    };
    let adapter = format!("--adapter_name_or_path={}", one.display());
    refused(&[&adapter], &["rank_pattern", "resume_from_checkpoint"]);
    let kind = &kind[..2];
    for (config, parts) in [
        (r#"{"init_r": 4, "target_r": 4}"#, ["target_r", "below init_r"]),
        (
            r#"{"init_r": 4, "target_r": 2, "tinit": 30, "tfinal": 40, "total_step": 60}"#,
            ["tinit", "total_step"],
        ),
        (r#"{"init_r": 4, "target_r": 2, "deltaT": 0}"#, ["deltaT", "positive"]),
        (r#"{"init_r": 4, "target_r": 2, "beta1": 1.0}"#, ["beta1", "between 0 and 1"]),
    ] {
        refused(&[kind, &[&format!("--peft_config={config}")]].concat(), &parts);
    }
    refused(&[kind, &[config, "--lora_r=4"]].concat(), &["lora_r", "ADALORA"]);
    refused(&[kind, &[config, "--use_rslora"]].concat(), &["use_rslora", "ADALORA"]);
}

#[test]
fn a_resumed_full_run_equals_the_whole_one_bit_for_bit() {
    check(
        "text.jsonl",
        "model.safetensors",
        &["--packing", "--lr_scheduler_type=cosine", "--weight_decay=0.1"],
    );
}

#[test]
fn a_resumed_bf16_run_keeps_its_fp32_masters() {
    check("text.jsonl", "model.safetensors", &["--dtype=bfloat16"]);
}

#[test]
fn resumed_runs_of_bf16_products_equal_the_whole_ones_bit_for_bit() {
    check("text.jsonl", "model.safetensors", &["--bf16", "--packing"]);
    let adapter: Vec<&str> = LORA.iter().copied().chain(["--bf16"]).collect();
    check("prompt_completion.jsonl", "adapter_model.safetensors", &adapter);
}

#[test]
fn recomputing_changes_no_bit_of_bf16_products() {
    let root = tempfile::tempdir().unwrap();
    let (kept, again) = (root.path().join("kept"), root.path().join("again"));
    let words = ["--max_steps=4", "--save_strategy=no", "--bf16", "--learning_rate=1e-3"];
    ok(&sft(&kept, "text.jsonl", &[&words[..], &["--no_gradient_checkpointing"]].concat()));
    ok(&sft(&again, "text.jsonl", &words));
    same_files(&kept, &again, "model.safetensors");
}

#[test]
fn interrupt_saves_and_says_how_to_go_on() {
    let root = tempfile::tempdir().unwrap();
    let (whole, stopped) = (root.path().join("whole"), root.path().join("stopped"));
    let mut words = vec!["--max_steps=400", "--save_strategy=no", "--per_device_train_batch_size=16"];
    words.extend(LORA);
    ok(&sft(&whole, "prompt_completion.jsonl", &words));

    let mut child = burnish()
        .args(sft(&stopped, "prompt_completion.jsonl", &words))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let (mut said, mut told) = (String::new(), false);
    let start = Instant::now();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if !told && line.contains("step ") && line.contains("loss") {
            told = true;
            // Twice at once, as a launcher's signal and its group's come: one wish.
            for _ in 0..2 {
                assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
            }
        }
        said.push_str(&line);
        said.push('\n');
        assert!(start.elapsed() < Duration::from_secs(120), "{said}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("--resume_from_checkpoint true"), "{said}");

    words.push("--resume_from_checkpoint");
    words.push("true");
    ok(&sft(&stopped, "prompt_completion.jsonl", &words));
    same_files(&whole, &stopped, "adapter_model.safetensors");
    assert_eq!(metrics(&whole).last(), metrics(&stopped).last());
}

#[test]
fn old_checkpoints_make_room_and_the_best_stays() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let mut words = vec![
        "--max_steps=8",
        "--save_steps=2",
        "--save_total_limit=2",
        "--eval_strategy=steps",
        "--eval_steps=2",
    ];
    let eval = crate::program::rows("prompt_completion_eval.jsonl");
    let eval = format!("--eval_dataset_name={}", eval.display());
    words.extend([eval.as_str(), "--load_best_model_at_end"]);
    words.extend(LORA);
    ok(&sft(&out, "prompt_completion.jsonl", &words));
    let mut steps: Vec<u64> = std::fs::read_dir(&out)
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().to_string_lossy().strip_prefix("checkpoint-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert!(steps.contains(&8), "{steps:?}");
    let state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("checkpoint-8/trainer_state.json")).unwrap()).unwrap();
    let best = state["best_global_step"].as_u64().unwrap();
    assert!(steps.contains(&best), "{best} of {steps:?}");
    same_files(&out, &out.join(format!("checkpoint-{best}")), "adapter_model.safetensors");
}
