//! `cargo xtask publish --dry-run`: packs every crate that goes to the registry, in the order in which it would go, and looks
//! at what is in the packages. Neither network nor compiler is needed; publishing itself is `cargo publish --workspace`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::readme_pages::published;
use crate::step::{self, cargo};
use crate::tidy;

/// What the registry takes, compressed.
const MOST: u64 = 10 << 20;

/// What every package must hold beside its sources.
const TEXTS: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Packs and looks; whether nothing was wrong. With `names` the registry is asked who has the names.
pub(crate) fn run(root: &Path, names: bool) -> Result<bool> {
    let packages = tidy::packages(root)?;
    let mut complaints = tidy::publishing(root, &packages);
    let order = order(&packages)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // Without lock files, for which the index would be asked; an installed program is locked by the workspace's own.
    let mut package =
        cargo(root, &["package", "--quiet", "--no-verify", "--allow-dirty", "--exclude-lockfile"]);
    for &name in &order {
        package.args(["-p", name]);
    }
    ensure!(step::run("packing", &mut package)?, "cargo package failed");
    for (place, &name) in order.iter().enumerate() {
        let version = packages.iter().find(|package| package["name"] == name).map(|p| &p["version"]);
        let version = version.and_then(Value::as_str).unwrap_or_default();
        let file = target.join("package").join(format!("{name}-{version}.crate"));
        let (bytes, files) = packed(&file)?;
        let owner = if names { format!(", {}", owner(root, name)?) } else { String::new() };
        println!("{:>3}. {name} {version}: {} files, {} KiB{owner}", place + 1, files.len(), bytes >> 10);
        let within = |text: &str| files.contains(&format!("{name}-{version}/{text}"));
        complaints.extend(
            TEXTS.iter().filter(|text| !within(text)).map(|text| format!("{name}: no {text} in its package")),
        );
        if bytes > MOST {
            complaints.push(format!("{name}: {bytes} bytes packed, and the registry takes {MOST}"));
        }
    }
    for complaint in &complaints {
        println!("publish: {complaint}");
    }
    println!("== publish: {} packages in order, {} complaints", order.len(), complaints.len());
    Ok(complaints.is_empty())
}

/// Size of a packed crate and the names of its files.
fn packed(file: &Path) -> Result<(u64, BTreeSet<String>)> {
    let bytes = std::fs::metadata(file).with_context(|| format!("no package {}", file.display()))?.len();
    let listing = Command::new("tar").arg("-tzf").arg(file).output().context("cannot run tar")?;
    ensure!(listing.status.success(), "tar cannot read {}", file.display());
    Ok((bytes, String::from_utf8_lossy(&listing.stdout).lines().map(str::to_owned).collect()))
}

/// What the registry says of a name.
fn owner(root: &Path, name: &str) -> Result<String> {
    let mut info = cargo(root, &["info", "--quiet", "--registry", "crates-io", name]);
    let output = info.output().context("cannot run cargo info")?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(match output.status.success() {
        true => "taken in the registry".to_owned(),
        false if said.contains("could not find") => "free in the registry".to_owned(),
        false => format!("the registry does not answer: {}", said.lines().last().unwrap_or_default()),
    })
}

/// The packages that are published, each behind those that it needs, tests included: the registry resolves those as well.
fn order(packages: &[Value]) -> Result<Vec<&str>> {
    let mut waiting: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages.iter().filter(|package| published(package)) {
        let needs = package["dependencies"].as_array().into_iter().flatten();
        // A test's dependency without a version is left out of the package.
        let needs = needs.filter(|dependency| !dependency["path"].is_null() && dependency["req"] != "*");
        let needs = needs.filter_map(|dependency| dependency["name"].as_str()).collect();
        waiting.insert(package["name"].as_str().unwrap_or_default(), needs);
    }
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let ready = |needs: &BTreeSet<&str>| needs.iter().all(|need| order.contains(need));
        let next =
            waiting.iter().find(|(_, needs)| ready(needs)).map(|(name, _)| *name).with_context(|| {
                format!("these wait for one another, or for what is not published: {waiting:?}")
            })?;
        waiting.remove(next);
        order.push(next);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn package(name: &str, needs: &[&str], publish: Value) -> Value {
        let path = |need: &&str| serde_json::json!({"name": need, "path": "somewhere", "req": "^0.1"});
        let needs: Vec<Value> = needs.iter().map(path).collect();
        serde_json::json!({"name": name, "dependencies": needs, "publish": publish})
    }

    #[test]
    fn a_package_goes_behind_those_that_it_needs() {
        let mine = [
            package("a", &["c"], Value::Null),
            package("b", &["a", "c"], Value::Null),
            package("c", &[], Value::Null),
            package("tool", &["b"], serde_json::json!([])),
        ];
        assert_eq!(order(&mine).unwrap(), ["c", "a", "b"]);
        let ring = [package("a", &["b"], Value::Null), package("b", &["a"], Value::Null)];
        assert!(order(&ring).unwrap_err().to_string().contains("wait for one another"));
        let hidden = [package("a", &["tool"], Value::Null), package("tool", &[], serde_json::json!([]))];
        assert!(order(&hidden).is_err());
    }
}
