//! `FilePattern`: a glob over the names of a data set's files, as `datasets` 5.2 resolves it.

use glob::{MatchOptions, Pattern};

use crate::error::DataError;

/// Files beside data that are never rows.
const NOT_ROWS: [&str; 7] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "dummy_data.zip",
    "state.json",
];

const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A pattern such as `data/train-*` or `**/train[-._ 0-9]*`. `*` stays within a folder, `**` does not.
#[derive(Clone, Debug)]
pub(crate) struct FilePattern {
    pattern: Pattern,
    text: String,
}

impl FilePattern {
    /// Reads a pattern, relative to the data set.
    ///
    /// # Errors
    /// When it is no pattern, or leaves the data set.
    pub(crate) fn new(text: &str) -> Result<Self, DataError> {
        let text = text.trim_start_matches("./");
        let bad = |reason: &str| DataError::BadGlob { pattern: text.to_owned(), reason: reason.to_owned() };
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(bad("it leads out of the data set"));
        }
        let pattern = Pattern::new(text).map_err(|e| bad(e.msg))?;
        Ok(Self { pattern, text: text.to_owned() })
    }

    /// Whether it names one file rather than several.
    pub(crate) fn is_plain(&self) -> bool {
        !self.text.contains(['*', '?', '['])
    }

    /// Whether the file `name` (its parts joined by `/`) is meant. Hidden files, files in folders named `__…` and those
    /// that describe the data set are meant only where the pattern says so.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let (folders, file) = name.rsplit_once('/').unwrap_or(("", name));
        let (own_folders, own_file) = self.text.rsplit_once('/').unwrap_or(("", &self.text));
        let special = |folders: &str| folders.split('/').filter(|part| part.starts_with("__")).count();
        let hidden = |path: &str| path.split('/').filter(|part| part.starts_with('.')).count();
        self.pattern.matches_with(name, OPTIONS)
            && (own_file == file || !NOT_ROWS.contains(&file))
            && special(folders) == special(own_folders)
            && hidden(name) == hidden(&self.text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn stars_folders_and_hidden_files() {
        for (pattern, name, expected) in [
            ("**", "a.csv", true),
            ("**", "x/y/a.csv", true),
            ("**", "x/.git/a.csv", false),
            ("**", ".a.csv", false),
            ("**", "__pycache__/a.csv", false),
            ("__*/*", "__pycache__/a.csv", true),
            ("**", "x/README.md", false),
            ("**", "dataset_info.json", false),
            ("dataset_info.json", "dataset_info.json", true),
            ("data/*", "data/a.csv", true),
            ("data/*", "data/x/a.csv", false),
            ("./data/train-*", "data/train-0.parquet", true),
            ("**/train[-._ 0-9]*", "train.jsonl", true),
            ("**/train[-._ 0-9]*", "x/train-1.jsonl", true),
            ("**/train[-._ 0-9]*", "training.jsonl", false),
            ("**/*[-._ 0-9]train/**", "my_train/x/y.csv", true),
            ("**/train/**", "train/x.csv", true),
            ("**/train/**", "train.csv", false),
        ] {
            assert_eq!(FilePattern::new(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_stays_in_the_data_set() {
        for text in ["../x", "/etc/*", "a/../../b", "a[", "***"] {
            assert!(FilePattern::new(text).is_err(), "{text}");
        }
    }
}
