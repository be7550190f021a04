//! `cargo xtask faults`: faults tried on the program, and the table of how it ended.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::step;

/// What is tried.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// One class: models, adapters, scalings, families, tokenizers, rows, pairs, templates, options, configs, checkpoints, caches,
    /// disks, environment, rewards, rollouts, signals, numbers, ranks, strangers.
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// Attempts of each class.
    #[arg(long)]
    pub(crate) count: Option<usize>,
    /// One attempt of the class, with what it said.
    #[arg(long)]
    pub(crate) only: Option<usize>,
    /// Every written case and a twentieth of the drawn ones: what `cargo xtask test` tries.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Attempts at a time.
    #[arg(long)]
    pub(crate) jobs: Option<usize>,
    /// A file for the table, such as benches/runs/DATE-MACHINE/faults.md.
    #[arg(long)]
    pub(crate) output: Option<PathBuf>,
    /// Another program than the one that is built here.
    #[arg(long)]
    pub(crate) bin: Option<PathBuf>,
}

/// Runs the harness; whether every attempt ended as it has to.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let harness = step::built(root, &["-p", "faults"], "faults")?;
    let program = match &options.bin {
        Some(program) => std::path::absolute(program).context("no such program")?,
        None => step::built(root, &["-p", "burnish-cli", "-p", step::SHARED], "burnish")?,
    };
    let mut command = Command::new(harness);
    command.arg("--program").arg(program);
    command.arg("--fixtures").arg(root.join("crates/trainers/tests/fixtures"));
    if let Some(class) = &options.class {
        command.args(["--class", class]);
    }
    for (name, value) in [("--count", options.count), ("--only", options.only), ("--jobs", options.jobs)] {
        if let Some(value) = value {
            command.args([name, &value.to_string()]);
        }
    }
    if options.quick {
        command.arg("--quick");
    }
    if let Some(path) = &options.output {
        command.arg("--output").arg(path);
    }
    step::run("faults", &mut command)
}
