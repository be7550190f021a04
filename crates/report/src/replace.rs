//! Atomic replacement of a file: written beside it, then renamed over it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::{ReportError, at};

/// Writes `content` beside `path`, flushes it to the disk and renames it into place.
///
/// # Errors
/// [`ReportError::File`]; the old file is still there then.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), ReportError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|source| {
        // What is left of an attempt that failed is of no use; the error that matters is the first one.
        let _ = fs::remove_file(&part);
        at("write", path)(source)
    })?;
    fs::rename(&part, path).map_err(at("rename", path))
}
