//! `cargo xtask overfit-test` and `multi-gpu`: tiny models learn a sentence by heart under tensor parallelism, and say it.
//!
//! Per family a base first learns one sentence (a random base puts a ceiling on adapters). Then each method learns another
//! one from there, on each number of ranks, with the recipe of PEFT's and Transformers' own overfit tests: 300 steps of Adam
//! at 1e-3, gradients clipped to 1; loss and gradient norm must fall by 90 %. A fresh process then generates the sentence
//! greedily from its first word, token for token. Beyond what those tests check: the loss of the first 50 steps equals one
//! rank's to 1e-5; ranks end with the same bits of what each has whole (the run itself checks and fails); other numbers of
//! ranks load the saved result, save the same bytes again and go on from it alike; and with a Python at hand PEFT reads the
//! result as burnish does.

mod curve;
mod matrix;
mod peft;
mod table;
mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::gpus::Gpus;
use crate::step::cargo;
use crate::test::Tally;
use peft::Peft;
use table::{End, Table};
use trial::Bench;
pub(crate) use trial::Place;

/// Options of both commands.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// A part of the matrix: every family, method, number of ranks, accumulation and dropout occurs in it.
    #[arg(long)]
    pub(crate) quick: bool,
    /// A program that is built already, instead of a release build.
    #[arg(long, value_name = "PATH")]
    pub(crate) bin: Option<PathBuf>,
    /// A Python with torch, transformers and peft, to load every result into PEFT; or BURNISH_PYTHON.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

/// Runs the matrix on the CPU, ranks as threads.
///
/// # Errors
/// If the program cannot be built or started, or a Python that was named is of no use.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    matrix("overfit-test", root, options, Place::Cpu)
}

/// How `multi-gpu` ended.
#[derive(Debug)]
pub(crate) enum OnGpus {
    /// There is no GPU, and how that was seen.
    None(String),
    Ran(Tally),
}

/// Runs the matrix on the GPUs that there are, a rank on each.
///
/// # Errors
/// As [`run`]; and if the program knows nothing of GPUs.
pub(crate) fn multi_gpu(root: &Path, options: &Options) -> Result<OnGpus> {
    match Gpus::here() {
        Gpus::None(why) => Ok(OnGpus::None(why)),
        Gpus::Found(count) => matrix("multi-gpu", root, options, Place::Gpus(count)).map(OnGpus::Ran),
    }
}

fn matrix(name: &str, root: &Path, options: &Options, place: Place) -> Result<Tally> {
    let began = Instant::now();
    let program = program(root, options, place)?;
    if place != Place::Cpu {
        knows_gpus(&program)?;
    }
    let mut scratch = Scratch::new(name)?;
    let named = options.python.clone().or_else(|| std::env::var_os("BURNISH_PYTHON").map(PathBuf::from));
    let peft = named.map(|python| Peft::start(&python, &scratch.path)).transpose()?;
    match (&peft, place) {
        (Some(peft), _) => println!("== {name}: results are loaded into PEFT: {}", peft.versions),
        (None, _) => {
            println!("== {name}: no --python and no BURNISH_PYTHON: results are not loaded into PEFT")
        }
    }
    if let Place::Gpus(count) = place {
        println!("== {name}: {count} GPUs");
    }
    let mut bench = Bench { program, scratch: scratch.path.clone(), place, quick: options.quick, peft };
    let mut table = Table::default();
    println!("{}", Table::HEAD);
    for family in matrix::FAMILIES {
        bench.base(family)?;
        for case in matrix::cases(family, options.quick) {
            let began = Instant::now();
            let end = if case.tp > place.most() {
                End::LeftOut(format!("{} ranks, {} GPUs here", case.tp, place.most()))
            } else {
                let proof = bench.case(&case);
                End::Tried(proof, began.elapsed().as_secs_f64())
            };
            println!("{}", table.push(case, end));
        }
    }
    println!("\n{}", table.text(name, began.elapsed().as_secs_f64()));
    if table.failed() > 0 {
        scratch.kept = true;
        println!("== {name}: the runs' folders are kept in {}", scratch.path.display());
    }
    Ok(Tally { passed: table.passed(), failed: table.failed() })
}

/// A folder for runs, taken away at the end unless kept.
struct Scratch {
    path: PathBuf,
    kept: bool,
}

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("burnish-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, kept: false })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            // Left-overs are harmless, and there is nothing to do about a folder that cannot be removed.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// The program that was named, or a release build.
fn program(root: &Path, options: &Options, place: Place) -> Result<PathBuf> {
    if let Some(path) = &options.bin {
        let path = std::path::absolute(path).with_context(|| format!("no program {}", path.display()))?;
        ensure!(path.is_file(), "--bin: there is no file {}", path.display());
        return Ok(path);
    }
    let mut build = cargo(root, &["build", "--release", "--package", "burnish-cli"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    if place != Place::Cpu {
        build.args(["--features", "cuda"]);
    }
    let output = build.stderr(Stdio::inherit()).output().context("cannot run cargo build")?;
    ensure!(output.status.success(), "the program does not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mine = |message: &serde_json::Value| message["target"]["name"] == "burnish";
    let path = built.filter(mine).find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.context("cargo build names no executable for burnish")
}

/// That the program has the options for GPUs.
fn knows_gpus(program: &Path) -> Result<()> {
    let help = Command::new(program).args(["sft", "--help", "all"]).stdin(Stdio::null()).output();
    let help = help.with_context(|| format!("cannot run {}", program.display()))?;
    let missing = missing(&String::from_utf8_lossy(&help.stdout));
    if !missing.is_empty() {
        bail!(
            "{} has no {}: it does not compute on GPUs; give --bin a program built with the feature cuda",
            program.display(),
            missing.join(" and no ")
        );
    }
    Ok(())
}

/// Options for GPUs that a help text lacks.
fn missing(help: &str) -> Vec<&'static str> {
    let has = |option: &str, value: &str| {
        let mut lines = help.lines().map(str::trim_start);
        lines.any(|line| {
            line.strip_prefix(option).is_some_and(|rest| rest.starts_with(' ') && rest.contains(value))
        })
    };
    let mut missing = Vec::new();
    if !has("--device", "cuda") {
        missing.push("--device cuda");
    }
    if !has("--transport", "nccl") {
        missing.push("--transport nccl");
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_gpus_is_known_by_its_help() {
        let today =
            "Ranks:\n  --nproc INT [1]\n  --transport auto|local|mpi|tcp [auto]\n      How ranks talk.\n";
        assert_eq!(missing(today), ["--device cuda", "--transport nccl"]);
        let half = "  --device cpu|cuda|auto [auto]\n  --transport auto|local|mpi|tcp [auto]\n";
        assert_eq!(missing(half), ["--transport nccl"]);
        let whole = "  --device cpu|cuda|auto [auto]\n  --transport auto|local|mpi|tcp|nccl [auto]\n";
        assert!(missing(whole).is_empty());
        let other = "  --device_map cuda\n  --transport_of nccl\n";
        assert_eq!(missing(other).len(), 2);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let options = Options { bin: Some("/no/such/burnish".into()), ..Options::default() };
        let error = run(Path::new("/"), &options).expect_err("no program").to_string();
        assert!(error.contains("there is no file /no/such/burnish"), "{error}");
    }
}
