//! `metrics.jsonl`: appended to, one flushed line per logging step.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

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
        let file = File::create(path).map_err(at("create", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Goes on with the file of a run that continues after `step`: lines of later steps, which will be written again, and
    /// a last line that was cut off are removed. A file that is not there is begun.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be read or written, [`ReportError::Line`] when a line that is not the last is
    /// no record.
    pub fn resume(path: &Path, step: u64) -> Result<Self, ReportError> {
        if path.exists() {
            let text = std::fs::read_to_string(path).map_err(at("read", path))?;
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
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(at("open", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one line. It is with the operating system when this returns, so that a killed run keeps it.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), ReportError> {
        // One write per line: a reader never sees half of one, short of a full disk.
        let line = format!("{}\n", record.to_json());
        self.file.write_all(line.as_bytes()).map_err(at("write", &self.path))
    }

    /// Reads a whole file. A last line that was cut off is left out.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn read(path: &Path) -> Result<Vec<Record>, ReportError> {
        let text = std::fs::read_to_string(path).map_err(at("read", path))?;
        Ok(parse(path, &text)?.into_iter().map(|(record, _)| record).collect())
    }
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
