//! Options that say how, not what, change nothing beyond rounding.

use std::path::Path;

use crate::program::{LORA, metrics, ok, sft};

fn numbers(output: &Path) -> Vec<f64> {
    let keys = ["loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens"];
    metrics(output).iter().flat_map(|l| keys.map(|k| l[k].as_f64().unwrap())).collect()
}

fn check(data: &str, common: &[&str], one: &[&str], other: &[&str], relative: f64) {
    let root = tempfile::tempdir().unwrap();
    let [a, b] = [("a", one), ("b", other)].map(|(name, words)| {
        let out = root.path().join(name);
        let words: Vec<&str> = common.iter().chain(words).copied().collect();
        ok(&sft(&out, data, &words));
        numbers(&out)
    });
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        assert!((x - y).abs() <= relative * x.abs().max(1e-2), "number {i}: {x} and {y}");
    }
}

/// Sums in another order, amplified over six steps of training.
const ROUNDING: f64 = 1e-5;

#[test]
fn one_by_eight_equals_eight_by_one_even_with_dropout() {
    let common: Vec<&str> = LORA.iter().copied().chain(["--max_steps=6"]).collect();
    check(
        "prompt_completion.jsonl",
        &common,
        &["--per_device_train_batch_size=1", "--gradient_accumulation_steps=8"],
        &["--per_device_train_batch_size=8"],
        ROUNDING,
    );
}

#[test]
fn accumulation_changes_nothing_in_the_first_step_beyond_1e_6() {
    check(
        "text.jsonl",
        &["--max_steps=1"],
        &["--per_device_train_batch_size=1", "--gradient_accumulation_steps=8"],
        &["--per_device_train_batch_size=8"],
        1e-6,
    );
}

#[test]
fn recomputation_changes_nothing() {
    let common: Vec<&str> = LORA.iter().copied().chain(["--max_steps=6"]).collect();
    let (on, off) = (["--gradient_checkpointing"], ["--no_gradient_checkpointing"]);
    check("prompt_completion.jsonl", &common, &on, &off, ROUNDING);
    check("text.jsonl", &["--max_steps=6", "--packing"], &on, &off, ROUNDING);
}

#[test]
fn threads_change_nothing() {
    let common: Vec<&str> = LORA.iter().copied().chain(["--max_steps=6"]).collect();
    check("prompt_completion.jsonl", &common, &["--threads=1"], &["--threads=3"], 0.0);
}

/// Rows that only evaluation packs keep apart all the same.
#[test]
fn packing_the_evaluation_alone_changes_nothing() {
    let eval = format!("--eval_dataset_name={}", crate::program::rows("text.jsonl").display());
    let common = ["--max_steps=1", "--eval_strategy=steps", "--eval_steps=1", eval.as_str()];
    let root = tempfile::tempdir().unwrap();
    let [a, b] = ["--eval_packing", "--no_eval_packing"].map(|packs| {
        let out = root.path().join(packs);
        let words: Vec<&str> = common.iter().copied().chain([packs]).collect();
        ok(&sft(&out, "text.jsonl", &words));
        metrics(&out).iter().find_map(|l| l["eval_loss"].as_f64()).unwrap()
    });
    assert!((a - b).abs() <= ROUNDING * a, "{a} and {b}");
}

/// Burn keeps graphs that are dropped without a backward; a run must not.
#[test]
fn memory_is_flat_over_300_steps() {
    for recompute in ["--gradient_checkpointing", "--no_gradient_checkpointing"] {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("out");
        let mut words = vec!["--max_steps=400", "--save_strategy=no", "--logging_steps=100", recompute];
        words.extend(LORA);
        words.extend([
            "--eval_strategy=steps",
            "--eval_steps=100",
            "--packing",
            "--per_device_train_batch_size=8",
        ]);
        let eval = format!("--eval_dataset_name={}", crate::program::rows("text.jsonl").display());
        words.push(&eval);
        ok(&sft(&out, "text.jsonl", &words));
        let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let peaks: Vec<f64> = text
            .lines()
            .map(|l| {
                serde_json::from_str::<serde_json::Value>(l).unwrap()["peak_memory_bytes"].as_f64().unwrap()
            })
            .collect();
        let (warm, end) = (peaks[1], peaks[peaks.len() - 1]);
        assert!(end - warm < 2e6, "peak memory grew from {warm} to {end}");
    }
}
