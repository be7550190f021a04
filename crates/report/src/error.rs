//! Errors of writing reports.

use std::io;
use std::path::{Path, PathBuf};

use burnish_core::{Coded, ErrorCode};

/// A file of a report that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The operating system refused.
    #[error("cannot {action} {path:?}: {source}")]
    File {
        /// What was tried: `create`, `write`, `read`, `rename`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of `metrics.jsonl` is not a record.
    #[error(
        "{path:?}, line {line}: expected a JSON object with a whole `step`, got {got:?}; remove the line or the file"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Its first characters.
        got: String,
    },
}

/// Names the action and the file of an I/O error.
pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReportError {
    let path = path.to_owned();
    move |source| ReportError::File { action, path, source }
}

impl Coded for ReportError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Line { .. } => ErrorCode::BadRows,
            Self::File { source, .. } => source.code(),
        }
    }
}
