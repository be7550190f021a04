//! `ParseError` of a module and `Fault` of a launch.

use crate::space::Space;

/// Why a module could not be read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Of the module's text, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// What a launch ended with, and where.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{kernel}, line {line}, block {block:?}, thread {thread:?}: {what}")]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// The instruction's line in the module, from 1.
    pub line: usize,
    /// The block's place in its grid.
    pub block: [u32; 3],
    /// The thread's place in its block.
    pub thread: [u32; 3],
    /// What happened.
    pub what: Wrong,
}

/// What a thread did that none may.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Wrong {
    /// Memory that is not there.
    #[error("{bytes} bytes of {space} memory at {address:#x} are not there")]
    Address {
        /// Of which kind.
        space: Space,
        /// Where.
        address: u64,
        /// How many.
        bytes: usize,
    },
    /// An address that is no multiple of what is read or written there.
    #[error("{bytes} bytes of {space} memory at {address:#x}, which is no multiple of that")]
    Alignment {
        /// Of which kind.
        space: Space,
        /// Where.
        address: u64,
        /// How many.
        bytes: usize,
    },
    /// Two threads and the same byte of shared memory.
    #[error("a race for the byte at {address:#x} of shared memory with thread {with} of the block")]
    Race {
        /// The byte.
        address: u64,
        /// The other thread's number in the block.
        with: u32,
    },
    /// An instruction that the interpreter does not have.
    #[error("`{0}` is not an instruction of this interpreter")]
    Instruction(String),
    /// Threads that wait for others that never come.
    #[error("threads of the block wait at a barrier that the others have left out")]
    Barrier,
    /// A launch without an end.
    #[error("more than {0} instructions of a warp")]
    Endless(u64),
    /// `trap`.
    #[error("trap")]
    Trap,
}

impl Fault {
    /// Whether memory was used that is not there, or not to be used so.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        matches!(self.what, Wrong::Address { .. } | Wrong::Alignment { .. })
    }
}
