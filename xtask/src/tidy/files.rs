//! Names and contents of files.

use std::path::Path;

use anyhow::{Context, Result};

/// File names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "base", "helper", "helpers", "types", "misc"];

/// What must not stand in a source file, and why. Each is split so that this file does not complain about itself.
const MARKS: &[(&str, &str)] = &[
    (concat!("to", "do!("), "unfinished code"),
    (concat!("unimple", "mented!("), "unfinished code"),
    (concat!("db", "g!("), "a debugging aid that was left behind"),
    (concat!("#[ign", "ore"), "a test that never runs; assert what is wrong today and say so"),
    (concat!("```ign", "ore"), "an example that is never compiled; let it run, or use no_run"),
];

/// First words of a module header that ask a question instead of naming the thing.
const RIDDLES: &[&str] = &["What ", "How ", "Where ", "Who ", "Whether ", "When ", "Which "];

/// Lines of documentation that say nothing by themselves.
const EMPTY_DOCS: &[&str] = &["/// As there.", "/// That.", "/// Likewise.", "/// The same."];

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Use", "rs/"),
    concat!("C:\\", "Users"),
];

/// Endings of files that are text written by people.
const TEXT: &[&str] = &["rs", "toml", "md", "py", "sh", "yaml", "yml", "jinja", "json"];

/// Everything wrong with the files of the repository.
pub(super) fn complaints(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in names {
        let path = Path::new(name);
        complaints.extend(bad_name(path));
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        if !TEXT.contains(&extension) {
            continue;
        }
        let bytes = std::fs::read(root.join(name)).with_context(|| format!("cannot read {name}"))?;
        match String::from_utf8(bytes) {
            Ok(text) => complaints.extend(bad_text(name, extension == "rs", &text)),
            Err(_) => complaints.push(format!("{name}: not UTF-8")),
        }
    }
    Ok(complaints)
}

fn bad_name(path: &Path) -> Option<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    let source = path.extension().is_some_and(|extension| extension == "rs");
    let folder = path.parent().and_then(Path::file_name).and_then(|folder| folder.to_str()).unwrap_or("");
    let module = if stem == "mod" { folder } else { stem };
    (source && EMPTY_NAMES.contains(&module))
        .then(|| format!("{}: the name says nothing; name the file for its noun", path.display()))
}

fn bad_text(name: &str, source: bool, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", i + 1);
        if source {
            if EMPTY_DOCS.contains(&line.trim()) {
                complaints.push(format!("{place}: documentation that says nothing by itself"));
            }
            for (mark, why) in MARKS.iter().filter(|(mark, _)| line.contains(mark)) {
                complaints.push(format!("{place}: `{mark}`: {why}"));
            }
        }
        if let Some(found) = MACHINE_PATHS.iter().find(|start| begins_a_path(line, start)) {
            complaints.push(format!("{place}: `{found}` is a path of one machine"));
        }
        if line.ends_with([' ', '\t']) && !name.ends_with(".md") {
            complaints.push(format!("{place}: white space at the end of the line"));
        }
    }
    let tested = name.starts_with("tests/") || name.contains("/tests/") || name.contains("/examples/");
    if source
        && !tested
        && let Some(header) = text.strip_prefix("//! ")
        && let Some(word) = RIDDLES.iter().find(|word| header.starts_with(**word))
    {
        complaints
            .push(format!("{name}: the header begins with `{word}`; name the thing with the field's noun"));
    }
    if source && !name.contains("/tests/") && !text.starts_with("//!") && !text.starts_with("#![") {
        complaints.push(format!("{name}: begins without a `//!` line that says what the file is"));
    }
    complaints
}

/// Whether the path begins here, rather than being the middle of a longer one such as a link.
fn begins_a_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !".-_/~}$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, bad) in [
            ("crates/peft/src/utils.rs", true),
            ("crates/peft/src/common/mod.rs", true),
            ("crates/peft/src/base.rs", true),
            ("crates/peft/src/lora.rs", false),
            ("examples/base/config.json", false),
        ] {
            assert_eq!(bad_name(Path::new(name)).is_some(), bad, "{name}");
        }
    }

    #[test]
    fn marks_and_paths() {
        for (mark, _) in MARKS {
            assert_eq!(bad_text("a.rs", true, &format!("//! A.\n    {mark}\n")).len(), 1, "{mark}");
            assert!(bad_text("a.md", false, &format!("{mark}\n")).is_empty(), "{mark}");
        }
        for start in MACHINE_PATHS {
            assert_eq!(bad_text("a.md", false, &format!("see {start}x\n")).len(), 1, "{start}");
        }
        let link = format!("https://example.org{}x\n", MACHINE_PATHS[0]);
        assert!(bad_text("a.md", false, &link).is_empty());
        assert_eq!(bad_text("a.rs", true, "fn main() {}\n").len(), 1, "a file without a word about itself");
        for word in RIDDLES {
            assert_eq!(bad_text("a.rs", true, &format!("//! {word}it is.\n")).len(), 1, "{word}");
        }
        for line in EMPTY_DOCS {
            assert_eq!(bad_text("a.rs", true, &format!("//! A.\n    {line}\n")).len(), 1, "{line}");
        }
    }
}
