//! `burnish watch` and `burnish compare`: what they say of runs, going on and ended.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::program::{burnish, fails, model, ok, rows, stderr};

fn trained(root: &Path, name: &str, more: &[&str]) -> PathBuf {
    let out = root.join(name);
    let mut words = vec![
        "sft".to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows("prompt_completion.jsonl").display()),
        format!("--output_dir={}", out.display()),
    ];
    let all = ["--max_steps=3", "--save_strategy=no", "--logging_steps=1"];
    words.extend(all.iter().chain(more).map(|word| (*word).to_owned()));
    ok(&words);
    out
}

fn words(command: &str, folders: &[&Path], more: &[&str]) -> Vec<String> {
    let mut words = vec![command.to_owned()];
    words.extend(folders.iter().map(|folder| folder.display().to_string()));
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

#[test]
fn runs_are_compared_by_options_figures_and_seeds() {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| trained(root.path(), name, more);
    let a = [run("a1", &["--seed=1"]), run("a2", &["--seed=2"])];
    let b =
        [run("b1", &["--seed=1", "--learning_rate=1e-2"]), run("b2", &["--seed=2", "--learning_rate=1e-2"])];
    let all: Vec<&Path> = a.iter().chain(&b).map(PathBuf::as_path).collect();
    let page = root.path().join("page.html");
    let said = ok(&words("compare", &all, &["--html", &page.display().to_string()]));
    for part in
        ["options that differ", "learning_rate", "seed", "last figures", "mean and deviation", "a1, 2 seeds"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("weight_decay"), "{said}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("learning_rate") && !page.contains("<script"));
    let pair = ok(&words("compare", &all[..2], &[]));
    assert!(pair.contains("seed") && !pair.contains("mean and deviation"), "{pair}");
    fails(&words("compare", &all[..1], &[]), &["two folders", "burnish watch"]);
    fails(&words("compare", &[&all[0].join("none"), all[0]], &[]), &["there is no folder"]);
    fails(&words("compare", &[root.path(), all[0]], &[]), &["metrics.jsonl"]);
    // A run leaves its page behind.
    let left = std::fs::read_to_string(a[0].join("run.html")).unwrap();
    assert!(left.contains("<svg") && left.contains("grad_norm"));
}

#[test]
fn an_ended_run_is_shown_once_and_one_that_goes_on_until_it_ends() {
    let root = tempfile::tempdir().unwrap();
    let ended = trained(root.path(), "ended", &[]);
    let said = ok(&words("watch", &[&ended], &[]));
    for part in ["step 3", "no longer running", "loss", "100 %"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let out = root.path().join("goes-on");
    std::fs::create_dir(&out).unwrap();
    let page = root.path().join("live.html");
    let mut run = burnish()
        .args(["sft", "--max_steps=400", "--save_strategy=no", "--logging_steps=1"])
        .arg(format!("--model_name_or_path={}", model().display()))
        .arg(format!("--dataset_name={}", rows("prompt_completion.jsonl").display()))
        .arg(format!("--output_dir={}", out.display()))
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !out.join(".burnish-lock").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(run.try_wait().unwrap().is_none_or(|status| status.success()));
    }
    let more = ["--interval=0.1", "--html", &page.display().to_string()];
    let watched = burnish().args(words("watch", &[&out], &more)).output().unwrap();
    assert!(watched.status.success(), "{}", stderr(&watched));
    assert!(run.wait().unwrap().success());
    let said = String::from_utf8_lossy(&watched.stdout);
    assert!(said.contains("step 400") && said.contains("no longer running"), "{said}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains("http-equiv=\"refresh\""), "the last page stays as it is");
}
