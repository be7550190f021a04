//! Published sizes, by kernels that do nothing: what no small model shows of the host's side, of sizes of launches that no device
//! takes, of tensor maps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::ways::Outcome;
use super::{CHECKS, Options, all, listed};

/// The group of benchmarks.
pub(super) const BENCH: &str = "bench";
/// Blocks of each model: one of each kind.
const BLOCKS: &str = "4";
/// What the host reads of a device that computed nothing: steps go on with it.
const READ: &str = "1";
/// Bytes of a device, for which memory is taken as it is written to.
const DEVICE: u64 = 140 << 30;

/// Runs the benchmarks; whether all ended. Kernels that they compile are kept in `--kernels`, as the hardware's code.
pub(super) fn run(root: &Path, machine: &Machine<'_>, options: &Options) -> Result<bool> {
    let program = options.program(root, CHECKS, "burnish-check")?;
    let kernels = options.kernels.as_deref().map(made).transpose()?;
    let command = |arguments: &[&str]| {
        let mut command = machine.command(&program);
        command.args([options.group(), "--device", "cuda", "--data"]).arg(root).args(arguments);
        command.env("FAKE_CUDA_SKIP", "all").env("FAKE_CUDA_ANSWER", READ).env_remove("FAKE_CUDA_MODULES");
        command.env("FAKE_CUDA_MEMORY", DEVICE.to_string());
        if let Some(kernels) = &kernels {
            command.env("BURNISH_KERNEL_CACHE", kernels).env("FAKE_CUDA_CUBIN", "1");
        }
        command
    };
    let names = listed(command(&[]), options)?;
    println!("== sizes, {}, {BLOCKS} blocks, kernels that do nothing", options.target());
    let found =
        all(&names, options.jobs, |name| ended(name, command(&["--layers", BLOCKS, "--only", name])))?;
    let failed = found.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).count();
    println!("== gpu-check: {} sizes, {failed} failed", found.len());
    Ok(failed == 0)
}

/// A folder that only this user writes in, as a cache of kernels has to be.
fn made(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    folder.canonicalize().with_context(|| folder.display().to_string())
}

/// How a benchmark ended: it has a row, and nothing was said to fail.
fn ended(name: &str, mut command: Command) -> Result<Outcome> {
    let begun = Instant::now();
    let done = command.output().context("cannot run timeout")?;
    let seconds = begun.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&done.stdout);
    let wrong = String::from_utf8_lossy(&done.stderr);
    let row = said.lines().find(|line| line.starts_with(name));
    let fault = wrong.lines().chain(said.lines()).find(|line| line.starts_with("fake CUDA"));
    Ok(match (row, fault) {
        (Some(row), None) if !row.contains("FAILED") => Outcome::Passed(String::new(), seconds),
        (row, fault) => {
            let why = fault.or(row).unwrap_or_else(|| wrong.lines().last().unwrap_or("no row"));
            let panic = wrong.lines().skip_while(|line| !line.contains("panicked")).take(4);
            Outcome::Failed([why].into_iter().chain(panic).collect::<Vec<_>>().join(" / "))
        }
    })
}
