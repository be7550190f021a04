//! The vendored crates' versions equal those of the crates they replace.

use std::path::Path;

use anyhow::{Context, Result};

/// The crates that are replaced.
const STAND_IN: [&str; 3] = ["cubecl-llvm", "cubecl-macros", "cubecl-server"];
/// Where others' code lies that is copied as it is.
pub(super) const COPIED: [&str; 2] = ["vendor/cubecl-macros/", "vendor/cubecl-server/"];
/// The crate whose version they must have.
const OF: &str = "cubecl";

/// Versions that do not agree.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| {
        std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
    };
    let lock = read(Path::new("Cargo.lock"))?;
    let of = |name: &&str| -> Result<Option<String>> {
        let manifest = Path::new("vendor").join(name).join("Cargo.toml");
        Ok(compared(name, &read(&manifest)?, &lock))
    };
    STAND_IN.iter().filter_map(|name| of(name).transpose()).collect()
}

fn compared(name: &str, manifest: &str, lock: &str) -> Option<String> {
    let vendored = version_after(manifest, &format!("name = \"{name}\""));
    let locked = version_after(lock, &format!("name = \"{OF}\""));
    (vendored.is_none() || vendored != locked).then(|| {
        format!(
            "vendor/{name} is version {}, {OF} in Cargo.lock is {}: they must be the same (vendor/README.md)",
            vendored.unwrap_or("unknown"),
            locked.unwrap_or("unknown")
        )
    })
}

/// The version on the line after one that says `name`.
fn version_after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().skip_while(|line| line.trim() != name).skip(1);
    lines.next()?.trim().strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_must_agree() {
        let manifest = "[package]\nname = \"cubecl-llvm\"\nversion = \"0.11.3\"\n";
        let lock = |version: &str| {
            format!(
                "[[package]]\nname = \"cubecl\"\nversion = \"{version}\"\n\n[[package]]\nname = \"cubecl-llvm\"\n"
            )
        };
        assert_eq!(compared("cubecl-llvm", manifest, &lock("0.11.3")), None);
        let complaint = compared("cubecl-llvm", manifest, &lock("0.12.0")).expect("other versions");
        assert!(complaint.contains("0.11.3") && complaint.contains("0.12.0"), "{complaint}");
        assert!(compared("cubecl-server", "", "").expect("no version").contains("unknown"));
    }
}
