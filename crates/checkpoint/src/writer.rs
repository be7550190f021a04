//! Saving: everything into one folder, which appears by one rename.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burnish_core::Dtype;
use burnish_store::{Filesystem, FolderWriter, StoreError, TensorView};
use serde_json::Value;

use crate::index::{self, Chunk, Entry, FileSum, Index, rows_of, sum};
use crate::{CheckpointError, TrainerState};

/// Tensors are cut into row blocks of at most this many bytes, each with its own checksum.
const BLOCK: usize = 64 << 20;

/// Writes `checkpoint-{step}` of an output folder. Nothing is visible before [`commit`](Self::commit).
///
/// ```
/// use burnish_checkpoint::{Checkpoint, CheckpointWriter, TrainerState};
/// use burnish_store::HostTensor;
/// # let dir = tempfile::tempdir().unwrap();
/// let m = HostTensor::from_slice(&[0.1_f32, 0.2], &[2]).unwrap();
/// let mut writer = CheckpointWriter::new(dir.path(), 7).unwrap();
/// writer.tensor("lm_head.weight", "exp_avg", m.view()).unwrap();
/// writer.file("config.json", b"{}").unwrap();
/// writer.trainer_state(&TrainerState { global_step: 7, ..Default::default() }).unwrap();
/// let path = writer.commit().unwrap();
/// assert!(path.ends_with("checkpoint-7"));
/// assert_eq!(Checkpoint::open(path).unwrap().read("lm_head.weight", "exp_avg").unwrap(), m);
/// ```
#[derive(Debug)]
pub struct CheckpointWriter {
    folder: FolderWriter,
    index: Index,
    /// Blocks that wait for their file to be worth one.
    pending: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    pending_bytes: usize,
    data_files: usize,
    has_state: bool,
}

impl CheckpointWriter {
    /// Starts `checkpoint-{step}`; one of that name gives way at the commit.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn new(output_dir: impl AsRef<Path>, step: u64) -> Result<Self, CheckpointError> {
        Self::start(FolderWriter::replacing(path_of(output_dir.as_ref(), step))?, step)
    }

    /// As [`new`](Self::new), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn new_on(
        disk: Arc<dyn Filesystem>,
        output_dir: impl AsRef<Path>,
        step: u64,
    ) -> Result<Self, CheckpointError> {
        Self::start(FolderWriter::folder_on(disk, path_of(output_dir.as_ref(), step), true)?, step)
    }

    fn start(folder: FolderWriter, step: u64) -> Result<Self, CheckpointError> {
        let index = Index { version: index::VERSION, step, ..Index::default() };
        Ok(Self { folder, index, pending: Vec::new(), pending_bytes: 0, data_files: 0, has_state: false })
    }

    /// The optimizer's slot schema (names, dtypes, hyper-parameters): stored as it is, given back by
    /// [`Checkpoint::slots`](crate::Checkpoint::slots).
    pub fn slots(&mut self, schema: Value) {
        self.index.slots = schema;
    }

    /// Saves a whole logical tensor.
    ///
    /// # Errors
    /// If it was given before, or the disk refuses.
    pub fn tensor(&mut self, name: &str, slot: &str, tensor: TensorView<'_>) -> Result<(), CheckpointError> {
        self.rows(name, slot, tensor.shape, 0..rows_of(tensor.shape), tensor)
    }

    /// Saves rows (along dim 0) of a logical tensor of `shape`. Pieces may come in any order; before the commit they
    /// must make up the whole.
    ///
    /// # Errors
    /// If the rows are outside, were given before, or come with another dtype or shape; or the disk refuses.
    pub fn rows(
        &mut self,
        name: &str,
        slot: &str,
        shape: &[usize],
        rows: Range<usize>,
        piece: TensorView<'_>,
    ) -> Result<(), CheckpointError> {
        let total = rows_of(shape);
        let row_bytes = shape.iter().skip(1).product::<usize>() * piece.dtype.bytes();
        let fits = rows.start <= rows.end && rows.end <= total && rows.len() * row_bytes == piece.bytes.len();
        if !fits {
            return Err(CheckpointError::BadRows {
                name: name.into(),
                slot: slot.into(),
                rows,
                shape: shape.to_vec(),
            });
        }
        let slots = self.index.entries.entry(name.to_owned()).or_default();
        let entry = slots.entry(slot.to_owned()).or_insert_with(|| Entry {
            dtype: piece.dtype,
            shape: shape.to_vec(),
            chunks: Vec::new(),
        });
        let fault = |fault, row| CheckpointError::Pieces {
            name: name.into(),
            slot: slot.into(),
            shape: shape.to_vec(),
            fault,
            row,
        };
        if entry.dtype != piece.dtype || entry.shape != shape {
            return Err(fault("another dtype or shape than an earlier piece's", rows.start));
        }
        let overlaps =
            |c: &Chunk| c.rows[0] < rows.end && rows.start < c.rows[1] || (rows == (c.rows[0]..c.rows[1]));
        if entry.chunks.iter().any(overlaps) {
            return Err(fault("rows given twice", rows.start));
        }
        // At least one block, so that empty tensors exist too.
        let per_block = (BLOCK / row_bytes.max(1)).max(1);
        let mut start = rows.start;
        loop {
            let end = (start + per_block).min(rows.end);
            let bytes = &piece.bytes[(start - rows.start) * row_bytes..(end - rows.start) * row_bytes];
            let whole = start == 0 && end == total;
            let key = if whole { format!("{name}/{slot}") } else { format!("{name}/{slot}@{start}") };
            let file = data_file(self.data_files);
            let chunk = Chunk { rows: [start, end], file, key: key.clone(), blake3: sum(bytes) };
            let mut block_shape = shape.to_vec();
            if let Some(first) = block_shape.first_mut() {
                *first = end - start;
            }
            if let Some(entry) = self.index.entries.get_mut(name).and_then(|s| s.get_mut(slot)) {
                entry.chunks.push(chunk);
            }
            self.pending.push((key, piece.dtype, block_shape, bytes.to_vec()));
            self.pending_bytes += bytes.len();
            if self.pending_bytes >= BLOCK {
                self.flush()?;
            }
            start = end;
            if start >= rows.end {
                return Ok(());
            }
        }
    }

    /// Writes the blocks that wait into the next data file.
    fn flush(&mut self) -> Result<(), CheckpointError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let file = data_file(self.data_files);
        let stem = file.strip_suffix(".safetensors").unwrap_or(&file).to_owned();
        let views: Vec<(String, TensorView<'_>)> = self
            .pending
            .iter()
            .map(|(key, dtype, shape, bytes)| (key.clone(), TensorView { dtype: *dtype, shape, bytes }))
            .collect();
        self.folder.tensors(&stem, &views)?;
        drop(views);
        self.pending.clear();
        self.pending_bytes = 0;
        self.data_files += 1;
        Ok(())
    }

    /// Writes any other file of the checkpoint.
    ///
    /// # Errors
    /// If it was written before, or the disk refuses.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        Ok(self.folder.file(name, bytes)?)
    }

    /// The folder itself, for writers of model and adapter files.
    pub fn folder(&mut self) -> &mut FolderWriter {
        &mut self.folder
    }

    /// Writes `trainer_state.json`.
    ///
    /// # Errors
    /// If its step is not the checkpoint's, or the disk refuses.
    pub fn trainer_state(&mut self, state: &TrainerState) -> Result<(), CheckpointError> {
        if state.global_step != self.index.step {
            return Err(CheckpointError::WrongStep { step: self.index.step, got: state.global_step });
        }
        let value = serde_json::to_value(state).expect("invariant: every field serialises to JSON");
        self.folder.json(index::TRAINER_STATE, &value)?;
        self.has_state = true;
        Ok(())
    }

    /// Checks that every tensor is whole, sums every file, and makes the checkpoint visible.
    ///
    /// # Errors
    /// If a tensor lacks rows, there is no trainer state, or the disk refuses; nothing is visible then.
    pub fn commit(mut self) -> Result<PathBuf, CheckpointError> {
        if !self.has_state {
            return Err(CheckpointError::NoTrainerState { step: self.index.step });
        }
        self.flush()?;
        for (name, slots) in &mut self.index.entries {
            for (slot, entry) in slots {
                entry.chunks.sort_by_key(|c| c.rows);
                let mut next = 0;
                for chunk in &entry.chunks {
                    if chunk.rows[0] != next {
                        break;
                    }
                    next = chunk.rows[1];
                }
                if next != rows_of(&entry.shape) {
                    return Err(CheckpointError::Pieces {
                        name: name.clone(),
                        slot: slot.clone(),
                        shape: entry.shape.clone(),
                        fault: "rows never given",
                        row: next,
                    });
                }
            }
        }
        let mut files = BTreeMap::new();
        for (name, path) in self.folder.written() {
            files.insert(name.to_owned(), sum_file(&path)?);
        }
        self.index.files = files;
        let text = index::seal(&self.index).expect("invariant: every field serialises to JSON");
        self.folder.file(index::FILE, &text)?;
        Ok(self.folder.commit()?)
    }
}

/// Length and checksum of a file on disk.
pub(crate) fn sum_file(path: &Path) -> Result<FileSum, CheckpointError> {
    let failed = |source| StoreError::Io { action: "read", path: path.to_path_buf(), source };
    let mut hasher = blake3::Hasher::new();
    let mut file = std::fs::File::open(path).map_err(failed)?;
    hasher.update_reader(&mut file).map_err(failed)?;
    Ok(FileSum { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
}

fn data_file(k: usize) -> String {
    format!("state/data-{:05}.safetensors", k + 1)
}

/// The folder of a step.
#[must_use]
pub fn path_of(output_dir: &Path, step: u64) -> PathBuf {
    output_dir.join(format!("checkpoint-{step}"))
}
