//! `README.md` of each published crate: the first page of its documentation, written for a reader of the registry.
//!
//! Links to items are left as their names, hidden lines of examples are dropped, and what a page in the registry needs
//! besides (features, a build with CUDA, the licence) is added.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes the pages that differ.
pub(crate) fn write(root: &Path, packages: &[Value]) -> Result<()> {
    for (path, text) in pages(root, packages)? {
        if std::fs::read_to_string(root.join(&path)).is_ok_and(|present| present == text) {
            continue;
        }
        std::fs::write(root.join(&path), text).with_context(|| format!("cannot write {path}"))?;
        println!("{path}: written");
    }
    Ok(())
}

/// Pages that are missing or stale.
pub(crate) fn complaints(root: &Path, packages: &[Value]) -> Vec<String> {
    let pages = match pages(root, packages) {
        Ok(pages) => pages,
        Err(error) => return vec![format!("{error:#}")],
    };
    let stale = |(path, text): &(String, String)| {
        std::fs::read_to_string(root.join(path)).unwrap_or_default() != *text
    };
    pages
        .iter()
        .filter(|page| stale(page))
        .map(|(path, _)| format!("{path} is not what the crate's first page says; run cargo xtask docs"))
        .collect()
}

/// Path within the repository and text of each page.
fn pages(root: &Path, packages: &[Value]) -> Result<Vec<(String, String)>> {
    packages.iter().filter(|package| published(package)).map(|package| page(root, package)).collect()
}

/// Whether a package goes to the registry: an empty list of registries means `publish = false`.
pub(crate) fn published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn page(root: &Path, package: &Value) -> Result<(String, String)> {
    let name = package["name"].as_str().unwrap_or_default();
    let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default())
        .parent()
        .and_then(|folder| folder.strip_prefix(root).ok())
        .with_context(|| format!("{name}: its manifest lies outside of the workspace"))?;
    let targets = package["targets"].as_array().into_iter().flatten();
    let source = targets
        .filter(|target| ["lib", "bin"].iter().any(|kind| target["kind"][0] == *kind))
        .find_map(|target| target["src_path"].as_str())
        .with_context(|| format!("{name} has neither a library nor a program"))?;
    let source = std::fs::read_to_string(source).with_context(|| format!("cannot read {source}"))?;
    let repository = package["repository"].as_str().unwrap_or_default();
    let mut text = format!("# {name}\n\n{}", first_page(&source));
    if name == "burnish-cli" {
        text += "\n## Installing\n\n`cargo install burnish-cli` installs the program `burnish`; \
                 with `--features cuda` it computes on NVIDIA GPUs too.\n";
    }
    if !package["features"]["cuda"].is_null() {
        text += &CUDA.replace("REPOSITORY", repository);
    }
    text +=
        &format!("\n## Licence\n\nMIT or Apache-2.0, as you choose. A crate of [burnish]({repository}).\n");
    Ok((folder.join("README.md").to_string_lossy().into_owned(), text))
}

/// What someone who builds a crate with CUDA outside of this workspace has to know.
const CUDA: &str = r#"
## NVIDIA GPUs

Feature `cuda`. Kernels are compiled by NVRTC when they are first used, so no CUDA toolkit is needed to build. Burn's CUDA
backend also names `cubecl-llvm`, whose build script downloads LLVM (200 MB) and links it, although nothing of it is called.
To build without it, put the crate that has its types alone in its place, in the `Cargo.toml` of *your* workspace (a patch
holds only where it stands):

```toml
[patch.crates-io]
cubecl-llvm = { git = "REPOSITORY" }
```

and name the CUDA interface that drivers from 12.8 on serve, in your `.cargo/config.toml`:

```toml
[env]
CUDARC_CUDA_VERSION = "13000"
```
"#;

/// The `//!` lines at the head of a source file as a page of Markdown.
fn first_page(source: &str) -> String {
    let mut page = String::new();
    let mut code: Option<bool> = None;
    let lines = source.lines().skip_while(|line| line.starts_with("#![") || line.is_empty());
    for line in lines.map_while(|line| line.strip_prefix("//!")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let rust = ["", "no_run", "rust", "compile_fail", "should_panic"].contains(&language);
            match code.take() {
                Some(_) => page += line,
                None => {
                    code = Some(rust);
                    page += if rust { "```rust" } else { line };
                }
            }
        } else if let Some(rust) = code {
            if rust && (line == "#" || line.starts_with("# ")) {
                continue;
            }
            page += line;
        } else {
            if line.starts_with('#') {
                page.push('#');
            }
            page += &without_links_to_items(line);
        }
        page.push('\n');
    }
    page
}

/// Links whose target is no address become their text.
fn without_links_to_items(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some(open) = rest.find('[') {
        let Some(close) = closing(&rest[open..]).map(|at| open + at) else { break };
        let (inside, after) = (&rest[open + 1..close], &rest[close + 1..]);
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        text += &rest[..open];
        match target {
            Some((target, _)) if target.contains("://") => {
                text += &format!("[{inside}]({target})");
                rest = &after[target.len() + 2..];
            }
            Some((target, _)) => {
                text += inside;
                rest = &after[target.len() + 2..];
            }
            // `[out, in]` in code is no link; a link to an item has its name in code, or is a path.
            None if inside.starts_with('`') && inside.ends_with('`') && !text.ends_with('`') => {
                text += inside;
                rest = after;
            }
            None => {
                text += &rest[open..=close];
                rest = after;
            }
        }
    }
    text + rest
}

/// Where the bracket that `text` begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_items_are_their_names() {
        for (line, page) in [
            ("asks [`open`] once; [`Device`](burn::tensor::Device).", "asks `open` once; `Device`."),
            ("`[out, in]` and [PEFT](https://x.org/a) stay", "`[out, in]` and [PEFT](https://x.org/a) stay"),
            ("the adapter's [sites](LoraSite), [`segment()`]", "the adapter's sites, `segment()`"),
            ("(feature `cuda`) [open", "(feature `cuda`) [open"),
        ] {
            assert_eq!(without_links_to_items(line), page);
        }
    }

    #[test]
    fn a_page_has_no_hidden_lines_and_one_title() {
        let source = "//! Title.\n//!\n//! # Errors\n//! ```\n//! # fn main() {\n//! let a = [1];\n//! # }\n//! ```\n\
                      //! ```text\n//! # kept\n//! ```\n\nuse a;\n//! not this\n";
        let page = "Title.\n\n## Errors\n```rust\nlet a = [1];\n```\n```text\n# kept\n```\n";
        assert_eq!(first_page(source), page);
    }
}
