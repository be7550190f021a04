//! Adapters that start from rows of the data (EVA, CorDA, LoRA-GA): ranks equal one, a run goes on, what cannot be is refused.

use std::path::{Path, PathBuf};

use burnish_weight_files::WeightFolder;

use crate::preferences;
use crate::program::{fails, fixtures, metrics, ok, sft};
use crate::ranks::close;

fn model() -> String {
    format!("--model_name_or_path={}", fixtures().join("models/llama-64").display())
}

const STEPS: [&str; 8] = [
    "--use_peft",
    "--lora_r=4",
    "--lora_dropout=0",
    "--max_steps=4",
    "--global_batch_size=8",
    "--per_device_train_batch_size=4",
    "--learning_rate=0.01",
    "--stage3_param_persistence_threshold=50",
];

const STARTS: [&[&str]; 3] = [
    &[
        "--init_lora_weights=eva",
        "--lora_target_modules=all-linear",
        "--eva_config={\"tau\": 0.8, \"use_label_mask\": false}",
    ],
    &["--init_lora_weights=corda", "--corda_config={\"corda_method\": \"kpm\"}", "--init_lora_rows=5"],
    &["--init_lora_weights=lora_ga", "--lora_target_modules=q_proj,down_proj", "--init_lora_rows=8"],
];

fn losses(output: &Path) -> Vec<f64> {
    metrics(output).iter().filter_map(|line| line["loss"].as_f64()).collect()
}

fn run(root: &Path, name: &str, words: &[&[&str]]) -> PathBuf {
    let (output, model) = (root.join(name), model());
    ok(&sft(&output, "prompt_completion.jsonl", &[&[&*model][..], &STEPS, &words.concat()].concat()));
    output
}

/// Whatever the mesh, and not as without a start.
#[test]
fn ranks_equal_one_at_every_stage() {
    let root = tempfile::tempdir().unwrap();
    let plain = run(root.path(), "plain", &[&["--save_strategy=no"]]);
    for (number, start) in STARTS.into_iter().enumerate() {
        let one = run(root.path(), &format!("one-{number}"), &[start, &["--save_strategy=no"]]);
        assert_ne!(losses(&one), losses(&plain), "{start:?}");
        for (nproc, tp_size, stage) in [(2, 1, 1), (2, 1, 3), (2, 2, 0)] {
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let name = format!("{number}-{nproc}-{tp_size}-{stage}");
            let many = run(
                root.path(),
                &name,
                &[start, &["--save_strategy=no", "--per_device_train_batch_size=4"], &given],
            );
            close(&format!("{start:?}, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
        }
    }
}

/// From a checkpoint it goes on with the start that it had, whatever rows are read.
#[test]
fn a_resumed_run_keeps_its_start() {
    let root = tempfile::tempdir().unwrap();
    for (number, start) in STARTS.into_iter().enumerate() {
        let whole = run(root.path(), &format!("whole-{number}"), &[start, &["--save_steps=2"]]);
        let from = format!("--resume_from_checkpoint={}", whole.join("checkpoint-2").display());
        let resumed =
            run(root.path(), &format!("resumed-{number}"), &[start, &[&from, "--init_lora_rows=1"]]);
        let last = losses(&resumed);
        assert_eq!(losses(&whole)[2..], last[last.len() - 2..], "{start:?}");
        let open = |path: &Path| WeightFolder::open_stem(path, "adapter_model").unwrap();
        let (whole, resumed) = (open(&whole), open(&resumed));
        for name in whole.names() {
            assert!(whole.read(name).unwrap() == resumed.read(name).unwrap(), "{start:?}: {name}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let output = root.path().join("refused");
    let refused = |words: &[&str], parts: &[&str]| {
        fails(&sft(&output, "prompt_completion.jsonl", &[&[&*model], &STEPS[..], words].concat()), parts);
    };
    refused(&["--eva_config={\"rho\": 1.0}"], &["eva_config", "init_lora_weights: true"]);
    refused(&["--init_lora_weights=eva", "--eva_config={\"rh\": 1.0}"], &["eva_config.rh"]);
    refused(&["--init_lora_weights=corda", "--load_in_4bit"], &["load_in_4bit", "init_lora_weights"]);
    refused(&["--init_lora_weights=eva", "--init_lora_rows=0"], &["init_lora_rows", "at least 1"]);
    let words = preferences::words("dpo", &output, &["--use_peft", "--init_lora_weights=eva"]);
    fails(&words, &["init_lora_weights", "other than sft", "adapter_name_or_path"]);
}
