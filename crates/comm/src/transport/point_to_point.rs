//! All collectives from messages between pairs of ranks, the same for threads and MPI.
//!
//! Every call sends one message to every member of its group, if only a header, so that every rank compares its own
//! fingerprint with everybody's. reduce_scatter sends part r to rank r, which reduces the parts in rank order;
//! all_reduce does that with even chunks and then gathers them (small buckets are exchanged whole, one hop instead of
//! two; the arithmetic is the same). Nothing runs in the background: a thread that waits moves the calls along that
//! owe somebody a second message, its own and those of other threads of the rank.

mod flight;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burnish_core::Dtype;

use self::flight::Flight;
use crate::call::hash;
use crate::transport::inbox::lock;
use crate::transport::link::{Link, Message, MessageKind, WORDS};
use crate::transport::{Bytes, Inbox, Outcome, Request, Transport, Work};
use crate::{Call, CommError, DEADLINE, Op};

/// How long a rank that has seen a disagreement waits for the other ranks' fingerprints, to name them all.
const GRACE: Duration = Duration::from_secs(1);
/// Nobody waits longer, whatever a deadline says.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A [`Transport`] over a [`Link`].
pub struct PointToPoint {
    engine: Arc<Engine>,
}

impl PointToPoint {
    /// The transport of one rank.
    #[must_use]
    pub fn new(link: Box<dyn Link>) -> Self {
        Self {
            engine: Arc::new(Engine {
                link,
                counters: Mutex::default(),
                helping: Mutex::default(),
                first: Mutex::default(),
                longest: AtomicU64::new(0),
            }),
        }
    }
}

/// Messages of this rank to and from one peer on one channel, so far.
#[derive(Clone, Copy, Default)]
struct Counter {
    sent: u64,
    received: u64,
}

struct Engine {
    link: Box<dyn Link>,
    counters: Mutex<HashMap<(usize, u64), Counter>>,
    /// Flights that must go on whether or not somebody waits for them.
    helping: Mutex<Vec<Arc<Flight>>>,
    first: Mutex<Option<Arc<CommError>>>,
    /// The longest that a call was to wait, in milliseconds: so long others may still be at work when this rank ends.
    longest: AtomicU64,
}

impl Engine {
    fn inbox(&self) -> &Inbox {
        self.link.inbox()
    }

    fn first(&self) -> Option<Arc<CommError>> {
        lock(&self.first).clone()
    }

    /// Keeps `error` if it is the first and, if so, tells the other ranks.
    fn fail(&self, error: &CommError) {
        {
            let mut first = lock(&self.first);
            if first.is_some() {
                return;
            }
            *first = Some(Arc::new(error.clone()));
        }
        let here = self.link.rank();
        let (kind, origin, mut reason) = match error {
            // passed on, so that who has not heard yet does not take this rank's end for the cause
            CommError::Failed { failed, reason, .. } => (MessageKind::Failed, *failed, reason.clone()),
            CommError::Disagreement { .. } => (MessageKind::Disagreed, here, error.to_string()),
            CommError::Panicked { message, .. } => {
                (MessageKind::Failed, here, format!("it panicked: {message}"))
            }
            CommError::Stopped { reason, .. } => (MessageKind::Failed, here, reason.clone()),
            _ => (MessageKind::Failed, here, error.to_string()),
        };
        reason.truncate(reason.floor_char_boundary(WORDS));
        self.tell(kind, origin, Bytes::from_vec(reason.into_bytes()));
        self.inbox().wake();
    }

    /// Says to all other ranks what has become of rank `origin`.
    fn tell(&self, kind: MessageKind, origin: usize, body: Bytes) {
        let call = Arc::new(Call::new(Op::Barrier, Dtype::U8, "", "", ""));
        for to in (0..self.link.size()).filter(|&to| to != self.link.rank()) {
            let (call, body) = (Arc::clone(&call), body.clone());
            // a peer that cannot be told has an error of its own
            let (index, checksum) = (origin as u64, None);
            let _ = self.link.post(to, Message { kind, channel: 0, phase: 0, index, call, checksum, body });
        }
    }

    /// Moves every flight along that owes a message.
    fn help(&self) {
        let flights: Vec<Arc<Flight>> = lock(&self.helping).clone();
        let mut finished = false;
        for flight in &flights {
            finished |= flight.try_advance(self);
        }
        if finished {
            lock(&self.helping).retain(|flight| !flight.is_over());
        }
    }

    fn wait(&self, flight: &Flight) -> Result<Outcome, CommError> {
        let until = after(flight.deadline());
        loop {
            let seen = self.inbox().changes();
            if let Err(error) = self.link.poll() {
                self.fail(&error);
            }
            let wake = match flight.advance(self) {
                flight::Progress::Over(result) => {
                    self.help();
                    return result;
                }
                flight::Progress::Waiting { until: grace } => grace,
            };
            self.help();
            if let Some(first) = self.first() {
                // Helping may have moved this very call to its end: then the error is its own.
                if flight.is_over() {
                    continue;
                }
                return Err(CommError::Broken { first });
            }
            if Instant::now() >= until {
                let error = flight.silence(self);
                self.fail(&error);
                return Err(error);
            }
            let mut wake = wake.map_or(until, |grace| grace.min(until));
            if let Some(every) = self.link.poll_every() {
                wake = wake.min(after(every));
            }
            self.inbox().sleep(seen, wake);
        }
    }
}

impl Drop for Engine {
    /// Says goodbye. Calls that nobody waits for any more are completed first where peers need this rank for them.
    fn drop(&mut self) {
        let longest = match self.longest.load(Ordering::Relaxed) {
            0 => DEADLINE,
            longest => Duration::from_millis(longest),
        };
        if std::thread::panicking() {
            let (rank, message) = (self.link.rank(), "its thread panicked".to_owned());
            self.fail(&CommError::Panicked { rank, message });
        } else {
            let flights = std::mem::take(&mut *lock(&self.helping));
            for flight in flights {
                if self.first().is_none() {
                    // an error here is told to the others; this rank has nobody left to tell
                    let _ = self.wait(&flight);
                }
            }
            self.tell(MessageKind::Left, self.link.rank(), Bytes::empty());
        }
        self.link.close(longest.clamp(Duration::from_secs(1), YEAR));
    }
}

fn after(duration: Duration) -> Instant {
    Instant::now() + duration.min(YEAR)
}

impl Transport for PointToPoint {
    fn name(&self) -> &'static str {
        self.engine.link.name()
    }

    fn rank(&self) -> usize {
        self.engine.link.rank()
    }

    fn size(&self) -> usize {
        self.engine.link.size()
    }

    fn start(&self, request: Request) -> Box<dyn Work> {
        let engine = &self.engine;
        if let Some(first) = engine.first() {
            return Box::new(Refused(CommError::Broken { first }));
        }
        if let Some((failed, false, reason)) = engine.inbox().notices().failed {
            // what the others sent may suffice for the result, but they have given up
            let call = Some(Box::new(Call::clone(&request.call)));
            let error = CommError::Failed { rank: engine.link.rank(), failed, reason, call };
            engine.fail(&error);
            return Box::new(Refused(error));
        }
        if let Err(error) = engine.link.begin(&request.call) {
            engine.fail(&error);
            return Box::new(Refused(error));
        }
        let milliseconds = u64::try_from(request.deadline.as_millis()).unwrap_or(u64::MAX);
        engine.longest.fetch_max(milliseconds.max(1), Ordering::Relaxed);
        let channel = hash(&[request.call.channel.as_bytes()]);
        let flight = Arc::new(Flight::new(request, channel, &mut lock(&engine.counters)));
        if let Err(error) = flight.depart(engine) {
            engine.fail(&error);
            return Box::new(Refused(error));
        }
        if flight.owes() {
            lock(&engine.helping).push(Arc::clone(&flight));
        }
        Box::new(Waiting { engine: Arc::clone(engine), flight })
    }

    fn fail(&self, error: CommError) {
        self.engine.fail(&error);
    }

    fn failure(&self) -> Option<Arc<CommError>> {
        self.engine.first()
    }
}

/// A call that was not started.
struct Refused(CommError);

impl Work for Refused {
    fn ready(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Outcome, CommError> {
        Err(self.0)
    }
}

struct Waiting {
    engine: Arc<Engine>,
    flight: Arc<Flight>,
}

impl Work for Waiting {
    fn ready(&self) -> bool {
        if let Err(error) = self.engine.link.poll() {
            self.engine.fail(&error);
        }
        self.flight.try_advance(&self.engine);
        self.flight.is_over() || self.engine.first().is_some()
    }

    fn wait(self: Box<Self>) -> Result<Outcome, CommError> {
        self.engine.wait(&self.flight)
    }
}

impl Drop for Waiting {
    /// What is still to come must be taken out of the inbox, and looked at, by somebody.
    fn drop(&mut self) {
        if !self.flight.owes() && self.flight.abandon() && self.engine.first().is_none() {
            lock(&self.engine.helping).push(Arc::clone(&self.flight));
        }
    }
}
