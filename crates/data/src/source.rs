//! Data files, streamed row by row.
//!
//! `dataset_name` is a file, a folder or a glob. In a folder, files named after a split (`train.jsonl`,
//! `test-00000.jsonl`) belong to that split; a folder without such names is all training rows.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::DataError;
use crate::row_origin::RowOrigin;

/// Names of splits that never belong to the training rows of a folder.
const HELD_OUT: [&str; 6] = ["test", "testing", "validation", "valid", "dev", "eval"];

/// One JSON object and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// File and line.
    pub place: RowOrigin,
    /// The columns, in file order.
    pub fields: Map<String, Value>,
}

/// The files of one split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    files: Vec<Arc<PathBuf>>,
}

impl Source {
    /// The training rows of `dataset_name`: the files of `split` in a folder that has any, else everything that is
    /// not another split's.
    ///
    /// # Errors
    /// When there is nothing at the path, in the folder or under the glob, or a file has a format that is not read.
    pub fn train(dataset_name: &str, split: &str) -> Result<Self, DataError> {
        let found = find(dataset_name)?;
        let Found::Folder(folder, files) = found else { return found.into_source() };
        let named: Vec<PathBuf> = files.iter().filter(|f| in_split(f, split)).cloned().collect();
        let files = if named.is_empty() {
            files.into_iter().filter(|f| !HELD_OUT.iter().any(|s| in_split(f, s))).collect()
        } else {
            named
        };
        if files.is_empty() {
            return Err(DataError::EmptyFolder { path: folder, for_split: format!(" for split `{split}`") });
        }
        Self::of(files)
    }

    /// The evaluation rows of `dataset_name`: the files of `split` in a folder, or `None` when it has none
    /// (a file and a glob have no splits).
    ///
    /// # Errors
    /// As [`Source::train`].
    pub fn test(dataset_name: &str, split: &str) -> Result<Option<Self>, DataError> {
        let Found::Folder(_, files) = find(dataset_name)? else { return Ok(None) };
        let named: Vec<PathBuf> = files.into_iter().filter(|f| in_split(f, split)).collect();
        if named.is_empty() { Ok(None) } else { Self::of(named).map(Some) }
    }

    /// Exactly these files, in this order.
    ///
    /// # Errors
    /// When a file is missing or has a format that is not read.
    pub fn of(files: Vec<PathBuf>) -> Result<Self, DataError> {
        for file in &files {
            check_format(file)?;
        }
        Ok(Self { files: files.into_iter().map(Arc::new).collect() })
    }

    /// The files, in reading order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.as_path())
    }

    /// The files as one text, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The rows, in file order. JSON lines are read one at a time; a JSON array is parsed whole.
    #[must_use]
    pub fn records(&self) -> Records {
        Records { files: self.files.clone().into_iter(), open: Open::Nothing }
    }

    /// The number of rows.
    ///
    /// # Errors
    /// When a file cannot be read. JSON is not checked.
    pub fn count(&self) -> Result<usize, DataError> {
        let mut rows = 0;
        for file in &self.files {
            rows += match open(file)? {
                Open::Lines { mut reader, .. } => {
                    let mut buffer = Vec::new();
                    let mut lines = 0;
                    while read_line(&mut reader, &mut buffer, file)? {
                        lines += usize::from(!blank(&buffer));
                    }
                    lines
                }
                Open::Elements { elements, .. } => elements.len(),
                Open::Nothing => 0,
            };
        }
        Ok(rows)
    }

    /// A digest of the files' contents (blake3, hex), to tell a resumed run that its data changed.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn digest(&self) -> Result<String, DataError> {
        let mut hasher = blake3::Hasher::new();
        for file in &self.files {
            let io = |source| DataError::Io { path: file.to_path_buf(), source };
            let mut reader = File::open(file.as_path()).map_err(io)?;
            let mut buffer = vec![0; 1 << 16];
            loop {
                match reader.read(&mut buffer).map_err(io)? {
                    0 => break,
                    n => hasher.update(&buffer[..n]),
                };
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

enum Found {
    Files(Vec<PathBuf>),
    Folder(PathBuf, Vec<PathBuf>),
}

impl Found {
    fn into_source(self) -> Result<Source, DataError> {
        match self {
            Self::Files(files) | Self::Folder(_, files) => Source::of(files),
        }
    }
}

fn find(name: &str) -> Result<Found, DataError> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(Found::Files(vec![path.to_path_buf()]));
    }
    if path.is_dir() {
        let io = |source| DataError::Io { path: path.to_path_buf(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(io)? {
            let file = entry.map_err(io)?.path();
            if file.is_file() && matches!(extension(&file).as_str(), "jsonl" | "json" | "ndjson") {
                files.push(file);
            }
        }
        files.sort();
        // A folder of .jsonl may carry a README or metadata in .json beside it.
        if files.iter().any(|f| extension(f) != "json") {
            files.retain(|f| extension(f) != "json");
        }
        if files.is_empty() {
            return Err(DataError::EmptyFolder { path: path.to_path_buf(), for_split: String::new() });
        }
        return Ok(Found::Folder(path.to_path_buf(), files));
    }
    if !name.contains(['*', '?', '[']) {
        return Err(DataError::Missing { path: name.to_owned() });
    }
    let bad = |reason: String| DataError::BadGlob { pattern: name.to_owned(), reason };
    let mut files = Vec::new();
    for entry in glob::glob(name).map_err(|e| bad(e.to_string()))? {
        let file = entry.map_err(|e| DataError::Io { path: e.path().to_path_buf(), source: e.into() })?;
        if file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(DataError::EmptyGlob { pattern: name.to_owned() });
    }
    Ok(Found::Files(files))
}

fn in_split(file: &Path, split: &str) -> bool {
    let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    stem.strip_prefix(split).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

fn extension(file: &Path) -> String {
    file.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

fn check_format(file: &Path) -> Result<(), DataError> {
    let format = match extension(file).as_str() {
        "gz" | "tgz" => "gzip-compressed",
        "zst" => "zstd-compressed",
        "bz2" => "bzip2-compressed",
        "xz" => "xz-compressed",
        "zip" => "a zip archive",
        "tar" => "a tar archive",
        "parquet" => "Parquet",
        "arrow" | "feather" => "Arrow",
        "csv" => "CSV",
        "tsv" => "TSV",
        "txt" => "plain text",
        "yaml" | "yml" => "YAML",
        _ => {
            let io = |source| DataError::Io { path: file.to_path_buf(), source };
            let mut head = [0; 4];
            let read = File::open(file).map_err(io)?.read(&mut head).map_err(io)?;
            match &head[..read] {
                [0x1f, 0x8b, ..] => "gzip-compressed",
                b"PAR1" => "Parquet",
                [b'P', b'K', 3, 4] => "a zip archive",
                [0x28, 0xb5, 0x2f, 0xfd] => "zstd-compressed",
                _ => return Ok(()),
            }
        }
    };
    Err(DataError::Format { path: file.to_path_buf(), format })
}

/// The iterator of [`Source::records`].
pub struct Records {
    files: std::vec::IntoIter<Arc<PathBuf>>,
    open: Open,
}

enum Open {
    Nothing,
    Lines { file: Arc<PathBuf>, reader: BufReader<File>, line: usize },
    Elements { file: Arc<PathBuf>, elements: std::vec::IntoIter<Value>, element: usize },
}

impl Iterator for Records {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match &mut self.open {
                Open::Nothing => {}
                Open::Lines { file, reader, line } => {
                    let mut buffer = Vec::new();
                    loop {
                        buffer.clear();
                        match read_line(reader, &mut buffer, file) {
                            Err(e) => return self.stop(e),
                            Ok(false) => break,
                            Ok(true) => *line += 1,
                        }
                        if !blank(&buffer) {
                            let place = RowOrigin::line(file, *line);
                            return Some(parse(&buffer, place));
                        }
                    }
                }
                Open::Elements { file, elements, element } => {
                    if let Some(value) = elements.next() {
                        *element += 1;
                        return Some(object(value, RowOrigin::element(file, *element)));
                    }
                }
            }
            match open(&self.files.next()?) {
                Ok(open) => self.open = open,
                Err(e) => return self.stop(e),
            }
        }
    }
}

impl Records {
    /// After an unreadable file nothing follows.
    fn stop(&mut self, error: DataError) -> Option<Result<Record, DataError>> {
        self.files = Vec::new().into_iter();
        self.open = Open::Nothing;
        Some(Err(error))
    }
}

fn open(file: &Arc<PathBuf>) -> Result<Open, DataError> {
    let io = |source| DataError::Io { path: file.to_path_buf(), source };
    let mut reader = BufReader::with_capacity(1 << 16, File::open(file.as_path()).map_err(io)?);
    if reader.fill_buf().map_err(io)?.starts_with(b"\xef\xbb\xbf") {
        reader.consume(3);
    }
    let array = extension(file) == "json" && first_byte(&mut reader).map_err(io)? == Some(b'[');
    if !array {
        return Ok(Open::Lines { file: Arc::clone(file), reader, line: 0 });
    }
    let elements: Vec<Value> = serde_json::from_reader(reader)
        .map_err(|e| DataError::Json { place: RowOrigin::line(file, e.line()), reason: e.to_string() })?;
    Ok(Open::Elements { file: Arc::clone(file), elements: elements.into_iter(), element: 0 })
}

/// The first byte that is no white space, left unread (white space of JSON carries nothing and is dropped).
fn first_byte(reader: &mut BufReader<File>) -> std::io::Result<Option<u8>> {
    let buffer = reader.fill_buf()?;
    Ok(buffer.iter().copied().find(|b| !b.is_ascii_whitespace()))
}

/// Reads one line with its end; false at the end of the file.
fn read_line(reader: &mut BufReader<File>, buffer: &mut Vec<u8>, file: &Path) -> Result<bool, DataError> {
    buffer.clear();
    let n = reader
        .read_until(b'\n', buffer)
        .map_err(|source| DataError::Io { path: file.to_path_buf(), source })?;
    Ok(n > 0)
}

fn blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

fn parse(line: &[u8], place: RowOrigin) -> Result<Record, DataError> {
    match serde_json::from_slice::<Value>(line) {
        Ok(value) => object(value, place),
        Err(e) => {
            // The place names the line of the file; serde counts within the row, where only the column helps.
            let text = e.to_string();
            let what = text.split(" at line ").next().unwrap_or(&text);
            Err(DataError::Json { place, reason: format!("{what} at column {}", e.column()) })
        }
    }
}

fn object(value: Value, place: RowOrigin) -> Result<Record, DataError> {
    match value {
        Value::Object(fields) => Ok(Record { place, fields }),
        other => Err(DataError::NotAnObject { place, got: json_type(&other) }),
    }
}

/// The name of a value's JSON type.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
