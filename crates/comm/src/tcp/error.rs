//! Errors of the TCP rendezvous.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::launch::LaunchError;

/// Ranks that do not meet.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// A variable of the launcher is not set, or not what it must be.
    #[error("transport tcp: {0}")]
    Launch(#[from] LaunchError),
    /// Rank 0 cannot listen, or another rank cannot reach it.
    #[error(
        "transport tcp: rank {rank} cannot {action} `{address}`: {source}; rank 0 must run on MASTER_ADDR, with MASTER_PORT free and open"
    )]
    Address {
        /// This rank.
        rank: usize,
        /// `listen on` or `connect to`.
        action: &'static str,
        /// The address.
        address: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Not all ranks came.
    #[error(
        "transport tcp: rank 0 waited {seconds} s at `{address}`, but ranks {missing:?} did not come; start {size} ranks with the same MASTER_ADDR and MASTER_PORT"
    )]
    Missing {
        /// The address.
        address: String,
        /// Ranks that did not come.
        missing: Vec<usize>,
        /// Ranks of the world.
        size: usize,
        /// How long rank 0 waited.
        seconds: u64,
    },
    /// Somebody connected who does not belong here.
    #[error(
        "transport tcp: rank 0 at `{address}` got a connection that says {got}, expected {expected}; give every job a MASTER_PORT of its own, and every rank a RANK of its own"
    )]
    Stranger {
        /// The address.
        address: String,
        /// What the other side said.
        got: String,
        /// What would do.
        expected: String,
    },
}
