//! Memory on a CUDA device that somebody else allocated.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use burnish_core::{Coded, ErrorCode};

use crate::transport::Aligned;

/// Memory on a CUDA device that somebody else allocated, such as a tensor's: what is in it may travel without coming to
/// the host, where the transport can do that (`nccl`). Everywhere else a copy on the host is made once.
///
/// What lies in it does not change from the moment that it is given to a [`Bucket`](crate::Bucket): a writer waits for
/// the end of the call, as it must with everything that is posted.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    /// The number of the device, as CUDA counts in this process.
    fn ordinal(&self) -> usize;

    /// Bytes.
    fn bytes(&self) -> usize;

    /// A copy of all bytes on the host. Waits for everything that was queued on the memory before.
    ///
    /// # Errors
    /// If the device cannot be read.
    fn to_host(&self) -> Result<Aligned, DeviceError>;

    /// The address of the first byte on the device. When this returns, everything that was queued before on the memory
    /// is done, so that any stream may read and write it; for memory from a pool that includes what was queued on
    /// whatever lay there before. It may block: the transport's threads call it, never the caller of a collective.
    /// The address stays right as long as the memory lives.
    ///
    /// # Errors
    /// If what was queued failed.
    fn address(&self) -> Result<u64, DeviceError>;

    /// New memory of the same kind on the same device, for a result. What it holds is not stated.
    ///
    /// # Errors
    /// If the device has no room.
    fn empty(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError>;

    /// The memory as what it is, for whoever made it.
    fn as_any(&self) -> &dyn Any;
}

/// A device does not do what memory on it needs.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No room.
    #[error(
        "CUDA device {ordinal} has no memory for {bytes} bytes: {source}; use smaller batches or buckets, or more ranks"
    )]
    Full {
        /// The device.
        ordinal: usize,
        /// Bytes asked for.
        bytes: usize,
        /// What its owner said.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// What lies on the device cannot be had.
    #[error(
        "CUDA device {ordinal}: cannot get at {bytes} bytes: {source}; an earlier operation failed, see its message"
    )]
    Lost {
        /// The device.
        ordinal: usize,
        /// Bytes of the memory.
        bytes: usize,
        /// What its owner said.
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl Coded for DeviceError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Full { .. } => ErrorCode::OutOfMemory,
            Self::Lost { .. } => ErrorCode::DeviceFailed,
        }
    }
}
