//! Models and data sets by their names on the hub, from a hub on the loopback.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use loopback_hub::{LoopbackHub, Reply};
use serde_json::Value;

use crate::program::{burnish, model, rows, stderr};

/// A hub with the small model and rows, called as in TRL's first line.
fn hub() -> LoopbackHub {
    let hub = LoopbackHub::start();
    hub.add_folder("models/Qwen/Qwen2.5-0.5B", &model());
    let train = fs::read(rows("prompt_completion.jsonl")).unwrap();
    let card = b"---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n  - split: test\n    path: data/test-*\n---\n# Rows\n";
    hub.add(
        "datasets/trl-lib/Capybara",
        &[
            ("README.md", card),
            ("data/train-00000-of-00001.jsonl", &train),
            ("data/test-00000-of-00001.jsonl", &train),
        ],
    );
    hub
}

fn program(hub: &LoopbackHub, home: &Path, words: &str) -> Command {
    let mut program = burnish();
    program
        .args(words.split_whitespace())
        .current_dir(home)
        .env("HF_ENDPOINT", hub.url())
        .env("HF_HOME", home.join("hf"))
        .env("HF_TOKEN", "hf_secret");
    for name in [
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_TOKEN_PATH",
        "HTTP_PROXY",
        "http_proxy",
    ] {
        program.env_remove(name);
    }
    program
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

/// TRL's first line, as it stands; a few words keep it short.
const FIRST_LINE: &str = "sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara";
const SHORT: &str =
    "--max_steps=2 --max_length=48 --per_device_train_batch_size=2 --use_peft --save_strategy=no";

#[test]
fn the_first_line_of_trl_runs_from_an_empty_cache_and_again_offline() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let first =
        program(&hub, home.path(), &format!("{FIRST_LINE} {SHORT} --output_dir=first")).output().unwrap();
    succeeds(&first);
    let asked = hub.requests();
    assert!(asked.iter().any(|r| r.path.contains("train-00000-of-00001.jsonl")));
    // Nothing is evaluated, so the test split stays where it is.
    assert!(!asked.iter().any(|r| r.path.contains("test-00000")), "{asked:?}");

    let mut again = program(&hub, home.path(), &format!("{FIRST_LINE} {SHORT} --output_dir=again"));
    succeeds(&again.env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(hub.requests().is_empty());
    let losses = |out: &str| {
        let text = fs::read_to_string(home.path().join(out).join("metrics.jsonl")).unwrap();
        let loss = |line: &str| serde_json::from_str::<Value>(line).unwrap()["loss"].clone();
        text.lines().map(loss).collect::<Vec<_>>()
    };
    assert_eq!(losses("first"), losses("again"));
}

#[test]
fn what_a_run_leaves_names_the_hub_and_not_the_cache() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    succeeds(
        &program(&hub, home.path(), &format!("{FIRST_LINE} {SHORT} --output_dir=out")).output().unwrap(),
    );
    for file in ["adapter_config.json", "burnish.json", "README.md"] {
        let text = fs::read_to_string(home.path().join("out").join(file)).unwrap();
        assert!(text.contains("Qwen/Qwen2.5-0.5B"), "{file}: {text}");
        assert!(!text.contains("snapshots"), "{file}: {text}");
    }
}

#[test]
fn a_folder_of_that_name_wins_and_nothing_is_asked() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let folder = home.path().join("Qwen/Qwen2.5-0.5B");
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    fs::create_dir_all(home.path().join("trl-lib")).unwrap();
    fs::create_dir_all(home.path().join("trl-lib/Capybara")).unwrap();
    fs::copy(rows("prompt_completion.jsonl"), home.path().join("trl-lib/Capybara/train.jsonl")).unwrap();
    succeeds(
        &program(&hub, home.path(), &format!("{FIRST_LINE} {SHORT} --output_dir=out")).output().unwrap(),
    );
    assert!(hub.requests().is_empty());
}

#[test]
fn refusals_are_one_clear_error() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let fails = |words: &str, parts: &[&str]| {
        let output = program(&hub, home.path(), words).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && !said.contains("panicked"), "{said}");
        for part in parts {
            assert!(said.contains(part), "missing `{part}` in:\n{said}");
        }
        assert!(!said.contains("hf_secret"), "{said}");
    };
    fails(
        "sft --model_name_or_path no/such --dataset_name trl-lib/Capybara",
        &["model_name_or_path: \"no/such\"", "no folder here has that name"],
    );
    fails(
        &format!("{FIRST_LINE} --dataset_train_split train_sft"),
        &["dataset_name", "no split `train_sft`", "`train`, `test`"],
    );
    let mut offline = program(&hub, home.path(), &FIRST_LINE.replace("Qwen2.5", "Qwen3"));
    let said = stderr(&offline.env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(said.contains("HF_HUB_OFFLINE is set") && said.contains("Qwen/Qwen3-0.5B"), "{said}");
    hub.intercept(|_, _| Some(Reply::status(403).with("x-error-code", "GatedRepo")));
    fails(FIRST_LINE, &["is gated", "HF_TOKEN"]);
}

#[test]
fn a_run_is_uploaded_when_it_is_done() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let words = format!("{FIRST_LINE} {SHORT} --save_strategy=steps --push_to_hub --hub_strategy=end");
    let run = |words: &str| program(&hub, home.path(), words).output().unwrap();
    let output = run(&format!("{words} --output_dir=out/mine"));
    succeeds(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("uploaded to {}/me/mine", hub.url())), "{said}");
    let files = hub.files("models/me/mine");
    for name in ["adapter_model.safetensors", "adapter_config.json", "README.md", "tokenizer.json"] {
        assert_eq!(files[name], fs::read(home.path().join("out/mine").join(name)).unwrap(), "{name}");
    }
    assert!(files.keys().all(|name| !name.starts_with("checkpoint-") && name != "burnish.json"), "{files:?}");
    assert!(!files.values().any(|bytes| String::from_utf8_lossy(bytes).contains("hf_secret")));

    // Again, to a name: the adapter is the same, so nothing large is sent.
    let _ = hub.requests();
    succeeds(&run(&format!("{words} --output_dir=out/again --hub_model_id=org/other --hub_revision=v1")));
    assert!(hub.requests().iter().all(|request| request.method != "PUT"));
    assert_eq!(hub.files("models/org/other")["adapter_config.json"], files["adapter_config.json"]);
}

#[test]
fn checkpoints_are_uploaded_while_a_run_goes_on() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let words =
        format!("{FIRST_LINE} {SHORT} --save_strategy=steps --save_steps=1 --push_to_hub --hub_always_push");
    let run = |words: &str| program(&hub, home.path(), words).output().unwrap();
    let pushed = |name: &str, strategy: &str| {
        succeeds(&run(&format!("{words} --hub_strategy={strategy} --output_dir={name}")));
        let requests = hub.requests().into_iter();
        let commits = requests.filter(|r| r.path.contains(&format!("{name}/commit/"))).count();
        (commits, hub.files(&format!("models/me/{name}")))
    };
    // The model after each of two steps, and the result.
    let (commits, files) = pushed("every", "every_save");
    assert_eq!(commits, 3);
    assert!(files.keys().all(|name| !name.contains('/') || name.starts_with("runs/")), "{:?}", files.keys());
    assert!(!files.contains_key("checkpoint_index.json") && !files.contains_key("trainer_state.json"));
    let (commits, files) = pushed("last", "checkpoint");
    assert_eq!(commits, 5);
    let saved = home.path().join("last/checkpoint-2");
    for name in ["trainer_state.json", "adapter_model.safetensors", "state/index.json"] {
        assert_eq!(files[&format!("last-checkpoint/{name}")], fs::read(saved.join(name)).unwrap(), "{name}");
    }
    let (commits, files) = pushed("all", "all_checkpoints");
    assert_eq!(commits, 5);
    for step in [1, 2] {
        let name = format!("checkpoint-{step}/adapter_model.safetensors");
        assert_eq!(files[&name], fs::read(home.path().join("all").join(&name)).unwrap());
    }
    // A hub that fails meanwhile does not end the run.
    hub.intercept(|request, _| {
        let progress = String::from_utf8_lossy(&request.body).contains("Training in progress");
        (request.path.contains("/commit/") && progress).then(|| Reply::status(403))
    });
    let output = run(&format!("{words} --output_dir=late"));
    succeeds(&output);
    assert!(stderr(&output).contains("checkpoint-2 is not uploaded"), "{}", stderr(&output));
    assert!(hub.files("models/me/late").contains_key("adapter_model.safetensors"));
}

#[test]
fn an_upload_that_cannot_be_is_known_before_and_a_run_outlives_one_that_fails() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let words = |out: &str| format!("{FIRST_LINE} {SHORT} --push_to_hub --output_dir={out}");
    let mut without = program(&hub, home.path(), &words("without"));
    let output = without.env_remove("HF_TOKEN").output().unwrap();
    succeeds(&output);
    assert!(stderr(&output).contains("push_to_hub: there is no token"), "{}", stderr(&output));
    assert!(hub.requests().iter().all(|request| request.method == "GET"));

    hub.intercept(|request, _| request.path.contains("repos/create").then(|| Reply::status(401)));
    let output = program(&hub, home.path(), &words("refused")).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("the token may not write"), "{}", stderr(&output));
    assert!(!home.path().join("refused/adapter_model.safetensors").exists());

    hub.intercept(|request, _| request.path.contains("/commit/").then(|| Reply::status(403)));
    let output = program(&hub, home.path(), &words("late")).output().unwrap();
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("hf upload late") && said.contains("the token may not write"), "{said}");
    assert!(home.path().join("late/adapter_model.safetensors").exists());
}
