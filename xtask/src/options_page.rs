//! docs/options.md, written from the table in burnish-config.

use std::path::Path;

use anyhow::{Context, Result};

/// Where the page is.
pub(crate) const PAGE: &str = "docs/options.md";

/// Writes the page.
pub(crate) fn write(root: &Path) -> Result<()> {
    let path = root.join(PAGE);
    std::fs::write(&path, burnish_config::markdown()).with_context(|| format!("cannot write {path:?}"))?;
    println!("{PAGE}: written");
    Ok(())
}

/// What is wrong with the page, if anything.
pub(crate) fn complaint(root: &Path) -> Option<String> {
    let present = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    (present != burnish_config::markdown())
        .then(|| format!("{PAGE} is not what the options' table says; run cargo xtask docs"))
}
