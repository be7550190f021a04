//! Everything that can go wrong between ranks. Ranks in messages are counted in the world.

use std::sync::Arc;
use std::time::Duration;

use burnish_core::{Coded, Dtype, ErrorCode};

use crate::{Call, Op, Reduction};

/// Why a call could not be completed. After the first error a rank's transport refuses further calls
/// ([`CommError::Broken`]), and the other ranks are told.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The ranks do not make the same call.
    #[error(
        "the ranks disagree on axis `{axis}`: rank {rank} calls {mine}, {}; all ranks must make the same calls in the same order",
        others(mine, theirs)
    )]
    Disagreement {
        /// This rank.
        rank: usize,
        /// The axis of this rank's call.
        axis: String,
        /// This rank's call.
        mine: Box<Call>,
        /// The ranks whose calls differ, and their calls.
        theirs: Vec<(usize, Call)>,
    },
    /// Nothing came until the deadline.
    #[error(
        "{} silent for {deadline:?}: rank {rank} waits in {call}{}; look for what that rank does instead (its own message, a skipped branch, a longer step) or raise the deadline",
        are(ranks),
        came(instead)
    )]
    Silent {
        /// This rank.
        rank: usize,
        /// The ranks from which nothing came.
        ranks: Vec<usize>,
        /// This rank's call.
        call: Box<Call>,
        /// How long this rank waited.
        deadline: Duration,
        /// Calls of the silent ranks that this rank has not made: on another channel, or after a lost message.
        instead: Vec<(usize, Call)>,
    },
    /// Nothing came until the deadline, and from these ranks not even signs of life.
    #[error(
        "{} not answer any more, not even with signs of life: a process that is stopped (SIGSTOP, a debugger, a machine that sleeps), or a network that is gone; rank {rank} waited {deadline:?} in {call}",
        does(ranks)
    )]
    Frozen {
        /// This rank.
        rank: usize,
        /// The ranks that are stopped.
        ranks: Vec<usize>,
        /// This rank's call.
        call: Box<Call>,
        /// How long this rank waited.
        deadline: Duration,
    },
    /// A rank ended without making the call.
    #[error(
        "{} ended: rank {rank} waits in {call}, which never comes; see what that rank reported",
        have(ranks)
    )]
    Gone {
        /// This rank.
        rank: usize,
        /// The ranks that ended.
        ranks: Vec<usize>,
        /// This rank's call.
        call: Box<Call>,
    },
    /// Another rank failed and said so.
    #[error("rank {failed} failed{}: {reason}", while_in(*rank, call.as_deref()))]
    Failed {
        /// This rank.
        rank: usize,
        /// The rank that failed.
        failed: usize,
        /// What it said.
        reason: String,
        /// What this rank waited in.
        call: Option<Box<Call>>,
    },
    /// What arrived is not what was sent.
    #[error(
        "what rank {from} sent to rank {rank} in {call} arrived damaged: checksum {expected:016x}, found {got:016x}; check the network and the memory of both"
    )]
    Corrupt {
        /// This rank.
        rank: usize,
        /// The sender.
        from: usize,
        /// This rank's call.
        call: Box<Call>,
        /// The checksum that was sent along.
        expected: u64,
        /// The checksum of what arrived.
        got: u64,
    },
    /// A message of another length than the call says.
    #[error(
        "rank {from} sent {got} bytes to rank {rank} in {call}, expected {expected}; both ranks must state the same counts"
    )]
    Length {
        /// This rank.
        rank: usize,
        /// The sender.
        from: usize,
        /// This rank's call.
        call: Box<Call>,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// An earlier call failed.
    #[error("communication stopped earlier: {first}")]
    Broken {
        /// The first error of this rank.
        first: Arc<CommError>,
    },
    /// Counts for another number of ranks.
    #[error("{op}(`{what}`): {got} counts for a group of {expected} ranks; give one count per rank")]
    Counts {
        /// The operation.
        op: Op,
        /// The parameter, unit or bucket.
        what: String,
        /// Ranks of the group.
        expected: usize,
        /// Counts given.
        got: usize,
    },
    /// A bucket of another size than the counts say.
    #[error(
        "{op}(`{what}`): a bucket of {got} elements where the counts say {expected}; make both from the same plan"
    )]
    Elements {
        /// The operation.
        op: Op,
        /// The parameter, unit or bucket.
        what: String,
        /// Elements by the counts.
        expected: usize,
        /// Elements of the bucket.
        got: usize,
    },
    /// A rank that the group does not have, or this rank itself in a pair.
    #[error(
        "{op}(`{what}`): member {member} of a group of {size}, called by member {me}; give another member below {size}"
    )]
    Member {
        /// The operation.
        op: Op,
        /// The parameter, unit or bucket.
        what: String,
        /// The member asked for.
        member: usize,
        /// Ranks of the group.
        size: usize,
        /// This rank in the group.
        me: usize,
    },
    /// A reduction that the element type does not have.
    #[error("{op}(`{what}`): no {reduction} of {dtype}; cast the bucket to a float type first")]
    Reduction {
        /// The operation.
        op: Op,
        /// The parameter, unit or bucket.
        what: String,
        /// The reduction.
        reduction: Reduction,
        /// The element type.
        dtype: Dtype,
    },
    /// Axes that do not fill the world.
    #[error("the axes {axes} take {ranks} ranks, the world has {world}; make the sizes' product {world}")]
    MeshSize {
        /// The axes, written out.
        axes: String,
        /// The product of their sizes.
        ranks: usize,
        /// Ranks of the world.
        world: usize,
    },
    /// The same axis twice.
    #[error("axis `{axis}` is named twice; name each axis once")]
    MeshTwice {
        /// The axis.
        axis: String,
    },
    /// An axis that the mesh does not have.
    #[error("no axis `{axis}` in this mesh, which has {known}; name one of those")]
    MeshAxis {
        /// The axis asked for.
        axis: String,
        /// The axes there are, written out.
        known: String,
    },
    /// A rank's thread panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// The panic's message.
        message: String,
    },
    /// A rank stopped for reasons of its own.
    #[error("rank {rank} stopped: {reason}")]
    Stopped {
        /// The rank.
        rank: usize,
        /// Its own words.
        reason: String,
    },
    /// A fault plan took this rank away.
    #[error("rank {rank} vanished by its fault plan at call {call_number}: {call}")]
    Vanished {
        /// The rank.
        rank: usize,
        /// Which call of the rank it was.
        call_number: u64,
        /// The call.
        call: Box<Call>,
    },
    /// A message header that burnish did not write.
    #[error(
        "a message from rank {from} has {field} = {got}, expected {expected}; run the same burnish on all ranks"
    )]
    Header {
        /// The sender.
        from: usize,
        /// The field.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What would do.
        expected: &'static str,
    },
    /// The engine below a transport reported an error of a call.
    #[error("rank {rank} in {call}: {source}")]
    Engine {
        /// This rank.
        rank: usize,
        /// This rank's call.
        call: Box<Call>,
        /// The engine's own error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The engine below a transport reported an error.
    #[error(
        "{transport}: {operation} between rank {rank} and rank {peer} failed: {source}; see that rank's message"
    )]
    Link {
        /// The transport's name.
        transport: &'static str,
        /// What was tried.
        operation: &'static str,
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// The engine's own error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

fn others(mine: &Call, theirs: &[(usize, Call)]) -> String {
    let each: Vec<String> = theirs
        .iter()
        .map(|(rank, call)| match mine.difference(call) {
            Some(difference) => format!("rank {rank} calls {call} (another {difference})"),
            None => format!("rank {rank} calls {call}"),
        })
        .collect();
    each.join(", ")
}

fn came(instead: &[(usize, Call)]) -> String {
    instead.iter().map(|(rank, call)| format!(", while rank {rank} calls {call}")).collect()
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn are(ranks: &[usize]) -> String {
    if let [one] = ranks { format!("rank {one} is") } else { format!("ranks {} are", list(ranks)) }
}

fn does(ranks: &[usize]) -> String {
    if let [one] = ranks { format!("rank {one} does") } else { format!("ranks {} do", list(ranks)) }
}

fn have(ranks: &[usize]) -> String {
    if let [one] = ranks { format!("rank {one} has") } else { format!("ranks {} have", list(ranks)) }
}

fn while_in(rank: usize, call: Option<&Call>) -> String {
    call.map(|call| format!(" while rank {rank} waits in {call}")).unwrap_or_default()
}

impl Coded for CommError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Disagreement { .. } | Self::Length { .. } | Self::Header { .. } => ErrorCode::RanksDiffer,
            Self::Silent { .. } | Self::Frozen { .. } => ErrorCode::RankSilent,
            Self::Gone { .. }
            | Self::Failed { .. }
            | Self::Panicked { .. }
            | Self::Stopped { .. }
            | Self::Vanished { .. } => ErrorCode::RankFailed,
            Self::Corrupt { .. } | Self::Engine { .. } | Self::Link { .. } => ErrorCode::RankNetwork,
            Self::Counts { .. }
            | Self::Elements { .. }
            | Self::Member { .. }
            | Self::Reduction { .. }
            | Self::MeshTwice { .. }
            | Self::MeshAxis { .. } => ErrorCode::Internal,
            Self::MeshSize { .. } => ErrorCode::BadLaunch,
            Self::Broken { first } => first.code(),
        }
    }
}
