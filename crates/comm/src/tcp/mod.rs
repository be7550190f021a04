//! Ranks as processes that find each other by `MASTER_ADDR`, `MASTER_PORT`, `RANK` and `WORLD_SIZE`, as launchers in the
//! manner of torchrun set them.
//!
//! Rank 0 listens, the others connect to it, and every message goes by way of rank 0: nothing but the standard library
//! is needed. That is enough for what ranks have to say to each other beside the data (the transport `nccl` runs on it)
//! and for small models; for large volumes between hosts there is [`mpi`](crate::mpi).
//!
//! ```text
//! export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
//! RANK=1 burnish ... &
//! RANK=0 burnish ...
//! ```
//!
//! A process that dies closes its connection, and so is named on all ranks at once.

mod error;
mod hub;
mod rendezvous;

use std::sync::Arc;
use std::time::Duration;

pub use error::TcpError;
pub use rendezvous::Rendezvous;

use self::hub::Hub;
use crate::transport::{Inbox, Link, Message};
use crate::{CommError, World};

/// Meets the other ranks as the environment says ([`Rendezvous::from_env`]).
///
/// # Errors
/// [`TcpError`], if a variable is absent or wrong, or the ranks do not meet in ten minutes.
pub fn world() -> Result<World, TcpError> {
    Tcp::join(&Rendezvous::from_env()?).map(|link| World::over(Box::new(link)))
}

/// The messages of one rank, over its connection to rank 0, or over all of them at rank 0. Clones share them.
#[derive(Clone)]
pub struct Tcp {
    hub: Arc<Hub>,
}

impl Tcp {
    /// Waits until all ranks have met.
    ///
    /// # Errors
    /// [`TcpError`], if they do not until the deadline.
    pub fn join(meeting: &Rendezvous) -> Result<Self, TcpError> {
        let streams = meeting.connect()?;
        Hub::start(meeting.rank, meeting.size, streams).map(|hub| Self { hub })
    }
}

impl Link for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn rank(&self) -> usize {
        self.hub.rank()
    }

    fn size(&self) -> usize {
        self.hub.size()
    }

    fn inbox(&self) -> &Inbox {
        self.hub.inbox()
    }

    fn post(&self, to: usize, message: Message) -> Result<(), CommError> {
        self.hub.post(to, message)
    }

    fn close(&self, _deadline: Duration) {
        self.hub.close();
    }
}

#[cfg(test)]
mod tests;
