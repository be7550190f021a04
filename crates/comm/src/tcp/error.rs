//! Errors of the TCP rendezvous.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use burnish_core::{Coded, ErrorCode};
use thiserror::Error;

use super::secret::SecretError;
use crate::launch::LaunchError;

/// Ranks that do not meet.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// A variable of the launcher is not set, or not what it must be.
    #[error("transport tcp: {0}")]
    Launch(#[from] LaunchError),
    /// The secret that was given cannot be used.
    #[error("transport tcp: the ranks' secret: {0}")]
    Secret(#[from] SecretError),
    /// Ranks on several machines have no secret.
    #[error(
        "transport tcp: rank {rank}: `{address}` can be reached from other machines, and the ranks have no secret to tell each other from strangers by; give all of them the same (`export BURNISH_DDP_SECRET=$(openssl rand -hex 32)` before they are started, or the option ddp_secret_file), or set MASTER_ADDR=127.0.0.1 if all run on this machine"
    )]
    NoSecret {
        /// This rank.
        rank: usize,
        /// The address.
        address: String,
    },
    /// The secret of ranks on one machine cannot be made or read.
    #[error(
        "transport tcp: rank {rank}: the secret that rank 0 makes for ranks on one machine: {source}; mend that, or set BURNISH_DDP_SECRET to the same text on all ranks"
    )]
    LocalSecret {
        /// This rank.
        rank: usize,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The other side has another secret.
    #[error(
        "transport tcp: rank {rank}: rank 0 at `{address}` has another secret; give all ranks the same BURNISH_DDP_SECRET or ddp_secret_file, and every job a MASTER_PORT of its own"
    )]
    OtherSecret {
        /// This rank.
        rank: usize,
        /// The address.
        address: String,
    },
    /// Rank 0 cannot listen, or keep a connection.
    #[error(
        "transport tcp: rank {rank} cannot {action} `{address}`: {source}; rank 0 must run on MASTER_ADDR, with MASTER_PORT free and open"
    )]
    Address {
        /// This rank.
        rank: usize,
        /// What was tried, such as `listen on`.
        action: &'static str,
        /// The address.
        address: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Rank 0 was not to be found.
    #[error(
        "transport tcp: rank {rank} did not find rank 0 at `{address}` in {waited:?}: {why}; rank 0 must run on MASTER_ADDR, with MASTER_PORT free and open"
    )]
    Unreached {
        /// This rank.
        rank: usize,
        /// The address.
        address: String,
        /// How long it tried.
        waited: Duration,
        /// How the last attempt ended.
        why: String,
    },
    /// Not all ranks came.
    #[error(
        "transport tcp: rank {rank} waited {waited:?} at `{address}`, but {} did not come{}; start {size} ranks with the same MASTER_ADDR, MASTER_PORT and secret, and look for what the missing ones say",
        ranks(missing), turned_away(*.strangers)
    )]
    Missing {
        /// This rank.
        rank: usize,
        /// The address.
        address: String,
        /// Ranks that did not come.
        missing: Vec<usize>,
        /// Ranks of the world.
        size: usize,
        /// How long it waited.
        waited: Duration,
        /// Connections of others that came instead, where this is rank 0.
        strangers: u64,
    },
    /// A rank came and went before all had met.
    #[error(
        "transport tcp: rank {ended} ended before the ranks had met at `{address}`{}; see what it said (rank {rank} ends too)",
        still(missing)
    )]
    Ended {
        /// This rank.
        rank: usize,
        /// The rank that ended.
        ended: usize,
        /// The address.
        address: String,
        /// Ranks that had not come by then.
        missing: Vec<usize>,
    },
    /// A rank of this job says something that contradicts the others.
    #[error(
        "transport tcp: rank 0 at `{address}` got a rank of this job that says {got}, expected {expected}; give every rank a RANK of its own and all the same WORLD_SIZE"
    )]
    Contradiction {
        /// The address.
        address: String,
        /// What the rank said.
        got: String,
        /// What would do.
        expected: String,
    },
}

fn ranks(ranks: &[usize]) -> String {
    let shown = ranks.iter().take(16).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ranks.len() {
        0 => "some ranks".to_owned(),
        1 => format!("rank {shown}"),
        many @ 2..17 => format!("{many} ranks ({shown})"),
        many => format!("{many} ranks ({shown}, ...)"),
    }
}

fn still(missing: &[usize]) -> String {
    if missing.is_empty() { String::new() } else { format!(", while {} had not come", ranks(missing)) }
}

fn turned_away(strangers: u64) -> String {
    match strangers {
        0 => String::new(),
        1 => " (one connection that did not prove to have the job's secret was turned away)".to_owned(),
        many => {
            format!(" ({many} connections that did not prove to have the job's secret were turned away)")
        }
    }
}

impl Coded for TcpError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSecret { .. } | Self::LocalSecret { .. } | Self::OtherSecret { .. } => {
                ErrorCode::RankSecret
            }
            Self::Address { .. } | Self::Unreached { .. } | Self::Missing { .. } => ErrorCode::RanksNotMet,
            Self::Ended { .. } => ErrorCode::RankFailed,
            Self::Contradiction { .. } => ErrorCode::BadLaunch,
            Self::Launch(error) => error.code(),
            Self::Secret(error) => error.code(),
        }
    }
}
