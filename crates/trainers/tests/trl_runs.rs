//! Runs recorded from TRL: every logged number of every step comes out again.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burnish_config::Command;
use burnish_trainers::{Dpo, Kto, Ranks, Reward, Sft, Stop, Trainer};
use serde_json::Value;

/// fp32 sums in another order over a few steps.
const RELATIVE: f64 = 1e-4;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .unwrap()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The run's options as burnish's flags.
fn flags(run: &Value, root: &Path, folder: &Path, output: &Path) -> Vec<String> {
    let mut words = vec![
        "--model_name_or_path".to_owned(),
        match folder.join("model_start") {
            start if start.is_dir() => start,
            _ => root.join("models").join(run["model"].as_str().unwrap()),
        }
        .display()
        .to_string(),
        "--dataset_name".to_owned(),
        root.join("data").join(run["data"].as_str().unwrap()).display().to_string(),
        "--output_dir".to_owned(),
        output.display().to_string(),
        "--train_sampling_strategy=sequential".to_owned(),
        "--save_strategy=no".to_owned(),
        "--report_to=none".to_owned(),
        "--disable_tqdm".to_owned(),
    ];
    if let Some(data) = run["eval_data"].as_str() {
        words.push("--eval_dataset_name".to_owned());
        words.push(root.join("data").join(data).display().to_string());
    }
    for (name, value) in run["options"].as_object().unwrap() {
        let ours = [
            "train_sampling_strategy",
            "save_strategy",
            "report_to",
            "output_dir",
            "use_cpu",
            "disable_tqdm",
        ];
        if !ours.contains(&name.as_str()) {
            words.push(format!("--{name}={}", word(value)));
        }
    }
    if let Some(model) = run["reference"].as_str() {
        words.push(format!("--ref_model_name_or_path={}", root.join("models").join(model).display()));
    }
    if folder.join("adapter_start").is_dir() {
        words.push(format!("--adapter_name_or_path={}", folder.join("adapter_start").display()));
    }
    words
}

fn check(what: &str, got: f64, expected: f64, rounding: f64) {
    let scale = expected.abs().max(1e-3);
    assert!(
        (got - expected).abs() <= RELATIVE * scale + rounding,
        "{what}: {got}, TRL {expected}, relative {:.2e}",
        (got - expected).abs() / scale
    );
}

/// What sums that nearly cancel may differ by: rewards by `rounding`, means of logits of both signs by little, and scores of
/// a head whose weights have both signs by what steps before have rounded (AVX2 and AVX-512 sum in different orders).
fn absolute(key: &str, rounding: f64) -> f64 {
    match key.split_once('/') {
        Some(("rewards", _)) => rounding,
        Some(("logits", _)) => 1e-6,
        _ if ["min_reward", "mean_reward", "max_reward", "margin"].contains(&key) => 5e-6,
        _ => 0.0,
    }
}

fn replay<T: Trainer>(root: &Path, folder: &Path) {
    let run = json(&folder.join("run.json"));
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let output = tempfile::tempdir().unwrap();
    let words = flags(&run, root, folder, &output.path().join("out"));
    let options = T::Options::parse(words).unwrap_or_else(|e| panic!("{name}: {e}")).run().unwrap().options;
    let accumulates = run["options"]["gradient_accumulation_steps"].as_u64().unwrap_or(1) > 1;
    let sft = T::prepare(options, &Ranks::alone(), &Device::flex(), &mut |_| ())
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let outcome = sft.run(&Ranks::alone(), &Stop::never()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let steps = run["steps"].as_array().unwrap();
    let logged: Vec<_> = outcome.records.iter().filter(|r| r.get("loss").is_some()).collect();
    assert_eq!(logged.len(), steps.len(), "{name}: log lines");
    for (record, expected) in logged.iter().zip(steps) {
        // A reward is a difference of log-probabilities that TRL has summed in f32.
        let sums = ["logps/chosen", "logps/rejected"].map(|key| expected[key].as_f64().unwrap_or(0.0).abs());
        let beta = run["options"]["beta"].as_f64().unwrap_or(0.1);
        let rounding = beta * 2.0 * f64::from(f32::EPSILON) * sums[0].max(sums[1]);
        for (key, wanted) in expected.as_object().unwrap() {
            // TRL averages these over micro-batches; burnish over tokens.
            let by_token = ["mean_token_accuracy", "entropy", "logits/chosen", "logits/rejected"];
            if accumulates && by_token.contains(&key.as_str()) || key == "step" {
                continue;
            }
            if let Some(wanted) = wanted.as_f64() {
                let what = format!("{name}, step {}, {key}", record.step);
                let got = if key == "epoch" { Some(record.epoch) } else { record.get(key) };
                let got = got.unwrap_or_else(|| panic!("{what}: not logged"));
                check(&what, got, wanted, absolute(key, rounding));
            }
        }
    }
    let evaluated: Vec<_> = outcome.records.iter().filter(|r| r.get("eval_loss").is_some()).collect();
    for (record, expected) in evaluated.iter().zip(run["evaluations"].as_array().unwrap_or(&vec![])) {
        for (key, wanted) in expected.as_object().unwrap().iter().filter(|(key, _)| key.starts_with("eval_"))
        {
            if let Some(wanted) = wanted.as_f64() {
                let what = format!("{name}, evaluation at {}, {key}", record.step);
                let got = record.get(key).unwrap_or_else(|| panic!("{what}: not logged"));
                check(&what, got, wanted, absolute(&key["eval_".len()..], 1e-6));
            }
        }
    }
    assert_eq!(evaluated.len(), run["evaluations"].as_array().map_or(0, Vec::len), "{name}: evaluations");
}

fn replay_all(root: &Path) -> usize {
    let mut replayed = 0;
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root.join("trl-runs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    folders.sort();
    for folder in folders {
        let run = json(&folder.join("run.json"));
        match run["trainer"].as_str().unwrap() {
            "sft" | "SFTTrainer" => {
                replay::<Sft>(root, &folder);
                replayed += 1;
            }
            "dpo" => {
                replay::<Dpo>(root, &folder);
                replayed += 1;
            }
            "kto" => {
                replay::<Kto>(root, &folder);
                replayed += 1;
            }
            "reward" => {
                replay::<Reward>(root, &folder);
                replayed += 1;
            }
            other => panic!("{}: unknown kind of recording `{other}`", folder.display()),
        }
    }
    replayed
}

#[test]
fn runs_of_the_repository_equal_trl() {
    assert!(replay_all(&own()) >= 27);
}

#[test]
fn given_runs_equal_trl() {
    match std::env::var_os("BURNISH_RECORDINGS").map(PathBuf::from).filter(|r| r.join("trl-runs").is_dir()) {
        Some(root) => assert!(replay_all(&root) >= 1),
        None => println!("BURNISH_RECORDINGS is not set: only the repository's own runs are replayed"),
    }
}
