//! `Format`: how a data file's rows are written, told by its name or its first bytes.

use std::io::Read;
use std::path::Path;

use crate::error::DataError;

/// A format of data files. Where a folder has as many files of one as of another, the later one here is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    /// Lines of text, a row each.
    Text,
    /// Arrow's inter-process format, as file or as stream.
    Arrow,
    /// Columns between tabs.
    Tsv,
    /// Columns between commas.
    Csv,
    /// One array of objects, or objects one after another.
    Json,
    /// An object a line.
    JsonLines,
    /// Parquet.
    Parquet,
}

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

impl Format {
    /// By the end of a file's name, where it says.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match extension(without_compression(name)).as_str() {
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::Json,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "txt" => Self::Text,
            "parquet" => Self::Parquet,
            "arrow" => Self::Arrow,
            _ => return None,
        })
    }

    /// The name of a format that is not read.
    pub(crate) fn foreign(name: &str) -> Option<&'static str> {
        Some(match extension(name).as_str() {
            "bz2" => "bzip2-compressed",
            "lz4" => "lz4-compressed",
            "zip" => "a zip archive",
            "tar" | "tgz" => "a tar archive",
            "feather" => "Feather",
            "yaml" | "yml" => "YAML",
            "xlsx" => "a spreadsheet",
            "py" => "a loading script",
            _ => return None,
        })
    }

    /// A file's format and compression: by its name, else by its first bytes; JSON lines where nothing says otherwise.
    ///
    /// # Errors
    /// When it cannot be read, or its format is not read.
    pub(crate) fn of_file(file: &Path) -> Result<(Self, Compression), DataError> {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let refused = |format| DataError::Format { path: file.to_path_buf(), format };
        if let Some(foreign) = Self::foreign(&name) {
            return Err(refused(foreign));
        }
        let io = |source| DataError::Io { path: file.to_path_buf(), source };
        let mut head = [0; 6];
        let mut read = 0;
        let mut open = burnish_core::file::open(file).map_err(io)?;
        while read < head.len() {
            match open.read(&mut head[read..]).map_err(io)? {
                0 => break,
                n => read += n,
            }
        }
        let head = &head[..read];
        let compression = match head {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            b"\xfd7zXZ\0" => Compression::Xz,
            _ => Compression::None,
        };
        if compression == Compression::Zstd && cfg!(not(feature = "parquet")) {
            return Err(refused("zstd-compressed, which this build leaves out (feature `parquet`)"));
        }
        if compression == Compression::Xz && cfg!(not(feature = "xz")) {
            return Err(refused("xz-compressed, which this build leaves out (feature `xz`)"));
        }
        let named = Self::of_name(&name);
        let format = match (named, head) {
            (_, [b'P', b'K', 3, 4, ..]) => return Err(refused("a zip archive")),
            (_, [b'B', b'Z', b'h', ..]) => return Err(refused("bzip2-compressed")),
            (_, [b'P', b'A', b'R', b'1', ..]) => Self::Parquet,
            (_, b"ARROW1") => Self::Arrow,
            (Some(named), _) => named,
            (None, _) => Self::JsonLines,
        };
        if matches!(format, Self::Parquet | Self::Arrow) {
            if compression != Compression::None {
                return Err(refused("compressed around a format of columns"));
            }
            if cfg!(not(feature = "parquet")) {
                return Err(refused("Parquet or Arrow, which this build leaves out (feature `parquet`)"));
            }
        }
        Ok((format, compression))
    }
}

/// The name without `.gz`, `.zst` or `.xz`.
fn without_compression(name: &str) -> &str {
    match extension(name).as_str() {
        ending @ ("gz" | "zst" | "xz") => &name[..name.len() - ending.len() - 1],
        _ => name,
    }
}

fn extension(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.rsplit_once('.').map(|(_, e)| e.to_ascii_lowercase()).unwrap_or_default()
}
