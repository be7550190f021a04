//! One call under way: what was sent, what has come, what is owed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::{Counter, Engine, GRACE};
use crate::reduction::{assemble, reduce_bytes};
use crate::transport::chunk;
use crate::transport::inbox::{Key, lock};
use crate::transport::link::{Message, MessageKind, checksum};
use crate::transport::{Bytes, Outcome, Payload, Request};
use crate::{Call, CommError, Op, Reduction};

/// Up to this many bytes an all_reduce exchanges whole buckets: one hop instead of two.
const WHOLE: usize = 16 << 10;
/// ... among at most this many ranks, as each then receives from all.
const WHOLE_RANKS: usize = 16;
/// A reduced chunk goes out in pieces of about this many bytes: allocators recycle buffers of this size, while larger
/// ones are fresh pages each time, which cost more than the sums.
const PIECE: usize = 4 << 20;
/// Most pieces of a chunk, as a message's phase is one byte; they grow beyond [`PIECE`] then.
const PIECES: usize = 200;

pub(super) enum Progress {
    Over(Result<Outcome, CommError>),
    Waiting { until: Option<Instant> },
}

enum Stage {
    /// Waiting for the first message of each peer.
    First,
    /// all_reduce: waiting for this piece of the others' reduced chunks.
    Second(usize),
    /// Complete; the result until somebody takes it.
    Over(Option<Result<Outcome, CommError>>),
}

struct State {
    stage: Stage,
    /// This rank's elements.
    own: Bytes,
    /// What each member sent in this stage; this rank's own contribution in its place.
    arrived: Vec<Option<Bytes>>,
    /// Members whose call differs.
    differing: Vec<(usize, Call)>,
    /// When a disagreement was first seen.
    seen: Option<Instant>,
    /// all_reduce: the complete pieces of all members, by piece.
    pieces: Vec<Vec<Bytes>>,
    /// Nobody will take the result.
    abandoned: bool,
}

pub(super) struct Flight {
    request: Request,
    channel: u64,
    /// Per member: the number of this call among the messages to and from it.
    index: Vec<Counter>,
    /// Pieces of a chunk in the second round of an all_reduce; 0 where there is none.
    pieces: usize,
    state: Mutex<State>,
}

impl Flight {
    pub(super) fn new(request: Request, channel: u64, counters: &mut HashMap<(usize, u64), Counter>) -> Self {
        let members = &request.members;
        let (size, call) = (members.size(), &*request.call);
        let mut index = vec![Counter::default(); size];
        for (member, index) in index.iter_mut().enumerate() {
            let counter = counters.entry((members.ranks[member], channel)).or_default();
            *index = *counter;
            counter.sent += u64::from(sends(call, members.me, member));
            counter.received += u64::from(receives(call, members.me, member));
        }
        let bytes = call.elements * call.dtype.bytes();
        let two_rounds = call.op == Op::AllReduce && size > 1 && (bytes > WHOLE || size > WHOLE_RANKS);
        let pieces = if two_rounds { bytes.div_ceil(size).div_ceil(PIECE).clamp(1, PIECES) } else { 0 };
        let own = request.payload.bytes.clone();
        let state = State {
            stage: Stage::First,
            own,
            arrived: vec![None; size],
            differing: Vec::new(),
            seen: None,
            pieces: Vec::new(),
            abandoned: false,
        };
        let mut flight = Self { request, channel, index, pieces, state: Mutex::new(state) };
        // the state holds the elements from here on, so that they can be taken out of it
        flight.request.payload = Payload { bytes: Bytes::empty(), ..flight.request.payload };
        flight
    }

    pub(super) fn deadline(&self) -> Duration {
        self.request.deadline
    }

    /// Whether peers need this rank again after the first messages.
    pub(super) fn owes(&self) -> bool {
        self.pieces > 0
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(lock(&self.state).stage, Stage::Over(_))
    }

    /// Nobody will take the result; gives whether messages are still to come.
    pub(super) fn abandon(&self) -> bool {
        let mut state = lock(&self.state);
        let me = self.me();
        state.abandoned = true;
        state.own = Bytes::empty();
        if state.arrived[me].is_some() {
            state.arrived[me] = Some(Bytes::empty());
        }
        !matches!(state.stage, Stage::Over(_))
    }

    fn call(&self) -> &Call {
        &self.request.call
    }

    fn me(&self) -> usize {
        self.request.members.me
    }

    fn size(&self) -> usize {
        self.request.members.size()
    }

    fn receives(&self, member: usize) -> bool {
        receives(self.call(), self.me(), member)
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.call().dtype.bytes()
    }

    fn byte_range(&self, elements: Range<usize>) -> Range<usize> {
        self.bytes(elements.start)..self.bytes(elements.end)
    }

    /// The bytes of this rank's elements that go to `member` in the first round.
    fn outgoing(&self, member: usize) -> Range<usize> {
        let (call, payload) = (self.call(), &self.request.payload);
        let all = 0..call.elements;
        let elements = match call.op {
            Op::AllReduce if self.owes() => chunk(call.elements, self.size(), member),
            Op::AllReduce | Op::Send => all,
            Op::ReduceScatter | Op::AllToAll => {
                let start = payload.send[..member].iter().sum();
                start..start + payload.send[member]
            }
            Op::AllGather => 0..payload.receive[self.me()],
            Op::Broadcast if call.root == Some(self.me()) => all,
            Op::Gather if call.root == Some(member) => 0..payload.receive[self.me()],
            Op::Broadcast | Op::Gather | Op::Recv | Op::Barrier => 0..0,
        };
        self.byte_range(elements)
    }

    /// Elements that come from `member` in the first round.
    fn incoming(&self, member: usize) -> usize {
        let (call, payload) = (self.call(), &self.request.payload);
        match call.op {
            Op::AllReduce if self.owes() => chunk(call.elements, self.size(), self.me()).len(),
            Op::AllReduce | Op::Recv => call.elements,
            Op::ReduceScatter => payload.send[self.me()],
            Op::AllGather | Op::AllToAll => payload.receive[member],
            Op::Broadcast if call.root == Some(member) => call.elements,
            Op::Gather if call.root == Some(self.me()) => payload.receive[member],
            Op::Broadcast | Op::Gather | Op::Send | Op::Barrier => 0,
        }
    }

    /// Posts the first round.
    pub(super) fn depart(&self, engine: &Engine) -> Result<(), CommError> {
        let own = {
            let mut state = lock(&self.state);
            let me = self.me();
            if !self.call().op.is_pairwise() {
                state.arrived[me] = Some(state.own.slice(self.outgoing(me)));
            }
            state.own.clone()
        };
        // start behind this rank, so that not all knock at rank 0 first
        for member in (1..self.size()).map(|step| (self.me() + step) % self.size()) {
            if sends(self.call(), self.me(), member) {
                self.post(engine, member, 0, own.slice(self.outgoing(member)))?;
            }
        }
        Ok(())
    }

    fn post(&self, engine: &Engine, member: usize, phase: u8, body: Bytes) -> Result<(), CommError> {
        let message = Message {
            kind: MessageKind::Call,
            channel: self.channel,
            phase,
            index: self.index[member].sent,
            call: Arc::clone(&self.request.call),
            checksum: self.request.checksums.then(|| checksum(&body)),
            body,
        };
        engine.link.post(self.request.members.ranks[member], message)
    }

    /// Moves on as far as possible unless another thread is at it; gives whether the flight is over.
    pub(super) fn try_advance(&self, engine: &Engine) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.move_on(engine, &mut state);
        matches!(state.stage, Stage::Over(_))
    }

    /// Moves on as far as possible and takes the result.
    pub(super) fn advance(&self, engine: &Engine) -> Progress {
        let mut state = lock(&self.state);
        let until = self.move_on(engine, &mut state);
        match &mut state.stage {
            Stage::Over(result) => Progress::Over(result.take().unwrap_or(Ok(Outcome::Nothing))),
            Stage::First | Stage::Second(_) => Progress::Waiting { until },
        }
    }

    fn move_on(&self, engine: &Engine, state: &mut MutexGuard<'_, State>) -> Option<Instant> {
        loop {
            if matches!(state.stage, Stage::Over(_)) {
                return None;
            }
            match self.step(engine, state) {
                Ok(Step::Done(outcome)) => {
                    state.stage = Stage::Over(Some(Ok(outcome)));
                    engine.inbox().wake();
                }
                Ok(Step::Again) => {}
                Ok(Step::Wait(until)) => return until,
                Err(error) => {
                    engine.fail(&error);
                    state.stage = Stage::Over(Some(Err(error)));
                }
            }
        }
    }

    fn step(&self, engine: &Engine, state: &mut State) -> Result<Step, CommError> {
        // notices first: what their senders posted before them is in the inbox by then
        let notices = engine.inbox().notices();
        let phase = if let Stage::Second(piece) = state.stage { second_phase(piece) } else { 0 };
        let mut missing = Vec::new();
        for member in 0..self.size() {
            if state.arrived[member].is_some() || !self.receives(member) {
                continue;
            }
            let (from, index) = (self.request.members.ranks[member], self.index[member].received);
            match engine.inbox().take(&Key { from, channel: self.channel, phase, index }) {
                Some(message) => self.accept(engine, state, member, message)?,
                None => missing.push(from),
            }
        }
        let rank = engine.link.rank();
        if !state.differing.is_empty() {
            let seen = *state.seen.get_or_insert_with(Instant::now);
            let grace = seen + GRACE.min(self.request.deadline / 2);
            let more = missing.iter().any(|rank| !notices.left.contains(rank));
            if more && Instant::now() < grace {
                return Ok(Step::Wait(Some(grace)));
            }
            state.differing.sort_by_key(|(rank, _)| *rank);
            return Err(CommError::Disagreement {
                rank,
                axis: self.call().axis.clone(),
                mine: Box::new(self.call().clone()),
                theirs: std::mem::take(&mut state.differing),
            });
        }
        if missing.is_empty() {
            return self.complete(engine, state);
        }
        if let Some((failed, disagreed, reason)) = notices.failed {
            // a disagreement between others may be one with this rank too: hear the others out
            let grace = *state.seen.get_or_insert_with(Instant::now) + GRACE.min(self.request.deadline / 2);
            if disagreed && Instant::now() < grace {
                return Ok(Step::Wait(Some(grace)));
            }
            let call = Some(Box::new(self.call().clone()));
            return Err(CommError::Failed { rank, failed, reason, call });
        }
        let gone: Vec<usize> = missing.into_iter().filter(|rank| notices.left.contains(rank)).collect();
        if !gone.is_empty() {
            return Err(CommError::Gone { rank, ranks: gone, call: Box::new(self.call().clone()) });
        }
        Ok(Step::Wait(None))
    }

    fn accept(
        &self,
        engine: &Engine,
        state: &mut State,
        member: usize,
        message: Message,
    ) -> Result<(), CommError> {
        let from = self.request.members.ranks[member];
        let align = self.call().dtype.bytes();
        if self.call().difference(&message.call).is_some() {
            state.differing.push((from, Call::clone(&message.call)));
            state.arrived[member] = Some(Bytes::empty());
            return Ok(());
        }
        let rank = engine.link.rank();
        let call = || Box::new(self.call().clone());
        if let Some(expected) = message.checksum {
            let got = checksum(&message.body);
            if got != expected {
                return Err(CommError::Corrupt { rank, from, call: call(), expected, got });
            }
        }
        let elements = match state.stage {
            Stage::Second(piece) => self.piece(member, piece).len(),
            _ => self.incoming(member),
        };
        let (expected, got) = (self.bytes(elements), message.body.len());
        if got != expected {
            return Err(CommError::Length { rank, from, call: call(), expected, got });
        }
        state.arrived[member] = Some(message.body.aligned_to(align));
        Ok(())
    }

    /// Everything of this stage has arrived.
    fn complete(&self, engine: &Engine, state: &mut State) -> Result<Step, CommError> {
        let mut parts: Vec<Bytes> = state.arrived.iter_mut().filter_map(Option::take).collect();
        let (call, me) = (self.call(), self.me());
        let reduction = call.reduction.unwrap_or(Reduction::Sum);
        let own = std::mem::replace(&mut state.own, Bytes::empty());
        Ok(Step::Done(match call.op {
            Op::AllReduce if self.owes() => {
                let next = if let Stage::Second(piece) = state.stage {
                    state.pieces.push(parts);
                    piece + 1
                } else {
                    state.pieces = vec![self.reduce_chunk(engine, parts, reduction)?];
                    0
                };
                if next == self.pieces {
                    let mut pieces = std::mem::take(&mut state.pieces);
                    let mine = pieces.remove(0);
                    for (piece, mine) in pieces.iter_mut().zip(mine) {
                        piece.insert(me, mine);
                    }
                    let in_order: Vec<Bytes> = (0..self.size())
                        .flat_map(|member| pieces.iter().map(move |piece| piece[member].clone()))
                        .collect();
                    drop(pieces);
                    Outcome::One(assemble(call.dtype, own, &in_order))
                } else {
                    state.own = own;
                    state.stage = Stage::Second(next);
                    return Ok(Step::Again);
                }
            }
            _ if state.abandoned => Outcome::Nothing,
            Op::AllReduce | Op::ReduceScatter if self.size() == 1 => Outcome::One(own),
            Op::AllReduce | Op::ReduceScatter => Outcome::One(reduce_bytes(call.dtype, &parts, reduction)),
            Op::AllGather | Op::AllToAll => Outcome::Gathered(parts),
            Op::Gather if call.root == Some(me) => {
                parts[me] = own;
                Outcome::Gathered(parts)
            }
            Op::Broadcast if call.root == Some(me) => Outcome::One(own),
            Op::Broadcast => Outcome::One(parts.swap_remove(call.root.unwrap_or(me))),
            Op::Recv => Outcome::One(parts.swap_remove(0)),
            Op::Gather | Op::Send | Op::Barrier => Outcome::Nothing,
        }))
    }

    /// Reduces this rank's chunk and sends it out piece by piece; gives the pieces.
    fn reduce_chunk(
        &self,
        engine: &Engine,
        mut parts: Vec<Bytes>,
        reduction: Reduction,
    ) -> Result<Vec<Bytes>, CommError> {
        let (dtype, me) = (self.call().dtype, self.me());
        let mut pieces = Vec::with_capacity(self.pieces);
        for piece in 0..self.pieces {
            let range = self.byte_range(self.piece(me, piece));
            let inputs: Vec<Bytes> = parts.iter().map(|part| part.slice(range.clone())).collect();
            let reduced = reduce_bytes(dtype, &inputs, reduction);
            drop(inputs);
            if piece + 1 == self.pieces {
                // let go of the peers' buckets before they hear the last from us: they then write into them
                parts.clear();
            }
            for member in (1..self.size()).map(|step| (me + step) % self.size()) {
                self.post(engine, member, second_phase(piece), reduced.clone())?;
            }
            pieces.push(reduced);
        }
        Ok(pieces)
    }

    /// The elements of a piece within the chunk of `member`.
    fn piece(&self, member: usize, piece: usize) -> Range<usize> {
        chunk(chunk(self.call().elements, self.size(), member).len(), self.pieces, piece)
    }

    pub(super) fn silence(&self, engine: &Engine) -> CommError {
        const SHOWN: usize = 3;
        let state = lock(&self.state);
        let ranks: Vec<usize> = (0..self.size())
            .filter(|&member| state.arrived[member].is_none() && self.receives(member))
            .map(|member| self.request.members.ranks[member])
            .collect();
        let rank = engine.link.rank();
        let stopped = engine.link.stopped();
        if !stopped.is_empty() {
            // Whoever else is silent may well wait for them too, or speak by way of them.
            let (call, deadline) = (Box::new(self.call().clone()), self.request.deadline);
            return CommError::Frozen { rank, ranks: stopped, call, deadline };
        }
        let instead = ranks
            .iter()
            .flat_map(|&rank| engine.inbox().calls_of(rank).into_iter().map(move |call| (rank, call)))
            .take(SHOWN)
            .collect();
        CommError::Silent {
            rank,
            ranks,
            call: Box::new(self.call().clone()),
            deadline: self.request.deadline,
            instead,
        }
    }
}

enum Step {
    Done(Outcome),
    Again,
    Wait(Option<Instant>),
}

/// The phase of the messages with a piece of a reduced chunk.
fn second_phase(piece: usize) -> u8 {
    u8::try_from(1 + piece).unwrap_or(u8::MAX)
}

fn sends(call: &Call, me: usize, member: usize) -> bool {
    match call.op {
        Op::Send => call.root == Some(member),
        Op::Recv => false,
        _ => member != me,
    }
}

fn receives(call: &Call, me: usize, member: usize) -> bool {
    match call.op {
        Op::Recv => call.root == Some(member),
        Op::Send => false,
        _ => member != me,
    }
}
