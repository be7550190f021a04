//! `metrics.jsonl`: appended to, one flushed line per logging step.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};

use burnish_core::file;

use crate::error::{ReportError, at};
use crate::record::Record;
use crate::replace::replace;

/// An open `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Starts an empty file, replacing one that is there.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be created.
    pub fn create(path: &Path) -> Result<Self, ReportError> {
        own(path)?;
        let mut options = OpenOptions::new();
        let opened = options.read(true).append(true).create(true).open(path);
        let file = opened.map_err(at("create", path))?;
        file.set_len(0).map_err(at("create", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Goes on with the file of a run that continues after `step`: lines of later steps, which will be written again, and
    /// a last line that was cut off are removed. A file that is not there is begun.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be read or written, [`ReportError::Line`] when a line that is not the last is
    /// no record.
    pub fn resume(path: &Path, step: u64) -> Result<Self, ReportError> {
        own(path)?;
        if path.exists() {
            let text = file::read_to_string(path).map_err(at("read", path))?;
            let mut kept = String::new();
            for (record, line) in parse(path, &text)? {
                if record.step <= step {
                    kept.push_str(line);
                    kept.push('\n');
                }
            }
            if kept != text {
                replace(path, kept.as_bytes())?;
            }
        }
        let file =
            OpenOptions::new().read(true).create(true).append(true).open(path).map_err(at("open", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one line. It is with the operating system when this returns, so that a killed run keeps it.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), ReportError> {
        // One write per line: a reader never sees half of one, short of a full disk.
        let line = format!("{}\n", record.to_json());
        if !self.path.exists() {
            self.write_again()?;
        }
        self.file.write_all(line.as_bytes()).map_err(at("write", &self.path))
    }

    /// Makes the file again, with all that it had, after somebody removed it.
    fn write_again(&mut self) -> Result<(), ReportError> {
        let mut text = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut text));
        read.map_err(at("read", &self.path))?;
        replace(&self.path, &text)?;
        let opened = OpenOptions::new().read(true).append(true).open(&self.path);
        self.file = opened.map_err(at("open", &self.path))?;
        Ok(())
    }

    /// Reads a whole file. A last line that was cut off is left out.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn read(path: &Path) -> Result<Vec<Record>, ReportError> {
        let text = file::read_to_string(path).map_err(at("read", path))?;
        Ok(parse(path, &text)?.into_iter().map(|(record, _)| record).collect())
    }
}

/// That `path` names a file of the run's own: a link there is removed, and what it names stays as it is; anything but a
/// regular file is refused.
fn own(path: &Path) -> Result<(), ReportError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if found.is_symlink() {
        return std::fs::remove_file(path).map_err(at("replace", path));
    }
    if found.is_file() {
        return Ok(());
    }
    Err(at("write", path)(std::io::Error::other("it is not a regular file; remove it")))
}

fn parse<'a>(path: &Path, text: &'a str) -> Result<Vec<(Record, &'a str)>, ReportError> {
    let mut records = Vec::new();
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let whole = line.ends_with('\n');
        let line = line.trim_end();
        match Record::from_json(line) {
            Some(record) if whole => records.push((record, line)),
            _ if !whole || line.is_empty() => {}
            _ => {
                let got = line.chars().take(60).collect();
                return Err(ReportError::Line { path: path.to_owned(), line: i + 1, got });
            }
        }
    }
    Ok(records)
}
