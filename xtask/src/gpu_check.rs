//! `cargo xtask gpu-check`: the CUDA build without a GPU.
//!
//! Kernels are compiled by a real NVRTC, each once for all runs, and executed by the interpreter of `tests/ptx`, behind a
//! driver that needs no device (`tests/fake-cuda`); `burnish-check` holds what they compute against f64 on the CPU, a process for each check. Where
//! `ptxas` is, every kernel is also assembled for the hardware, and its registers, spills and tensor-core use are kept.

mod machine;
mod training;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::step::built;
use machine::Machine;

/// The package of the program that checks.
const CHECKS: &str = "burnish-checks";
/// What is checked.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder of libnvrtc.so.12 or .13, no newer than CUDA 12.8 (the version that the driver says it serves).
    #[arg(long)]
    nvrtc: Option<PathBuf>,
    /// Folder whose `include` has CUDA's headers, and whose `bin` may have `ptxas`; by default as burnish finds them.
    #[arg(long)]
    cuda: Option<PathBuf>,
    /// Which hardware the driver says there is; kernels are compiled for it.
    #[arg(long, default_value_t = 90)]
    arch: u32,
    /// Only checks whose names hold this.
    #[arg(long)]
    only: Option<String>,
    /// Try every kernel that CubeCL's tuning knows for a product, instead of the first that runs.
    #[arg(long)]
    tune: bool,
    /// Train a small model there instead of the checks, and hold every figure against the CPU's.
    #[arg(long)]
    train: bool,
    /// Checks at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Folder for the modules and the tables.
    #[arg(long, default_value = "target/gpu-check")]
    output: PathBuf,
    /// A `burnish-check` (with `--train` a `burnish`) with CUDA that is built already.
    #[arg(long)]
    bin: Option<PathBuf>,
}

impl Options {
    /// The program that was named, or a package's built with CUDA.
    fn program(&self, root: &Path, package: &str, target: &str) -> Result<PathBuf> {
        match &self.bin {
            Some(program) => program.canonicalize().with_context(|| program.display().to_string()),
            None => built(root, &["-p", package, "--features", &format!("{package}/cuda")], target),
        }
    }
}

/// Runs the checks; whether all passed.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let machine = Machine::new(root, options)?;
    if options.train {
        return training::run(root, &machine, options);
    }
    let program = options.program(root, CHECKS, "burnish-check")?;
    let command = |more: &[&str]| {
        let mut command = machine.command(&program);
        command.arg("operation").arg("--quick").arg("--data").arg(root).args(more);
        command
    };
    let listed = command(&["--list", "--device", "cpu"]).output().context("cannot list the checks")?;
    let listed = String::from_utf8(listed.stdout)?;
    let wanted = |name: &&str| options.only.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("operation ")).filter(wanted).collect();
    ensure!(!names.is_empty(), "no check's name holds {:?}", options.only.as_deref().unwrap_or_default());
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = checked(name, command(&["--only", name]))?;
            print!("{}", row.text);
            rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("invariant: a worker does not panic"))
    })?;
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = rows.iter().filter(|row| !row.passed).count();
    let mut table: String = rows.iter().map(|row| row.text.as_str()).collect();
    table += &format!("{} checks, {failed} failed, sm_{}\n", names.len(), options.arch);
    fs::write(machine.output.join("checks.txt"), &table)?;
    println!("== gpu-check: {} checks, {failed} failed", names.len());
    let assembled = assemble(&machine.output.join("modules"), options)?;
    fs::write(machine.output.join("kernels.md"), &assembled)?;
    println!("{assembled}");
    Ok(failed == 0)
}

/// What a check came to.
struct Row {
    passed: bool,
    text: String,
}

/// Runs one check. A fault is the device's for ever, so each has a process, and a device, of its own.
fn checked(name: &str, mut command: Command) -> Result<Row> {
    let begun = Instant::now();
    let done = command.output().context("cannot run timeout")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let wrong = String::from_utf8_lossy(&done.stderr);
    // Names hold others: the row of this one decides.
    let row = said.lines().find(|line| row_of(line) == Some(name));
    let seconds = begun.elapsed().as_secs_f64();
    let mut text = match row {
        Some(row) => format!("{row}\n"),
        None => format!("operation FAILED   {name}: no row after {seconds:.0} s ({})\n", done.status),
    };
    for line in wrong.lines().filter(|line| line.starts_with("fake CUDA")).take(3) {
        text += &format!("    {line}\n");
    }
    Ok(Row { passed: row.is_some_and(|row| row.contains(" passed ")), text })
}

/// The name of a check in a row of the table: what stands between its verdict and its seconds.
fn row_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("operation ")?;
    let rest = rest.strip_prefix("passed ").or_else(|| rest.strip_prefix("FAILED "))?;
    let words = rest.trim_start();
    let end = words.find("  ").unwrap_or(words.len());
    Some(words[..end].trim())
}

/// What a kernel takes on one kind of hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    registers: u32,
    spilled: u32,
    shared: u32,
}

/// Assembles every module that was kept, and says what each kernel takes: the worst of the variants of a kernel.
fn assemble(modules: &Path, options: &Options) -> Result<String> {
    let own = options.cuda.as_ref().map(|cuda| cuda.join("bin/ptxas")).filter(|file| file.exists());
    let assembler = own.unwrap_or_else(|| PathBuf::from("ptxas"));
    if Command::new(&assembler).arg("--version").output().is_err() {
        return Ok(
            "ptxas is not there (pip install nvidia-cuda-nvcc): kernels were not assembled\n".to_owned()
        );
    }
    let suffix = if options.arch >= 90 { "a" } else { "" };
    let target = format!("sm_{}{suffix}", options.arch);
    let mut kernels: BTreeMap<String, (usize, usize, Taken)> = BTreeMap::new();
    for entry in fs::read_dir(modules)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        if !text.contains(&format!(".target {target}")) {
            continue;
        }
        let done = Command::new(&assembler)
            .args(["-v", &format!("-arch={target}"), "-o", "/dev/null"])
            .arg(&path)
            .output()
            .context("cannot run ptxas")?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "ptxas refuses {}:\n{said}", path.display());
        let taken = taken(&said);
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        // Without CubeCL's digest of the variant and the digest of the text.
        let parts: Vec<&str> = name.split('-').next().unwrap_or(name).rsplitn(2, '_').collect();
        let products = ["wmma.mma", "mma.sync", "wgmma"].iter().any(|word| text.contains(word));
        let (variants, with_products, worst) =
            kernels.entry(parts.last().copied().unwrap_or(name).to_owned()).or_default();
        *variants += 1;
        *with_products += usize::from(products);
        worst.registers = worst.registers.max(taken.registers);
        worst.spilled = worst.spilled.max(taken.spilled);
        worst.shared = worst.shared.max(taken.shared);
    }
    let mut out = format!(
        "# Kernels on {target}\n\n| kernel | variants | on tensor cores | registers | spilled, bytes | shared, bytes |\n|---|---:|---:|---:|---:|---:|\n"
    );
    for (name, (variants, products, worst)) in &kernels {
        let Taken { registers, spilled, shared } = worst;
        out += &format!("| {name} | {variants} | {products} | {registers} | {spilled} | {shared} |\n");
    }
    Ok(out)
}

/// What `ptxas -v` says of a module's kernel.
fn taken(said: &str) -> Taken {
    let before = |words: &str| {
        let at = said.find(words)?;
        said[..at].trim_end().rsplit([' ', ',']).next()?.parse().ok()
    };
    Taken {
        registers: before(" registers").unwrap_or(0),
        spilled: before(" bytes spill stores").unwrap_or(0),
        shared: before(" bytes smem").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assembler_s_words_are_read() {
        let said = "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                    ptxas info    : Function properties for k\n    \
                    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                    ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]\n";
        assert_eq!(taken(said), Taken { registers: 40, spilled: 8, shared: 2048 });
        assert_eq!(
            row_of("operation passed   linears plain, f32, 3 x 19                     1.0 s  3e-4 (x)"),
            Some("linears plain, f32, 3 x 19")
        );
    }
}
