//! `RunFolder`: the output folder of a run, as it stands.

use std::collections::BTreeSet;
use std::path::Path;

use burnish_core::file;
use serde_json::{Map, Value};

use crate::error::ReportError;
use crate::metrics_log::MetricsLog;
use crate::record::Record;

/// Completions that are kept, the last ones.
const SAMPLES: usize = 12;
/// Bytes at the end of `completions.jsonl` that are read for them.
const SAMPLE_BYTES: u64 = 256 << 10;

/// The figures that people look at first, in this order.
const FIRST: [&str; 12] = [
    "loss",
    "reward",
    "mean_token_accuracy",
    "rewards/margins",
    "rewards/accuracies",
    "kl",
    "entropy",
    "completions/mean_length",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "peak_memory_bytes",
];

/// Options, figures and samples of a run.
#[derive(Clone, Debug, Default)]
pub struct RunFolder {
    /// The folder's name, as it was given.
    pub name: String,
    /// The options that it was started with (`burnish.json`); empty where there is no such file.
    pub options: Map<String, Value>,
    /// Its figures (`metrics.jsonl`).
    pub records: Vec<Record>,
    /// The last completions that were logged (`completions.jsonl`).
    pub samples: Vec<Value>,
}

impl RunFolder {
    /// Reads a folder; a run that goes on may be read at any time.
    ///
    /// # Errors
    /// If `metrics.jsonl` is missing or damaged.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let records = MetricsLog::read(&path.join("metrics.jsonl"))?;
        let options = file::read_json(path.join("burnish.json")).unwrap_or_default();
        let options = serde_json::from_slice(&options).unwrap_or_default();
        let samples = last_lines(&path.join("completions.jsonl")).unwrap_or_default();
        let samples = samples.lines().filter_map(|line| serde_json::from_str(line).ok());
        let samples: Vec<Value> = samples.collect();
        let left_out = samples.len().saturating_sub(SAMPLES);
        let name = path.display().to_string();
        Ok(Self { name, options, records, samples: samples.into_iter().skip(left_out).collect() })
    }

    /// A figure over steps.
    #[must_use]
    pub fn series(&self, figure: &str) -> Vec<(f64, f64)> {
        #[expect(clippy::cast_precision_loss, reason = "steps are below 2^53")]
        let point = |record: &Record| Some((record.step as f64, record.get(figure)?));
        self.records.iter().filter_map(point).collect()
    }

    /// The last value of a figure.
    #[must_use]
    pub fn last(&self, figure: &str) -> Option<f64> {
        self.records.iter().rev().find_map(|record| record.get(figure))
    }

    /// The last step and epoch.
    #[must_use]
    pub fn place(&self) -> Option<(u64, f64)> {
        self.records.last().map(|record| (record.step, record.epoch))
    }

    /// The share of the run that is done, 0 to 1, as its options tell how long it is to be.
    #[must_use]
    pub fn done(&self) -> Option<f64> {
        let number = |name: &str| self.options.get(name).and_then(Value::as_f64).filter(|n| *n > 0.0);
        let (step, epoch) = self.place()?;
        #[expect(clippy::cast_precision_loss, reason = "steps are below 2^53")]
        let of_steps = number("max_steps").map(|all| step as f64 / all);
        of_steps.or_else(|| Some(epoch / number("num_train_epochs")?)).map(|share| share.min(1.0))
    }

    /// Seconds until its last step, at the pace of its last log line.
    #[must_use]
    pub fn seconds_left(&self) -> Option<f64> {
        let (done, (step, _)) = (self.done()?, self.place()?);
        #[expect(clippy::cast_precision_loss, reason = "steps are below 2^53")]
        let left = step as f64 * (1.0 / done - 1.0);
        (done > 0.0).then_some(left * self.last("step_time")?)
    }
}

/// Whether people look at this figure first.
pub(crate) fn is_first(name: &str) -> bool {
    FIRST.contains(&name)
}

/// The names of the figures of runs, those first that are looked at first; without those of evaluation, which belong to
/// their own.
#[must_use]
pub fn figure_names(runs: &[RunFolder]) -> Vec<String> {
    let all: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| &run.records)
        .flat_map(|record| record.figures())
        .map(|(name, _)| name)
        .collect();
    let own = |name: &&str| {
        let trained = name.strip_prefix("eval_").is_none_or(|name| !all.contains(name));
        trained
            && !name.ends_with("runtime")
            && !name.starts_with("eval_steps")
            && !name.starts_with("eval_samples")
    };
    let first = FIRST.iter().copied().filter(|name| all.contains(name));
    let others = all.iter().copied().filter(|name| !FIRST.contains(name));
    first.chain(others).filter(own).map(str::to_owned).collect()
}

/// Figures, each followed by the same in evaluation, as far as a run has them.
#[must_use]
pub fn with_evaluation(runs: &[RunFolder], names: &[String]) -> Vec<String> {
    let names = names.iter().flat_map(|name| [name.clone(), format!("eval_{name}")]);
    names.filter(|name| runs.iter().any(|run| run.last(name).is_some())).collect()
}

/// The options of which runs have different values, with each run's.
#[must_use]
pub fn different_options(runs: &[RunFolder]) -> Vec<(String, Vec<Value>)> {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.options.keys()).collect();
    let values = |name: &String| -> Vec<Value> {
        runs.iter().map(|run| run.options.get(name).cloned().unwrap_or(Value::Null)).collect()
    };
    let differ = |values: &[Value]| values.windows(2).any(|pair| pair[0] != pair[1]);
    let options = names.into_iter().map(|name| (name.clone(), values(name)));
    options.filter(|(_, values)| differ(values)).collect()
}

/// The whole lines among the last bytes of a file.
fn last_lines(path: &Path) -> std::io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = file::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(SAMPLE_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(SAMPLE_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(if from > 0 { text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned()) } else { text })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    type Line<'a> = (u64, f64, &'a [(&'a str, f64)]);

    fn run(options: &str, records: &[Line<'_>]) -> RunFolder {
        let record = |(step, epoch, figures): &Line<'_>| {
            figures.iter().fold(Record::new(*step, *epoch), |record, (name, value)| record.with(name, *value))
        };
        RunFolder {
            name: "a".to_owned(),
            options: serde_json::from_str(options).unwrap(),
            records: records.iter().map(record).collect(),
            samples: Vec::new(),
        }
    }

    #[test]
    fn how_much_is_done_and_how_long_the_rest_takes() {
        let figures: &[(&str, f64)] = &[("loss", 1.0), ("step_time", 2.0)];
        let by_steps = run("{\"max_steps\": 40, \"num_train_epochs\": 3.0}", &[(10, 0.1, figures)]);
        assert_eq!((by_steps.done(), by_steps.seconds_left()), (Some(0.25), Some(60.0)));
        let by_epochs = run("{\"max_steps\": -1, \"num_train_epochs\": 2.0}", &[(10, 0.5, figures)]);
        assert_eq!((by_epochs.done(), by_epochs.seconds_left()), (Some(0.25), Some(60.0)));
        assert_eq!(run("{}", &[(10, 0.5, figures)]).seconds_left(), None);
        assert_eq!(run("{\"max_steps\": 40}", &[]).done(), None);
    }

    #[test]
    fn figures_in_reading_order_and_options_that_differ() {
        let a = run(
            "{\"seed\": 1, \"bf16\": true}",
            &[(1, 0.1, &[("zeta", 1.0), ("loss", 1.0), ("grad_norm", 1.0)])],
        );
        let b =
            run("{\"seed\": 2, \"bf16\": true}", &[(1, 0.1, &[("eval_loss", 1.0), ("eval_runtime", 1.0)])]);
        assert_eq!(
            different_options(&[a.clone(), b.clone()]),
            [("seed".to_owned(), vec![1.into(), 2.into()])]
        );
        assert_eq!(figure_names(&[a, b.clone()]), ["loss", "grad_norm", "zeta"]);
        assert_eq!(figure_names(&[b]), ["eval_loss"]);
    }

    #[test]
    fn the_last_completions_of_a_long_file() {
        let root = tempfile::tempdir().unwrap();
        let line =
            |step: usize| format!("{{\"step\": {step}, \"completion\": \"{}\"}}\n", "a".repeat(10_000));
        std::fs::write(root.path().join("metrics.jsonl"), "{\"step\":1,\"epoch\":1.0,\"loss\":2.0}\n")
            .unwrap();
        let text: String = (0..100).map(line).collect();
        std::fs::write(root.path().join("completions.jsonl"), text).unwrap();
        let run = RunFolder::read(root.path()).unwrap();
        assert_eq!(run.samples.len(), SAMPLES);
        assert_eq!(run.samples.last().unwrap()["step"], 99);
        assert!(RunFolder::read(&root.path().join("none")).is_err());
    }
}
