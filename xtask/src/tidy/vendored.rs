//! The vendored crate's version equals that of the crate it replaces.

use std::path::Path;

use anyhow::{Context, Result};

/// The crate that is replaced, and the one whose version it must have.
const STANDS_IN: (&str, &str) = ("cubecl-llvm", "cubecl");

/// Versions that do not agree.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let manifest = Path::new("vendor").join(STANDS_IN.0).join("Cargo.toml");
    let read = |path: &Path| {
        std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(compared(&read(&manifest)?, &read(Path::new("Cargo.lock"))?))
}

fn compared(manifest: &str, lock: &str) -> Vec<String> {
    let (name, of) = STANDS_IN;
    let vendored = version_after(manifest, &format!("name = \"{name}\""));
    let locked = version_after(lock, &format!("name = \"{of}\""));
    match (vendored, locked) {
        (Some(vendored), Some(locked)) if vendored == locked => Vec::new(),
        (vendored, locked) => vec![format!(
            "vendor/{name} is version {}, {of} in Cargo.lock is {}: they must be the same (vendor/README.md)",
            vendored.unwrap_or("unknown"),
            locked.unwrap_or("unknown")
        )],
    }
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
        assert!(compared(manifest, &lock("0.11.3")).is_empty());
        let complaints = compared(manifest, &lock("0.12.0"));
        assert!(complaints[0].contains("0.11.3") && complaints[0].contains("0.12.0"), "{complaints:?}");
        assert!(compared("", "")[0].contains("unknown"));
    }
}
