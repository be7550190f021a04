//! Data files, streamed row by row.
//!
//! A data set is a file, a folder or a glob of JSON lines, JSON arrays, CSV, TSV, plain text, Parquet or Arrow; a
//! folder's files are splits by their names, or by the `configs` of its `README.md`, as `datasets` finds them
//! ([`Listing`]).

mod card;
#[cfg(feature = "parquet")]
mod columnar;
mod delimited;
mod format;
mod lines;
mod listing;
mod mixture;
mod pattern;
mod search;
mod split_slice;

use std::collections::HashSet;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burnish_core::random::Stream;
use serde_json::{Map, Value};

use crate::error::DataError;
use crate::row_origin::RowOrigin;
use crate::source::delimited::Delimited;
use crate::source::format::Format;
use crate::source::lines::{Elements, Lines, first_byte, json_line, text_line};
use crate::source::split_slice::SplitSlice;

pub use listing::{Listing, SplitFiles};
pub use mixture::{Mixture, SourceSpec};

/// One JSON object and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// File and line.
    pub place: RowOrigin,
    /// The columns, in file order.
    pub fields: Map<String, Value>,
}

/// Files, and which of their rows are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    parts: Vec<Part>,
}

/// A run of rows of one split.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    files: Vec<DataFile>,
    /// The rows meant, counted over the files; all without.
    range: Option<Range<usize>>,
    /// The rows meant of those, where they were chosen by chance.
    chosen: Option<Arc<HashSet<usize>>>,
    /// The columns kept; all without.
    columns: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DataFile {
    path: Arc<PathBuf>,
    format: Format,
    compression: format::Compression,
    separator: Option<u8>,
}

/// The iterator of [`Source::records`].
pub struct Records(Rows);

type Rows = Box<dyn Iterator<Item = Result<Record, DataError>> + Send>;

impl Source {
    /// The training rows of `dataset_name`: of `split` in a folder that has it, or of a part of it (`train[:10%]`).
    /// Without files that are named after a split, all that belong to no other are `train`.
    ///
    /// # Errors
    /// When there is nothing at the path, in the folder or under the glob, or a file has a format that is not read.
    pub fn train(dataset_name: &str, split: &str) -> Result<Self, DataError> {
        Self::open(&SourceSpec::new(dataset_name, split))
    }

    /// The evaluation rows of `dataset_name`: of `split` in a folder, or `None` when it has none
    /// (a file and a glob have no splits).
    ///
    /// # Errors
    /// As [`Source::train`].
    pub fn test(dataset_name: &str, split: &str) -> Result<Option<Self>, DataError> {
        Self::open_if_there(&SourceSpec::new(dataset_name, split))
    }

    /// The rows that `spec` names.
    ///
    /// # Errors
    /// As [`Source::train`].
    pub fn open(spec: &SourceSpec) -> Result<Self, DataError> {
        spec.check()?;
        let mut source = Self { parts: Vec::new() };
        for slice in SplitSlice::read(&spec.split)? {
            let files = files(spec, &slice.split, true)?.unwrap_or_default();
            source.add(files, &slice)?;
        }
        source.selected(spec)
    }

    /// The rows that `spec` names, where it is a folder that has its split by name.
    ///
    /// # Errors
    /// As [`Source::train`].
    pub fn open_if_there(spec: &SourceSpec) -> Result<Option<Self>, DataError> {
        spec.check()?;
        let mut source = Self { parts: Vec::new() };
        for slice in SplitSlice::read(&spec.split)? {
            let Some(files) = files(spec, &slice.split, false)? else { return Ok(None) };
            source.add(files, &slice)?;
        }
        source.selected(spec).map(Some)
    }

    /// Exactly these files, in this order.
    ///
    /// # Errors
    /// When a file is missing or has a format that is not read.
    pub fn of(files: Vec<PathBuf>) -> Result<Self, DataError> {
        let files = files.into_iter().map(|path| data_file(path, None)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { parts: vec![Part { files, range: None, chosen: None, columns: None }] })
    }

    /// The rows of one after those of another.
    #[must_use]
    pub fn concatenated(sources: Vec<Self>) -> Self {
        Self { parts: sources.into_iter().flat_map(|source| source.parts).collect() }
    }

    /// The files, in reading order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().flat_map(|part| &part.files).map(|f| f.path.as_path())
    }

    /// The files as one text, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        let mut names: Vec<String> = self.files().map(|f| f.display().to_string()).collect();
        names.dedup();
        let rest = names.len().saturating_sub(4);
        if rest > 1 {
            names.truncate(4);
            return format!("{} and {rest} more", names.join(", "));
        }
        names.join(", ")
    }

    /// The rows, in file order, one (of columns: a few hundred) in memory at a time.
    #[must_use]
    pub fn records(&self) -> Records {
        let parts: Vec<Rows> = self.parts.iter().map(Part::records).collect();
        Records(Box::new(parts.into_iter().flatten()))
    }

    /// Bytes of the files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files().filter_map(|file| std::fs::metadata(file).ok()).map(|meta| meta.len()).sum()
    }

    /// The number of rows.
    ///
    /// # Errors
    /// When a file cannot be read. JSON lines are not parsed.
    pub fn count(&self) -> Result<usize, DataError> {
        self.parts.iter().map(Part::count).sum()
    }

    /// A digest of the files' contents and of which rows are meant (blake3, hex), to tell a resumed run that its data
    /// changed.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn digest(&self) -> Result<String, DataError> {
        let mut hasher = blake3::Hasher::new();
        for part in &self.parts {
            for file in &part.files {
                let io = |source| DataError::Io { path: file.path.to_path_buf(), source };
                let mut reader = burnish_core::file::open(file.path.as_path()).map_err(io)?;
                let mut buffer = vec![0; 1 << 16];
                loop {
                    match reader.read(&mut buffer).map_err(io)? {
                        0 => break,
                        n => hasher.update(&buffer[..n]),
                    };
                }
                if let Some(separator) = file.separator {
                    hasher.update(&[separator]);
                }
            }
            if part.range.is_some() || part.chosen.is_some() || part.columns.is_some() {
                let mut chosen: Vec<usize> = part.chosen.iter().flat_map(|c| c.iter().copied()).collect();
                chosen.sort_unstable();
                hasher.update(format!("{:?} {chosen:?} {:?}", part.range, part.columns).as_bytes());
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    fn add(&mut self, files: Vec<DataFile>, slice: &SplitSlice) -> Result<(), DataError> {
        let mut part = Part { files, range: None, chosen: None, columns: None };
        if !slice.is_whole() {
            part.range = Some(slice.range(part.count()?)?);
        }
        self.parts.push(part);
        Ok(())
    }

    /// With the columns and the share of rows that `spec` asks for.
    fn selected(mut self, spec: &SourceSpec) -> Result<Self, DataError> {
        for part in &mut self.parts {
            part.columns.clone_from(&spec.columns);
        }
        let Some(weight) = spec.weight.filter(|&w| w < 1.0) else { return Ok(self) };
        let Some(seed) = spec.seed else {
            let kept = (weight * self.count()? as f64) as usize;
            return self.first(kept);
        };
        for (at, part) in self.parts.iter_mut().enumerate() {
            let rows = part.count()?;
            let order = Stream::new(seed, "data.weight").at(at as u64).permutation(rows);
            part.chosen = Some(Arc::new(order.into_iter().take((weight * rows as f64) as usize).collect()));
        }
        Ok(self)
    }

    /// Its first `rows` rows.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn first(mut self, rows: usize) -> Result<Self, DataError> {
        let mut left = rows;
        for part in &mut self.parts {
            let there = part.count()?;
            let kept = there.min(left);
            left -= kept;
            if kept == there {
                continue;
            }
            if let Some(chosen) = &part.chosen {
                let mut chosen: Vec<usize> = chosen.iter().copied().collect();
                chosen.sort_unstable();
                part.chosen = Some(Arc::new(chosen.into_iter().take(kept).collect()));
            } else {
                let start = part.range.as_ref().map_or(0, |range| range.start);
                part.range = Some(start..start + kept);
            }
        }
        Ok(self)
    }
}

impl Iterator for Records {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl Part {
    fn records(&self) -> Rows {
        // After an unreadable file nothing follows.
        let mut stopped = false;
        let files = self.files.clone().into_iter().flat_map(move |file| -> Rows {
            if stopped {
                return Box::new(std::iter::empty());
            }
            file.rows().unwrap_or_else(|error| {
                stopped = true;
                Box::new(std::iter::once(Err(error)))
            })
        });
        let rows: Rows = match self.range.clone() {
            Some(range) => Box::new(files.skip(range.start).take(range.len())),
            None => Box::new(files),
        };
        let rows: Rows = match self.chosen.clone() {
            Some(chosen) => {
                Box::new(rows.enumerate().filter(move |(at, _)| chosen.contains(at)).map(|(_, row)| row))
            }
            None => rows,
        };
        match self.columns.clone() {
            Some(columns) => Box::new(rows.map(move |row| select(row?, &columns))),
            None => rows,
        }
    }

    fn count(&self) -> Result<usize, DataError> {
        if let Some(chosen) = &self.chosen {
            return Ok(chosen.len());
        }
        if let Some(range) = &self.range {
            return Ok(range.len());
        }
        self.files.iter().map(DataFile::count).sum()
    }
}

impl DataFile {
    fn rows(&self) -> Result<Rows, DataError> {
        let file = &self.path;
        Ok(match self.format {
            Format::JsonLines | Format::Json => {
                let mut reader = lines::open(file, self.compression)?;
                // A line of a .jsonl file is a row; what a .json file holds, its first byte tells.
                let array = self.format == Format::Json && first_byte(&mut reader, file)? == Some(b'[');
                if array {
                    Box::new(Elements::new(file, reader))
                } else {
                    Box::new(Lines::new(file, reader, false).map(|line| json_line(line?)))
                }
            }
            Format::Text => {
                let reader = lines::open(file, self.compression)?;
                Box::new(Lines::new(file, reader, true).map(|line| text_line(line?)))
            }
            Format::Csv => Box::new(Delimited::open(file, self.compression, self.separator.unwrap_or(b','))?),
            Format::Tsv => Box::new(Delimited::open(file, self.compression, b'\t')?),
            #[cfg(feature = "parquet")]
            Format::Parquet | Format::Arrow => Box::new(columnar::Columnar::open(file, self.format)?),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet | Format::Arrow => unreachable!("`Format::of_file` refuses them"),
        })
    }

    /// The number of rows, without parsing them where lines tell.
    fn count(&self) -> Result<usize, DataError> {
        #[cfg(feature = "parquet")]
        if let Some(rows) = columnar::count(&self.path, self.format)? {
            return Ok(rows);
        }
        let lines = matches!(self.format, Format::JsonLines | Format::Json | Format::Text);
        if lines {
            let mut reader = lines::open(&self.path, self.compression)?;
            let array = self.format == Format::Json && first_byte(&mut reader, &self.path)? == Some(b'[');
            if !array {
                let lines = Lines::new(&self.path, reader, self.format == Format::Text);
                return lines.map(|line| line.map(|_| 1)).sum();
            }
        }
        self.rows()?.map(|row| row.map(|_| 1)).sum()
    }
}

/// A file whose format is known.
fn data_file(path: PathBuf, separator: Option<u8>) -> Result<DataFile, DataError> {
    let (format, compression) = Format::of_file(&path)?;
    Ok(DataFile { path: Arc::new(path), format, compression, separator })
}

/// The files of a split. `any`: without the split, all files that are no other's.
fn files(spec: &SourceSpec, split: &str, any: bool) -> Result<Option<Vec<DataFile>>, DataError> {
    let path = Path::new(&spec.path);
    if path.is_file() {
        return if any { Ok(Some(vec![data_file(path.to_path_buf(), None)?])) } else { Ok(None) };
    }
    if path.is_dir() {
        let listing = Listing::of_folder(path)?;
        let open = |names: Vec<String>, separator| {
            names.into_iter().map(|name| data_file(path.join(name), separator)).collect::<Result<Vec<_>, _>>()
        };
        if !spec.data_files.is_empty() {
            let named = listing.matching(&spec.data_files)?;
            return if any { open(named, None).map(Some) } else { Ok(None) };
        }
        let splits = listing.splits(spec.config.as_deref(), spec.data_dir.as_deref())?;
        if let Some(found) = splits.iter().find(|s| s.split == split) {
            return open(found.files.clone(), found.separator).map(Some);
        }
        if !any {
            return Ok(None);
        }
        let unnamed = splits.iter().all(|s| !s.named);
        let held_out_only = split == "train" && splits.iter().all(|s| s.split != "train");
        let rest = match splits.first() {
            Some(all) if unnamed => all.files.clone(),
            _ if unnamed || held_out_only => listing.unnamed(&splits),
            _ => Vec::new(),
        };
        if rest.is_empty() {
            if !unnamed {
                let names: Vec<String> = splits.iter().map(|s| format!("`{}`", s.split)).collect();
                return Err(DataError::NoSplit {
                    dataset: spec.path.clone(),
                    split: split.to_owned(),
                    splits: names.join(", "),
                });
            }
            if let Some((file, format)) = listing.foreign() {
                return Err(DataError::Format { path: path.join(file), format });
            }
            return Err(DataError::EmptyFolder { path: path.to_path_buf() });
        }
        return open(rest, None).map(Some);
    }
    if !spec.path.contains(['*', '?', '[']) {
        return Err(DataError::Missing { path: spec.path.clone() });
    }
    if !any {
        return Ok(None);
    }
    let files = search::files(&spec.path)?.into_iter().map(|file| data_file(file, None));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    if files.is_empty() {
        return Err(DataError::EmptyGlob { pattern: spec.path.clone() });
    }
    Ok(Some(files))
}

fn select(mut record: Record, columns: &[String]) -> Result<Record, DataError> {
    let mut fields = Map::new();
    for column in columns {
        let Some(value) = record.fields.remove(column) else {
            let names: Vec<String> = record.fields.keys().map(|k| format!("`{k}`")).collect();
            return Err(DataError::NoColumn {
                place: record.place,
                column: column.clone(),
                columns: names.join(", "),
            });
        };
        fields.insert(column.clone(), value);
    }
    Ok(Record { place: record.place, fields })
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
