//! Training runs, by the words of the command line.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::tensor::Device;
use burnish_config::Command;
use burnish_report::Record;
use burnish_trainers::{Outcome, Ranks, Sft, Stop, Trainer};

/// Runs a trainer with these options.
pub(crate) fn run<T: Trainer>(words: Vec<String>, ranks: &Ranks, device: &Device) -> Result<Outcome> {
    let options = T::Options::parse(words)?.run().context("help was asked for")?.options;
    let run = T::prepare(options, ranks, device, &mut |_| ())?;
    Ok(run.run(ranks, &Stop::never())?)
}

/// A short run of `burnish sft` that says nothing and keeps nothing.
#[derive(Clone, Debug)]
pub(crate) struct Short<'a> {
    pub(crate) model: &'a Path,
    pub(crate) data: &'a Path,
    pub(crate) output: &'a Path,
    pub(crate) steps: usize,
    /// More options, as words.
    pub(crate) more: Vec<String>,
}

impl Short<'_> {
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![
            format!("--model_name_or_path={}", self.model.display()),
            format!("--dataset_name={}", self.data.display()),
            format!("--output_dir={}", self.output.display()),
            "--overwrite_output_dir=true".to_owned(),
            format!("--max_steps={}", self.steps),
            "--per_device_train_batch_size=4".to_owned(),
            "--logging_steps=1".to_owned(),
            "--max_length=128".to_owned(),
            "--learning_rate=1e-3".to_owned(),
            "--report_to=none".to_owned(),
            "--disable_tqdm=true".to_owned(),
        ];
        let given = |name: &str| self.more.iter().any(|word| word.starts_with(name));
        if !given("--save_strategy") {
            words.push("--save_strategy=no".to_owned());
        }
        words.extend(self.more.iter().cloned());
        words
    }

    pub(crate) fn on(&self, ranks: &Ranks, device: &Device) -> Result<Outcome> {
        run::<Sft>(self.words(), ranks, device)
    }
}

/// The figures of two logs that must agree, and their largest relative difference.
pub(crate) fn compare(got: &[Record], want: &[Record], keys: &[&str], bound: f64) -> Result<f64> {
    anyhow::ensure!(got.len() == want.len(), "{} lines of log, expected {}", got.len(), want.len());
    anyhow::ensure!(!want.is_empty(), "nothing was logged");
    let mut worst = 0.0_f64;
    for (got, want) in got.iter().zip(want) {
        for key in keys {
            let (Some(a), Some(b)) = (got.get(key), want.get(key)) else {
                anyhow::bail!("step {}: {key} was not logged", want.step);
            };
            let error = (a - b).abs() / b.abs().max(1e-3);
            anyhow::ensure!(
                error <= bound,
                "step {}: {key} is {a}, expected {b}: relative {error:.1e}, bound {bound:.0e}",
                want.step
            );
            worst = worst.max(error);
        }
    }
    Ok(worst)
}
