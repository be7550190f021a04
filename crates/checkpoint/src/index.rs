//! `state/index.json`: what a checkpoint consists of, and the checksum of every part.

use std::collections::BTreeMap;

use burnish_core::Dtype;
use burnish_weight_files::Piece;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The format that this crate writes; it reads all versions up to it.
///
/// 1: one writer; a checksum per block and per file. 2: blocks of many ranks at a byte of their file; files are summed in
/// pieces and leaves ([`burnish_weight_files::LEAF`]).
pub(crate) const VERSION: u32 = 2;
/// Its place in a checkpoint.
pub(crate) const FILE: &str = "state/index.json";
/// Transformers' name for the loop's state.
pub(crate) const TRAINER_STATE: &str = "trainer_state.json";

/// The contents of a checkpoint. Nothing is named after a rank, and no padding is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) version: u32,
    pub(crate) step: u64,
    /// The run that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// The optimizer's slot schema, as the caller gives it.
    pub(crate) slots: Value,
    pub(crate) entries: Entries,
    /// Every file but this one.
    pub(crate) files: BTreeMap<String, FileSum>,
}

/// What one rank tells the lead about its rows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) step: u64,
    pub(crate) entries: Entries,
}

/// By parameter name, then slot.
pub(crate) type Entries = BTreeMap<String, BTreeMap<String, Entry>>;

/// One logical tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    /// The global shape.
    pub(crate) shape: Vec<usize>,
    /// Row blocks in ascending order, without gaps or overlaps.
    pub(crate) chunks: Vec<Chunk>,
}

/// A block of rows (indices of dim 0; a scalar is one row).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// `[first, one past the last)`.
    pub(crate) rows: [usize; 2],
    /// The safetensors file.
    pub(crate) file: String,
    /// The tensor's name in that file.
    pub(crate) key: String,
    /// Its first byte in that file (from version 2 on).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<u64>,
    /// Of the block's bytes (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blake3: Option<String>,
}

/// A whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileSum {
    pub(crate) bytes: u64,
    /// Of the whole file (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blake3: Option<String>,
    /// Pieces that make up the file, each with the sums of its leaves (from version 2 on).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pieces: Vec<Piece>,
}

/// The index with the checksum of its own canonical text.
#[derive(Serialize, Deserialize)]
struct Sealed {
    blake3: String,
    index: Value,
}

/// The number of rows of a shape: dim 0, or 1 for a scalar.
pub(crate) fn rows_of(shape: &[usize]) -> usize {
    shape.first().copied().unwrap_or(1)
}

/// BLAKE3, hexadecimal.
pub(crate) fn sum(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The text of the index file.
pub(crate) fn seal(index: &Index) -> Result<Vec<u8>, serde_json::Error> {
    let index = serde_json::to_value(index)?;
    let sealed = Sealed { blake3: sum(index.to_string().as_bytes()), index };
    Ok(format!("{:#}\n", serde_json::to_value(sealed)?).into_bytes())
}

/// An index file that is not what was written.
pub(crate) enum Fault {
    Parse(String),
    Sum { expected: String, got: String },
    Version(u32),
}

/// Parses and checks an index file's text.
pub(crate) fn unseal(text: &[u8]) -> Result<Index, Fault> {
    let parse = |e: serde_json::Error| Fault::Parse(e.to_string());
    let sealed: Sealed = serde_json::from_slice(text).map_err(parse)?;
    let got = sum(sealed.index.to_string().as_bytes());
    if got != sealed.blake3 {
        return Err(Fault::Sum { expected: sealed.blake3, got });
    }
    // A later format may have other fields: look at the version before the rest.
    match sealed.index.get("version").and_then(Value::as_u64) {
        Some(v) if v > u64::from(VERSION) => Err(Fault::Version(u32::try_from(v).unwrap_or(u32::MAX))),
        _ => serde_json::from_value(sealed.index).map_err(parse),
    }
}
