//! `Lab`: the undamaged things, and what the program makes of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::running::{Ended, Running};

/// Where attempts are made: the program, its tiny model, an adapter, a run with checkpoints, and their right results.
pub(crate) struct Lab {
    pub(crate) program: PathBuf,
    fixtures: PathBuf,
    root: TempDir,
    /// What `score` says of the model, and of the model with the adapter.
    pub(crate) scores: [String; 2],
    /// `adapter_model.safetensors` after six steps.
    pub(crate) trained: Vec<u8>,
    /// What `score` says of the model with the adapter of IA3.
    pub(crate) scaled: String,
}

impl Lab {
    pub(crate) fn new(program: &Path, fixtures: &Path) -> Result<Self> {
        let mut lab = Self {
            program: program.to_path_buf(),
            fixtures: fixtures.to_path_buf(),
            root: tempfile::tempdir()?,
            scores: Default::default(),
            trained: Vec::new(),
            scaled: String::new(),
        };
        let run = lab.run_folder();
        let made = lab.run(lab.sft(&run, &["--max_steps=6", "--save_steps=2"]))?;
        ensure!(made.code == Some(0), "the program does not train: {}", made.stderr);
        lab.trained = std::fs::read(run.join("adapter_model.safetensors"))?;
        let plain = lab.run(lab.score(&lab.model(), &lab.rows("text.jsonl"), &[]))?;
        let adapter = format!("--adapter_name_or_path={}", run.display());
        let adapted = lab.run(lab.score(&lab.model(), &lab.rows("text.jsonl"), &[&adapter]))?;
        ensure!(plain.code == Some(0) && adapted.code == Some(0), "{}{}", plain.stderr, adapted.stderr);
        lab.scores = [plain.stdout, adapted.stdout];
        let scaled = lab.scaled_folder();
        let modules = ["--lora_target_modules", "k_proj", "down_proj", "--feedforward_modules", "down_proj"];
        let more = [&["--max_steps=2", "--save_strategy=no", "--peft_type=IA3"], &modules[..]].concat();
        let words = lab.sft(&scaled, &more).into_iter().filter(|word| *word != "--lora_r=2").collect();
        let made = lab.run(words)?;
        ensure!(made.code == Some(0), "IA3 does not train: {}", made.stderr);
        let adapter = format!("--adapter_name_or_path={}", scaled.display());
        let adapted = lab.run(lab.score(&lab.model(), &lab.rows("text.jsonl"), &[&adapter]))?;
        ensure!(adapted.code == Some(0), "{}", adapted.stderr);
        lab.scaled = adapted.stdout;
        Ok(lab)
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.fixtures.join("models/llama")
    }

    pub(crate) fn rows(&self, name: &str) -> PathBuf {
        self.fixtures.join("data").join(name)
    }

    /// A finished run of an adapter, with checkpoints at steps 2, 4 and 6.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// A finished run of IA3.
    pub(crate) fn scaled_folder(&self) -> PathBuf {
        self.root.path().join("scaled")
    }

    /// The folders of model families.
    pub(crate) fn families(&self) -> PathBuf {
        self.fixtures.join("../../../models/tests/fixtures")
    }

    /// A new folder of an attempt.
    pub(crate) fn fresh(&self) -> Result<TempDir> {
        tempfile::tempdir_in(self.root.path()).context("no folder for an attempt")
    }

    /// Runs with the usual bounds.
    pub(crate) fn run(&self, words: Vec<OsString>) -> Result<Ended> {
        self.running(words).go()
    }

    pub(crate) fn running(&self, words: Vec<OsString>) -> Running<'_> {
        Running {
            program: &self.program,
            words,
            before: String::new(),
            closed: [false; 2],
            seconds: 30.0,
            signal: None,
        }
    }

    pub(crate) fn score(&self, model: &Path, rows: &Path, more: &[&str]) -> Vec<OsString> {
        self.words(
            "score",
            model,
            rows,
            &[&["--max_length=48", "--per_device_eval_batch_size=8"], more].concat(),
        )
    }

    /// Trains an adapter, two rows a step.
    pub(crate) fn sft(&self, output: &Path, more: &[&str]) -> Vec<OsString> {
        let common = [
            "--per_device_train_batch_size=2",
            "--max_length=48",
            "--learning_rate=1e-3",
            "--logging_steps=1",
            "--use_peft",
            "--lora_r=2",
        ];
        let output = format!("--output_dir={}", output.display());
        let more = [&common[..], &[output.as_str()], more].concat();
        self.words("sft", &self.model(), &self.rows("text.jsonl"), &more)
    }

    pub(crate) fn words(&self, command: &str, model: &Path, rows: &Path, more: &[&str]) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![command.into()];
        words.push(format!("--model_name_or_path={}", model.display()).into());
        words.push(format!("--dataset_name={}", rows.display()).into());
        words.extend(more.iter().map(Into::into));
        words
    }
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Whether a text of JSON lines holds a number that is none, which JSON writes as null.
pub(crate) fn has_null(text: &str) -> Option<String> {
    (text.contains(":null") || text.contains(": null")).then(|| "a result that is null".to_owned())
}
