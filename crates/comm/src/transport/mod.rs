//! Writing a transport: what carries calls between ranks.
//!
//! One that moves messages between pairs of ranks implements [`Link`] and gets every collective from [`PointToPoint`];
//! one with collectives of its own implements [`Transport`]. [`conformance`] is the suite that a transport must pass, and
//! [`Faulty`] a link that drops, delays, damages or ends on purpose.

mod bytes;
pub mod conformance;
mod device_memory;
mod fault;
pub(crate) mod inbox;
pub(crate) mod link;
mod point_to_point;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::{Call, CommError};

pub use bytes::{Aligned, Bytes};
pub use device_memory::{DeviceError, DeviceMemory};
pub use fault::{Fault, FaultPlan, Faulty};
pub use inbox::Inbox;
pub use link::{HEADER, Link, Message, MessageKind};
pub use point_to_point::PointToPoint;

/// The ranks of a group, as this rank sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The mesh axis.
    pub axis: Arc<str>,
    /// World ranks in the order of the group.
    pub ranks: Vec<usize>,
    /// This rank's place in `ranks`.
    pub me: usize,
}

impl Members {
    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ranks.len()
    }
}

/// The operands of a call. Counts are elements per member; those that the operation does not use are empty.
#[derive(Clone, Debug)]
pub struct Payload {
    /// This rank's elements: the bucket (all_reduce, reduce_scatter, all_to_all, send, the root of a broadcast), this
    /// rank's part (all_gather, gather), else nothing.
    pub bytes: Bytes,
    /// What goes to each member: reduce_scatter (equal on all ranks), all_to_all.
    pub send: Vec<usize>,
    /// What comes from each member: all_gather, gather (equal on all ranks), all_to_all.
    pub receive: Vec<usize>,
    /// Memory of the kind that a result should lie in, where nothing in `bytes` says so: recv, and broadcast away from
    /// the root. A transport may well leave results on the host.
    pub like: Option<Arc<dyn DeviceMemory>>,
}

/// A call to be started.
#[derive(Clone, Debug)]
pub struct Request {
    /// The fingerprint.
    pub call: Arc<Call>,
    /// Who takes part.
    pub members: Arc<Members>,
    /// The operands.
    pub payload: Payload,
    /// How long [`Work::wait`] may wait.
    pub deadline: Duration,
    /// Whether payloads travel with a checksum.
    pub checksums: bool,
}

/// What a call gave this rank.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Nothing: barrier, send, gather away from the root.
    Nothing,
    /// One buffer: all_reduce, reduce_scatter, broadcast, recv.
    One(Bytes),
    /// One buffer per member: all_gather, all_to_all, gather at the root.
    Gathered(Vec<Bytes>),
}

/// A call under way. Dropping it unwaited must neither block nor disturb the other ranks.
pub trait Work: Send {
    /// Whether [`Work::wait`] would return at once.
    fn ready(&self) -> bool;

    /// Blocks until the call is complete, has failed, or the deadline has passed. Waiting threads park.
    ///
    /// # Errors
    /// Every [`CommError`] of a call under way.
    fn wait(self: Box<Self>) -> Result<Outcome, CommError>;
}

/// Carries calls between ranks: threads and MPI by messages ([`PointToPoint`]), NCCL by its own collectives.
///
/// An implementation compares every peer's [`Call`] with its own ([`Call::difference`]), returns an error rather
/// than wait beyond the deadline, tells the other ranks of its first error and refuses everything after it.
pub trait Transport: Send + Sync {
    /// The transport's name: `local`, `mpi`, `nccl`.
    fn name(&self) -> &'static str;

    /// This rank in the world.
    fn rank(&self) -> usize;

    /// Ranks of the world.
    fn size(&self) -> usize;

    /// Whether sums are taken in the order of the ranks. Where not, they are still the same bits on every rank.
    fn in_rank_order(&self) -> bool {
        true
    }

    /// Starts a call. Returns at once; every error surfaces in [`Work::wait`].
    fn start(&self, request: Request) -> Box<dyn Work>;

    /// Keeps `error` as this rank's first, unless there was one, and tells the other ranks, so that none waits for it.
    fn fail(&self, error: CommError);

    /// The first error of this rank, if there was one.
    fn failure(&self) -> Option<Arc<CommError>>;
}

/// Elements in chunk `index` of `elements` dealt to `size` ranks: as even as possible, the first ones larger.
#[must_use]
pub fn chunk(elements: usize, size: usize, index: usize) -> Range<usize> {
    let (each, extra) = (elements / size, elements % size);
    let start = index * each + index.min(extra);
    start..start + each + usize::from(index < extra)
}
