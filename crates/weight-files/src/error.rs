//! Errors of weight files.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burnish_core::{Coded, Dtype, ErrorCode};

/// A tensor file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightFileError {
    /// The folder or file is not there.
    #[error("`{}` does not exist; expected a folder with safetensors weights or a .safetensors file", path.display())]
    Missing {
        /// What was asked for.
        path: PathBuf,
    },
    /// A folder without weights that can be read.
    #[error("no weights in `{}`: looked for {}{}", path.display(), looked_for.join(", "), other_formats(found_other))]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// The file names that would have been read.
        looked_for: Vec<String>,
        /// Weights in other formats that are there.
        found_other: Vec<String>,
    },
    /// A file shorter (or longer) than its header says.
    #[error("`{}` is damaged: its header describes {expected} bytes, the file has {got}; copy or download it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that the header accounts for, header included.
        expected: u64,
        /// Bytes in the file.
        got: u64,
    },
    /// A header that is not one.
    #[error("`{}` has no valid safetensors header: {fault}; copy or download it again", path.display())]
    CorruptHeader {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// An index that is not one.
    #[error("`{}` is not a safetensors index (an object with a `weight_map` from tensor names to files): {reason}", path.display())]
    CorruptIndex {
        /// The index file.
        path: PathBuf,
        /// The parser's words.
        reason: String,
    },
    /// An index that names a file which is not there.
    #[error("`{}` names the shard `{shard}`, which is not in the folder; copy or download it too", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The file it names.
        shard: String,
    },
    /// An index that names a file outside of its folder.
    #[error("`{}` names the shard `{shard}`, which is outside of its folder; a shard's name is plain, such as model-00001-of-00002.safetensors", index.display())]
    ShardElsewhere {
        /// The index file.
        index: PathBuf,
        /// The file it names.
        shard: String,
    },
    /// An index that places a tensor in a shard that does not hold it.
    #[error("`{}` places `{tensor}` in `{shard}`, which does not hold it; index and shards are of different models", index.display())]
    MissingInShard {
        /// The index file.
        index: PathBuf,
        /// The file it names.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// An element type that burnish does not read.
    #[error("tensor `{tensor}` in `{}` has dtype {dtype}; expected F64, F32, BF16, F16, I64, I32 or U8", path.display())]
    UnknownDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dtype as written.
        dtype: String,
    },
    /// A name that is not in the file.
    #[error("no tensor `{name}` in `{}`{}", path.display(), nearest_names(nearest))]
    UnknownTensor {
        /// The file or folder.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// The most similar names.
        nearest: Vec<String>,
    },
    /// Scales that are not as many as a matrix has blocks.
    #[error(
        "`{tensor}` is {got:?}, expected {expected:?}: a scale for each block of its matrix (weight_block_size, block_structure); the files and config.json are of different models"
    )]
    BlockScales {
        /// The scales.
        tensor: String,
        /// Their shape.
        got: Vec<usize>,
        /// That of the blocks.
        expected: Vec<usize>,
    },
    /// A slice outside the tensor.
    #[error("slice {}..{} of dim {dim} is outside `{name}` of shape {shape:?}", range.start, range.end)]
    BadSlice {
        /// The tensor.
        name: String,
        /// The dim.
        dim: usize,
        /// The range asked for.
        range: Range<usize>,
        /// The tensor's shape.
        shape: Vec<usize>,
    },
    /// Bytes that do not fill a shape.
    #[error("{dtype} tensor of shape {shape:?} takes {expected} bytes, got {got}")]
    WrongLength {
        /// The element type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes of that shape.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Elements asked for as another type.
    #[error("tensor holds {got} elements, asked for {asked}; cast it first")]
    WrongDtype {
        /// The type asked for.
        asked: Dtype,
        /// The stored type.
        got: Dtype,
    },
    /// Two tensors or files of one name in one folder.
    #[error("`{name}` would be written twice into `{}`", path.display())]
    Duplicate {
        /// The folder.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A file name that would leave the folder.
    #[error("`{name}` is not a plain relative file name; files are written inside `{}` only", path.display())]
    BadFileName {
        /// The folder.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A folder that must be new is not.
    #[error("`{}` already exists and is not empty; remove it or choose another name", path.display())]
    TargetExists {
        /// The folder.
        path: PathBuf,
    },
    /// An unfinished folder that is not there (any more).
    #[error("the unfinished folder of `{}` is gone: the lead rank gave up (see its error), or another program removed it; nothing was replaced", path.display())]
    Abandoned {
        /// The folder that was to be written.
        path: PathBuf,
    },
    /// Another run wrote the same folder meanwhile.
    #[error("`{}` was written by another run while this one was writing it; nothing was replaced: give each run its own output folder", path.display())]
    Overtaken {
        /// The folder.
        path: PathBuf,
    },
    /// A rank that did not finish its part.
    #[error("rank {rank} of {ranks} did not finish writing `{}` ({reason}); nothing was replaced: see that rank's error", path.display())]
    MissingPart {
        /// The folder.
        path: PathBuf,
        /// The rank.
        rank: usize,
        /// How many write.
        ranks: usize,
        /// What was found instead.
        reason: String,
    },
    /// Ranks that disagree on what a file consists of.
    #[error(
        "ranks {rank} and {other} lay out `{file}` differently; nothing was replaced: give all ranks the same tensors, shapes, dtypes and shard size"
    )]
    Layout {
        /// The file.
        file: String,
        /// One rank.
        rank: usize,
        /// Another.
        other: usize,
    },
    /// Rows of a file that no rank wrote, or two did.
    #[error(
        "`{file}` was written in pieces that do not make it up: byte {byte}{} was written by {writers}; nothing was replaced: each row is for exactly one rank",
        of_tensor(tensor)
    )]
    Pieces {
        /// The file.
        file: String,
        /// Where.
        byte: u64,
        /// The tensor that lies there.
        tensor: Option<String>,
        /// Who wrote it.
        writers: &'static str,
    },
    /// The disk (or a quota) is full.
    #[error("no space left for `{}` ({bytes} bytes); nothing was replaced: free space on that disk or choose another output folder", path.display())]
    DiskFull {
        /// The file that did not fit.
        path: PathBuf,
        /// The bytes it needs.
        bytes: u64,
    },
    /// A file longer than this process may write.
    #[error("`{}` ({bytes} bytes) is longer than the limit on the length of files; nothing was replaced: raise `ulimit -f`, or write to another file system", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The bytes it needs.
        bytes: u64,
    },
    /// A place where writing is not allowed.
    #[error("`{}` cannot be written: {source}; change its permissions or choose another output folder", path.display())]
    NotWritable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file where a folder is needed.
    #[error("`{}` is not a directory; choose another output folder", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Any other refusal of the operating system.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

/// What is wrong with a safetensors header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// Fewer than the eight bytes of its length.
    #[error("the file has {got} bytes, a header starts with 8")]
    TooShort {
        /// Bytes in the file.
        got: u64,
    },
    /// A length that cannot be.
    #[error("its length field says {length} bytes, the file has {got} (an HTML page or a Git LFS pointer?)")]
    Length {
        /// The length field.
        length: u64,
        /// Bytes in the file.
        got: u64,
    },
    /// Not a JSON object of tensors.
    #[error("it is not JSON of the expected form ({0})")]
    Json(String),
    /// Data offsets that overlap, leave holes or run backwards.
    #[error("data of `{tensor}` is at bytes {begin}..{end}, expected to start at {expected}")]
    Offsets {
        /// The tensor.
        tensor: String,
        /// First byte.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Where the previous tensor ended.
        expected: u64,
    },
    /// Data that does not fill the shape.
    #[error("`{tensor}` ({dtype}, shape {shape:?}) does not take {got} bytes")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dtype as written.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        got: u64,
    },
}

impl WeightFileError {
    /// Wraps a failed write of `bytes` bytes: full disk, no permission, not a folder, anything else.
    pub(crate) fn writing(action: &'static str, path: &Path, bytes: u64, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, bytes },
            io::ErrorKind::FileTooLarge => Self::FileTooLarge { path, bytes },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotWritable { path, source }
            }
            // Creating a folder where there is a file says that it exists.
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Self::NotADirectory { path },
            _ => Self::Io { action, path, source },
        }
    }

    /// Wraps a failed read.
    pub(crate) fn reading(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Io { action, path, source },
        }
    }
}

fn other_formats(found: &[String]) -> String {
    if found.is_empty() {
        return String::new();
    }
    format!(
        "; it holds {}, which burnish does not read: convert to safetensors (Transformers' save_pretrained does)",
        found.join(", ")
    )
}

fn of_tensor(tensor: &Option<String>) -> String {
    tensor.as_ref().map_or_else(String::new, |t| format!(" (of `{t}`)"))
}

fn nearest_names(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; nearest: {}", nearest.join(", ")) }
}

impl Coded for WeightFileError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } => ErrorCode::NotFound,
            Self::NoWeights { .. } => ErrorCode::NotAModel,
            Self::Truncated { .. }
            | Self::CorruptHeader { .. }
            | Self::CorruptIndex { .. }
            | Self::MissingShard { .. }
            | Self::ShardElsewhere { .. }
            | Self::MissingInShard { .. }
            | Self::UnknownTensor { .. }
            | Self::BlockScales { .. } => ErrorCode::DamagedFile,
            Self::UnknownDtype { .. } => ErrorCode::UnsupportedModel,
            Self::BadSlice { .. }
            | Self::WrongLength { .. }
            | Self::WrongDtype { .. }
            | Self::Duplicate { .. }
            | Self::BadFileName { .. }
            | Self::Layout { .. }
            | Self::Pieces { .. } => ErrorCode::Internal,
            Self::TargetExists { .. } => ErrorCode::OutputExists,
            Self::Abandoned { .. } | Self::MissingPart { .. } => ErrorCode::RankFailed,
            Self::Overtaken { .. } => ErrorCode::OutputInUse,
            Self::DiskFull { .. } | Self::FileTooLarge { .. } => ErrorCode::DiskFull,
            Self::NotWritable { .. } | Self::NotADirectory { .. } => ErrorCode::CannotWrite,
            Self::Io { source, .. } => source.code(),
        }
    }
}

impl Coded for HeaderFault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TooShort { .. }
            | Self::Length { .. }
            | Self::Json(..)
            | Self::Offsets { .. }
            | Self::Shape { .. } => ErrorCode::DamagedFile,
        }
    }
}
