//! Calls of one order, one after the other: agree over the control connection, then let NCCL move the elements.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;

use super::agreement::{Agreement, of_call};
use super::buffer_place::Place;
use super::communicator::{self, Communicator, Task};
use super::library::{ID, Library};
use super::staging::{Wide, direct, narrow, widen};
use super::{NcclError, error};
use crate::reduction::reduce_bytes;
use crate::transport::{Bytes, DeviceMemory, Link, Outcome, Request, Transport};
use crate::{Bucket, Call, CommError, Group, Op, Reduction};

/// How long the others may take to say that they are there, when a deadline has passed.
const ROLL_CALL: Duration = Duration::from_secs(3);

/// How long what a rank sent before it ended may still be on its way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The calls of a group, or of a pair in one direction, on one channel.
pub(super) struct StreamWorker {
    /// The same ranks, over the control connection, on a channel of the lane's own.
    pub(super) group: Group,
    pub(super) control: Arc<dyn Transport>,
    pub(super) link: Arc<dyn Link>,
    pub(super) library: &'static Library,
    pub(super) stream: Arc<CudaStream>,
    /// Made by the first call that moves elements.
    pub(super) communicator: Option<Communicator>,
}

/// What stops a call that NCCL has begun.
enum Stop {
    Engine(NcclError),
    Call(Box<CommError>),
    /// The deadline has passed.
    Late,
}

impl From<NcclError> for Stop {
    fn from(error: NcclError) -> Self {
        Self::Engine(error)
    }
}

impl StreamWorker {
    /// Makes a call. The first error is kept, and the other ranks are told.
    pub(super) fn run(&mut self, request: &Request, agreement: Agreement) -> Result<Outcome, CommError> {
        if let Some(first) = self.control.failure() {
            // The agreement knows better why, if it is about this very call.
            return Err(match agreement.reach(self.control.rank(), request) {
                Err(error) if !matches!(error, CommError::Broken { .. }) => of_call(error, &request.call),
                _ => CommError::Broken { first },
            });
        }
        let agreed = agreement.reach(self.control.rank(), request);
        agreed.and_then(|()| self.carry_out(request)).map_err(|error| {
            let error = of_call(error, &request.call);
            self.control.fail(error.clone());
            error
        })
    }

    /// Moves the elements of a call that all agree on.
    fn carry_out(&mut self, request: &Request) -> Result<Outcome, CommError> {
        let (call, payload) = (&request.call, &request.payload);
        let (size, me) = (self.group.size(), self.group.rank());
        let each = call.dtype.bytes();
        let own = &payload.bytes;
        let in_bytes = |counts: &[usize]| counts.iter().map(|count| count * each).collect::<Vec<_>>();
        let (send, receive) = (in_bytes(&payload.send), in_bytes(&payload.receive));
        let even = |counts: &[usize]| counts.iter().all(|count| *count == counts[0]);
        let to_all = |bytes: usize| vec![0..bytes; size];
        Ok(match call.op {
            Op::Barrier => Outcome::Nothing,
            Op::AllReduce => Outcome::One(match self.wide(request)? {
                Some((kind, wide)) => {
                    let bytes = wide.len();
                    let sum = self.task(request, Task::AllReduce(kind, bytes), &wide, bytes)?;
                    self.narrow(request, kind, sum)?
                }
                None => {
                    let (out, back) = (to_all(own.len()), ranges(&vec![own.len(); size]));
                    let parts = self.exchange(request, &self.on_host(call, own)?, out, back)?;
                    reduce_bytes(call.dtype, &parts, reduction(call))
                }
            }),
            Op::ReduceScatter => Outcome::One(match self.wide(request)?.filter(|_| even(&send)) {
                Some((kind, wide)) => {
                    let part = wide.len() / size;
                    let sum = self.task(request, Task::ReduceScatter(kind, part), &wide, part)?;
                    self.narrow(request, kind, sum)?
                }
                None => {
                    let (out, back) = (ranges(&send), ranges(&vec![send[me]; size]));
                    let parts = self.exchange(request, &self.on_host(call, own)?, out, back)?;
                    reduce_bytes(call.dtype, &parts, reduction(call))
                }
            }),
            Op::AllGather if even(&receive) => {
                let all = self.task(request, Task::AllGather(own.len()), own, own.len() * size)?;
                Outcome::Gathered(ranges(&receive).into_iter().map(|range| all.slice(range)).collect())
            }
            Op::AllGather => {
                Outcome::Gathered(self.exchange(request, own, to_all(own.len()), ranges(&receive))?)
            }
            Op::AllToAll => {
                Outcome::Gathered(self.exchange(request, own, ranges(&send), ranges(&receive))?)
            }
            Op::Broadcast => {
                let root = call.root.unwrap_or(0);
                let bytes = call.elements * each;
                let room = if root == me { 0 } else { bytes };
                let got = self.task(request, Task::Broadcast(root, bytes), own, room)?;
                Outcome::One(if root == me { own.clone() } else { got })
            }
            Op::Gather => {
                let root = call.root.unwrap_or(0);
                let mut out = vec![0..0; size];
                out[root] = 0..own.len();
                let receive = if root == me { receive } else { vec![0; size] };
                let parts = self.exchange(request, own, out, ranges(&receive))?;
                if root == me { Outcome::Gathered(parts) } else { Outcome::Nothing }
            }
            // A lane of a pair: the sender is its member 0.
            Op::Send => {
                self.exchange(request, own, vec![0..0, 0..own.len()], vec![0..0, 0..0])?;
                Outcome::Nothing
            }
            Op::Recv => {
                let bytes = call.elements * each;
                let back = vec![0..bytes, bytes..bytes];
                let mut parts = self.exchange(request, own, vec![0..0, 0..0], back)?;
                Outcome::One(parts.swap_remove(0))
            }
        })
    }

    /// The elements in the type that NCCL adds up; `None` for what it does not reduce as burnish does.
    fn wide(&self, request: &Request) -> Result<Option<(Wide, Bytes)>, CommError> {
        let (call, bytes) = (&request.call, &request.payload.bytes);
        match direct(call.dtype, reduction(call)) {
            Some(kind) => Ok(Some((kind, bytes.clone()))),
            None => Ok(widen(call.dtype, reduction(call), &self.on_host(call, bytes)?)),
        }
    }

    /// A sum in the call's own type.
    fn narrow(&self, request: &Request, kind: Wide, sum: Bytes) -> Result<Bytes, CommError> {
        let call = &request.call;
        if direct(call.dtype, reduction(call)).is_some() {
            return Ok(sum);
        }
        Ok(narrow(call.dtype, reduction(call), kind, &sum, self.group.size()))
    }

    /// Bytes that are looked at here: a device that cannot be read is an error, not a panic.
    fn on_host(&self, call: &Call, bytes: &Bytes) -> Result<Bytes, CommError> {
        match bytes.device() {
            None => Ok(bytes.clone()),
            Some(_) => match bytes.to_host() {
                Ok(host) => Ok(crate::transport::Aligned::copy_of(host).freeze()),
                Err(error) => Err(self.broken(call, error.into())),
            },
        }
    }

    fn broken(&self, call: &Call, error: NcclError) -> CommError {
        error::of_call(self.control.rank(), call, error)
    }

    /// An error of NCCL's. One that blames another rank gives that rank a moment to say what happened: where its deadline
    /// has passed a little before this one's, it has given up, and asks who is there.
    fn blamed(
        &self,
        request: &Request,
        error: NcclError,
        watch: &mut impl FnMut() -> Result<(), Stop>,
    ) -> CommError {
        if error.is_remote() {
            let until = Instant::now() + 2 * LAST_WORDS;
            while Instant::now() < until {
                match watch() {
                    Err(Stop::Call(told)) => return *told,
                    Err(Stop::Late) => return self.late(request),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        self.broken(&request.call, error)
    }

    /// Sends parts of `bytes` to the members and gives what comes from each: these ranges of what comes in all.
    fn exchange(
        &mut self,
        request: &Request,
        bytes: &Bytes,
        out: Vec<Range<usize>>,
        back: Vec<Range<usize>>,
    ) -> Result<Vec<Bytes>, CommError> {
        let room = back.iter().map(|range| range.end).max().unwrap_or(0);
        let all = self.task(request, Task::Exchange(out, back.clone()), bytes, room)?;
        Ok(back.into_iter().map(|range| all.slice(range)).collect())
    }

    /// Does a task of NCCL's over `bytes`, which gives `room` bytes: on the device where `bytes` lie there, or the
    /// request says so.
    fn task(
        &mut self,
        request: &Request,
        task: Task,
        bytes: &Bytes,
        room: usize,
    ) -> Result<Bytes, CommError> {
        if bytes.is_empty() && room == 0 {
            return Ok(Bytes::empty());
        }
        let mut watch = self.watch(request);
        let done = self.attempt(request, &task, bytes, room, &mut watch);
        done.map_err(|stop| match stop {
            Stop::Engine(engine) => self.blamed(request, engine, &mut watch),
            Stop::Call(error) => *error,
            Stop::Late => self.late(request),
        })
    }

    fn attempt(
        &mut self,
        request: &Request,
        task: &Task,
        bytes: &Bytes,
        room: usize,
        watch: &mut impl FnMut() -> Result<(), Stop>,
    ) -> Result<Bytes, Stop> {
        let bound = self.stream.context().bind_to_thread();
        bound.map_err(|error| NcclError::cuda("taking the device", error))?;
        self.join(request, watch)?;
        let like = self.like(request, bytes);
        let send = Place::of(bytes, &self.stream)?;
        let receive = Place::room(room, like, &self.stream)?;
        let Some(communicator) = &mut self.communicator else { return Ok(Bytes::empty()) };
        let got = communicator.run(task, send, receive, watch)?;
        Ok(got.result(room, &self.stream)?)
    }

    /// The caller's memory on this device that a result should be like.
    fn like<'a>(&self, request: &'a Request, bytes: &'a Bytes) -> Option<&'a Arc<dyn DeviceMemory>> {
        let like = match bytes.device() {
            Some((memory, _)) => Some(memory),
            None => request.payload.like.as_ref(),
        };
        like.filter(|memory| memory.ordinal() == self.stream.context().ordinal())
    }

    /// Makes the communicator, on all ranks of the lane, if there is none yet.
    fn join(&mut self, request: &Request, watch: &mut impl FnMut() -> Result<(), Stop>) -> Result<(), Stop> {
        if self.communicator.is_some() {
            return Ok(());
        }
        let (size, me) = (self.group.size(), self.group.rank());
        let id = if me == 0 { communicator::identifier(self.library)? } else { [0; ID] };
        let group = self.group.clone().with_deadline(request.deadline);
        let id = group.broadcast(Bucket::new(id.to_vec()), 0, "communicator").wait();
        let id = id.map_err(|error| Stop::Call(Box::new(error)))?;
        let mut own = [0; ID];
        own.copy_from_slice(id.as_slice());
        let stream = Arc::clone(&self.stream);
        self.communicator = Some(Communicator::new(self.library, stream, &own, size, me, watch)?);
        Ok(())
    }

    /// The deadline has passed: who is not there any more? Everybody that is asks at about the same time.
    fn late(&self, request: &Request) -> CommError {
        let (call, rank, deadline) = (&request.call, self.control.rank(), request.deadline);
        // Who only sends may be done with its part, and has nothing to ask.
        if matches!(call.op, Op::Broadcast | Op::Gather | Op::Send | Op::Recv) {
            let ranks = self.group.global_ranks().iter().copied().filter(|&peer| peer != rank).collect();
            let call = Box::new(Call::clone(call));
            return CommError::Silent { rank, ranks, call, instead: Vec::new(), deadline };
        }
        let group = self.group.clone().with_deadline(ROLL_CALL);
        match group.barrier("roll call") {
            Ok(()) => self.broken(call, NcclError::Stuck { deadline }),
            Err(CommError::Silent { rank, ranks, call, instead, .. }) => {
                CommError::Silent { rank, ranks, call, instead, deadline }
            }
            Err(error) => error,
        }
    }

    /// Says when a call under way is to be given up: at its deadline, or when a rank of it has failed or ended.
    fn watch(&self, request: &Request) -> impl FnMut() -> Result<(), Stop> + use<> {
        let (link, rank) = (Arc::clone(&self.link), self.control.rank());
        let peers: Vec<usize> =
            self.group.global_ranks().iter().copied().filter(|&peer| peer != rank).collect();
        let (call, deadline, began) = (Arc::clone(&request.call), request.deadline, Instant::now());
        let mut gone: Option<Instant> = None;
        move || {
            let call = || Box::new(Call::clone(&call));
            let stop = |error| Err(Stop::Call(Box::new(error)));
            let notices = link.inbox().notices();
            if let Some((failed, _, reason)) = notices.failed {
                return stop(CommError::Failed { rank, failed, reason, call: Some(call()) });
            }
            let ranks: Vec<usize> =
                peers.iter().copied().filter(|peer| notices.left.contains(peer)).collect();
            if !ranks.is_empty() && gone.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
                return stop(CommError::Gone { rank, ranks, call: call() });
            }
            if began.elapsed() > deadline { Err(Stop::Late) } else { Ok(()) }
        }
    }
}

fn reduction(call: &Call) -> Reduction {
    call.reduction.unwrap_or(Reduction::Sum)
}

/// Where parts of these lengths lie, one behind the other.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    lengths
        .iter()
        .map(|length| {
            let start = end;
            end += length;
            start..end
        })
        .collect()
}
