//! `win-rate` says what its own lines add up to, on any ranks.

use std::path::Path;

use burn::tensor::Device;
use burnish_rewards::{RewardFunction, Sample};
use burnish_trainers::RewardFolder;
use serde_json::{Map, Value};

use crate::program::{LORA, fails, fixtures, model, ok, rows, sft};

/// (ranks, tp_size).
const MESHES: [(usize, usize); 3] = [(2, 2), (3, 1), (4, 2)];

fn words(command: &str, more: &[String]) -> Vec<String> {
    let start = [
        command.to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows("prompt_completion_eval.jsonl").display()),
    ];
    [&start[..], more].concat()
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is printed, and the lines; the same on every layout.
#[track_caller]
fn compared(root: &Path, more: &[String]) -> (Value, Vec<Value>) {
    let file = root.join("completions.jsonl");
    let words = [words("win-rate", more), vec![format!("--output_file={}", file.display())]].concat();
    let printed = ok(&words);
    let written = std::fs::read_to_string(&file).unwrap();
    let found = (serde_json::from_str(&printed).unwrap(), lines(&file));
    for (nproc, tp_size) in MESHES {
        let ranks = [format!("--nproc={nproc}"), format!("--tp_size={tp_size}")];
        assert_eq!(ok(&[&words[..], &ranks].concat()), printed, "{nproc} ranks, {tp_size}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), written, "{nproc} ranks, {tp_size}");
    }
    found
}

/// The share of lines won, ties as half.
fn rate(lines: &[Value]) -> f64 {
    let won = |line: &Value| {
        let [score, other] = ["score", "reference_score"].map(|name| line[name].as_f64().unwrap());
        f64::from(u8::from(score > other)) + 0.5 * f64::from(u8::from(score == other))
    };
    lines.iter().map(won).sum::<f64>() / lines.len() as f64
}

#[test]
fn an_adapter_is_compared_with_its_base() {
    let root = tempfile::tempdir().unwrap();
    let tuned = root.path().join("tuned");
    let steps = ["--max_steps=30", "--save_strategy=no", "--per_device_train_batch_size=8"];
    ok(&sft(&tuned, "prompt_completion.jsonl", &[&steps[..], &LORA].concat()));
    let adapter = format!("--adapter_name_or_path={}", tuned.display());
    let sampling =
        text(&["--max_new_tokens=40", "--do_sample", "--seed=3", "--per_device_eval_batch_size=3"]);

    // Tokens counted by a built-in function; the texts are those of `generate`.
    let length = [&sampling[..], &text(&["--reward_funcs=length_reward", "--length_scale=2"])].concat();
    let (printed, found) = compared(root.path(), &[std::slice::from_ref(&adapter), &length[..]].concat());
    assert_eq!(printed["win_rate"].as_f64(), Some(rate(&found)));
    assert!(printed["win_rate_stderr"].as_f64().unwrap() > 0.0, "{printed}");
    let generated = |more: &[String]| -> Vec<Value> {
        let said = ok(&words("generate", &[&sampling[..], more].concat()));
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (of_policy, of_reference) = (generated(std::slice::from_ref(&adapter)), generated(&[]));
    assert_eq!(found.len(), of_policy.len());
    assert_ne!(of_policy, of_reference);
    for (line, (policy, reference)) in found.iter().zip(of_policy.iter().zip(&of_reference)) {
        assert_eq!(line["completion"], policy["completion"]);
        assert_eq!(line["reference_completion"], reference["completion"]);
        let tokens = |of: &Value| 2.0 * of["token_ids"].as_array().unwrap().len() as f64;
        assert_eq!(
            (line["score"].as_f64(), line["reference_score"].as_f64()),
            (Some(tokens(policy)), Some(tokens(reference)))
        );
    }

    // A model, and a program, with weights.
    let reward_model = fixtures().join("trl-runs/reward-full/model_start");
    let command = r#"--reward_command=sh -c 'while read -r line; do echo 4; done'"#;
    let scored = [
        vec![adapter, format!("--reward_model_name_or_path={}", reward_model.display()), command.to_owned()],
        text(&["--reward_weights", "2", "0.5"]),
        sampling,
    ]
    .concat();
    let (printed, found) = compared(root.path(), &scored);
    let (folder, columns) = (RewardFolder::open(&reward_model, 4, &Device::flex()).unwrap(), Map::new());
    for line in &found {
        for [completion, score] in [["completion", "score"], ["reference_completion", "reference_score"]] {
            let completion = line[completion].as_str().unwrap();
            let sample =
                Sample { prompt: &line["prompt"], completion, completion_ids: &[], columns: &columns };
            let expected = folder.score(&[sample]).unwrap()[0].unwrap() * 2.0 + 2.0;
            assert!((line[score].as_f64().unwrap() - expected).abs() < 1e-4, "{line}: {expected}");
        }
    }
    assert_eq!(printed["win_rate"].as_f64(), Some(rate(&found)));
}

#[test]
fn what_cannot_be_compared_is_said_before_anything_runs() {
    fails(&words("win-rate", &text(&["--reward_funcs=length_reward"])), &["reference_model_name_or_path"]);
    let reference = format!("--reference_model_name_or_path={}", model().display());
    fails(&words("win-rate", std::slice::from_ref(&reference)), &["reward_funcs", "reward_command"]);
    let root = tempfile::tempdir().unwrap();
    let file = format!("--output_file={}", root.path().join("completions.jsonl").display());
    let with =
        |more: &[&str]| words("win-rate", &[&[reference.clone(), file.clone()][..], &text(more)].concat());
    fails(&with(&["--reward_funcs=lenght_reward"]), &["lenght_reward", "length_reward"]);
    fails(
        &with(&["--reward_funcs=length_reward", "--reward_weights", "1", "2"]),
        &["reward_weights", "1 reward functions"],
    );
    fails(
        &with(&["--reward_funcs=accuracy_reward", "--max_new_tokens=2"]),
        &["accuracy_reward", "solution", "missing"],
    );
    fails(
        &with(&["--reward_command=sh -c 'echo no idea >&2; exit 4'", "--max_new_tokens=2"]),
        &["status 4", "no idea", "completion 1"],
    );
    let language = format!("--reward_model_name_or_path={}", model().display());
    fails(&with(&[&language]), &["reward_model_name_or_path", "burnish reward"]);
}
