//! What every manifest must say.

use std::path::Path;

use serde_json::Value;

/// The licence of every package.
const LICENCE: &str = "MIT OR Apache-2.0";

/// Missing or different licences, descriptions, tool chains and links; licence texts that are not there.
pub(super) fn complaints(root: &Path, packages: &[Value]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if package["license"] != LICENCE {
            complaints.push(format!("{name}: license is {}, expected {LICENCE:?}", package["license"]));
        }
        if package["edition"] != packages[0]["edition"]
            || package["rust_version"] != packages[0]["rust_version"]
        {
            complaints.push(format!("{name}: edition and rust-version must come from the workspace"));
        }
        // An empty list means `publish = false`.
        let published = package["publish"].as_array().is_none_or(|registries| !registries.is_empty());
        for field in ["description", "repository"] {
            if published && package[field].as_str().is_none_or(str::is_empty) {
                complaints.push(format!("{name}: {field} is missing"));
            }
        }
    }
    for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if !root.join(text).is_file() {
            complaints.push(format!("{text} is missing"));
        }
    }
    complaints
}
