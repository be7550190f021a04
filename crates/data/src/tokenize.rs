//! Parallel tokenisation of a stream of rows, in their order.

use burnish_core::work::{Unit, Work};
use rayon::prelude::*;
use serde_json::Value;

use crate::error::DataError;
use crate::row::{Row, RowKind};
use crate::row_origin::RowOrigin;
use crate::source::Record;

/// Rows tokenised in one go; what is in memory besides the result.
pub(crate) const CHUNK: usize = 512;
/// Bytes of records beyond which no further row joins them.
const CHUNK_BYTES: usize = 32 << 20;

/// Reads rows of one type: `begin` sees the first, `make` each in parallel, `keep` each in order with what was made.
///
/// # Errors
/// The first fault in row order; no row at all.
pub(crate) fn tokenised<T: Send>(
    name: &str,
    records: impl Iterator<Item = Result<Record, DataError>>,
    parse: impl Fn(Record) -> Result<Row, DataError>,
    begin: impl FnOnce(&Row) -> Result<(), DataError>,
    make: impl Fn(&Row) -> Result<T, DataError> + Sync,
    mut keep: impl FnMut(Row, T) -> Result<(), DataError>,
) -> Result<RowKind, DataError> {
    let total = records.size_hint().1.unwrap_or(0);
    let work = Work::begin(format!("tokenising {name}"), Unit::Rows, total as u64);
    let mut records = records.peekable();
    let mut begin = Some(begin);
    let mut first: Option<(RowOrigin, RowKind)> = None;
    while records.peek().is_some() {
        // Rows before a fault are looked at first, so that the first fault in the file is the one reported.
        let mut fault = None;
        let mut rows = Vec::with_capacity(CHUNK);
        let mut bytes = 0;
        while rows.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(record) = records.next() else { break };
            bytes += record.as_ref().map_or(0, |record| record.fields.iter().map(weight_of).sum());
            match record.and_then(&parse) {
                Ok(row) => rows.push(row),
                Err(e) => {
                    fault = Some(e);
                    break;
                }
            }
        }
        if let Some(row) = rows.first()
            && let Some(begin) = begin.take()
        {
            begin(row)?;
            first = Some((row.place.clone(), row.kind()));
        }
        let made: Vec<Result<T, DataError>> = rows
            .par_iter()
            .map(|row| {
                same_kind(row, first.as_ref())?;
                make(row)
            })
            .collect();
        work.advance(made.len() as u64);
        for (row, made) in rows.into_iter().zip(made) {
            keep(row, made?)?;
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
    }
    first.map(|(_, kind)| kind).ok_or_else(|| DataError::Empty { dataset: name.to_owned() })
}

/// About what a column of a record takes in memory, in bytes.
fn weight_of((name, value): (&String, &Value)) -> usize {
    let own = 64 + name.len();
    own + match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|item| weight_of((&String::new(), item))).sum(),
        Value::Object(object) => object.iter().map(weight_of).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn same_kind(row: &Row, first: Option<&(RowOrigin, RowKind)>) -> Result<(), DataError> {
    match first {
        Some((place, kind)) if *kind != row.kind() => Err(DataError::MixedRows {
            place: row.place.clone(),
            first: place.clone(),
            expected: *kind,
            got: row.kind(),
        }),
        _ => Ok(()),
    }
}
