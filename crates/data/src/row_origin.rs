//! `RowOrigin`: the file and line, or the name, that errors about a row state.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the rows of a file are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowUnit {
    /// Lines of the file.
    Line,
    /// Elements of its JSON array.
    Element,
    /// Rows, of a file of columns.
    Row,
}

/// A file and a line, an element or a row of it, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowOrigin {
    /// The file.
    pub file: Arc<PathBuf>,
    /// Line, element or row.
    pub line: usize,
    /// Which of them `line` counts.
    pub unit: RowUnit,
}

impl RowOrigin {
    /// A line of a file.
    #[must_use]
    pub fn line(file: &Arc<PathBuf>, line: usize) -> Self {
        Self { file: Arc::clone(file), line, unit: RowUnit::Line }
    }

    /// An element of a JSON array file.
    #[must_use]
    pub fn element(file: &Arc<PathBuf>, line: usize) -> Self {
        Self { file: Arc::clone(file), line, unit: RowUnit::Element }
    }

    /// A row of a file of columns.
    #[must_use]
    pub fn row(file: &Arc<PathBuf>, line: usize) -> Self {
        Self { file: Arc::clone(file), line, unit: RowUnit::Row }
    }

    /// A row that comes from no file: a prompt given on the command line, a probe.
    #[must_use]
    pub fn given(name: &str) -> Self {
        Self { file: Arc::new(Path::new(name).to_path_buf()), line: 0, unit: RowUnit::Line }
    }
}

impl fmt::Display for RowOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.unit) {
            (0, _) => write!(f, "{}", self.file.display()),
            (line, RowUnit::Line) => write!(f, "{}, line {line}", self.file.display()),
            (line, RowUnit::Element) => write!(f, "{}, element {line}", self.file.display()),
            (line, RowUnit::Row) => write!(f, "{}, row {line}", self.file.display()),
        }
    }
}
