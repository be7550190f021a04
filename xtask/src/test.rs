//! `cargo xtask test`: every test of the workspace, with one closing line.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};

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

/// Runs the tests. Lines of single tests that pass are left out; everything else is shown as it comes.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut command = cargo(root, &["test", "--no-fail-fast"]);
    let chosen =
        arguments.iter().any(|word| word == "-p" || word == "--package" || word.starts_with("--package="));
    if !chosen {
        command.arg("--workspace");
    }
    let mut child =
        command.args(arguments).stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
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
    if !chosen {
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
    if arguments.is_empty() {
        let options = overfit::Options { quick: true, bin: Some(built()?), python: None };
        let cases = overfit::run(root, &options).unwrap_or_else(|error| {
            println!("== overfit-test: FAILED: {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        tally = Tally { passed: tally.passed + cases.passed, failed: tally.failed + cases.failed };
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(status.success() && tally.failed == 0)
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
