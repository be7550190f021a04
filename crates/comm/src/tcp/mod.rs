//! Ranks as processes that find each other by `MASTER_ADDR`, `MASTER_PORT`, `RANK` and `WORLD_SIZE`, as launchers in the
//! manner of torchrun set them.
//!
//! Rank 0 listens, the others connect to it, and every message goes by way of rank 0. That is enough for what ranks have to
//! say to each other beside the data (the transport `nccl` runs on it) and for small models; for large volumes between hosts
//! there is [`mpi`](crate::mpi).
//!
//! ```text
//! export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
//! RANK=1 burnish ... &
//! RANK=0 burnish ...
//! ```
//!
//! A process that dies closes its connection, and so is named on all ranks at once; one that is stopped gives no sign of life.
//!
//! # Who may take part
//!
//! Ranks have a [`Secret`]: `BURNISH_DDP_SECRET` (or `BURNISH_DDP_SECRET_FILE`), the same on all of them. Without one they
//! meet on the loopback only, and rank 0 makes one in a file that processes of its user can read. Before anything else is
//! read a rank proves that it has the secret, and rank 0 proves it back; both derive keys from that hello, and every message
//! carries a seal (BLAKE3, keyed) over its content, its place in the order, its connection and its direction. What was
//! changed, repeated, left out or sent by somebody else ends the job with an error. Whoever else connects is turned away and
//! holds nobody up, and once all have met nobody listens any more.
//!
//! Messages are not encrypted unless that is asked for ([`Rendezvous::encrypt`], `BURNISH_DDP_ENCRYPTION=1`): who can read
//! the network between two machines reads gradients and weights. Where it is, every message is hidden by ChaCha20 under keys
//! of its connection and direction, and sealed as it travels.

mod arrival;
mod error;
mod frame;
#[doc(hidden)]
pub mod heard;
mod hello;
mod hub;
mod notice;
mod reception;
mod rendezvous;
mod seal;
mod secret;

use std::sync::Arc;
use std::time::Duration;

pub use error::TcpError;
pub use rendezvous::Rendezvous;
pub use secret::{Secret, SecretError};

use self::hub::Hub;
use crate::transport::{Inbox, Link, Message};
use crate::{CommError, World};

/// Meets the other ranks as the environment says ([`Rendezvous::from_env`]).
///
/// # Errors
/// [`TcpError`], if a variable is absent or wrong, or the ranks do not meet in ten minutes.
pub fn world() -> Result<World, TcpError> {
    meet(&Rendezvous::from_env()?)
}

/// Meets the other ranks; the world's deadline is the meeting's.
///
/// # Errors
/// [`TcpError`], if the ranks do not meet until the deadline, or one of them contradicts the others.
pub fn meet(meeting: &Rendezvous) -> Result<World, TcpError> {
    Tcp::join(meeting).map(|link| World::over(Box::new(link)).with_deadline(meeting.deadline))
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
        let connections = meeting.connect()?;
        Hub::start(meeting.rank, meeting.size, connections).map(|hub| Self { hub })
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

    fn stopped(&self) -> Vec<usize> {
        self.hub.stopped()
    }

    fn close(&self, deadline: Duration) {
        self.hub.close(deadline);
    }
}

#[cfg(test)]
mod tests;
