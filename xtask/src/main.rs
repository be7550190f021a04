//! Developer commands. `cargo xtask --help` lists them; `check` and `test` together are what CI runs.

mod aarch64;
mod acceptance;
mod bench;
mod check;
mod config_pages;
mod example;
mod example_programs;
mod fake_driver;
mod faults;
mod gpu_bundle;
mod gpu_check;
mod gpus;
mod mpi;
mod nccl;
mod overfit;
mod publish;
mod readme_pages;
mod repository_links;
mod step;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use overfit::OnGpus;

/// The exit status of a command that needs a GPU where there is none: what test harnesses take for "left out".
const NO_GPU: u8 = 77;

/// Developer commands of burnish.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything but the tests: formatting, tidy, lints and documentation, those of the CUDA build included.
    Check {
        /// Leave the code of the CUDA build out.
        #[arg(long)]
        no_cuda: bool,
    },
    /// Run every test, and the programs of examples/rust, and close with a line `N passed, N failed`.
    Test {
        /// Arguments for `cargo test`, such as `-p burnish-peft` or a test's name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the ranks' suite and every way to fail as MPI jobs, on one host and on two. Needs mpirun.
    Mpi {
        /// Instead, print how fast MPI and threads move 64 MiB.
        #[arg(long)]
        bench: bool,
    },
    /// Run the transport nccl over a driver and an NCCL that need no device: the ranks' suite and every way to fail.
    Nccl,
    /// Compile the kernels of the CUDA build with NVRTC, execute them without a GPU, and hold what they compute against the
    /// CPU.
    GpuCheck(gpu_check::Options),
    /// Try faults on the program: damaged folders, rows, templates, options, checkpoints, disks, servers, signals.
    Faults(faults::Options),
    /// Run the kernels' tests for aarch64 by an emulator, with dot products of bfloat16 and without. Needs qemu-aarch64.
    Aarch64,
    /// Look for what compilers do not see: upward dependencies, file names, licences, forgotten marks, stale files.
    Tidy,
    /// Count the configs and command lines in the published style that run as they are, and name the others.
    Acceptance(acceptance::Options),
    /// List the benchmarks, or run one.
    Bench {
        /// Name of the benchmark and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Overfit tiny models on a sentence under tensor parallelism, and have them say it again.
    OverfitTest(overfit::Options),
    /// The same on the GPUs of this machine, a rank on each, NCCL between them. Ends with status 77 where there is none.
    MultiGpu(overfit::Options),
    /// Build the program, the checks and the benchmarks with CUDA and pack them into one file for a machine with a GPU.
    GpuBundle {
        /// The file to write.
        #[arg(long)]
        output: Option<PathBuf>,
        /// A folder of kernels that these programs have compiled (`BURNISH_KERNEL_CACHE`), to be packed with them.
        #[arg(long)]
        kernels: Option<PathBuf>,
    },
    /// Write docs/options.md and docs/errors.md from their tables, and each crate's README.md from its first page.
    Docs,
    /// Have mdBook's links to files outside of docs/ go to the repository: docs/book.toml names it as a preprocessor.
    #[command(hide = true)]
    RepositoryLinks {
        /// mdBook asks with `supports RENDERER` first: it does support it.
        #[arg(hide = true)]
        asked: Vec<String>,
    },
    /// Pack every crate that goes to the registry, in order, and look at what is in the packages.
    Publish {
        /// Publish nothing; publishing itself is `cargo publish --workspace`.
        #[arg(long, required = true)]
        dry_run: bool,
        /// Ask the registry which of the names are taken.
        #[arg(long)]
        names: bool,
    },
    /// Write the example's data files.
    ExampleData,
}

fn main() -> Result<ExitCode> {
    let root = root();
    let passed = match Arguments::parse().task {
        Task::Check { no_cuda } => check::run(&root, !no_cuda)?,
        Task::Test { arguments } => test::run(&root, &arguments)?,
        Task::Nccl => {
            let tally = nccl::run(&root)?;
            println!("{} passed, {} failed", tally.passed, tally.failed);
            tally.failed == 0
        }
        Task::GpuCheck(options) => gpu_check::run(&root, &options)?,
        Task::Mpi { bench: true } => mpi::bench(&root)?,
        Task::Mpi { bench: false } => {
            let tally = mpi::run(&root)?;
            println!("{} passed, {} failed", tally.passed, tally.failed);
            tally.failed == 0
        }
        Task::Faults(options) => faults::run(&root, &options)?,
        Task::Aarch64 => {
            let tally = aarch64::run(&root)?;
            println!("{} passed, {} failed", tally.passed, tally.failed);
            tally.failed == 0
        }
        Task::Tidy => tidy::run(&root)?,
        Task::Acceptance(options) => acceptance::run(&root, &options)?,
        Task::Bench { arguments } => bench::run(&root, &arguments)?,
        Task::OverfitTest(options) => overfit::run(&root, &options)?.failed == 0,
        Task::MultiGpu(options) => match overfit::multi_gpu(&root, &options)? {
            OnGpus::Ran(tally) => tally.failed == 0,
            OnGpus::None(why) => {
                println!("== multi-gpu: no GPU here: {why}; nothing was run (status {NO_GPU})");
                return Ok(ExitCode::from(NO_GPU));
            }
        },
        Task::GpuBundle { output, kernels } => {
            gpu_bundle::run(&root, output, kernels.as_deref()).map(|_| true)?
        }
        Task::Docs => {
            readme_pages::write(&root, &tidy::packages(&root)?)?;
            config_pages::write(&root).map(|()| true)?
        }
        Task::Publish { dry_run: _, names } => publish::run(&root, names)?,
        Task::RepositoryLinks { asked } if !asked.is_empty() => true,
        Task::RepositoryLinks { .. } => repository_links::run().map(|()| true)?,
        Task::ExampleData => example::write(&root).map(|()| true)?,
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The workspace's root folder.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or_else(|| manifest.clone(), PathBuf::from)
}
