//! The programs of `examples/rust`, which depend on burnish's crates as any program would. Each is built and run from its own
//! folder, and must end with success.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step::cargo;
use crate::test::Tally;

/// Where they are.
const FOLDER: &str = "examples/rust";

/// Their packages, which have no tests.
pub(crate) const PACKAGES: &str = "example-*";

/// Whether what Cargo says of a package or a target is of one of them.
pub(crate) fn is_example(root: &Path, said: &Value) -> bool {
    Path::new(said["manifest_path"].as_str().unwrap_or_default()).starts_with(root.join(FOLDER))
}

/// Builds all, runs each, and counts.
///
/// # Errors
/// If they do not build.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    let began = Instant::now();
    // With what the tests have built: of the whole workspace, and with the features that examples bring.
    let mut build = cargo(root, &["build", "-q", "--workspace", "--bins", "--examples"]);
    build.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.output().context("cannot run cargo build")?;
    ensure!(output.status.success(), "{FOLDER} does not build");
    println!("== {FOLDER}: built in {:.0} s", began.elapsed().as_secs_f64());
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = messages.filter(|message| message["executable"].is_string() && is_example(root, message));
    let mut programs: Vec<Value> = ours.collect();
    programs.sort_by_key(|program| program["target"]["name"].to_string());
    ensure!(!programs.is_empty(), "{FOLDER} has no program");
    let mut tally = Tally::default();
    for program in &programs {
        if run_one(program)? {
            tally.passed += 1;
        } else {
            tally.failed += 1;
        }
    }
    Ok(tally)
}

/// Runs a program as cargo's message describes it; what it says is shown where it fails.
fn run_one(program: &Value) -> Result<bool> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, source) = (text(&program["target"]["name"]), text(&program["target"]["src_path"]));
    let manifest = text(&program["manifest_path"]);
    let own = Path::new(&manifest).parent().with_context(|| format!("{name} has no folder"))?;
    let lines = std::fs::read_to_string(&source).with_context(|| format!("cannot read {source}"))?;
    let lines = lines.lines().filter(|line| is_code(line)).count();
    let began = Instant::now();
    let mut command = std::process::Command::new(text(&program["executable"]));
    let output = command.current_dir(own).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {name}"))?;
    let verdict = if output.status.success() { "passed" } else { "FAILED" };
    let seconds = began.elapsed().as_secs_f64();
    println!("== {FOLDER} {name}: {verdict} in {seconds:.1} s, {lines} lines of code");
    if !output.status.success() {
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.status.success())
}

/// Whether a line is neither empty nor a comment.
fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_code() {
        let source = "//! A program.\n\nfn main() {\n    // Nothing.\n    run(); // at once\n}\n";
        assert_eq!(source.lines().filter(|line| is_code(line)).count(), 3);
    }
}
