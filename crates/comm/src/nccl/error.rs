//! Errors of the NCCL transport: libraries not found, codes of CUDA and NCCL.

use std::sync::Arc;
use std::time::Duration;

use burnish_core::{Coded, ErrorCode};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use thiserror::Error;

use crate::tcp::TcpError;
use crate::transport::DeviceError;
use crate::{Call, CommError};

/// The result that says that another rank went wrong.
pub(super) const REMOTE: &str = "ncclRemoteError";

/// CUDA or NCCL is not as needed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// A library could not be loaded.
    #[error(
        "transport nccl: no {library} on this machine ({reason}); {mend}, or use `--transport mpi` or `--transport local`"
    )]
    Missing {
        /// `CUDA driver` or `NCCL library`.
        library: &'static str,
        /// How to get it.
        mend: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// NCCL lacks a function.
    #[error("transport nccl: {path} has no function {function}; install NCCL 2.14 or later")]
    Outdated {
        /// The function.
        function: String,
        /// The library.
        path: String,
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
    /// More ranks in a process than it has devices.
    #[error(
        "transport nccl: {ranks} ranks for {devices} CUDA devices; every rank needs a device of its own, as NCCL does not let two share one: use at most {devices} ranks, more machines, or look at CUDA_VISIBLE_DEVICES"
    )]
    TooMany {
        /// Ranks asked for.
        ranks: usize,
        /// Devices that this process sees.
        devices: usize,
    },
    /// The ranks did not meet.
    #[error(transparent)]
    Rendezvous(#[from] TcpError),
    /// The device is full.
    #[error(
        "transport nccl: CUDA device {ordinal} has no memory for {bytes} bytes: {source}; use smaller buckets or batches, or more ranks"
    )]
    Memory {
        /// The device's number.
        ordinal: usize,
        /// Bytes asked for.
        bytes: usize,
        /// The driver's error.
        source: DriverError,
    },
    /// Memory of the caller's cannot be used.
    #[error(transparent)]
    Given(#[from] DeviceError),
    /// A call of the CUDA driver failed.
    #[error("transport nccl: {what} failed: {source}; see the driver's log (dmesg)")]
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
    /// All ranks are there, and yet NCCL does not come to an end.
    #[error(
        "transport nccl: not complete after {deadline:?} although all ranks are there; run with NCCL_DEBUG=INFO to see the network between them, or raise the deadline"
    )]
    Stuck {
        /// How long this rank waited.
        deadline: Duration,
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

    /// Whether it is another rank that went wrong, by NCCL's account.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self, Self::Nccl { code, .. } if code == REMOTE)
    }

    /// An allocation that failed: for want of memory, or otherwise.
    pub(super) fn allocation(ordinal: usize, bytes: usize, source: DriverError) -> Self {
        if source.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            Self::Memory { ordinal, bytes, source }
        } else {
            Self::Cuda { what: "allocating on the device", source }
        }
    }
}

/// As an error of a call.
pub(super) fn of_call(rank: usize, call: &Call, error: NcclError) -> CommError {
    CommError::Engine { rank, call: Box::new(call.clone()), source: Arc::new(error) }
}

impl Coded for NcclError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } | Self::Outdated { .. } => ErrorCode::NoTransport,
            Self::Device { .. } | Self::TooMany { .. } => ErrorCode::BadLaunch,
            Self::Memory { .. } => ErrorCode::OutOfMemory,
            Self::Cuda { .. } => ErrorCode::DeviceFailed,
            Self::Nccl { .. } => ErrorCode::RankNetwork,
            Self::Stuck { .. } => ErrorCode::RankSilent,
            Self::Thread { .. } => ErrorCode::BadEnvironment,
            Self::Rendezvous(error) => error.code(),
            Self::Given(error) => error.code(),
        }
    }
}
