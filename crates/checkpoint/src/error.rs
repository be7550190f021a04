//! Errors of checkpoints and their folders.

use std::ops::Range;
use std::path::{Path, PathBuf};

use burnish_core::{Coded, Dtype, ErrorCode};
use burnish_weight_files::WeightFileError;

use crate::LockOwner;

/// Training state that cannot be saved or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    Store(#[from] WeightFileError),
    /// A checkpoint that is not what was written.
    #[error("`{}` cannot be resumed from: {damage}{}", path.display(), suggest(previous))]
    Damaged {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        damage: Box<Damage>,
        /// The newest complete checkpoint beside it.
        previous: Option<PathBuf>,
    },
    /// A (name, slot) that was not saved.
    #[error("`{}` holds no `{slot}` of `{name}`{}", path.display(), nearest_entries(nearest))]
    UnknownEntry {
        /// The checkpoint.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// The slot.
        slot: String,
        /// The most similar entries.
        nearest: Vec<String>,
    },
    /// State that does not fit the run.
    #[error(
        "`{slot}` of `{name}` is {got_dtype} {got:?}, this run needs {dtype} {expected:?}; resume with the model and optimizer that saved it"
    )]
    WrongEntry {
        /// The parameter.
        name: String,
        /// The slot.
        slot: String,
        /// The dtype that the optimizer declares.
        dtype: Dtype,
        /// The shape that the registry declares.
        expected: Vec<usize>,
        /// The saved dtype.
        got_dtype: Dtype,
        /// The saved shape.
        got: Vec<usize>,
    },
    /// Rows outside the tensor.
    #[error("rows {}..{} of `{slot}` of `{name}` are outside its shape {shape:?}", rows.start, rows.end)]
    BadRows {
        /// The parameter.
        name: String,
        /// The slot.
        slot: String,
        /// The rows.
        rows: Range<usize>,
        /// The global shape.
        shape: Vec<usize>,
    },
    /// Rows that were never given, or given twice, or with another dtype or shape than before.
    #[error(
        "`{slot}` of `{name}` was given in pieces that do not make up its shape {shape:?}: {fault} at row {row}"
    )]
    Pieces {
        /// The parameter.
        name: String,
        /// The slot.
        slot: String,
        /// The global shape.
        shape: Vec<usize>,
        /// What is wrong.
        fault: &'static str,
        /// Where.
        row: usize,
    },
    /// Ranks that save different steps, or parts that cannot be read.
    #[error(
        "rank {rank} saved something else than rank 0 ({reason}); nothing was replaced: all ranks save the same step of the same run"
    )]
    OtherPart {
        /// The rank.
        rank: usize,
        /// How it differs.
        reason: String,
    },
    /// A save in the background that panicked.
    #[error("saving step {step} in the background panicked: {reason}; no checkpoint of that step was made")]
    SavingPanicked {
        /// The step.
        step: u64,
        /// The panic's words.
        reason: String,
    },
    /// A save in the background that could not begin.
    #[error(
        "no thread to save step {step} in the background: {source}; raise the limit on threads or save in the foreground"
    )]
    NoThread {
        /// The step.
        step: u64,
        /// The system's words.
        source: std::io::Error,
    },
    /// A commit without `trainer_state.json`.
    #[error("checkpoint at step {step} has no trainer state; give one before committing")]
    NoTrainerState {
        /// The step.
        step: u64,
    },
    /// A trainer state of another step than the checkpoint's.
    #[error("checkpoint at step {step} was given the trainer state of step {got}")]
    WrongStep {
        /// The checkpoint's step.
        step: u64,
        /// `global_step` of the state.
        got: u64,
    },
    /// An output folder that belongs to something else.
    #[error("`{}` holds files that are not of a training run ({}); choose an empty folder, or pass --overwrite_output_dir to write among them", path.display(), files.join(", "))]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Some of the files.
        files: Vec<String>,
    },
    /// An output folder that another run is writing.
    #[error("`{}` is in use by {}; wait for it, stop it, or choose another output_dir", path.display(), owner.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string))]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who writes, where the file of the lock can be read.
        owner: Option<LockOwner>,
    },
    /// An input that lies in a checkpoint of an earlier run.
    #[error("`{}` holds checkpoints of another run, and the input `{}` is in one of them, so that they cannot be set aside; choose another output_dir", path.display(), input.display())]
    InputWouldMove {
        /// The output folder.
        path: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// Checkpoints of several runs, of which the newest may be of any.
    #[error("`{}` holds checkpoints of {} runs ({}), so that the newest is not clear; name the one to go on from", path.display(), runs.len(), runs.join("; "))]
    SeveralRuns {
        /// The output folder.
        path: PathBuf,
        /// Each run's checkpoints.
        runs: Vec<String>,
    },
    /// An output folder that is also an input.
    #[error("output_dir `{}` is also the input `{}`, which would be overwritten; choose another output_dir", path.display(), input.display())]
    OutputIsInput {
        /// The output folder.
        path: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// No checkpoint to resume from.
    #[error("no complete checkpoint in `{}`{}; start without resume_from_checkpoint, or name one", path.display(), skipped_list(skipped))]
    NothingToResume {
        /// The output folder.
        path: PathBuf,
        /// Checkpoints that cannot be used, and why.
        skipped: Vec<(PathBuf, String)>,
    },
}

/// How a checkpoint differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A file is not there.
    #[error("`{file}` is missing")]
    Missing {
        /// The file.
        file: String,
    },
    /// Not written by burnish.
    #[error(
        "another program wrote it (it has `{file}`), whose optimizer state is not read: start from its weights with --model_name_or_path or --adapter_name_or_path instead"
    )]
    NotOurs {
        /// The file that says so.
        file: String,
    },
    /// A file of another length.
    #[error("`{file}` has {got} bytes, expected {expected}")]
    Size {
        /// The file.
        file: String,
        /// Bytes written.
        expected: u64,
        /// Bytes there.
        got: u64,
    },
    /// Other bytes.
    #[error("the checksum of {what} in `{file}` is {got}, expected {expected}")]
    Checksum {
        /// The file.
        file: String,
        /// Which part of it.
        what: String,
        /// BLAKE3 when written (hexadecimal).
        expected: String,
        /// BLAKE3 now.
        got: String,
    },
    /// Another format.
    #[error("its state has format {got}, this burnish reads up to {expected}: use the version that wrote it")]
    Version {
        /// The newest version read.
        expected: u32,
        /// The version found.
        got: u32,
    },
    /// A file that cannot be parsed.
    #[error("`{file}` cannot be parsed ({reason})")]
    Corrupt {
        /// The file.
        file: String,
        /// The parser's words.
        reason: String,
    },
}

impl CheckpointError {
    pub(crate) fn damaged(path: &Path, damage: Damage) -> Self {
        Self::Damaged { path: path.to_path_buf(), damage: Box::new(damage), previous: None }
    }

    /// Fills in the complete checkpoint to fall back to.
    pub(crate) fn with_previous(mut self, found: Option<PathBuf>) -> Self {
        if let Self::Damaged { previous, .. } = &mut self {
            *previous = found;
        }
        self
    }

    /// Whether the checkpoint itself is at fault (not the caller, not the disk).
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

fn suggest(previous: &Option<PathBuf>) -> String {
    previous.as_deref().map_or_else(
        || "; no other complete checkpoint is beside it".into(),
        |p: &Path| format!("; the newest complete checkpoint beside it is `{}`", p.display()),
    )
}

fn nearest_entries(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; nearest: {}", nearest.join(", ")) }
}

fn skipped_list(skipped: &[(PathBuf, String)]) -> String {
    let each: Vec<String> = skipped.iter().map(|(_, reason)| format!("\n  skipped: {reason}")).collect();
    each.concat()
}

impl Coded for CheckpointError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Damaged { .. } => ErrorCode::DamagedCheckpoint,
            Self::UnknownEntry { .. } | Self::WrongEntry { .. } => ErrorCode::CannotResume,
            Self::BadRows { .. }
            | Self::Pieces { .. }
            | Self::NoTrainerState { .. }
            | Self::WrongStep { .. } => ErrorCode::Internal,
            Self::OtherPart { .. } => ErrorCode::RanksDiffer,
            Self::SavingPanicked { .. } | Self::NoThread { .. } => ErrorCode::CannotSave,
            Self::Foreign { .. } | Self::InputWouldMove { .. } | Self::OutputIsInput { .. } => {
                ErrorCode::OutputExists
            }
            Self::InUse { .. } => ErrorCode::OutputInUse,
            Self::SeveralRuns { .. } | Self::NothingToResume { .. } => ErrorCode::NoCheckpoint,
            Self::Store(error) => error.code(),
        }
    }
}

impl Coded for Damage {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. }
            | Self::NotOurs { .. }
            | Self::Size { .. }
            | Self::Checksum { .. }
            | Self::Version { .. }
            | Self::Corrupt { .. } => ErrorCode::DamagedCheckpoint,
        }
    }
}
