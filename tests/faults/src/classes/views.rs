//! Damaged folders before the commands that train nothing: `inspect`, `data`, `watch`, `compare`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::classes::models::put;
use crate::lab::{Lab, copy};
use crate::mutation;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, judge};

/// Things in the place of a file of a run.
const PLACES: [&str; 9] = [
    "fifo metrics.jsonl",
    "device metrics.jsonl",
    "folder metrics.jsonl",
    "gone metrics.jsonl",
    "fifo burnish.json",
    "device adapter_model.safetensors",
    "fifo adapter_config.json",
    "device burnish.json",
    "folder adapter_config.json",
];

/// Lines of metrics that are not like those of a run.
const METRICS: [&str; 12] = [
    "",
    "null\n",
    "{\n",
    "{\"step\": 1e300, \"loss\": 1}\n{\"step\": -5, \"loss\": 2}\n",
    "{\"step\": 1, \"loss\": 1e308}\n{\"step\": 2, \"loss\": -1e308}\n",
    "{\"step\": 1, \"loss\": null}\n",
    "{\"step\": 18446744073709551615, \"loss\": 1}\n{\"step\": 1, \"loss\": 1}\n",
    "{\"step\": 1, \"</script><script>alert(1)</script>\": 1}\n{\"step\": 2, \"</script><script>alert(1)</script>\": 2}\n",
    "{\"step\": 1, \"\\u001b[2J\": 1, \"loss\": 3}\n",
    "{\"step\": \"one\", \"loss\": \"two\"}\n",
    "[[[[[[1]]]]]]\n",
    "\u{0}\u{1}\u{2}\n",
];

pub(crate) fn written(_: &Lab) -> usize {
    4 * (PLACES.len() + METRICS.len()) + LARGE.len()
}

/// Files of which a little is much.
const LARGE: [&str; 4] = [
    "a line of 64 MB",
    "a million lines of metrics",
    "ten thousand figures in a line",
    "twenty thousand folders",
];

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let run = folder.path().join("run");
    let at = attempt / 4;
    if attempt >= 4 * (PLACES.len() + METRICS.len()) + LARGE.len() {
        return drawn(lab, folder.path(), random);
    }
    copy(&lab.run_folder(), &run)?;
    let what = if let Some(place) = PLACES.get(at) {
        let (kind, name) = place.split_once(' ').unwrap_or((place, ""));
        put(kind, name, &run)?;
        (*place).to_owned()
    } else if let Some(metrics) = METRICS.get(at - PLACES.len()) {
        std::fs::write(run.join("metrics.jsonl"), metrics)?;
        format!("metrics.jsonl: {metrics:?}")
    } else {
        let name = LARGE[attempt - 4 * (PLACES.len() + METRICS.len())];
        large(name, &run)?;
        name.to_owned()
    };
    look(lab, what, ["inspect", "watch", "compare", "data"][attempt % 4], &run, &run)
}

fn large(name: &str, run: &Path) -> Result<()> {
    let line = |step: usize| format!("{{\"step\": {step}, \"loss\": 1.5, \"learning_rate\": 0.001}}\n");
    let metrics = match name {
        "a line of 64 MB" => format!("{{\"step\": 1, \"x\": \"{}\"}}\n", "a".repeat(64 << 20)),
        "a million lines of metrics" => (1..=1_000_000).map(line).collect(),
        "ten thousand figures in a line" => {
            let figures: Vec<String> = (0..10_000).map(|at| format!("\"figure{at}\": {at}")).collect();
            let figures = figures.join(",");
            (1..20).map(|step| format!("{{\"step\": {step}, {figures}}}\n")).collect()
        }
        _ => {
            for at in 0..20_000 {
                std::fs::create_dir(run.join(format!("checkpoint-{at}0")))?;
            }
            return Ok(());
        }
    };
    std::fs::write(run.join("metrics.jsonl"), metrics).context("no metrics")
}

/// A command that looks at a run, a model, or rows, of which one file is damaged.
fn drawn(lab: &Lab, folder: &Path, random: &mut Random) -> Result<Outcome> {
    let command = *random.of_these(&["inspect", "inspect", "watch", "compare", "data"]);
    let (target, rows) = (folder.join("thing"), folder.join("rows.jsonl"));
    std::fs::copy(lab.rows("text.jsonl"), &rows)?;
    let mut files = Vec::new();
    match (command, random.below(4)) {
        ("data", 0) => files.push(rows.clone()),
        ("data", _) | ("inspect", 0) => copy(&lab.model(), &target)?,
        _ => copy(&lab.run_folder(), &target)?,
    }
    if files.is_empty() {
        every_file(&target, &mut files)?;
        files.sort();
    }
    let path = random.of_these(&files).clone();
    let mut bytes = std::fs::read(&path)?;
    let lines = path.extension().is_some_and(|extension| extension == "jsonl");
    let value = (random.below(4) > 0).then(|| {
        let text = std::str::from_utf8(&bytes).ok()?;
        let text = if lines { text.lines().next()? } else { text };
        Some((text.len(), serde_json::from_str::<Value>(text).ok()?))
    });
    let what = if let Some((length, mut value)) = value.flatten() {
        let change = mutation::value(random, &mut value);
        bytes.splice(..length, value.to_string().into_bytes());
        change.what
    } else {
        mutation::bytes(random, &mut bytes)
    };
    std::fs::write(&path, &bytes)?;
    let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
    // A file by itself is something to inspect too.
    let target = if command == "inspect" && random.below(3) == 0 { path } else { target };
    look(lab, format!("{name}: {what}"), command, &target, if command == "data" { &rows } else { &target })
}

fn every_file(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            every_file(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn look(lab: &Lab, what: String, command: &str, target: &Path, rows: &Path) -> Result<Outcome> {
    let pages = lab.fresh()?;
    let page = pages.path().join("page.html");
    let html = format!("--html={}", page.display());
    let whole = lab.run_folder();
    let words = match command {
        "inspect" => vec!["inspect".into(), target.into(), "--json".into()],
        "watch" => vec!["watch".into(), target.into(), "--once".into(), html.into()],
        "compare" => vec!["compare".into(), whole.into(), target.into(), html.into()],
        _ => {
            let model = if rows == target { lab.model() } else { target.to_owned() };
            let rows = if rows == target { target.join("metrics.jsonl") } else { rows.to_owned() };
            let model = if model.exists() { model } else { lab.model() };
            lab.words("data", &model, &rows, &["--max_length=48", &html])
        }
    };
    let ended = lab.run(words)?;
    let written = std::fs::read_to_string(&page).ok();
    let right = |ended: &Ended| {
        if command == "inspect" && serde_json::from_str::<Value>(&ended.stdout).is_err() {
            return Some("what is printed is no JSON".to_owned());
        }
        if command != "inspect" && written.is_none() {
            return Some("no page was written".to_owned());
        }
        written
            .as_ref()
            .filter(|page| page.contains("alert(1)</script>"))
            .map(|_| "a script in the page".into())
    };
    Ok(judge(format!("{command}: {what}"), &ended, &[], right))
}
