//! `RowOrigin`: the file and line, or the name, that errors about a row state.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file and a line (JSON lines) or an element (JSON array), both counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowOrigin {
    /// The file.
    pub file: Arc<PathBuf>,
    /// Line, or element of the array.
    pub line: usize,
    /// Whether the file is a JSON array, so that `line` counts elements.
    pub array: bool,
}

impl RowOrigin {
    /// A line of a file.
    #[must_use]
    pub fn line(file: &Arc<PathBuf>, line: usize) -> Self {
        Self { file: Arc::clone(file), line, array: false }
    }

    /// An element of a JSON array file.
    #[must_use]
    pub fn element(file: &Arc<PathBuf>, line: usize) -> Self {
        Self { file: Arc::clone(file), line, array: true }
    }

    /// A row that comes from no file: a prompt given on the command line, a probe.
    #[must_use]
    pub fn given(name: &str) -> Self {
        Self { file: Arc::new(Path::new(name).to_path_buf()), line: 0, array: false }
    }
}

impl fmt::Display for RowOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.array) {
            (0, _) => write!(f, "{}", self.file.display()),
            (line, false) => write!(f, "{}, line {line}", self.file.display()),
            (line, true) => write!(f, "{}, element {line}", self.file.display()),
        }
    }
}
