//! `cargo xtask tidy`: what compilers do not see.
//!
//! * floors: a crate names only crates on lower floors ([`floors`]);
//! * cycles: folders of a crate do not import each other in a circle ([`cycles`]);
//! * links: links of pages lead to files and headings, and the book has every page ([`links`]);
//! * manifests: licence texts, inherited fields, and what the registry and docs.rs show ([`manifests`]);
//! * files: names that say nothing, forgotten marks, skipped tests and examples, paths of one machine ([`files`]);
//! * pages: files and types that a page names are there ([`pages`]);
//! * vendored: what stands in for a crate has its version ([`vendored`]);
//! * error codes: each enum of errors says of what class its variants are ([`error_codes`]);
//! * written files: the example's data, docs/options.md, docs/errors.md and the crates' README.md are what their generators write.

mod cycles;
mod error_codes;
mod files;
mod floors;
mod links;
mod manifests;
mod pages;
mod vendored;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::example_programs::is_example;
use crate::step::cargo;
use crate::{example, readme_pages};

/// Prints every complaint and returns whether there was none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let packages = packages(root)?;
    let mut complaints = floors::complaints(&packages);
    complaints.extend(publishing(root, &packages));
    let names = listing(root)?;
    complaints.extend(cycles::complaints(root, &names)?);
    let copied = |name: &str| vendored::COPIED.iter().any(|folder| name.starts_with(folder));
    let own: Vec<String> = names.iter().filter(|name| !copied(name)).cloned().collect();
    complaints.extend(files::complaints(root, &own)?);
    complaints.extend(error_codes::complaints(root, &names)?);
    complaints.extend(links::complaints(root, &names)?);
    complaints.extend(pages::complaints(root, &names)?);
    complaints.extend(vendored::complaints(root)?);
    complaints.extend(example::complaints(root));
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    println!("== tidy: {} complaints", complaints.len());
    Ok(complaints.is_empty())
}

/// What stands between the packages and the registry.
pub(crate) fn publishing(root: &Path, packages: &[Value]) -> Vec<String> {
    let mut complaints = manifests::complaints(root, packages);
    complaints.extend(readme_pages::complaints(root, packages));
    complaints
}

/// The workspace's packages but the programs of `examples/rust`, as `cargo metadata` describes them.
pub(crate) fn packages(root: &Path) -> Result<Vec<Value>> {
    let mut command = cargo(root, &["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata did not write JSON")?;
    match metadata["packages"].take() {
        Value::Array(mut packages) => {
            packages.retain(|package| !is_example(root, package));
            Ok(packages)
        }
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
