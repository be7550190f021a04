//! State spaces: the kinds of memory.

use std::fmt;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// By the address.
    Generic,
    /// The device's.
    Global,
    /// A block's.
    Shared,
    /// A thread's.
    Local,
    /// A launch's arguments.
    Param,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Param => "parameter",
        })
    }
}
