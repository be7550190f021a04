//! `completions.jsonl`: what was sampled, for people.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::TrainError;

/// Name of the file in the output folder.
const FILE: &str = "completions.jsonl";

/// The file, on the rank that writes it.
pub(super) struct CompletionsLog {
    path: PathBuf,
    file: File,
    /// Lines of a step, at most.
    most: Option<usize>,
    /// Whether a prompt has one line a step.
    unique: bool,
}

/// A line.
pub(super) struct Line<'a> {
    /// As it is in the data.
    pub(super) prompt: Value,
    pub(super) completion: String,
    pub(super) ended: bool,
    pub(super) rewards: Vec<(&'a str, Option<f64>)>,
    pub(super) advantage: f64,
}

impl CompletionsLog {
    /// Opens the file for a run of which `before` steps are done: what an earlier run wrote beyond them goes.
    pub(super) fn open(
        dir: &Path,
        before: u64,
        most: Option<usize>,
        unique: bool,
    ) -> Result<Self, TrainError> {
        let path = dir.join(FILE);
        let kept =
            if before > 0 { std::fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let step = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
        let kept = kept.lines().filter(|line| step(line).is_some_and(|step| step <= before));
        let text: String = kept.flat_map(|line| [line, "\n"]).collect();
        let fault = |source| TrainError::Lines { to: path.display().to_string(), source };
        std::fs::write(&path, text).map_err(fault)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(fault)?;
        Ok(Self { path, file, most, unique })
    }

    /// Writes what was sampled for `step` and the steps after it.
    pub(super) fn write<'a>(
        &mut self,
        step: u64,
        lines: impl Iterator<Item = Line<'a>>,
    ) -> Result<(), TrainError> {
        let (mut text, mut seen) = (String::new(), BTreeSet::new());
        let new = |line: &Line<'_>| !self.unique || seen.insert(line.prompt.to_string());
        for line in lines.filter(new).take(self.most.unwrap_or(usize::MAX)) {
            let rewards: Map<String, Value> =
                line.rewards.into_iter().map(|(name, reward)| (name.to_owned(), json!(reward))).collect();
            let line = json!({
                "step": step,
                "prompt": line.prompt,
                "completion": line.completion,
                "finish_reason": if line.ended { "stop" } else { "length" },
                "rewards": rewards,
                "advantage": line.advantage,
            });
            text.push_str(&format!("{line}\n"));
        }
        let fault = |source| TrainError::Lines { to: self.path.display().to_string(), source };
        self.file.write_all(text.as_bytes()).map_err(fault)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_goes_on_where_its_checkpoint_was() {
        let dir = tempfile::tempdir().unwrap();
        let line = |prompt: &str| Line {
            prompt: json!(prompt),
            completion: "c".into(),
            ended: true,
            rewards: vec![("f", Some(1.0)), ("g", None)],
            advantage: 0.5,
        };
        let steps = || {
            let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
            let of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
            text.lines().map(of).collect::<Vec<u64>>()
        };
        let mut log = CompletionsLog::open(dir.path(), 0, None, false).unwrap();
        for step in 1..=3 {
            log.write(step, ["a", "a", "b"].map(line).into_iter()).unwrap();
        }
        assert_eq!(steps(), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
        let mut log = CompletionsLog::open(dir.path(), 1, None, true).unwrap();
        log.write(2, ["a", "a", "b"].map(line).into_iter()).unwrap();
        assert_eq!(steps(), [1, 1, 1, 2, 2]);
        let mut log = CompletionsLog::open(dir.path(), 0, Some(1), false).unwrap();
        log.write(1, ["a", "b"].map(line).into_iter()).unwrap();
        assert_eq!(steps(), [1]);
    }
}
