//! What can go wrong between this process, CUDA and NCCL.

use std::sync::Arc;

use cudarc::driver::DriverError;
use thiserror::Error;

use crate::CommError;
use crate::tcp::TcpError;

/// CUDA or NCCL is not as needed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// A library could not be loaded.
    #[error(
        "transport nccl: no {library} on this machine; {mend}, or use `--transport mpi` or `--transport local`"
    )]
    Missing {
        /// `CUDA driver` or `NCCL library`.
        library: &'static str,
        /// How to get it.
        mend: &'static str,
    },
    /// The device that this rank should use is not there.
    #[error(
        "transport nccl: rank {rank} should use device {ordinal}, but this machine has {devices}; start at most one rank per device and set LOCAL_RANK, or CUDA_VISIBLE_DEVICES"
    )]
    Device {
        /// This rank.
        rank: usize,
        /// The device's number.
        ordinal: usize,
        /// Devices of this machine.
        devices: usize,
    },
    /// The ranks did not meet.
    #[error(transparent)]
    Meeting(#[from] TcpError),
    /// A call of the CUDA driver failed.
    #[error(
        "transport nccl: {what} failed: {source}; see the driver's log (dmesg) and whether the device's memory is full"
    )]
    Cuda {
        /// What was tried.
        what: &'static str,
        /// The driver's error.
        source: DriverError,
    },
    /// A call of NCCL failed.
    #[error("transport nccl: {function} failed with {code}: {text}; run with NCCL_DEBUG=WARN to see why")]
    Nccl {
        /// The NCCL function.
        function: &'static str,
        /// Its result.
        code: String,
        /// What NCCL says of the result.
        text: String,
    },
    /// No thread could be started.
    #[error("transport nccl: cannot start a thread: {source}; raise the limit of processes (ulimit -u)")]
    Thread {
        /// What the system said.
        source: Arc<std::io::Error>,
    },
}

impl NcclError {
    pub(super) fn cuda(what: &'static str, source: DriverError) -> Self {
        Self::Cuda { what, source }
    }
}

/// As an error of a call.
pub(super) fn link(rank: usize, operation: &'static str, error: NcclError) -> CommError {
    CommError::Link { transport: "nccl", operation, rank, peer: rank, source: Arc::new(error) }
}
