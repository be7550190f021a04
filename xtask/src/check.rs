//! `cargo xtask check`: what must hold besides the tests. Every part runs, so that one push shows every complaint.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::example_programs;
use crate::step::{self, cargo};
use crate::tidy;

/// The crates with the features `flex`, `cuda` and `wgpu`.
const COMPUTING: [&str; 10] = [
    "burnish-ops",
    "burnish-losses",
    "burnish-optim",
    "burnish-peft",
    "burnish-tensor-comm",
    "burnish-tp",
    "burnish-zero",
    "burnish-models",
    "burnish-trainers",
    "burnish-cli",
];

/// Every crate that computes, without a backend: what a dependent starts from who picks one.
fn without_backends() -> Vec<&'static str> {
    let mut words = vec!["check", "--no-default-features"];
    for package in COMPUTING {
        words.extend(["-p", package]);
    }
    words
}

/// Whether cargo-deny is installed.
fn denies() -> bool {
    let found = Command::new("cargo-deny").arg("--version").output();
    found.is_ok_and(|said| said.status.success())
}

/// Runs the parts, quick ones first, and returns whether all passed.
fn parts(root: &Path, cuda: bool) -> Result<Vec<&'static str>> {
    let mut failed = Vec::new();
    let mut note = |name, passed: bool| {
        if !passed {
            failed.push(name);
        }
    };
    note("formatting", step::run("formatting", &mut cargo(root, &["fmt", "--all", "--check"]))?);
    note("tidy", tidy::run(root)?);
    // With CUDA where it is asked for: lints read the tests' code too, and what is compiled without it `cargo test` compiles.
    // Neither CUDA nor LLVM is needed (vendor/README.md); linking takes longer and is the bundle's.
    let features: &[&str] = if cuda { &["--features", "burnish-cli/cuda,burnish-checks/cuda"] } else { &[] };
    let mut clippy = cargo(root, &["clippy", "--workspace", "--all-targets"]);
    note("lints", step::run("lints", clippy.args(features).args(["--", "-D", "warnings"]))?);
    let mut doc = cargo(root, &["doc", "--workspace", "--no-deps", "--exclude", example_programs::PACKAGES]);
    let doc = doc.args(features).env("RUSTDOCFLAGS", "-D warnings");
    note("documentation", step::run("documentation", doc)?);
    if denies() {
        // Advisories need a network, and `--offline` the sources of platforms that nothing here is built for.
        let mut deny = cargo(root, &["deny", "--locked", "check", "licenses", "bans", "sources"]);
        note("dependencies", step::run("dependencies", &mut deny)?);
    } else {
        println!("== dependencies: cargo-deny is not here (cargo install cargo-deny): deny.toml is left out");
    }
    note("no backend", step::run("no backend", &mut cargo(root, &without_backends()))?);
    Ok(failed)
}

/// Runs the parts and says which failed.
pub(crate) fn run(root: &Path, cuda: bool) -> Result<bool> {
    let failed = parts(root, cuda)?;
    if failed.is_empty() {
        println!("check: passed");
    } else {
        println!("check: FAILED: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}
