//! `cargo xtask tidy`: what compilers do not see.
//!
//! * floors: a crate names only crates on lower floors ([`floors`]);
//! * manifests: licence, description and inherited fields ([`manifests`]);
//! * files: names that say nothing, forgotten marks, skipped tests and examples, paths of one machine ([`files`]);
//! * vendored: what stands in for a crate has its version ([`vendored`]);
//! * written files: the example's data and docs/options.md are what their generators write.

mod files;
mod floors;
mod manifests;
mod vendored;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step::cargo;
use crate::{example, options_page};

/// Prints every complaint and returns whether there was none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let packages = packages(root)?;
    let mut complaints = floors::complaints(&packages);
    complaints.extend(manifests::complaints(root, &packages));
    complaints.extend(files::complaints(root, &listing(root)?)?);
    complaints.extend(vendored::complaints(root)?);
    complaints.extend(example::complaints(root));
    complaints.extend(options_page::complaint(root));
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    println!("== tidy: {} complaints", complaints.len());
    Ok(complaints.is_empty())
}

/// The workspace's packages, as `cargo metadata` describes them.
fn packages(root: &Path) -> Result<Vec<Value>> {
    let mut command = cargo(root, &["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata did not write JSON")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        other => anyhow::bail!("cargo metadata has no list of packages: {other}"),
    }
}

/// Every file that is or would be part of the repository.
fn listing(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .output()
        .context("cannot run git ls-files")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut names: Vec<String> = names
        .split('\0')
        .filter(|name| !name.is_empty() && root.join(name).is_file())
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
