//! Files that a pattern of a path names, in the order of their names, found in bounded time.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::error::DataError;
use crate::source::listing::DEEPEST;

/// Files and folders that one pattern looks at.
const MOST: usize = 1_000_000;

struct Search<'a> {
    text: &'a str,
    pattern: Pattern,
    /// Levels of folders beyond which a link leads in circles.
    deepest: usize,
    seen: usize,
    most: usize,
    found: Vec<PathBuf>,
}

/// The files that `text`, a pattern such as `data/**/*.jsonl`, stands for.
///
/// # Errors
/// When it is no pattern, a folder that it names cannot be read or holds a link to itself, or it looks at more than a
/// million files and folders.
pub(super) fn files(text: &str) -> Result<Vec<PathBuf>, DataError> {
    within(text, MOST)
}

fn within(text: &str, most: usize) -> Result<Vec<PathBuf>, DataError> {
    let bad = |reason: &str| DataError::BadGlob { pattern: text.to_owned(), reason: reason.to_owned() };
    let pattern = Pattern::new(text).map_err(|e| bad(e.msg))?;
    let deepest = depth(Path::new(text)) + DEEPEST;
    let mut search = Search { text, pattern, deepest, seen: 0, most, found: Vec::new() };
    // Folders before the first `**` are looked up as they are named.
    let parts: Vec<&str> = text.split('/').collect();
    let Some(at) = parts.iter().position(|part| part.contains("**")) else {
        for entry in glob::glob(text).map_err(|e| bad(e.msg))? {
            let path = entry.map_err(|e| unread(e.path(), e.error()))?;
            search.count()?;
            if path.is_file() {
                search.found.push(path);
            }
        }
        return Ok(search.found);
    };
    let before = parts[..at].join("/");
    let above = if at == 0 {
        "."
    } else if before.is_empty() {
        "/"
    } else {
        &before
    };
    for entry in glob::glob(above).map_err(|e| bad(e.msg))? {
        let folder = entry.map_err(|e| unread(e.path(), e.error()))?;
        if folder.is_dir() {
            search.walk(&folder)?;
        }
    }
    search.found.sort();
    Ok(search.found)
}

impl Search<'_> {
    fn count(&mut self) -> Result<(), DataError> {
        self.seen += 1;
        if self.seen > self.most {
            let reason = format!("it looks at more than {} files and folders; name the folder", self.most);
            return Err(DataError::BadGlob { pattern: self.text.to_owned(), reason });
        }
        Ok(())
    }

    fn walk(&mut self, folder: &Path) -> Result<(), DataError> {
        const OPTIONS: MatchOptions = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        if depth(folder) > self.deepest {
            let reason = format!("`{}` is too deep; does a folder hold a link to itself?", folder.display());
            return Err(DataError::BadGlob { pattern: self.text.to_owned(), reason });
        }
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            // As a shell's pattern passes over what is closed to it.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(unread(folder, &error)),
        };
        for entry in entries {
            let path = entry.map_err(|e| unread(folder, &e))?.path();
            let name = path.strip_prefix("./").unwrap_or(&path);
            self.count()?;
            if self.pattern.matches_path_with(name, OPTIONS) && path.is_file() {
                self.found.push(name.to_path_buf());
            }
            if path.is_dir() {
                self.walk(&path)?;
            }
        }
        Ok(())
    }
}

fn depth(path: &Path) -> usize {
    path.components().count()
}

fn unread(path: &Path, error: &std::io::Error) -> DataError {
    // The error of the library's own cannot be taken out of it.
    let source = std::io::Error::new(error.kind(), error.to_string());
    DataError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn files_of_patterns_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("a.x")).unwrap();
        for name in ["a/2.jsonl", "a/1.jsonl", "a/b/3.jsonl", "a/b/4.csv", "a.x/0.jsonl", "5.jsonl"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let named = |pattern: &str| -> Vec<String> {
            let found = files(&format!("{}/{pattern}", root.display())).unwrap();
            found.iter().map(|f| f.strip_prefix(root).unwrap().display().to_string()).collect()
        };
        let all = ["5.jsonl", "a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl", "a.x/0.jsonl"];
        assert_eq!(named("**/*.jsonl"), all);
        assert_eq!(named("**/**/**/*.jsonl"), all, "as one `**`");
        assert_eq!(named("a/**"), ["a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl", "a/b/4.csv"]);
        assert_eq!(named("*/**/[34].*"), ["a/b/3.jsonl", "a/b/4.csv"]);
        assert_eq!(named("a/*.jsonl"), ["a/1.jsonl", "a/2.jsonl"]);
        assert!(named("**/nothing").is_empty());
        let error = within(&format!("{}/**/nothing", root.display()), 5).unwrap_err().to_string();
        assert!(error.contains("more than 5 files and folders"), "{error}");
        for bad in ["a/***", "a[", "**x/y"] {
            assert!(matches!(files(bad), Err(DataError::BadGlob { .. })), "{bad}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_in_circles_are_an_error_and_links_to_folders_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("rows")).unwrap();
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::write(root.join("rows/1.jsonl"), "").unwrap();
        std::os::unix::fs::symlink(root.join("rows"), root.join("data/linked")).unwrap();
        let pattern = format!("{}/data/**/*.jsonl", root.display());
        assert_eq!(files(&pattern).unwrap(), [root.join("data/linked/1.jsonl")]);
        std::os::unix::fs::symlink(root.join("data"), root.join("data/circle")).unwrap();
        let error = files(&pattern).unwrap_err().to_string();
        assert!(error.contains("link to itself"), "{error}");
    }
}
