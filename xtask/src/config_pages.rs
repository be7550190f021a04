//! docs/options.md and docs/errors.md, which a test of burnish-config compares with its tables, or writes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::SHARED;

/// Where the pages are.
const PAGES: &str = "docs/options.md, docs/errors.md";

/// Writes the pages.
pub(crate) fn write(root: &Path) -> Result<()> {
    let arguments =
        ["test", "--quiet", "--package", "burnish-config", "--package", SHARED, "--test", "tests", "page::"];
    let mut test = Command::new("cargo");
    test.args(arguments).current_dir(root).env("BURNISH_WRITE_PAGES", "1");
    ensure!(test.status().context("cannot start cargo")?.success(), "the tests of {PAGES} fail");
    println!("{PAGES}: written");
    Ok(())
}
