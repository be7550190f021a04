//! Rules for manifests.

use std::path::Path;

use serde_json::Value;

use crate::readme_pages::published;

/// The licence of every package.
const LICENCE: &str = "MIT OR Apache-2.0";

/// The texts of the licence, in the root and in every package.
const TEXTS: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Missing or different licences and tool chains, and what a package of the registry lacks.
pub(super) fn complaints(root: &Path, packages: &[Value]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if package["license"] != LICENCE {
            complaints.push(format!("{name}: license is {}, expected {LICENCE:?}", package["license"]));
        }
        if package["edition"] != packages[0]["edition"]
            || package["rust_version"] != packages[0]["rust_version"]
            || package["rust_version"].is_null()
        {
            complaints.push(format!("{name}: edition and rust-version must come from the workspace"));
        }
    }
    complaints.extend(packages.iter().filter(|package| published(package)).flat_map(for_the_registry));
    for text in TEXTS {
        let whole = std::fs::read(root.join(text)).unwrap_or_default();
        if whole.is_empty() {
            complaints.push(format!("{text} is missing"));
        }
        for package in packages.iter().filter(|package| published(package)) {
            let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
            if folder.is_none_or(|folder| std::fs::read(folder.join(text)).unwrap_or_default() != whole) {
                let name = package["name"].as_str().unwrap_or_default();
                complaints.push(format!("{name}: {text} is not the workspace's; copy it"));
            }
        }
    }
    complaints
}

/// What the registry and docs.rs show, and what ties a package to versions of others.
fn for_the_registry(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut complaints = Vec::new();
    for field in ["description", "repository", "readme"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            complaints.push(format!("{name}: {field} is missing"));
        }
    }
    for (field, most) in [("keywords", 5), ("categories", 5)] {
        let count = package[field].as_array().map_or(0, Vec::len);
        if !(1..=most).contains(&count) {
            complaints.push(format!("{name}: {count} {field}, expected 1 to {most}"));
        }
    }
    for keyword in package["keywords"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let plain = keyword.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_+".contains(letter));
        if keyword.len() > 20 || !plain {
            complaints.push(format!("{name}: the registry refuses the keyword `{keyword}`"));
        }
    }
    let docs = &package["metadata"]["docs"]["rs"];
    if docs["rustdoc-args"] != serde_json::json!(["--cfg", "docsrs"]) {
        complaints.push(format!(
            "{name}: [package.metadata.docs.rs] has no rustdoc-args = [\"--cfg\", \"docsrs\"]"
        ));
    }
    let shown = docs["features"].as_array().is_some_and(|shown| shown.contains(&"cuda".into()));
    if !package["features"]["cuda"].is_null() && !shown {
        complaints.push(format!("{name}: docs.rs would not show what the feature `cuda` adds"));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let other = dependency["name"].as_str().unwrap_or_default();
        if !dependency["path"].is_null() && dependency["req"] == "*" && dependency["kind"] != "dev" {
            complaints.push(format!("{name}: its dependency {other} has no version"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_a_package_lacks_is_said() {
        let whole = serde_json::json!({
            "name": "a", "description": "A.", "repository": "https://example.org", "readme": "README.md",
            "keywords": ["a"], "categories": ["science"], "features": {"cuda": []},
            "metadata": {"docs": {"rs": {"features": ["cuda"], "rustdoc-args": ["--cfg", "docsrs"]}}},
            "dependencies": [{"name": "b", "path": "b", "req": "^0.1", "kind": null}],
        });
        assert!(for_the_registry(&whole).is_empty());
        for (pointer, value) in [
            ("/readme", Value::Null),
            ("/keywords", serde_json::json!([])),
            ("/keywords", serde_json::json!(["a keyword"])),
            ("/categories", Value::Null),
            ("/metadata/docs/rs/features", Value::Null),
            ("/metadata/docs/rs", Value::Null),
            ("/dependencies/0/req", "*".into()),
        ] {
            let mut less = whole.clone();
            *less.pointer_mut(pointer).unwrap() = value;
            assert!(!for_the_registry(&less).is_empty(), "{pointer}");
        }
    }
}
