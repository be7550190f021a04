//! `cargo xtask aarch64`: the kernels' tests for aarch64, cross-compiled and run by an emulator of user programs.
//!
//! Twice: on a processor with dot products of bfloat16, and on one without.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step::{SHARED, cargo};
use crate::test::{Tally, suite};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where Debian has the target's libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Processors as the emulator calls them.
const PROCESSORS: [&str; 2] = ["max", "cortex-a72"];

/// What is missing, with how to get it; nothing where the job can run.
fn missing() -> Option<String> {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let library = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let built_for =
        library.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    let needs = [
        (built_for, "Rust's library for aarch64 (rustup target add aarch64-unknown-linux-gnu)"),
        (runs(LINKER), "aarch64-linux-gnu-gcc (Debian: apt-get install gcc-aarch64-linux-gnu)"),
        (runs(EMULATOR), "qemu-aarch64 (Debian: apt-get install qemu-user)"),
    ];
    let missing: Vec<&str> = needs.iter().filter(|(here, _)| !here).map(|(_, what)| *what).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Builds the tests and runs them on each processor.
///
/// # Errors
/// If something is missing or cargo cannot be started.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    if let Some(what) = missing() {
        bail!("the kernels' tests for aarch64 need {what}");
    }
    let variable = |what: &str| format!("CARGO_TARGET_{}_{what}", TARGET.to_uppercase().replace('-', "_"));
    let mut all = Tally::default();
    for processor in PROCESSORS {
        println!("== aarch64: {processor}");
        let mut command =
            cargo(root, &["test", "--target", TARGET, "--lib", "-p", "burnish-cpu-kernels", "-p", SHARED]);
        command.env(variable("LINKER"), LINKER);
        command.env(variable("RUNNER"), format!("{EMULATOR} -cpu {processor} -L {LIBRARIES}"));
        let (tally, _) = suite(&mut command).with_context(|| format!("the kernels' tests on {processor}"))?;
        all = Tally { passed: all.passed + tally.passed, failed: all.failed + tally.failed };
    }
    Ok(all)
}
