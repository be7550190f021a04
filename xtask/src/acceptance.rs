//! Published configs and command lines: how many run as they are, which a test of burnish-config counts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Prints the counts, or writes what is expected.
pub(crate) fn run(root: &Path, write: bool) -> Result<bool> {
    let arguments = ["test", "--quiet", "--package", "burnish-config", "--test", "tests", "acceptance::"];
    let mut test = Command::new("cargo");
    test.args(arguments).args(["--", "--nocapture"]).current_dir(root);
    if write {
        test.env("BURNISH_WRITE_ACCEPTANCE", "1");
    }
    Ok(test.status().context("cannot start cargo")?.success())
}
