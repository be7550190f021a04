//! Checkpoints: damaged, of other runs, of other options.

use std::path::Path;

use anyhow::Result;

use crate::lab::{Lab, copy};
use crate::mutation;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, Verdict, judge};

/// Options with which a run may not go on, or may and says so.
const CHANGED: [(&str, Option<&str>); 8] = [
    ("--data_seed=9", None),
    ("--seed=9", None),
    ("--max_length=32", None),
    ("--packing", None),
    ("--per_device_train_batch_size=4", None),
    ("--lora_r=4", None),
    ("--adam_epsilon=1e-3", Some("adam_epsilon")),
    ("--weight_decay=0.3", Some("weight_decay")),
];

const TOLD: [&str; 8] = [
    "other rows of equal number",
    "another base",
    "a new run in an older run's folder",
    "a new run, then one that goes on",
    "checkpoints of two runs",
    "a run in a folder that is in use",
    "a lock that a killed run left",
    "an earlier checkpoint of the same run",
];

pub(crate) fn written(_: &Lab) -> usize {
    CHANGED.len() + TOLD.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let run = folder.path().join("run");
    if let Some((word, said)) = CHANGED.get(attempt) {
        copy(&lab.run_folder(), &run)?;
        let ended = lab.run(go_on(lab, &run, &[word, "--max_steps=8"]))?;
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        let names = [name, "global batch", "lora_A", "cannot resume"];
        return Ok(judge(*word, &ended, &names, |e| match said {
            Some(said) if e.stderr.contains(said) => None,
            _ => Some("went on without a word".to_owned()),
        }));
    }
    if let Some(told) = TOLD.get(attempt.wrapping_sub(CHANGED.len())) {
        return case(lab, told, folder.path());
    }
    // Damage in the newest checkpoint: said, and an earlier one serves, to the same end.
    copy(&lab.run_folder(), &run)?;
    std::fs::remove_dir_all(run.join("checkpoint-6"))?;
    let damaged = run.join("checkpoint-4");
    let mut files = Vec::new();
    list(&damaged, &mut files)?;
    files.sort();
    let file = random.of_these(&files).clone();
    let name = file.strip_prefix(&damaged)?.display().to_string();
    let before = std::fs::read(&file)?;
    let mut bytes = before.clone();
    let what = match random.below(8) {
        0 => {
            std::fs::remove_file(&file)?;
            "removed".to_owned()
        }
        _ => {
            let what = mutation::bytes(random, &mut bytes);
            std::fs::write(&file, &bytes)?;
            what
        }
    };
    let named = random.below(4) == 0;
    let ended = if named {
        let from = format!("--resume_from_checkpoint={}", damaged.display());
        lab.run(lab.sft(&run, &["--max_steps=6", "--save_steps=2", &from]))?
    } else {
        lab.run(go_on(lab, &run, &["--max_steps=6"]))?
    };
    let touched = bytes != before || !file.exists();
    let right = |e: &Ended| {
        if std::fs::read(run.join("adapter_model.safetensors")).ok().as_ref() != Some(&lab.trained) {
            return Some("another result than without damage".to_owned());
        }
        if named && touched && !e.stderr.contains("checkpoint-4") {
            return Some("went on from a damaged checkpoint".to_owned());
        }
        (touched && !named && !e.stderr.contains("skipped a checkpoint") && from_four(e))
            .then(|| "a damaged checkpoint was passed over without a word".to_owned())
    };
    Ok(judge(format!("{name}: {what}"), &ended, &["checkpoint-4"], right))
}

/// Whether a run began at step 3: it went on from checkpoint-2.
fn from_four(ended: &Ended) -> bool {
    ended.stderr.contains("step 3/6")
}

fn go_on(lab: &Lab, run: &Path, more: &[&str]) -> Vec<std::ffi::OsString> {
    lab.sft(run, &[&["--save_steps=2", "--resume_from_checkpoint=true"], more].concat())
}

fn case(lab: &Lab, told: &str, folder: &Path) -> Result<Outcome> {
    let run = folder.join("run");
    copy(&lab.run_folder(), &run)?;
    let missing = |path: std::path::PathBuf| (!path.is_dir()).then(|| format!("{} is gone", path.display()));
    let fresh = ["--max_steps=3", "--save_steps=1", "--save_total_limit=1"];
    Ok(match told {
        "other rows of equal number" => {
            let rows = folder.join("rows.jsonl");
            std::fs::write(
                &rows,
                std::fs::read_to_string(lab.rows("text.jsonl"))?.replace("kettle", "petrel"),
            )?;
            let name = format!("--dataset_name={}", rows.display());
            let ended = lab.run(go_on(lab, &run, &["--max_steps=8", &name]))?;
            judge(told, &ended, &["rows"], |_| Some("went on".to_owned()))
        }
        "another base" => {
            let model = folder.join("model");
            copy(&lab.model(), &model)?;
            let path = model.join("model.safetensors");
            let mut bytes = std::fs::read(&path)?;
            let end = bytes.len();
            bytes[end - 4000..].iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
            std::fs::write(&path, bytes)?;
            let name = format!("--model_name_or_path={}", model.display());
            let ended = lab.run(go_on(lab, &run, &["--max_steps=8", &name]))?;
            judge(told, &ended, &["base"], |_| Some("went on".to_owned()))
        }
        "a new run in an older run's folder" => {
            let ended = lab.run(lab.sft(&run, &fresh))?;
            let mut outcome = judge(told, &ended, &[], |_| missing(run.join("checkpoint-3")));
            let kept =
                run.join("earlier-1/checkpoint-6").is_dir() && run.join("earlier-1/checkpoint-2").is_dir();
            if !kept {
                outcome.verdict = Verdict::Lost;
            }
            outcome
        }
        "a new run, then one that goes on" => {
            lab.run(lab.sft(&run, &fresh))?;
            let ended = lab.run(go_on(lab, &run, &["--max_steps=4"]))?;
            judge(told, &ended, &[], |e| {
                let own = e.stderr.contains("step 4/4") && !e.stderr.contains("step 3/4");
                (!own).then(|| "did not go on from the new run's checkpoint-3".to_owned())
            })
        }
        "checkpoints of two runs" => {
            let other = folder.join("other");
            lab.run(lab.sft(&other, &["--max_steps=9", "--save_steps=9"]))?;
            copy(&other.join("checkpoint-9"), &run.join("checkpoint-9"))?;
            let ended = lab.run(go_on(lab, &run, &["--max_steps=10"]))?;
            judge(told, &ended, &["checkpoint-9"], |_| Some("took one of them".to_owned()))
        }
        "a run in a folder that is in use" => {
            let long = lab.sft(&run, &["--max_steps=100000", "--save_strategy=no"]);
            let first = lab.running(long);
            let first = crate::running::Running { signal: Some(("KILL", 4.0)), ..first };
            let (first, second) = std::thread::scope(|scope| {
                let first = scope.spawn(move || first.go());
                std::thread::sleep(std::time::Duration::from_secs(2));
                (scope.spawn(|| lab.run(lab.sft(&run, &fresh))).join(), first.join())
            });
            drop(second);
            let ended = first.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            judge(told, &ended, &["in use by process"], |_| Some("two runs in one folder".to_owned()))
        }
        "a lock that a killed run left" => {
            let lock = r#"{"host":"here","pid":1,"command":"burnish sft","since":1}"#;
            std::fs::write(run.join(".burnish-lock"), lock)?;
            let ended = lab.run(lab.sft(&run, &fresh))?;
            judge(told, &ended, &[], |e| (!e.stderr.contains("taken over")).then(|| "not said".to_owned()))
        }
        _ => {
            let from = format!("--resume_from_checkpoint={}", run.join("checkpoint-2").display());
            let ended =
                lab.run(lab.sft(&run, &["--max_steps=6", "--save_steps=1", "--save_total_limit=2", &from]))?;
            let mut outcome = judge(told, &ended, &[], |_| missing(run.join("checkpoint-6")));
            if !run.join("earlier-1/checkpoint-4").is_dir() {
                outcome.verdict = Verdict::Lost;
            }
            outcome
        }
    })
}

fn list(folder: &Path, into: &mut Vec<std::path::PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, into)?;
        } else {
            into.push(path);
        }
    }
    Ok(())
}
