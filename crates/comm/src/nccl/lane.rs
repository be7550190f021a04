//! Calls of one order, one after the other: agree over the control connection, then let NCCL move the elements.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaStream;

use super::communicator::{self, Communicator, ID, Native};
use super::staging::{narrow, widen};
use super::{NcclError, error};
use crate::link::{HEADER, Kind, Link, Message};
use crate::reduction::reduce_bytes;
use crate::tcp::Tcp;
use crate::{Aligned, Bucket, Bytes, Call, CommError, Group, Op, Outcome, Reduction, Request, Transport};

/// The calls of a group, or of a pair in one direction, on one channel.
pub(super) struct Lane {
    /// The same ranks, over the control connection.
    group: Group,
    control: Arc<dyn Transport>,
    link: Tcp,
    stream: Arc<CudaStream>,
    /// Made by the first call that moves elements.
    communicator: Option<Communicator>,
}

/// What stops a call that NCCL has begun.
enum Stop {
    Engine(NcclError),
    Call(Box<CommError>),
}

impl From<NcclError> for Stop {
    fn from(error: NcclError) -> Self {
        Self::Engine(error)
    }
}

impl Lane {
    pub(super) fn new(group: Group, control: Arc<dyn Transport>, link: Tcp, stream: Arc<CudaStream>) -> Self {
        Self { group, control, link, stream, communicator: None }
    }

    /// Makes a call. The first error is kept, and the other ranks are told.
    pub(super) fn run(&mut self, request: &Request) -> Result<Outcome, CommError> {
        if let Some(first) = self.control.failure() {
            return Err(CommError::Broken { first });
        }
        let outcome = self.agree(request).and_then(|()| self.carry_out(request));
        outcome.map_err(|error| {
            let error = of_call(error, &request.call);
            self.control.fail(error.clone());
            error
        })
    }

    /// Compares fingerprints with all other ranks of the lane, which also is what a barrier does.
    fn agree(&self, request: &Request) -> Result<(), CommError> {
        let call = &request.call;
        let rank = self.control.rank();
        let message = Message {
            kind: Kind::Call,
            channel: 0,
            phase: 0,
            index: 0,
            call: Arc::clone(call),
            checksum: None,
            body: Bytes::empty(),
        };
        let group = self.group.clone().with_deadline(request.deadline);
        let counts = vec![HEADER; group.size()];
        let headers =
            group.all_gather_v(Bucket::new(message.header().to_vec()), &counts, "agreement").wait()?;
        let mut theirs = Vec::new();
        for (&peer, header) in group.global_ranks().iter().zip(headers.iter()) {
            let other = Call::clone(&Message::decode(peer, header, Bytes::empty())?.call);
            if peer != rank && call.difference(&other).is_some() {
                theirs.push((peer, other));
            }
        }
        if theirs.is_empty() {
            return Ok(());
        }
        let (axis, mine) = (call.axis.clone(), Box::new(Call::clone(call)));
        Err(CommError::Disagreement { rank, axis, mine, theirs })
    }

    /// Moves the elements of a call that all agree on.
    fn carry_out(&mut self, request: &Request) -> Result<Outcome, CommError> {
        let call = &request.call;
        let (size, me) = (self.group.size(), self.group.rank());
        let each = call.dtype.bytes();
        let payload = &request.payload;
        let own = payload.bytes.as_bytes();
        let in_bytes = |counts: &[usize]| counts.iter().map(|count| count * each).collect::<Vec<_>>();
        let (send, receive) = (in_bytes(&payload.send), in_bytes(&payload.receive));
        let even = |counts: &[usize]| counts.iter().all(|count| *count == counts[0]);
        let reduction = call.reduction.unwrap_or(Reduction::Sum);
        let wide = || widen(call.dtype, reduction, &payload.bytes);
        let ratio = |wide: &Bytes| if own.is_empty() { 1 } else { wide.len() / own.len() };
        Ok(match call.op {
            Op::Barrier => Outcome::Nothing,
            Op::AllReduce => Outcome::One(match wide() {
                Some((kind, wide)) => {
                    let sum = self.native(request, Native::AllReduce(kind), wide.as_bytes(), wide.len())?;
                    narrow(call.dtype, reduction, kind, &sum, size)
                }
                None => {
                    let parts = self.exchange(request, &vec![own; size], &vec![own.len(); size])?;
                    reduce_bytes(call.dtype, &parts, reduction)
                }
            }),
            Op::ReduceScatter => Outcome::One(match wide().filter(|_| even(&send)) {
                Some((kind, wide)) => {
                    let part = send[me] * ratio(&wide);
                    let sum = self.native(request, Native::ReduceScatter(kind), wide.as_bytes(), part)?;
                    narrow(call.dtype, reduction, kind, &sum, size)
                }
                None => {
                    let parts = self.exchange(request, &cut(own, &send), &vec![send[me]; size])?;
                    reduce_bytes(call.dtype, &parts, reduction)
                }
            }),
            Op::AllGather if even(&receive) => {
                let all = self.native(request, Native::AllGather, own, receive.iter().sum())?;
                Outcome::Parts(
                    (0..size).map(|member| all.slice(member * own.len()..(member + 1) * own.len())).collect(),
                )
            }
            Op::AllGather => Outcome::Parts(self.exchange(request, &vec![own; size], &receive)?),
            Op::AllToAll => Outcome::Parts(self.exchange(request, &cut(own, &send), &receive)?),
            Op::Broadcast => {
                let root = call.root.unwrap_or(0);
                let bytes = call.elements * each;
                let sent = if root == me { own } else { &[] };
                Outcome::One(self.native(request, Native::Broadcast(root), sent, bytes)?)
            }
            Op::Gather => {
                let root = call.root.unwrap_or(0);
                let mut send = vec![&own[..0]; size];
                send[root] = own;
                let receive = if root == me { receive } else { vec![0; size] };
                let parts = self.exchange(request, &send, &receive)?;
                if root == me { Outcome::Parts(parts) } else { Outcome::Nothing }
            }
            // A lane of a pair: the sender is its member 0.
            Op::Send => {
                self.exchange(request, &[&own[..0], own], &[0, 0])?;
                Outcome::Nothing
            }
            Op::Recv => {
                let mut parts = self.exchange(request, &[&[], &[]], &[call.elements * each, 0])?;
                Outcome::One(parts.swap_remove(0))
            }
        })
    }

    fn native(
        &mut self,
        request: &Request,
        native: Native,
        bytes: &[u8],
        result: usize,
    ) -> Result<Bytes, CommError> {
        let mut watch = self.watch(request);
        let done = self.communicator(request)?.native(native, bytes, result, &mut watch);
        self.stopped(done).map(Aligned::freeze)
    }

    /// As [`Communicator::exchange`]; what goes to oneself is copied here.
    fn exchange(
        &mut self,
        request: &Request,
        send: &[&[u8]],
        receive: &[usize],
    ) -> Result<Vec<Bytes>, CommError> {
        let me = self.group.rank();
        let (mut out, mut into) = (send.to_vec(), receive.to_vec());
        let own = if into[me] > 0 { Aligned::copy_of(out[me]) } else { Aligned::zeroed(0) };
        (out[me], into[me]) = (&[], 0);
        let mut watch = self.watch(request);
        let done = self.communicator(request)?.exchange(&out, &into, &mut watch);
        let mut parts = self.stopped(done)?;
        parts[me] = own;
        Ok(parts.into_iter().map(Aligned::freeze).collect())
    }

    fn stopped<T>(&self, result: Result<T, Stop>) -> Result<T, CommError> {
        result.map_err(|stop| match stop {
            Stop::Engine(engine) => error::link(self.control.rank(), "moving elements", engine),
            Stop::Call(error) => *error,
        })
    }

    /// The communicator; the first call makes it, on all ranks of the lane.
    fn communicator(&mut self, request: &Request) -> Result<&mut Communicator, CommError> {
        let (rank, size, me) = (self.control.rank(), self.group.size(), self.group.rank());
        let made = match self.communicator.take() {
            Some(made) => made,
            None => {
                let broken = |engine| error::link(rank, "making a communicator", engine);
                let id = if me == 0 { communicator::identifier().map_err(broken)? } else { [0; ID] };
                let group = self.group.clone().with_deadline(request.deadline);
                let id = group.broadcast(Bucket::new(id.to_vec()), 0, "communicator").wait()?;
                let mut own = [0; ID];
                own.copy_from_slice(id.as_slice());
                Communicator::new(Arc::clone(&self.stream), &own, size, me).map_err(broken)?
            }
        };
        Ok(self.communicator.insert(made))
    }

    /// Says when a call under way is to be given up: at its deadline, or when a rank of it has failed or ended.
    fn watch(&self, request: &Request) -> impl FnMut() -> Result<(), Stop> + use<> {
        let (link, rank) = (self.link.clone(), self.control.rank());
        let peers: Vec<usize> =
            self.group.global_ranks().iter().copied().filter(|&peer| peer != rank).collect();
        let (call, deadline, began) = (Arc::clone(&request.call), request.deadline, Instant::now());
        move || {
            let call = || Box::new(Call::clone(&call));
            let stop = |error| Err(Stop::Call(Box::new(error)));
            let notices = link.inbox().notices();
            if let Some((failed, _, reason)) = notices.failed {
                return stop(CommError::Failed { rank, failed, reason, call: Some(call()) });
            }
            let ranks: Vec<usize> =
                peers.iter().copied().filter(|peer| notices.left.contains(peer)).collect();
            if !ranks.is_empty() {
                return stop(CommError::Gone { rank, ranks, call: call() });
            }
            if began.elapsed() > deadline {
                return stop(CommError::Silent {
                    rank,
                    ranks: peers.clone(),
                    call: call(),
                    instead: Vec::new(),
                    deadline,
                });
            }
            Ok(())
        }
    }
}

/// The parts of `bytes`, one for each member.
fn cut<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, after) = rest.split_at(length);
        parts.push(part);
        rest = after;
    }
    parts
}

/// What the agreement ran into, as an error of the call that it was about.
fn of_call(error: CommError, about: &Call) -> CommError {
    let about = || Box::new(about.clone());
    match error {
        CommError::Silent { rank, ranks, deadline, .. } => {
            CommError::Silent { rank, ranks, call: about(), instead: Vec::new(), deadline }
        }
        CommError::Gone { rank, ranks, .. } => CommError::Gone { rank, ranks, call: about() },
        CommError::Failed { rank, failed, reason, .. } => {
            CommError::Failed { rank, failed, reason, call: Some(about()) }
        }
        other => other,
    }
}
