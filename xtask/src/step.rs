//! Running programs, with their command and time shown.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

/// `cargo` in the workspace's root, the same one that runs this.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    command
}

/// Runs a command to its end and says how it went. `Err` means that it could not be started.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<bool> {
    let arguments: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let began = Instant::now();
    println!("== {name}: {} {}", command.get_program().to_string_lossy(), arguments.join(" "));
    let status = command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let verdict = if status.success() { "passed" } else { "FAILED" };
    println!("== {name}: {verdict} in {:.0} s", began.elapsed().as_secs_f64());
    Ok(status.success())
}
