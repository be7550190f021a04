//! Agreement on a call: ranks compare its fingerprint over TCP before NCCL moves its elements.
//!
//! It goes over the control connection, and is posted when the call is: so the control connection sees the calls of a
//! channel in the order in which they were made, whichever group they are of, and finds out where ranks differ.

use std::sync::Arc;

use crate::call::hash;
use crate::transport::link::{HEADER, Message, MessageKind};
use crate::transport::{Bytes, Request};
use crate::{Bucket, Call, CommError, Op, Pending, World};

/// The axis of what is said about calls. The calls' own axes are in their fingerprints.
const AXIS: &str = "nccl";

/// The channel of the control connection for `what`: channels have short names, so it is a number.
pub(super) fn channel(what: &str) -> String {
    format!("nccl {:016x}", hash(&[what.as_bytes()]))
}

/// Fingerprints on their way.
pub(super) enum Agreement {
    /// All ranks of the group tell each other.
    All(Pending<Vec<Vec<u8>>>),
    /// The sender of a pair tells the receiver.
    Told(Pending<()>),
    Heard(Pending<Vec<u8>>),
}

impl Agreement {
    /// Posts this rank's fingerprint.
    pub(super) fn post(control: &World, request: &Request) -> Self {
        let Request { call, members, .. } = request;
        let ranks = members.ranks.clone();
        let group = control.group_of(AXIS, ranks, members.me).channel(&channel(&call.channel));
        let group = group.with_deadline(request.deadline);
        let other = call.root.unwrap_or(0);
        match call.op {
            Op::Send => Self::Told(group.send(Bucket::new(header(call)), other, &call.what)),
            Op::Recv => Self::Heard(group.recv(other, HEADER, &call.what).map(Bucket::into_vec)),
            op => {
                let mut own = header(call);
                // Only the sender knows how much it sends, so it says so.
                let counts = if op == Op::AllToAll { &request.payload.send[..] } else { &[] };
                own.extend(counts.iter().flat_map(|&count| (count as u64).to_le_bytes()));
                let lengths = vec![own.len(); group.size()];
                let all = group.all_gather_v(Bucket::new(own), &lengths, "agreement");
                Self::All(all.map(|parts| parts.iter().map(<[u8]>::to_vec).collect()))
            }
        }
    }

    /// Waits for the other ranks' fingerprints and compares them.
    pub(super) fn reach(self, rank: usize, request: &Request) -> Result<(), CommError> {
        let Request { call, members, payload, .. } = request;
        let heard: Vec<(usize, Vec<u8>)> = match self {
            Self::All(all) => members.ranks.iter().copied().zip(all.wait()?).collect(),
            Self::Told(told) => return told.wait(),
            Self::Heard(heard) => vec![(members.ranks[call.root.unwrap_or(0)], heard.wait()?)],
        };
        let mut theirs = Vec::new();
        let mut lengths = Vec::new();
        for (member, (peer, heard)) in heard.iter().enumerate().filter(|(_, (peer, _))| *peer != rank) {
            let other = Call::clone(&Message::decode(*peer, &heard[..HEADER], Bytes::empty())?.call);
            if call.difference(&other).is_some() {
                theirs.push((*peer, other));
            } else if call.op == Op::AllToAll {
                let counts = heard[HEADER..].chunks_exact(8);
                let count =
                    counts.filter_map(|count| count.try_into().ok()).map(u64::from_le_bytes).nth(members.me);
                lengths.push((*peer, payload.receive[member], count.unwrap_or(0) as usize));
            }
        }
        if !theirs.is_empty() {
            let (axis, mine) = (call.axis.clone(), Box::new(Call::clone(call)));
            return Err(CommError::Disagreement { rank, axis, mine, theirs });
        }
        let each = call.dtype.bytes();
        match lengths.into_iter().find(|(_, expected, got)| expected != got) {
            None => Ok(()),
            Some((from, expected, got)) => {
                let call = Box::new(Call::clone(call));
                Err(CommError::Length { rank, from, call, expected: expected * each, got: got * each })
            }
        }
    }
}

fn header(call: &Arc<Call>) -> Vec<u8> {
    let (channel, phase, index, checksum) = (0, 0, 0, None);
    let call = Arc::clone(call);
    Message { kind: MessageKind::Call, channel, phase, index, call, checksum, body: Bytes::empty() }
        .header()
        .to_vec()
}

/// What the control connection ran into, as an error of the call that it was about.
pub(super) fn of_call(error: CommError, call: &Call) -> CommError {
    let call = || Box::new(call.clone());
    match error {
        CommError::Silent { rank, ranks, deadline, .. } => {
            CommError::Silent { rank, ranks, call: call(), instead: Vec::new(), deadline }
        }
        CommError::Frozen { rank, ranks, deadline, .. } => {
            CommError::Frozen { rank, ranks, call: call(), deadline }
        }
        CommError::Gone { rank, ranks, .. } => CommError::Gone { rank, ranks, call: call() },
        CommError::Failed { rank, failed, reason, .. } => {
            CommError::Failed { rank, failed, reason, call: Some(call()) }
        }
        CommError::Disagreement { rank, mine, theirs, .. } if mine.axis == AXIS => {
            CommError::Disagreement { rank, axis: call().axis.clone(), mine: call(), theirs }
        }
        other => other,
    }
}
