//! QK-Clip keeps attention logits down, the same on every mesh.

use serde_json::Value;

use crate::program::{LORA, fails, fixtures, metrics, ok, sft};
use crate::tensor_parallel::{check, packed};

const DATA: &str = "prompt_completion.jsonl";
/// Below what the small models' logits are, so that it has something to do.
const CLIPS: [&str; 4] =
    ["--optim=muon", "--learning_rate=1e-3", "--muon_qk_clip=0.05", "--no_gradient_checkpointing"];

#[test]
fn clipping_equals_one_rank() {
    check(DATA, &CLIPS, &[(2, 1, 2), (3, 3, 0), (4, 2, 3)]);
    let root = tempfile::tempdir().unwrap();
    let packed = packed(root.path(), 2);
    let bf16 = [&CLIPS[..3], &[packed.as_str(), "--dtype=bfloat16"]].concat();
    check(DATA, &bf16, &[(2, 1, 3)]);
}

#[test]
fn logits_that_exceed_are_brought_down() {
    let root = tempfile::tempdir().unwrap();
    let largest = |name: &str, more: &[&str]| -> Vec<f64> {
        let output = root.path().join(name);
        // The same rows in every step, at a rate of nothing: only clipping moves weights.
        let still =
            ["--max_steps=3", "--global_batch_size=8", "--save_strategy=no", "--muon_lr=0", "--adam_lr=0"];
        let still = [&still[..], &["--train_sampling_strategy=sequential", "--max_length=16"], more].concat();
        ok(&sft(&output, DATA, &still));
        let value = |line: &Value| line["max_attention_logit"].as_f64();
        metrics(&output).iter().filter_map(value).collect()
    };
    let free = largest("free", &["--optim=muon", "--muon_qk_clip=1e9"]);
    assert_eq!(free.len(), 3);
    let tau = free.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    let clipped = largest("clipped", &["--optim=muon", &format!("--muon_qk_clip={tau}")]);
    assert!((clipped[0] - free[0]).abs() < 1e-6 * free[0], "{clipped:?} {free:?}");
    for (clipped, free) in clipped.iter().zip(&free).skip(1) {
        assert!(*clipped < 0.75 * free, "{clipped} after clipping to {tau}, {free} without");
    }
}

#[test]
fn it_is_refused_where_it_cannot_work() {
    let root = tempfile::tempdir().unwrap();
    let normed = format!("--model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    fails(
        &sft(root.path(), DATA, &[&normed, "--optim=muon", "--muon_qk_clip=100"]),
        &["normed per head", "leave qk_clip out"],
    );
    fails(&sft(root.path(), DATA, &["--muon_qk_clip=100"]), &["add optim: muon"]);
    let adapters = [&LORA[..], &["--optim=muon", "--muon_adapters", "--muon_qk_clip=100"]].concat();
    fails(&sft(root.path(), DATA, &adapters), &["qk_clip", "adapter"]);
}
