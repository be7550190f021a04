//! Pieces of a stream's work, which graphs keep as nodes.

use std::ffi::c_int;
use std::sync::Arc;

use crate::code::Code;
use crate::counts::{self, RUNNING};
use crate::graph;
use crate::stream::Stream;

/// What a piece of work is.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A kernel of this name.
    Kernel(String),
    /// A copy of so many bytes of the host to a device.
    Upload(usize),
    /// A copy of so many bytes of a device to the host.
    Download(usize),
    /// A copy within device memory.
    Copy,
    Set,
    /// A function of the host.
    Host,
    /// The memory at an address.
    Allocation(u64),
    /// As [`Kind::Allocation`].
    Free(u64),
}

impl Kind {
    /// The `CUgraphNodeType`.
    pub(crate) fn number(&self) -> c_int {
        match self {
            Self::Kernel(_) => 0,
            Self::Upload(_) | Self::Download(_) | Self::Copy => 1,
            Self::Set => 2,
            Self::Host => 3,
            Self::Allocation(_) => 10,
            Self::Free(_) => 11,
        }
    }

    /// Counts work that is queued now.
    pub(crate) fn count(&self) {
        match self {
            Self::Kernel(name) => {
                counts::one(&RUNNING.launches);
                counts::launched(name);
            }
            Self::Upload(bytes) => {
                counts::bytes(&RUNNING.host_to_device, &RUNNING.host_to_device_bytes, *bytes);
            }
            Self::Download(bytes) => {
                counts::bytes(&RUNNING.device_to_host, &RUNNING.device_to_host_bytes, *bytes);
            }
            Self::Copy => counts::one(&RUNNING.device_to_device),
            Self::Free(address) => graph::freed(*address),
            Self::Set | Self::Host | Self::Allocation(_) => {}
        }
    }
}

/// Work that can be done again and again; it gets the stream that does it.
type Work = dyn Fn(&Stream) -> Result<(), Code> + Send + Sync;

/// A piece of work.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) work: Arc<Work>,
}
