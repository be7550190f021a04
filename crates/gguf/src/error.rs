//! Errors of GGUF files.

use std::path::{Path, PathBuf};

use burnish_core::{Coded, ErrorCode, UnknownWord};
use burnish_weight_files::WeightFileError;

/// A GGUF file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// A file that cannot be opened or mapped.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A file that is something else, or damaged.
    #[error("`{}` is no GGUF file that can be read: {fault}; copy or download it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A tensor that is not there.
    #[error("no tensor `{name}` in `{}`", path.display())]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A type whose values are not computed here.
    #[error(
        "tensor `{name}` is stored as {got}; expected F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K or Q6_K"
    )]
    NotDecoded {
        /// The tensor.
        name: String,
        /// How it is stored.
        got: &'static str,
    },
    /// A number that blocks cannot hold.
    #[error("tensor `{name}` has {value} at element {at}; quantised types hold finite numbers")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Which element.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// A tensor that is not what the header says.
    #[error("tensor `{name}` takes {expected} bytes, got {got}")]
    Length {
        /// The tensor.
        name: String,
        /// Bytes of its shape and type.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A tokenizer that llama.cpp has no form of.
    #[error("`{}`: {what}; {mend}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What helps.
        mend: &'static str,
    },
    /// A word that is no type.
    #[error(transparent)]
    Word(#[from] UnknownWord),
    /// A file that cannot be written.
    #[error(transparent)]
    File(#[from] WeightFileError),
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Another format.
    #[error("it does not begin with GGUF")]
    Magic,
    /// Written for machines of the other byte order.
    #[error("it is big-endian")]
    BigEndian,
    /// A version of the format that is not read.
    #[error("its version is {0}, expected 2 or 3")]
    Version(u32),
    /// It ends within its header.
    #[error("it ends within {0}")]
    Short(String),
    /// More of something than files have.
    #[error("it claims {got} {what}, expected at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// Text that is none.
    #[error("{0} is not UTF-8")]
    Text(String),
    /// A number that means no type.
    #[error("{what} has the unknown type {number}")]
    Type {
        /// What has it.
        what: String,
        /// The number.
        number: u32,
    },
    /// One name twice.
    #[error("it has `{0}` twice")]
    Twice(String),
    /// An alignment that is none.
    #[error("its alignment is {0}, expected a power of two from 1 to 65536")]
    Alignment(u64),
    /// A shape that does not fit its type, or has too many elements.
    #[error("tensor `{name}` ({stored}) cannot have the shape {shape:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// How it is stored.
        stored: &'static str,
        /// Its shape, the longest stride first.
        shape: Vec<u64>,
    },
    /// A tensor that does not lie in the file, or on another.
    #[error("tensor `{name}` is at bytes {begin}..{end} of the data, which has {length}")]
    Place {
        /// The tensor.
        name: String,
        /// First byte.
        begin: u64,
        /// One past the last.
        end: u64,
        /// Bytes of data.
        length: u64,
    },
    /// Two tensors on the same bytes.
    #[error("tensors `{0}` and `{1}` share bytes")]
    Overlap(String, String),
}

impl GgufError {
    pub(crate) fn damaged(path: &Path, fault: Fault) -> Self {
        Self::Damaged { path: path.to_path_buf(), fault }
    }
}

impl Coded for GgufError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Damaged { .. } | Self::UnknownTensor { .. } => ErrorCode::DamagedFile,
            Self::NotDecoded { .. } => ErrorCode::CannotExport,
            Self::NotFinite { .. } => ErrorCode::NotFinite,
            Self::Length { .. } => ErrorCode::Internal,
            Self::Tokenizer { .. } => ErrorCode::BadTokenizer,
            Self::Read { source, .. } => source.code(),
            Self::Word(error) => error.code(),
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for Fault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Magic
            | Self::BigEndian
            | Self::Version(..)
            | Self::Short(..)
            | Self::TooMany { .. }
            | Self::Text(..)
            | Self::Type { .. }
            | Self::Twice(..)
            | Self::Alignment(..)
            | Self::Shape { .. }
            | Self::Place { .. }
            | Self::Overlap(..) => ErrorCode::DamagedFile,
        }
    }
}
