//! Adapters over a base in four or eight bits: ranks equal one, a run goes on, and what cannot be is refused.

use std::path::{Path, PathBuf};

use crate::program::{LORA, fails, fixtures, metrics, ok, sft};
use crate::ranks::close;

/// A model whose rows are whole blocks, so that stage 3 divides it.
fn model() -> String {
    format!("--model_name_or_path={}", fixtures().join("models/llama-64").display())
}

fn words<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words =
        vec![model, "--max_steps=4", "--global_batch_size=8", "--stage3_param_persistence_threshold=50"];
    words.extend(LORA);
    words.extend(more);
    words
}

#[test]
fn ranks_equal_one_at_every_stage() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let schemes: [&[&str]; 3] = [
        &["--load_in_4bit", "--use_bnb_nested_quant", "--save_strategy=no"],
        &["--load_in_4bit", "--bnb_4bit_quant_type=fp4", "--use_dora", "--save_strategy=no"],
        &["--load_in_8bit", "--save_strategy=no"],
    ];
    for (number, scheme) in schemes.into_iter().enumerate() {
        let one = root.path().join(format!("one-{number}"));
        ok(&sft(&one, "prompt_completion.jsonl", &words(&model, scheme)));
        for (nproc, stage) in [(2, 0), (3, 3)] {
            let many = root.path().join(format!("{number}-{nproc}-{stage}"));
            let given = [format!("--nproc={nproc}"), format!("--zero_stage={stage}")];
            let all: Vec<&str> =
                words(&model, scheme).into_iter().chain(given.iter().map(String::as_str)).collect();
            ok(&sft(&many, "prompt_completion.jsonl", &all));
            close(&format!("{scheme:?}, {nproc} ranks, stage {stage}"), &one, &many);
        }
    }
}

fn losses(output: &Path) -> Vec<f64> {
    metrics(output).iter().filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn a_resumed_run_is_the_same_and_the_base_counts() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let run = |name: &str, more: &[&str]| -> PathBuf {
        let output = root.path().join(name);
        ok(&sft(&output, "prompt_completion.jsonl", &words(&model, more)));
        output
    };
    let whole = run("whole", &["--load_in_4bit", "--save_steps=2"]);
    let plain = run("plain", &["--save_strategy=no"]);
    assert_ne!(losses(&whole), losses(&plain), "four bits are no others");
    let checkpoint = whole.join("checkpoint-2");
    let from = format!("--resume_from_checkpoint={}", checkpoint.display());
    let resumed = run("resumed", &["--load_in_4bit", "--save_strategy=no", &from]);
    assert_eq!(losses(&whole)[2..], losses(&resumed)[losses(&resumed).len() - 2..]);
}

#[test]
fn what_cannot_be_is_refused() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let output = root.path().join("refused");
    let refused = |more: &[&str], parts: &[&str]| {
        fails(&sft(&output, "prompt_completion.jsonl", &words(&model, more)), parts);
    };
    refused(&["--load_in_4bit", "--load_in_8bit"], &["load_in_4bit", "load_in_8bit", "one of the two"]);
    refused(
        &["--load_in_4bit", "--nproc=2", "--tp_size=2"],
        &["load_in_4bit", "tp_size: 2", "zero_stage: 3"],
    );
    refused(&["--load_in_4bit", "--init_lora_weights=pissa"], &["load_in_4bit", "init_lora_weights"]);
    let full = [model.as_str(), "--load_in_4bit", "--max_steps=1"];
    fails(&sft(&output, "prompt_completion.jsonl", &full), &["load_in_4bit", "use_peft: true"]);
}
