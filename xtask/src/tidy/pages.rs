//! Pages that name files and types: what they name is there.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// The page whose table lists each crate's nouns and the files to read first.
const MAP: &str = "ARCHITECTURE.md";
/// Folders of the repository that a path on a page begins with.
const FOLDERS: [&str; 7] = ["benches/", "crates/", "docs/", "examples/", "tests/", "vendor/", "xtask/"];

/// A complaint for every path on a page of the repository without a file, and every noun of the map without a source.
pub(super) fn complaints(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"));
    let mut complaints = Vec::new();
    let own = |name: &&String| {
        let page = name.ends_with(".md") && (!name.contains('/') || name.starts_with("docs/"));
        page && *name != "CHANGELOG.md"
    };
    for page in names.iter().filter(own) {
        for path in missing(&read(page)?, names) {
            complaints.push(format!("{page}: `{path}` is not there"));
        }
    }
    let mut sources = BTreeMap::new();
    for row in rows(&read(MAP)?) {
        let source = format!("crates/{}/src/", row.name);
        if !sources.contains_key(&row.name) {
            let files = names.iter().filter(|name| name.starts_with(&source) && name.ends_with(".rs"));
            let text = files.map(|name| read(name)).collect::<Result<Vec<_>>>()?.join("\n");
            sources.insert(row.name.clone(), text);
        }
        let text = &sources[&row.name];
        if text.is_empty() {
            continue; // not a crate of the workspace's own: its paths are checked as any page's
        }
        let absent = row.nouns.iter().filter(|noun| !has_word(text, noun));
        complaints.extend(absent.map(|noun| format!("{MAP}: {} has no `{noun}`", row.name)));
        let absent = row.first.iter().filter(|file| !there(&format!("{source}{file}"), names));
        complaints.extend(absent.map(|file| format!("{MAP}: {source}{file} is not there")));
    }
    Ok(complaints)
}

/// A crate in the map.
struct Row {
    name: String,
    nouns: Vec<String>,
    first: Vec<String>,
}

/// The map's rows: a crate in backticks, its nouns, files.
fn rows(page: &str) -> Vec<Row> {
    let map = page.split("\n## ").find(|part| part.starts_with("Code map")).unwrap_or_default();
    let row = |line: &str| {
        let mut cells = line.trim().trim_matches('|').split('|');
        let name = spans(cells.next()?).into_iter().next()?;
        let noun = |span: String| span.chars().all(|c| c.is_alphanumeric() || c == '_').then_some(span);
        let nouns = spans(cells.next()?).into_iter().filter_map(noun).collect();
        let first = spans(cells.next()?).into_iter().filter(|span| is_path(span)).collect();
        Some(Row { name, nouns, first })
    };
    map.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

/// Paths of the repository that a page names and that are not there.
fn missing(page: &str, names: &[String]) -> Vec<String> {
    let ours = |span: &String| FOLDERS.iter().any(|folder| span.starts_with(folder)) && is_path(span);
    spans(page).into_iter().filter(ours).filter(|path| !there(path, names)).collect()
}

fn is_path(span: &str) -> bool {
    let plain = span.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
    plain && (span.contains('/') || span.ends_with(".rs"))
}

/// Whether a file has this name, or a folder that has files.
fn there(path: &str, names: &[String]) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    names.iter().any(|name| name == path || name.starts_with(&folder))
}

/// What a page has in backticks, blocks of code aside.
fn spans(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if !block {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn has_word(text: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(joins) && !after.starts_with(joins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_looked_up_and_blocks_are_not() {
        let names = ["crates/core/src/lib.rs".to_owned()];
        let page = "`crates/core/src/` `crates/core/src/gone.rs` `crates/*/x.rs` `Layout`\n```\n`crates/no.rs`\n```\n";
        assert_eq!(missing(page, &names), ["crates/core/src/gone.rs"]);
    }

    #[test]
    fn the_map_has_crates_nouns_and_files() {
        let page = "# A\n\n## Code map\n\n| crate | nouns | read first |\n|---|---|---|\n| `core` | `Layout`, `a::b` | `layout/mod.rs` (why) |\n\n## Next\n| `x` | `Y` | `z.rs` |\n";
        let rows = rows(page);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].nouns.as_slice(), rows[0].first.as_slice()),
            (&["Layout".to_owned()][..], &["layout/mod.rs".to_owned()][..])
        );
        assert!(has_word("pub struct Layout {", "Layout") && !has_word("LayoutError", "Layout"));
    }
}
