//! One open safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burnish_core::Dtype;
use memmap2::Mmap;

use crate::header::{self, Entry, Header};
use crate::slice::Runs;
use crate::{HeaderFault, WeightFileError};

/// A safetensors file whose header has been read and checked. Data is read where and when it is asked for.
#[derive(Debug)]
pub(crate) struct TensorFile {
    pub(crate) path: PathBuf,
    file: File,
    map: OnceLock<Mmap>,
    header: Header,
}

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<Self, WeightFileError> {
        let file = burnish_core::file::open(path).map_err(|e| WeightFileError::reading("open", path, e))?;
        let got = file.metadata().map_err(|e| WeightFileError::reading("read", path, e))?.len();
        let corrupt = |fault| WeightFileError::CorruptHeader { path: path.to_path_buf(), fault };
        if got < 8 {
            return Err(corrupt(HeaderFault::TooShort { got }));
        }
        let mut first = [0; 8];
        read_at(&file, &mut first, 0).map_err(|e| WeightFileError::reading("read", path, e))?;
        let mut json = vec![0; header::json_length(first, got).map_err(corrupt)? as usize];
        read_at(&file, &mut json, 8).map_err(|e| WeightFileError::reading("read", path, e))?;
        let header = header::parse(&json).map_err(corrupt)?;
        if header.file_bytes != got {
            return Err(WeightFileError::Truncated {
                path: path.to_path_buf(),
                expected: header.file_bytes,
                got,
            });
        }
        Ok(Self { path: path.to_path_buf(), file, map: OnceLock::new(), header })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.header.entries.keys().map(String::as_str)
    }

    pub(crate) fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.header.entries.get(name)
    }

    /// The tensor that a byte of the file belongs to.
    pub(crate) fn tensor_at(&self, byte: u64) -> Option<String> {
        let holds = |e: &Entry| e.begin <= byte && byte < e.end;
        self.header.entries.iter().find(|(_, e)| holds(e)).map(|(n, _)| n.clone())
    }

    pub(crate) fn dtype(&self, name: &str, entry: &Entry) -> Result<Dtype, WeightFileError> {
        header::dtype_of(&entry.dtype).ok_or_else(|| WeightFileError::UnknownDtype {
            path: self.path.clone(),
            tensor: name.to_owned(),
            dtype: entry.dtype.clone(),
        })
    }

    /// Fills `out` with the tensor's bytes from `offset` on, without mapping the file.
    pub(crate) fn read_bytes(
        &self,
        entry: &Entry,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), WeightFileError> {
        debug_assert!(entry.begin + offset + out.len() as u64 <= entry.end);
        read_at(&self.file, out, entry.begin + offset)
            .map_err(|e| WeightFileError::reading("read", &self.path, e))
    }

    /// Reads the runs one after the other into `out`.
    pub(crate) fn read_runs(
        &self,
        entry: &Entry,
        runs: &Runs,
        out: &mut [u8],
    ) -> Result<(), WeightFileError> {
        /// Below this run length a system call per run costs more than copying out of the map.
        const SHORT_RUN: usize = 16 << 10;
        if runs.bytes == 0 {
            return Ok(());
        }
        if runs.count > 1 && runs.bytes < SHORT_RUN {
            let bytes = self.mapped(entry)?;
            for (to, from) in out.chunks_exact_mut(runs.bytes).zip(runs.offsets()) {
                to.copy_from_slice(&bytes[from as usize..from as usize + runs.bytes]);
            }
            return Ok(());
        }
        for (to, from) in out.chunks_exact_mut(runs.bytes).zip(runs.offsets()) {
            self.read_bytes(entry, from, to)?;
        }
        Ok(())
    }

    /// The tensor's bytes in the mapped file; nothing is copied.
    pub(crate) fn mapped(&self, entry: &Entry) -> Result<&[u8], WeightFileError> {
        let range: Range<usize> = entry.begin as usize..entry.end as usize;
        if let Some(map) = self.map.get() {
            return Ok(&map[range]);
        }
        // SAFETY: the map is read-only and private to this process. As with every mapped file, another process that
        // truncates it while it is read would raise SIGBUS; weight files are replaced by rename, never in place
        // (`FolderWriter`), which leaves this open file as it was.
        let map =
            unsafe { Mmap::map(&self.file) }.map_err(|e| WeightFileError::reading("map", &self.path, e))?;
        Ok(&self.map.get_or_init(|| map)[range])
    }
}

/// Fills `out` with a file's bytes from `offset` on.
///
/// # Errors
/// As the operating system reports; a file that ends before is [`io::ErrorKind::UnexpectedEof`].
#[cfg(unix)]
pub fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

/// Fills `out` with a file's bytes from `offset` on.
///
/// # Errors
/// As the operating system reports; a file that ends before is [`io::ErrorKind::UnexpectedEof`].
#[cfg(windows)]
pub fn read_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt as _;
    while !out.is_empty() {
        let n = file.seek_read(out, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[n..];
        offset += n as u64;
    }
    Ok(())
}
