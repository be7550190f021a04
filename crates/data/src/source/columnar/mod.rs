//! Rows of Parquet and Arrow files, a batch of columns at a time.

mod value;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::vec::IntoIter;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

use crate::error::DataError;
use crate::row::NOT_TEXT;
use crate::row_origin::RowOrigin;
use crate::source::Record;
use crate::source::format::Format;

/// Rows that are turned to JSON together.
const BATCH: usize = 256;
/// The first bytes of an Arrow file that is no stream.
const ARROW_FILE: &[u8; 6] = b"ARROW1";

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Rows of one file.
pub(crate) struct Columnar {
    file: Arc<PathBuf>,
    format: &'static str,
    batches: Option<Batches>,
    rows: IntoIter<Record>,
    read: usize,
}

impl Columnar {
    /// Opens a file of columns.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub(crate) fn open(file: &Arc<PathBuf>, format: Format) -> Result<Self, DataError> {
        let (format, batches) = match format {
            Format::Parquet => ("Parquet", parquet(file)?),
            _ => ("Arrow", arrow(file)?),
        };
        Ok(Self {
            file: Arc::clone(file),
            format,
            batches: Some(batches),
            rows: Vec::new().into_iter(),
            read: 0,
        })
    }
}

impl Iterator for Columnar {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.rows.next() {
                return Some(Ok(record));
            }
            let batch = guarded(|| self.batches.as_mut()?.next().map(|b| b.map_err(|e| e.to_string())));
            let batch = match batch.unwrap_or_else(|reason| Some(Err(reason))) {
                Some(Ok(batch)) => batch,
                Some(Err(reason)) => {
                    self.batches = None;
                    return Some(Err(damaged(&self.file, self.format, reason)));
                }
                None => return None,
            };
            let first = self.read + 1;
            self.read += batch.num_rows();
            let rows = value::rows(&batch).into_iter().zip(first..);
            let record = |(fields, row)| Record { place: RowOrigin::row(&self.file, row), fields };
            self.rows = rows.map(record).collect::<Vec<_>>().into_iter();
        }
    }
}

/// The number of rows, if the file says it without being read.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(crate) fn count(file: &Arc<PathBuf>, format: Format) -> Result<Option<usize>, DataError> {
    if format != Format::Parquet {
        return Ok(None);
    }
    let metadata = metadata(file)?;
    let rows = metadata.metadata().file_metadata().num_rows();
    let rows =
        usize::try_from(rows).map_err(|_| damaged(file, "Parquet", format!("it claims {rows} rows")))?;
    Ok(Some(rows))
}

fn metadata(file: &Arc<PathBuf>) -> Result<ArrowReaderMetadata, DataError> {
    let open = open(file)?;
    let read = || ArrowReaderMetadata::load(&open, ArrowReaderOptions::new()).map_err(|e| e.to_string());
    guarded(read).and_then(|read| read).map_err(|reason| damaged(file, "Parquet", reason))
}

fn parquet(file: &Arc<PathBuf>) -> Result<Batches, DataError> {
    let fault = |reason| damaged(file, "Parquet", reason);
    let metadata = metadata(file)?;
    without_pictures(metadata.schema(), file)?;
    let open = open(file)?;
    let read = || {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(open, metadata);
        let wanted = wanted(builder.schema());
        let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|e| e.to_string())
    };
    let reader = guarded(read).and_then(|read| read).map_err(fault)?;
    Ok(Box::new(reader))
}

fn arrow(file: &Arc<PathBuf>) -> Result<Batches, DataError> {
    let fault = |reason: String| damaged(file, "Arrow", reason);
    let io = |source| DataError::Io { path: file.to_path_buf(), source };
    let mut head = [0; 6];
    let mut raw = open(file)?;
    let whole = raw.read_exact(&mut head).is_ok();
    raw.seek(SeekFrom::Start(0)).map_err(io)?;
    let reader = BufReader::new(raw);
    if whole && &head == ARROW_FILE {
        let read = || {
            let mut all = FileReader::try_new(reader, None).map_err(|e| e.to_string())?;
            let schema = all.schema();
            let wanted = wanted(&schema);
            let again = all.get_mut().get_mut().try_clone().map_err(|e| e.to_string())?;
            let reader =
                FileReader::try_new(BufReader::new(again), Some(wanted)).map_err(|e| e.to_string())?;
            Ok((reader, schema))
        };
        let (reader, schema) = guarded(read).and_then(|read| read).map_err(fault)?;
        without_pictures(&schema, file)?;
        return Ok(Box::new(reader));
    }
    let read = || StreamReader::try_new(reader, None).map_err(|e| e.to_string());
    let reader = guarded(read).and_then(|read| read).map_err(fault)?;
    without_pictures(&reader.schema(), file)?;
    Ok(Box::new(reader))
}

/// Refuses a file whose rows have pictures or sound: what is trained is text.
fn without_pictures(schema: &Schema, file: &Arc<PathBuf>) -> Result<(), DataError> {
    let found = schema
        .fields()
        .iter()
        .find(|field| NOT_TEXT.contains(&field.name().as_str()) && !value::is_readable(field.data_type(), 0));
    found.map_or(Ok(()), |field| {
        Err(DataError::NotText { place: file.display().to_string(), column: field.name().clone() })
    })
}

/// The columns that rows can have: what is no text, number, time or made of them is left out, such as images.
fn wanted(schema: &Schema) -> Vec<usize> {
    let fields = schema.fields().iter().enumerate();
    fields.filter(|(_, field)| value::is_readable(field.data_type(), 0)).map(|(at, _)| at).collect()
}

fn open(file: &Arc<PathBuf>) -> Result<File, DataError> {
    burnish_core::file::open(file.as_path())
        .map_err(|source| DataError::Io { path: file.to_path_buf(), source })
}

fn damaged(file: &Arc<PathBuf>, format: &'static str, reason: String) -> DataError {
    DataError::Damaged { path: file.to_path_buf(), format, reason }
}

/// What `read` returns; a panic of the reader on a damaged file is its fault, not the program's.
fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it cannot be decoded").to_owned()
    })
}
