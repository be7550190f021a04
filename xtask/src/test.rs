//! `cargo xtask test`: every test of the workspace, with one closing line.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::example_programs;
use crate::faults;
use crate::mpi;
use crate::nccl;
use crate::overfit;
use crate::step::cargo;

/// Results of test binaries, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Tally {
    /// Takes in a line such as `test result: ok. 12 passed; 0 failed; 0 ignored; ...`.
    fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.1.split("; ") {
            match count.split_once(' ').map(|(n, what)| (n.parse().unwrap_or(0), what)) {
                Some((n, "passed")) => self.passed += n,
                Some((n, "failed")) => self.failed += n,
                _ => {}
            }
        }
    }
}

/// Runs `cargo test`. Lines of single tests that pass are left out; everything else is shown as it comes.
pub(crate) fn suite(command: &mut Command) -> Result<(Tally, bool)> {
    let began = Instant::now();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo test")?;
    let complaints = child.stderr.take().map(|output| std::thread::spawn(move || shown(output)));
    let mut tally = Tally::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("cannot read what cargo test says")?;
            let line = String::from_utf8_lossy(&line);
            tally.read(&line);
            let quiet = line.trim().is_empty() || (line.starts_with("test ") && line.ends_with(" ... ok"));
            if !quiet {
                println!("{line}");
            }
        }
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    // A test binary that does not compile, or dies, has no result line: it counts as one failure.
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    let warned = complaints.map_or(0, |thread| thread.join().unwrap_or(0));
    println!("== cargo test: {:.0} s", began.elapsed().as_secs_f64());
    if warned > 0 {
        println!("== cargo test: {warned} targets have warnings");
        tally.failed += 1;
    }
    Ok((tally, status.success()))
}

/// What an operation says whose backend is not compiled: a test of a build without it.
const NO_BACKEND: [&str; 6] = ["test", "-p", "burnish-ops", "--no-default-features", "--test", "no_backend"];

/// Runs the tests.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut command = cargo(root, &["test", "--no-fail-fast"]);
    let chosen =
        arguments.iter().any(|word| word == "-p" || word == "--package" || word.starts_with("--package="));
    if !chosen {
        command.args(["--workspace", "--exclude", example_programs::PACKAGES]);
    }
    let (mut tally, mut passed) = suite(command.args(arguments))?;
    if !chosen {
        let (more, also) = suite(&mut cargo(root, &NO_BACKEND))?;
        tally = Tally { passed: tally.passed + more.passed, failed: tally.failed + more.failed };
        passed &= also;
        if mpi::here() {
            let jobs = mpi::run(root)?;
            tally = Tally { passed: tally.passed + jobs.passed, failed: tally.failed + jobs.failed };
        } else {
            println!(
                "== mpi: mpirun is not here (Debian: apt-get install openmpi-bin): its jobs are left out"
            );
        }
    }
    if !chosen && nccl::here() {
        let jobs = nccl::run(root)?;
        tally = Tally { passed: tally.passed + jobs.passed, failed: tally.failed + jobs.failed };
    }
    if !chosen {
        let programs = example_programs::run(root).unwrap_or_else(|error| {
            println!("== {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        tally = Tally { passed: tally.passed + programs.passed, failed: tally.failed + programs.failed };
    }
    if arguments.is_empty() {
        let options = overfit::Options { quick: true, bin: Some(built()?), python: None };
        let cases = overfit::run(root, &options).unwrap_or_else(|error| {
            println!("== overfit-test: FAILED: {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        tally = Tally { passed: tally.passed + cases.passed, failed: tally.failed + cases.failed };
    }
    if arguments.is_empty() {
        let options = faults::Options { quick: true, bin: Some(built()?), ..faults::Options::default() };
        match faults::run(root, &options) {
            Ok(true) => tally.passed += 1,
            Ok(false) => tally.failed += 1,
            Err(error) => {
                println!("== faults: FAILED: {error:#}");
                tally.failed += 1;
            }
        }
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(passed && tally.failed == 0)
}

/// Passes on what cargo says, and counts the targets that it has warned of.
fn shown(output: impl Read) -> usize {
    let mut warned = 0;
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        warned += usize::from(is_warned(&line));
        eprintln!("{line}");
    }
    warned
}

/// Whether cargo closes the warnings of a target with this line.
fn is_warned(line: &str) -> bool {
    line.starts_with("warning: `") && line.contains(" generated ")
}

/// The program as `cargo test` has just built it: beside this one, which has the same profile.
fn built() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(this.with_file_name(format!("burnish{}", std::env::consts::EXE_SUFFIX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_seen() {
        assert!(is_warned("warning: `burnish-ops` (lib) generated 1 warning"));
        assert!(is_warned("warning: `burnish-tp` (lib test) generated 2 warnings (2 duplicates)"));
        assert!(!is_warned("warning: unused import: `a`") && !is_warned("   Compiling burnish-ops v0.1.0"));
    }

    #[test]
    fn result_lines_are_added_up() {
        let mut tally = Tally::default();
        tally.read(
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.08s",
        );
        tally.read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        tally.read("test laws::result: ok ... 99 passed; 9 failed");
        assert_eq!(tally, Tally { passed: 15, failed: 2 });
    }
}
