//! Resuming: a checkpoint is opened whole or refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::Dtype;
use burnish_weight_files::{HostTensor, TensorInfo, WeightFileError, WeightFolder, nearest};
use serde_json::Value;

use crate::index::{self, Entry, Fault, Index, rows_of, sum};
use crate::{CheckpointError, Damage, TrainerState};

/// What an error calls the slot of a tensor that is in the model's file.
const WEIGHTS: &str = "weights";

/// A complete checkpoint: every file that was written is there in its full length. Checksums are compared as parts
/// are read, or all at once by [`verify`](Self::verify).
///
/// Ranks open the same checkpoint and read [their rows](Self::read_rows_as) each: a read takes the bytes asked for, and
/// at each end at most the rest of a leaf of 256 KiB, which is what a checksum is of.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) index: Index,
    /// Files that have been opened.
    pub(crate) opened: Mutex<BTreeMap<String, Arc<File>>>,
    /// Folders and files of tensors whose headers have been read; the folder itself is `""`.
    pub(crate) weights: Mutex<BTreeMap<String, Arc<WeightFolder>>>,
    pub(crate) bytes_read: AtomicU64,
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
        let text = match burnish_core::file::read(path.join(index::FILE)) {
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
                return Err(
                    WeightFileError::Io { action: "read", path: path.join(index::FILE), source }.into()
                );
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
        Ok(Self {
            path: path.to_path_buf(),
            index,
            opened: Mutex::default(),
            weights: Mutex::default(),
            bytes_read: AtomicU64::new(text.len() as u64),
        })
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

    /// The run that wrote it, where that was said.
    #[must_use]
    pub fn run(&self) -> Option<&str> {
        self.index.run.as_deref()
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
        let Some(written) = self.index.files.get(name) else {
            let error = CheckpointError::damaged(&self.path, Damage::Missing { file: name.to_owned() });
            return Err(Self::suggesting(&self.path, error));
        };
        let read = || match &written.blake3 {
            None => self.checked(name, written, 0..written.bytes),
            Some(expected) => {
                let bytes = self.bytes_of(name, 0..written.bytes)?;
                let got = sum(&bytes);
                if got != *expected {
                    return Err(self.wrong_sum(name, "the file", expected, got));
                }
                Ok(bytes)
            }
        };
        read().map_err(|e| Self::suggesting(&self.path, e))
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
        let rows = rows_of(shape);
        self.read_rows_as(name, slot, dtype, shape, 0..rows)
    }

    /// Rows (along dim 0; a scalar is one row) of a logical tensor, for a run that declares this dtype and global shape.
    ///
    /// # Errors
    /// As [`read_as`](Self::read_as), or if the rows are outside.
    pub fn read_rows_as(
        &self,
        name: &str,
        slot: &str,
        dtype: Dtype,
        shape: &[usize],
        rows: Range<usize>,
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
        self.read_range(name, slot, rows)
    }

    /// Rows (along dim 0) of a logical tensor; only the leaves that hold them are read.
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
                let at = |row: usize| (row - chunk.rows[0]) * row_bytes;
                match chunk.start {
                    Some(first) => {
                        let range = first + at(start) as u64..first + at(end) as u64;
                        out.extend_from_slice(&self.part_of(&chunk.file, range)?);
                    }
                    None => {
                        let block = self.block(chunk, at(chunk.rows[1]))?;
                        out.extend_from_slice(&block[at(start)..at(end)]);
                    }
                }
            }
        }
        Ok(HostTensor::new(entry.dtype, &shape_of_rows(&entry.shape, &rows), out)?)
    }

    /// A file of tensors, or the folder of weights (`""`), opened once.
    pub(crate) fn tensors(&self, name: &str) -> Result<Arc<WeightFolder>, WeightFileError> {
        let mut opened = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = opened.get(name) {
            return Ok(file.clone());
        }
        let file = Arc::new(WeightFolder::open(self.path.join(name))?);
        opened.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    /// The model's or adapter's weights, as Transformers and PEFT see them.
    ///
    /// # Errors
    /// If there are none, or their headers are damaged.
    pub fn weights(&self) -> Result<Arc<WeightFolder>, CheckpointError> {
        Ok(self.tensors("")?)
    }

    /// Rows (along dim 0; a scalar is one row) of a tensor of the model's or adapter's file, in the file's dtype; only the
    /// leaves that hold them are read, and checked. `shape` is what the run declares.
    ///
    /// # Errors
    /// If there is no such tensor, it has another shape, the rows are outside, or its bytes are not what was written.
    pub fn weight_rows(
        &self,
        name: &str,
        shape: &[usize],
        rows: Range<usize>,
    ) -> Result<HostTensor, CheckpointError> {
        let weights = self.weights()?;
        let info = weights.info(name)?;
        if info.shape != shape {
            return Err(CheckpointError::WrongEntry {
                name: name.into(),
                slot: WEIGHTS.into(),
                dtype: info.dtype,
                expected: shape.to_vec(),
                got_dtype: info.dtype,
                got: info.shape,
            });
        }
        if rows.start > rows.end || rows.end > rows_of(shape) {
            let (slot, shape) = (WEIGHTS.into(), info.shape);
            return Err(CheckpointError::BadRows { name: name.into(), slot, rows, shape });
        }
        let (path, place) = weights.place_of(name)?;
        let row_bytes = (shape.iter().skip(1).product::<usize>() * info.dtype.bytes()) as u64;
        let range = place.start + rows.start as u64 * row_bytes..place.start + rows.end as u64 * row_bytes;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = match self.index.files.get(&*file) {
            Some(written) if written.blake3.is_none() => self.part_of(&file, range)?,
            // Version 1 knows the sum of the whole file alone.
            _ => self.bytes_of(&file, range).map_err(|e| Self::suggesting(&self.path, e))?,
        };
        Ok(HostTensor::new(info.dtype, &shape_of_rows(shape, &rows), bytes)?)
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

/// The shape of rows of a tensor; no rows of a scalar are an empty vector.
fn shape_of_rows(shape: &[usize], rows: &Range<usize>) -> Vec<usize> {
    let mut shape = shape.to_vec();
    match shape.first_mut() {
        Some(first) => *first = rows.len(),
        None if rows.is_empty() => shape.push(0),
        None => {}
    }
    shape
}
