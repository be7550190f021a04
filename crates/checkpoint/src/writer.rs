//! Saving: everything into one folder, by one rank or by many, which appears by one rename.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burnish_core::Dtype;
use burnish_weight_files::{Disk, Filesystem, FolderWriter, Placement, Share, TensorView};
use serde_json::Value;

use crate::index::{self, Chunk, Entries, Entry, Part, rows_of};
use crate::{CheckpointError, TrainerState, Written};

/// Tensors are cut into row blocks of at most this many bytes; a data file is about as long.
const BLOCK: usize = 64 << 20;

/// Writes `checkpoint-{step}` of an output folder. Nothing is visible before [`commit`](Self::commit).
///
/// ```
/// use burnish_checkpoint::{Checkpoint, CheckpointWriter, TrainerState};
/// use burnish_weight_files::HostTensor;
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
///
/// # Several ranks
///
/// Ranks (threads or processes that share a file system) each have a writer of the same [`Attempt`](crate::Attempt) and
/// make the same calls: each saves *its* [`rows`](Self::rows) and [model rows](FolderWriter::tensor_rows); what is the same
/// on all ranks ([`slots`](Self::slots), [`file`](Self::file), [`trainer_state`](Self::trainer_state), whole tensor files)
/// the lead writes, and the other ranks' calls do nothing. Each rank then calls [`finish`](Self::finish) (the writer may
/// have moved to a thread: see [`Saving`](crate::Saving)). When all have, the lead's [`Written::commit`] makes the
/// checkpoint visible. Barriers of the caller's lie between the lead's [`shared`](Self::shared) and the others', and
/// between the last `finish` and the lead's commit. If a rank fails, there is no checkpoint.
///
/// ```
/// use burnish_checkpoint::{Attempt, Checkpoint, CheckpointWriter, Share, TrainerState};
/// use burnish_weight_files::HostTensor;
/// # let dir = tempfile::tempdir().unwrap();
/// let attempt = Attempt::fresh(); // of rank 0, which tells the others
/// let mut written = Vec::new();
/// for rank in 0..2 {
///     let mut writer = CheckpointWriter::shared(dir.path(), 7, Share { attempt, rank, ranks: 2 }).unwrap();
///     let mine = HostTensor::from_slice(&[rank as f32], &[1]).unwrap();
///     writer.rows("bias", "exp_avg", &[2], rank..rank + 1, mine.view()).unwrap();
///     writer.trainer_state(&TrainerState { global_step: 7, ..Default::default() }).unwrap();
///     written.push(writer.finish().unwrap());
/// }
/// let path = written.remove(0).commit().unwrap();
/// assert_eq!(Checkpoint::open(path).unwrap().read("bias", "exp_avg").unwrap().to_f32(), [0.0, 1.0]);
/// ```
#[derive(Debug)]
pub struct CheckpointWriter {
    folder: FolderWriter,
    step: u64,
    slots: Value,
    run: Option<String>,
    entries: Entries,
    /// Blocks that wait for their file to be worth one.
    pending: Vec<Block>,
    pending_bytes: usize,
    data_files: usize,
    has_state: bool,
}

/// Rows on their way to a data file.
#[derive(Debug)]
struct Block {
    name: String,
    slot: String,
    key: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl CheckpointWriter {
    /// Starts `checkpoint-{step}`; one of that name gives way at the commit.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn new(output_dir: impl AsRef<Path>, step: u64) -> Result<Self, CheckpointError> {
        Self::shared(output_dir, step, Share::alone())
    }

    /// As [`new`](Self::new), on another file system.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn new_on(
        disk: Arc<dyn Filesystem>,
        output_dir: impl AsRef<Path>,
        step: u64,
    ) -> Result<Self, CheckpointError> {
        Self::shared_on(disk, output_dir, step, Share::alone())
    }

    /// Starts one rank's part of `checkpoint-{step}`. The lead creates the unfinished folder: the other ranks come after a
    /// barrier.
    ///
    /// # Errors
    /// If the folder cannot be written, or, on another rank than the lead, was not begun.
    pub fn shared(output_dir: impl AsRef<Path>, step: u64, share: Share) -> Result<Self, CheckpointError> {
        Self::shared_on(Arc::new(Disk), output_dir, step, share)
    }

    /// As [`shared`](Self::shared), on another file system.
    ///
    /// # Errors
    /// Those of [`shared`](Self::shared).
    pub fn shared_on(
        disk: Arc<dyn Filesystem>,
        output_dir: impl AsRef<Path>,
        step: u64,
        share: Share,
    ) -> Result<Self, CheckpointError> {
        let target = path_of(output_dir.as_ref(), step);
        let folder = FolderWriter::shared_on(disk, target, Placement::Replacing, share)?.summed();
        Ok(Self {
            folder,
            step,
            slots: Value::Null,
            run: None,
            entries: Entries::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            data_files: 0,
            has_state: false,
        })
    }

    /// The optimizer's slot schema (names, dtypes, hyper-parameters): stored as it is, given back by
    /// [`Checkpoint::slots`](crate::Checkpoint::slots).
    pub fn slots(&mut self, schema: Value) {
        self.slots = schema;
    }

    /// Which run writes it: a name that no other run has, and that a run which goes on from it keeps. Given back by
    /// [`Checkpoint::run`](crate::Checkpoint::run).
    pub fn run(&mut self, name: &str) {
        self.run = Some(name.to_owned());
    }

    /// Saves a whole logical tensor; with several ranks, from one of them.
    ///
    /// # Errors
    /// If it was given before, or the disk refuses.
    pub fn tensor(&mut self, name: &str, slot: &str, tensor: TensorView<'_>) -> Result<(), CheckpointError> {
        self.rows(name, slot, tensor.shape, 0..rows_of(tensor.shape), tensor)
    }

    /// Saves rows (along dim 0; a scalar is one row) of a logical tensor of `shape`. Pieces may come in any order and from
    /// any rank; before the commit they must make up the whole. A rank without rows may say so with an empty piece.
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
        let slots = self.entries.entry(name.to_owned()).or_default();
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
        if rows.is_empty() {
            return Ok(());
        }
        if entry.chunks.iter().any(|c| c.rows[0] < rows.end && rows.start < c.rows[1]) {
            return Err(fault("rows given twice", rows.start));
        }
        let per_block = (BLOCK / row_bytes.max(1)).max(1);
        for start in rows.clone().step_by(per_block) {
            let end = (start + per_block).min(rows.end);
            let bytes = &piece.bytes[(start - rows.start) * row_bytes..(end - rows.start) * row_bytes];
            let whole = start == 0 && end == total;
            let key = if whole { format!("{name}/{slot}") } else { format!("{name}/{slot}@{start}") };
            let file = self.data_file();
            let chunk = Chunk { rows: [start, end], file, key: key.clone(), start: None, blake3: None };
            let mut shape = shape.to_vec();
            if let Some(first) = shape.first_mut() {
                *first = end - start;
            }
            if let Some(entry) = self.entries.get_mut(name).and_then(|s| s.get_mut(slot)) {
                entry.chunks.push(chunk);
            }
            self.pending.push(Block {
                name: name.into(),
                slot: slot.into(),
                key,
                dtype: piece.dtype,
                shape,
                bytes: bytes.to_vec(),
            });
            self.pending_bytes += bytes.len();
            if self.pending_bytes >= BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// The data file that is being filled.
    fn data_file(&self) -> String {
        format!("state/data-{:05}-{:05}.safetensors", self.folder.share().rank, self.data_files)
    }

    /// Writes the blocks that wait into the next data file.
    fn flush(&mut self) -> Result<(), CheckpointError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let file = self.data_file();
        let stem = file.strip_suffix(".safetensors").unwrap_or(&file);
        let views: Vec<(String, TensorView<'_>)> = self
            .pending
            .iter()
            .map(|b| (b.key.clone(), TensorView { dtype: b.dtype, shape: &b.shape, bytes: &b.bytes }))
            .collect();
        let places = self.folder.own_tensors(stem, &views)?;
        drop(views);
        for Block { name, slot, key, .. } in self.pending.drain(..) {
            let entry = self.entries.get_mut(&name).and_then(|s| s.get_mut(&slot));
            let chunk = entry.and_then(|e| e.chunks.iter_mut().find(|c| c.key == key));
            if let Some(chunk) = chunk {
                chunk.start = places.get(&key).copied();
            }
        }
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

    /// The folder itself, for writers of model and adapter files: with several ranks, see
    /// [`FolderWriter::tensor_rows`].
    pub fn folder(&mut self) -> &mut FolderWriter {
        &mut self.folder
    }

    /// Writes `trainer_state.json`.
    ///
    /// # Errors
    /// If its step is not the checkpoint's, or the disk refuses.
    pub fn trainer_state(&mut self, state: &TrainerState) -> Result<(), CheckpointError> {
        if state.global_step != self.step {
            return Err(CheckpointError::WrongStep { step: self.step, got: state.global_step });
        }
        let value = serde_json::to_value(state).expect("invariant: every field serialises to JSON");
        self.folder.json(index::TRAINER_STATE, &value)?;
        self.has_state = true;
        Ok(())
    }

    /// Ends this rank's writing: everything it gave is on the disk. Nothing is visible yet.
    ///
    /// # Errors
    /// If the lead was given no trainer state, or the disk refuses.
    pub fn finish(mut self) -> Result<Written, CheckpointError> {
        if !self.has_state && self.folder.share().leads() {
            return Err(CheckpointError::NoTrainerState { step: self.step });
        }
        self.flush()?;
        let part = Part { step: self.step, entries: self.entries };
        let note = serde_json::to_value(part).expect("invariant: every field serialises to JSON");
        Ok(Written {
            folder: self.folder.finish_with(note)?,
            step: self.step,
            slots: self.slots,
            run: self.run,
        })
    }

    /// Checks that every tensor is whole and makes the checkpoint visible: [`finish`](Self::finish) and
    /// [`Written::commit`] in one, for the only writer.
    ///
    /// # Errors
    /// If a tensor lacks rows, there is no trainer state, or the disk refuses; nothing is visible then.
    pub fn commit(self) -> Result<PathBuf, CheckpointError> {
        self.finish()?.commit()
    }
}

/// The folder of a step.
#[must_use]
pub fn path_of(output_dir: &Path, step: u64) -> PathBuf {
    output_dir.join(format!("checkpoint-{step}"))
}
