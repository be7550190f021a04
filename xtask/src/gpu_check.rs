//! `cargo xtask gpu-check`: the kernels of the GPU builds without a GPU, in three ways that stand side by side in one table.
//!
//! On a software driver of Vulkan CubeCL's other compiler runs the same bodies (f32 alone). As CUDA, kernels are compiled by a real
//! NVRTC, each once for all runs, and executed by the interpreter of `tests/ptx`, behind a driver that needs no device
//! (`tests/fake-cuda`). `burnish-check` holds what they compute against f64 on the CPU, a process for each check. Where
//! `ptxas` is, every kernel is also assembled for the hardware: registers, spills, shared memory, and with `nvdisasm`
//! instructions of tensor cores.

mod assembled;
mod machine;
mod own_kernels;
mod sizes;
mod step_counts;
mod training;
mod vulkan;
mod ways;

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
use vulkan::Vulkan;
use ways::{Outcome, Ways};

/// The package of the program that checks.
const CHECKS: &str = "burnish-checks";
/// The group of checks of operations, and that of recorded runs.
const OPERATIONS: &str = "operation";
const DECODING: &str = "decoding";
const RECORDED: &str = "TRL";
/// Recorded runs that are replayed where no others are asked for: of each trainer the shortest of the smallest model.
const SHORTEST: [&str; 8] = [
    "cpo-full-hinge, f32",
    "dpo-full-ipo, f32",
    "kto-full-pairs, f32",
    "orpo-full, f32",
    "reward-full, f32",
    "sft-full-dft, f32",
    "sft-lora-prompt-completion, f32",
    "sft-lora-prompt-completion, bf16",
];
/// What is checked.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder of libnvrtc.so.12 or .13, no newer than CUDA 12.8 (the version that the driver says it serves).
    #[arg(long)]
    nvrtc: Option<PathBuf>,
    /// Folder whose `include` has CUDA's headers, and whose `bin` may have `ptxas` and `nvdisasm`; by default as burnish
    /// finds them.
    #[arg(long)]
    cuda: Option<PathBuf>,
    /// Which hardware the driver says there is; kernels are compiled for it.
    #[arg(long, default_value_t = 90)]
    arch: u32,
    /// Only checks whose names hold this.
    #[arg(long)]
    only: Option<String>,
    /// Only the part on a software driver of Vulkan.
    #[arg(long, conflicts_with_all = ["train", "trl"])]
    vulkan: bool,
    /// Leave that part out.
    #[arg(long, conflicts_with = "vulkan")]
    no_vulkan: bool,
    /// Replay recorded runs of TRL on the interpreter instead of the checks, and hold every figure of every step against TRL's: a
    /// short one of each trainer, or those whose names hold what `--only` says.
    #[arg(long, conflicts_with = "train")]
    trl: bool,
    /// Decode by steps that are recorded instead of the checks, and hold them against the same steps launched one by one: models
    /// of all families.
    #[arg(long, conflicts_with_all = ["train", "trl"])]
    decoding: bool,
    /// Try every kernel that CubeCL's tuning knows for a product, instead of the first that runs.
    #[arg(long)]
    tune: bool,
    /// Train a small model there instead of the checks, and hold every figure against the CPU's, and what the driver counted
    /// against the plan.
    #[arg(long)]
    train: bool,
    /// Run the benchmarks of published sizes instead of the checks, a few blocks of each model, by kernels that do nothing: what
    /// fails before a device would compute, and launches that none takes.
    #[arg(long, conflicts_with_all = ["train", "trl", "decoding", "vulkan"])]
    sizes: bool,
    /// With `--sizes`: a folder for the kernels that were compiled, as the hardware's code, which `gpu-bundle --kernels` takes.
    #[arg(long, requires = "sizes")]
    kernels: Option<PathBuf>,
    /// Checks at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Folder for the modules and the tables.
    #[arg(long, default_value = "target/gpu-check")]
    output: PathBuf,
    /// A `burnish-check` (with `--train` a `burnish`) with CUDA that is built already.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// A `burnish-check` with WebGPU that is built already.
    #[arg(long)]
    vulkan_bin: Option<PathBuf>,
}

impl Options {
    /// The program that was named, or a package's built with CUDA.
    fn program(&self, root: &Path, package: &str, target: &str) -> Result<PathBuf> {
        match &self.bin {
            Some(program) => program.canonicalize().with_context(|| program.display().to_string()),
            None => built(root, &["-p", package, "--features", &format!("{package}/cuda")], target),
        }
    }

    /// The group of checks.
    fn group(&self) -> &'static str {
        match self {
            Self { trl: true, .. } => RECORDED,
            Self { decoding: true, .. } => DECODING,
            Self { sizes: true, .. } => sizes::BENCH,
            _ => OPERATIONS,
        }
    }

    /// Whether a check of that name is wanted.
    fn wants(&self, name: &str) -> bool {
        match &self.only {
            Some(part) => name.contains(part.as_str()),
            None => !self.trl || SHORTEST.contains(&name),
        }
    }

    /// As assemblers call the hardware.
    fn target(&self) -> String {
        format!("sm_{}{}", self.arch, if self.arch >= 90 { "a" } else { "" })
    }
}

/// Runs the checks; whether all passed.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    if options.train {
        return training::run(root, &Machine::new(root, options)?, options);
    }
    if options.sizes {
        return sizes::run(root, &Machine::new(root, options)?, options);
    }
    let output = root.join(&options.output);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    let mut ways = Ways::default();
    if !options.no_vulkan && !options.trl {
        match Vulkan::new(root, options, &output)? {
            Some(vulkan) => {
                println!("== on Vulkan: {}", vulkan.driver().display());
                let command = |name: &str| {
                    let mut command = vulkan.command();
                    command.args([options.group(), "--quick", "--device", name, "--data"]).arg(root);
                    command
                };
                let names = listed(command("cpu"), options)?;
                let found = all(&names, options.jobs, |name| {
                    let mut command = command("wgpu");
                    command.args(["--only", name]);
                    checked(name, command)
                })?;
                found.into_iter().for_each(|(name, outcome)| ways.of(&name).vulkan = Some(outcome));
            }
            None if options.vulkan => anyhow::bail!("{}", vulkan::MISSING),
            None => println!("== on Vulkan: left out: {}", vulkan::MISSING),
        }
    }
    if !options.vulkan {
        interpreted(root, options, &mut ways)?;
    }
    let unlisted = own_kernels::unlisted(root)?;
    for name in &unlisted {
        println!(
            "FAILED: kernel `{name}` is not in xtask/src/gpu_check/own_kernels.rs: say whether it is meant for tensor cores"
        );
    }
    let table = ways.table(&options.target());
    fs::write(output.join("ways.md"), &table).with_context(|| output.display().to_string())?;
    print!("\n{table}");
    let failed = ways.failed();
    println!("== gpu-check: {} checks, {failed} failed", ways.checks());
    Ok(failed == 0 && unlisted.is_empty() && ways.kernels_hold())
}

/// Runs the checks on the interpreter, and assembles what each of them compiled.
fn interpreted(root: &Path, options: &Options, ways: &mut Ways) -> Result<()> {
    let machine = Machine::new(root, options)?;
    let program = options.program(root, CHECKS, "burnish-check")?;
    let command = || {
        let mut command = machine.command(&program);
        command.args([options.group(), "--quick", "--data"]).arg(root);
        command
    };
    let mut list = command();
    list.args(["--device", "cpu"]);
    let names = listed(list, options)?;
    println!("== on the interpreter, {}", options.target());
    let found = all(&names, options.jobs, |name| {
        let modules = machine.modules_of(name)?;
        let mut command = command();
        command.args(["--only", name]).env("FAKE_CUDA_MODULES", modules);
        checked(name, command)
    })?;
    // Runs launch what operations launch.
    let assembled =
        (!options.trl).then(|| assembled::Assembler::find(options.cuda.as_deref(), &machine.output));
    let mut assembler = assembled.flatten();
    for (name, outcome) in found {
        ways.of(&name).interpreter = Some(outcome);
        if let Some(assembler) = &mut assembler {
            ways.assemble(&name, &machine.modules_of_last(&name), assembler, &options.target())?;
        }
    }
    if let Some(assembler) = &assembler {
        assembler.keep()?;
        fs::write(machine.output.join("kernels.md"), ways.kernels(&options.target()))?;
    }
    Ok(())
}

/// The checks of a program that are wanted.
fn listed(mut command: Command, options: &Options) -> Result<Vec<String>> {
    let listed = command.arg("--list").output().context("cannot list the checks")?;
    let listed = String::from_utf8(listed.stdout)?;
    let names: Vec<String> = listed
        .lines()
        .filter_map(|line| line.strip_prefix(options.group()))
        .map(str::trim_start)
        .filter(|name| options.wants(name))
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "no check's name holds {:?}", options.only.as_deref().unwrap_or_default());
    Ok(names)
}

/// Runs checks, so many at a time, and says how each ended; in their order.
fn all(
    names: &[String],
    jobs: usize,
    check: impl Fn(&str) -> Result<Outcome> + Sync,
) -> Result<Vec<(String, Outcome)>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(at) else { return Ok(()) };
            let outcome = check(name)?;
            println!("{name:60} {outcome}");
            found.lock().unwrap_or_else(PoisonError::into_inner).push((at, name.clone(), outcome));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("invariant: a worker does not panic"))
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, ..)| *at);
    Ok(found.into_iter().map(|(_, name, outcome)| (name, outcome)).collect())
}

/// Runs one check. A fault is the device's for ever, so each has a process, and a device, of its own.
fn checked(name: &str, mut command: Command) -> Result<Outcome> {
    let begun = Instant::now();
    let done = command.output().context("cannot run timeout")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let wrong = String::from_utf8_lossy(&done.stderr);
    let seconds = begun.elapsed().as_secs_f64();
    // Names hold others: the row of this one decides.
    let row = said.lines().find_map(|line| ways::row_of(line).filter(|(of, ..)| *of == name));
    let faults: Vec<&str> = wrong.lines().filter(|line| line.starts_with("fake CUDA")).take(3).collect();
    Ok(match row {
        Some((_, verdict, figure)) => Outcome::new(verdict, figure, seconds, &faults),
        None => {
            Outcome::Failed(format!("no row after {seconds:.0} s ({}) {}", done.status, faults.join(" / ")))
        }
    })
}
