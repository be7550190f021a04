//! Resuming: a checkpoint is opened whole or refused.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::Dtype;
use burnish_store::{HostTensor, StoreError, TensorInfo, WeightFolder, nearest};
use serde_json::Value;

use crate::index::{self, Chunk, Entry, Fault, Index, rows_of, sum};
use crate::resume::newest_complete;
use crate::writer::sum_file;
use crate::{CheckpointError, Damage, TrainerState};

/// A complete checkpoint: every file that was written is there in its full length. Checksums are compared as parts
/// are read, or all at once by [`verify`](Self::verify).
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    index: Index,
    /// Data files that have been opened.
    opened: Mutex<BTreeMap<String, Arc<WeightFolder>>>,
}

impl Checkpoint {
    /// Opens a checkpoint folder.
    ///
    /// # Errors
    /// If a file is missing, shorter or longer than written, or of another format version; the message names the file
    /// and the newest complete checkpoint beside it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::open_alone(path.as_ref()).map_err(|e| Self::suggesting(path.as_ref(), e))
    }

    /// As [`open`](Self::open), without looking for another one.
    pub(crate) fn open_alone(path: &Path) -> Result<Self, CheckpointError> {
        let missing = |file: &str| CheckpointError::damaged(path, Damage::Missing { file: file.to_owned() });
        let text = match fs::read(path.join(index::FILE)) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                // Transformers and DeepSpeed leave these.
                let theirs = ["optimizer.pt", "optimizer.bin", "scheduler.pt", "zero_to_fp32.py"];
                return Err(match theirs.into_iter().find(|f| path.join(f).exists()) {
                    Some(file) => CheckpointError::damaged(path, Damage::NotOurs { file: file.to_owned() }),
                    None => missing(index::FILE),
                });
            }
            Err(source) => {
                return Err(StoreError::Io { action: "read", path: path.join(index::FILE), source }.into());
            }
        };
        let damaged = |fault| {
            let file = index::FILE.to_owned();
            let damage = match fault {
                Fault::Parse(reason) => Damage::Corrupt { file, reason },
                Fault::Sum { expected, got } => {
                    Damage::Checksum { file, what: "the index".into(), expected, got }
                }
                Fault::Version(got) => Damage::Version { expected: index::VERSION, got },
            };
            CheckpointError::damaged(path, damage)
        };
        let index = index::unseal(&text).map_err(damaged)?;
        for (file, sum) in &index.files {
            let Ok(metadata) = fs::metadata(path.join(file)) else { return Err(missing(file)) };
            if metadata.len() != sum.bytes {
                let (file, expected, got) = (file.clone(), sum.bytes, metadata.len());
                return Err(CheckpointError::damaged(path, Damage::Size { file, expected, got }));
            }
        }
        Ok(Self { path: path.to_path_buf(), index, opened: Mutex::default() })
    }

    fn suggesting(path: &Path, error: CheckpointError) -> CheckpointError {
        if !error.is_damage() {
            return error;
        }
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        error.with_previous(newest_complete(parent, Some(path)))
    }

    /// Compares the checksum of every file with what was written.
    ///
    /// # Errors
    /// Names the first file that differs and the newest complete checkpoint beside this one.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.verify_alone().map_err(|e| Self::suggesting(&self.path, e))
    }

    pub(crate) fn verify_alone(&self) -> Result<(), CheckpointError> {
        for (file, written) in &self.index.files {
            let now = sum_file(&self.path.join(file))?;
            if now != *written {
                return Err(self.wrong_sum(file, "the file", &written.blake3, now.blake3));
            }
        }
        Ok(())
    }

    fn wrong_sum(&self, file: &str, what: &str, expected: &str, got: String) -> CheckpointError {
        let damage = Damage::Checksum {
            file: file.to_owned(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            got,
        };
        CheckpointError::damaged(&self.path, damage)
    }

    /// The folder, where model and adapter files lie as Transformers and PEFT expect them.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step at which it was taken.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.index.step
    }

    /// The optimizer's slot schema, as it was given.
    #[must_use]
    pub fn slots(&self) -> &Value {
        &self.index.slots
    }

    /// All (parameter name, slot), sorted.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.index.entries.iter().flat_map(|(n, slots)| slots.keys().map(move |s| (n.as_str(), s.as_str())))
    }

    /// Whether there is such an entry.
    #[must_use]
    pub fn contains(&self, name: &str, slot: &str) -> bool {
        self.index.entries.get(name).is_some_and(|s| s.contains_key(slot))
    }

    /// Dtype and global shape of an entry.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn info(&self, name: &str, slot: &str) -> Result<TensorInfo, CheckpointError> {
        let entry = self.entry(name, slot)?;
        Ok(TensorInfo { dtype: entry.dtype, shape: entry.shape.clone() })
    }

    /// The loop's state.
    ///
    /// # Errors
    /// If the file is not what was written.
    pub fn trainer_state(&self) -> Result<TrainerState, CheckpointError> {
        let text = self.file(index::TRAINER_STATE)?;
        serde_json::from_slice(&text).map_err(|e| {
            let damage = Damage::Corrupt { file: index::TRAINER_STATE.into(), reason: e.to_string() };
            Self::suggesting(&self.path, CheckpointError::damaged(&self.path, damage))
        })
    }

    /// The bytes of a file, checked.
    ///
    /// # Errors
    /// If it is not part of the checkpoint, or not what was written.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path.join(name);
        let Some(written) = self.index.files.get(name) else {
            let error = CheckpointError::damaged(&self.path, Damage::Missing { file: name.to_owned() });
            return Err(Self::suggesting(&self.path, error));
        };
        let bytes = fs::read(&path).map_err(|source| StoreError::Io { action: "read", path, source })?;
        let got = sum(&bytes);
        if got != written.blake3 {
            let error = self.wrong_sum(name, "the file", &written.blake3, got);
            return Err(Self::suggesting(&self.path, error));
        }
        Ok(bytes)
    }

    /// The names of all files but the index.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.index.files.keys().map(String::as_str)
    }

    /// A whole logical tensor, in its saved dtype.
    ///
    /// # Errors
    /// If there is no such entry, or its bytes are not what was written.
    pub fn read(&self, name: &str, slot: &str) -> Result<HostTensor, CheckpointError> {
        let rows = rows_of(&self.entry(name, slot)?.shape);
        self.read_range(name, slot, 0..rows)
    }

    /// As [`read`](Self::read), for a run that declares this dtype and shape: state is never converted silently.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the saved entry has another dtype or shape.
    pub fn read_as(
        &self,
        name: &str,
        slot: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<HostTensor, CheckpointError> {
        let entry = self.entry(name, slot)?;
        if entry.dtype != dtype || entry.shape != shape {
            return Err(CheckpointError::WrongEntry {
                name: name.into(),
                slot: slot.into(),
                dtype,
                expected: shape.to_vec(),
                got_dtype: entry.dtype,
                got: entry.shape.clone(),
            });
        }
        self.read(name, slot)
    }

    /// Rows (along dim 0) of a logical tensor; only the blocks that hold them are read.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the rows are outside.
    pub fn read_range(
        &self,
        name: &str,
        slot: &str,
        rows: Range<usize>,
    ) -> Result<HostTensor, CheckpointError> {
        let entry = self.entry(name, slot)?;
        if rows.start > rows.end || rows.end > rows_of(&entry.shape) {
            let shape = entry.shape.clone();
            return Err(CheckpointError::BadRows { name: name.into(), slot: slot.into(), rows, shape });
        }
        let row_bytes = entry.shape.iter().skip(1).product::<usize>() * entry.dtype.bytes();
        let mut out = Vec::with_capacity(rows.len() * row_bytes);
        for chunk in &entry.chunks {
            let (start, end) = (rows.start.max(chunk.rows[0]), rows.end.min(chunk.rows[1]));
            if start < end {
                let block = self.block(chunk, (chunk.rows[1] - chunk.rows[0]) * row_bytes)?;
                let at = |row: usize| (row - chunk.rows[0]) * row_bytes;
                out.extend_from_slice(&block[at(start)..at(end)]);
            }
        }
        let mut shape = entry.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        Ok(HostTensor::new(entry.dtype, &shape, out)?)
    }

    fn block(&self, chunk: &Chunk, bytes: usize) -> Result<Vec<u8>, CheckpointError> {
        let checked = || {
            let torn = |e: StoreError| {
                let damage = Damage::Corrupt { file: chunk.file.clone(), reason: e.to_string() };
                CheckpointError::damaged(&self.path, damage)
            };
            let file = self.data_file(&chunk.file).map_err(torn)?;
            let block = file.read(&chunk.key).map_err(torn)?.bytes;
            let got = sum(&block);
            if got != chunk.blake3 || block.len() != bytes {
                let what = format!("`{}`", chunk.key);
                return Err(self.wrong_sum(&chunk.file, &what, &chunk.blake3, got));
            }
            Ok(block)
        };
        checked().map_err(|e| Self::suggesting(&self.path, e))
    }

    /// A data file, opened once.
    fn data_file(&self, name: &str) -> Result<Arc<WeightFolder>, StoreError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = opened.get(name) {
            return Ok(file.clone());
        }
        let file = Arc::new(WeightFolder::open(self.path.join(name))?);
        opened.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn entry(&self, name: &str, slot: &str) -> Result<&Entry, CheckpointError> {
        self.index.entries.get(name).and_then(|s| s.get(slot)).ok_or_else(|| {
            let all: Vec<String> = self.entries().map(|(n, s)| format!("{n}/{s}")).collect();
            CheckpointError::UnknownEntry {
                path: self.path.clone(),
                name: name.into(),
                slot: slot.into(),
                nearest: nearest(&format!("{name}/{slot}"), all.iter().map(String::as_str), 3),
            }
        })
    }
}
