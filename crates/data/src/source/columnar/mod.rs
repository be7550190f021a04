//! Rows of Parquet and Arrow files, a batch of columns at a time.

mod arrow_sizes;
mod until_end;
mod value;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, Schema};
use burnish_core::guarded;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

use crate::error::DataError;
use crate::row::NOT_TEXT;
use crate::row_origin::RowOrigin;
use crate::source::Record;
use crate::source::format::Format;
use crate::source::lines::MOST_ROW_BYTES;
use until_end::UntilEnd;

/// Rows that are read together: a value that a dictionary holds once is there once for each of them.
const BATCH: usize = 16;
/// Bytes that the rows of any file may take, and for each byte of a file: one value may stand for rows without number.
const MOST_BYTES: u64 = 1 << 28;
const MOST_BYTES_PER_BYTE: u64 = 4096;
/// Bytes that a row counts for at least: a column of nulls takes none in a file, however many rows it claims.
const LEAST_ROW_BYTES: u64 = 512;
/// The first bytes of an Arrow file that is no stream.
const ARROW_FILE: &[u8; 6] = b"ARROW1";

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Rows of one file.
pub(crate) struct Columnar {
    file: Arc<PathBuf>,
    format: &'static str,
    batches: Option<Batches>,
    /// Columns of rows, and how many of them have been given.
    batch: Option<(RecordBatch, usize)>,
    read: usize,
    /// How many there are, where the file says it and nothing was wrong so far.
    claimed: Option<usize>,
    /// Bytes of all rows: the most, and how many are left of them.
    most: u64,
    left: u64,
}

impl Columnar {
    /// Opens a file of columns.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub(crate) fn open(file: &Arc<PathBuf>, format: Format) -> Result<Self, DataError> {
        let (format, batches, claimed) = match format {
            Format::Parquet => {
                let (batches, claimed) = parquet(file)?;
                ("Parquet", batches, Some(claimed))
            }
            _ => ("Arrow", arrow(file)?, None),
        };
        let bytes = std::fs::metadata(file.as_path()).map_or(0, |file| file.len());
        let most = bytes.saturating_mul(MOST_BYTES_PER_BYTE).max(MOST_BYTES);
        let file = Arc::clone(file);
        Ok(Self { file, format, batches: Some(batches), batch: None, read: 0, claimed, most, left: most })
    }
}

impl Iterator for Columnar {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((batch, at)) = self.batch.as_mut().filter(|(batch, at)| *at < batch.num_rows()) {
                self.read += 1;
                let place = RowOrigin::row(&self.file, self.read);
                let row = guarded(|| value::row(batch, *at));
                *at += 1;
                let (format, file) = (self.format, &self.file);
                let record = match row {
                    Ok(Some((fields, bytes))) => {
                        match self.left.checked_sub((bytes as u64).max(LEAST_ROW_BYTES)) {
                            Some(left) => {
                                self.left = left;
                                Ok(Record { place, fields })
                            }
                            None => Err(DataError::ManyOfLittle { place, format, most: self.most }),
                        }
                    }
                    Ok(None) => Err(DataError::HugeRow { place, most: MOST_ROW_BYTES }),
                    Err(reason) => Err(damaged(file, format, reason)),
                };
                if record.is_err() {
                    (self.batch, self.batches, self.claimed) = (None, None, None);
                }
                return Some(record);
            }
            let batch = guarded(|| self.batches.as_mut()?.next().map(|b| b.map_err(|e| e.to_string())));
            match batch.unwrap_or_else(|reason| Some(Err(reason))) {
                Some(Ok(batch)) => self.batch = Some((batch, 0)),
                Some(Err(reason)) => {
                    (self.batch, self.batches, self.claimed) = (None, None, None);
                    return Some(Err(damaged(&self.file, self.format, reason)));
                }
                None => {
                    let claimed = self.claimed.take().filter(|claimed| *claimed != self.read)?;
                    let reason = format!("it claims {claimed} rows and has {}", self.read);
                    return Some(Err(damaged(&self.file, self.format, reason)));
                }
            }
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
    claimed(file, &metadata(file)?).map(Some)
}

fn claimed(file: &Arc<PathBuf>, metadata: &ArrowReaderMetadata) -> Result<usize, DataError> {
    let rows = metadata.metadata().file_metadata().num_rows();
    usize::try_from(rows).map_err(|_| damaged(file, "Parquet", format!("it claims {rows} rows")))
}

fn metadata(file: &Arc<PathBuf>) -> Result<ArrowReaderMetadata, DataError> {
    let open = UntilEnd(open(file)?);
    let read = || ArrowReaderMetadata::load(&open, ArrowReaderOptions::new()).map_err(|e| e.to_string());
    guarded(read).and_then(|read| read).map_err(|reason| damaged(file, "Parquet", reason))
}

/// A file's batches, and how many rows it claims.
fn parquet(file: &Arc<PathBuf>) -> Result<(Batches, usize), DataError> {
    let fault = |reason| damaged(file, "Parquet", reason);
    let metadata = metadata(file)?;
    let rows = claimed(file, &metadata)?;
    without_pictures(metadata.schema(), file)?;
    let open = UntilEnd(open(file)?);
    let read = || {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(open, metadata);
        let wanted = wanted(builder.schema());
        let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|e| e.to_string())
    };
    let reader = guarded(read).and_then(|read| read).map_err(fault)?;
    Ok((Box::new(reader), rows))
}

fn arrow(file: &Arc<PathBuf>) -> Result<Batches, DataError> {
    let fault = |reason: String| damaged(file, "Arrow", reason);
    let io = |source| DataError::Io { path: file.to_path_buf(), source };
    let mut head = [0; 6];
    let mut raw = open(file)?;
    let whole = raw.read_exact(&mut head).is_ok();
    let whole = whole && &head == ARROW_FILE;
    let fits = guarded(|| arrow_sizes::check(&mut raw, whole)).unwrap_or_else(|panic| Ok(Err(panic)));
    fits.map_err(io)?.map_err(fault)?;
    raw.seek(SeekFrom::Start(0)).map_err(io)?;
    let reader = BufReader::new(raw);
    if whole {
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
