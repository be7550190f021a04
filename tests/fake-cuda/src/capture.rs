//! Captures: streams whose work becomes nodes of a graph instead of being done.
//!
//! As the driver's interface has it: what would have to wait for captured work fails, and so does what might, for the
//! threads that a capture's mode names. Both make the capture invalid, and its end says so.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_uint;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use crate::code::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, CAPTURED_EVENT, Code, ILLEGAL_STATE,
    INVALID_VALUE,
};
use crate::graph;
use crate::lock;
use crate::node::{Kind, Node};
use crate::stream::{self, Stream};

/// Which threads a capture keeps from calls that might wait for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All threads.
    Global,
    /// The one that began it.
    Local,
    /// No thread.
    Relaxed,
}

impl TryFrom<c_uint> for Mode {
    type Error = Code;

    fn try_from(number: c_uint) -> Result<Self, Code> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::Local),
            2 => Ok(Self::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// How many nodes of each stream come before a point.
type Before = BTreeMap<usize, usize>;

/// A point of a capture that an event stands for.
#[derive(Clone)]
pub(crate) struct Point {
    capture: u64,
    before: Before,
}

/// A stream of a capture.
struct Branch {
    device: usize,
    blocking: bool,
    before: Before,
}

struct Capture {
    origin: usize,
    mode: Mode,
    thread: ThreadId,
    valid: bool,
    /// In an order that keeps that of every stream and every wait: the order of the calls.
    nodes: Vec<Node>,
    branches: BTreeMap<usize, Branch>,
}

impl Capture {
    /// Whether this thread must not make calls that might wait for it.
    fn forbids(&self) -> bool {
        match self.mode {
            Mode::Global => true,
            Mode::Local => self.thread == thread::current().id(),
            Mode::Relaxed => false,
        }
    }

    fn is_of(&self, device: usize, blocking: bool) -> bool {
        self.branches.values().any(|branch| branch.device == device && (branch.blocking || !blocking))
    }

    /// Whether all nodes come before the end of the stream that it began with.
    fn is_joined(&self) -> bool {
        let count = |of: usize, stream: usize| {
            self.branches.get(&of).and_then(|branch| branch.before.get(&stream)).copied().unwrap_or(0)
        };
        self.branches.keys().all(|&stream| count(self.origin, stream) >= count(stream, stream))
    }

    /// Makes it invalid; `code` is why, for the first time.
    fn violated(&mut self, code: Code) -> Code {
        if std::mem::replace(&mut self.valid, false) { code } else { CAPTURE_INVALIDATED }
    }
}

/// The captures that have not ended.
#[derive(Default)]
struct Captures {
    begun: u64,
    all: HashMap<u64, Capture>,
    /// Which of them each stream is of.
    streams: HashMap<usize, u64>,
}

impl Captures {
    fn of(&mut self, stream: usize) -> Option<&mut Capture> {
        self.streams.get(&stream).and_then(|id| self.all.get_mut(id))
    }

    fn remove(&mut self, id: u64) -> Option<Capture> {
        self.streams.retain(|_, of| *of != id);
        self.all.remove(&id)
    }

    /// Makes all captures that `those` says invalid, if there are any.
    fn violated(&mut self, code: Code, those: impl Fn(&Capture) -> bool) -> Result<(), Code> {
        let mut result = Ok(());
        for capture in self.all.values_mut().filter(|capture| those(capture)) {
            capture.violated(code);
            result = Err(code);
        }
        result
    }
}

static CAPTURES: Mutex<Option<Captures>> = Mutex::new(None);

fn with<T>(action: impl FnOnce(&mut Captures) -> T) -> T {
    action(lock(&CAPTURES).get_or_insert_default())
}

/// What is with a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

pub(crate) fn status(on: &Stream) -> Status {
    with(|captures| match captures.of(on.handle) {
        None => Status::None,
        Some(capture) if capture.valid => Status::Active,
        Some(_) => Status::Invalidated,
    })
}

pub(crate) fn begin(on: &Stream, mode: Mode) -> Result<(), Code> {
    with(|captures| {
        if captures.of(on.handle).is_some() {
            return Err(ILLEGAL_STATE);
        }
        captures.begun += 1;
        let branch = Branch { device: on.device, blocking: on.blocking, before: Before::new() };
        let capture = Capture {
            origin: on.handle,
            mode,
            thread: thread::current().id(),
            valid: true,
            nodes: Vec::new(),
            branches: BTreeMap::from([(on.handle, branch)]),
        };
        captures.all.insert(captures.begun, capture);
        captures.streams.insert(on.handle, captures.begun);
        Ok(())
    })
}

/// Ends the capture that began with the stream; its nodes.
pub(crate) fn end(on: &Stream) -> Result<Vec<Node>, Code> {
    with(|captures| {
        let id = *captures.streams.get(&on.handle).ok_or(ILLEGAL_STATE)?;
        let capture = captures.of(on.handle).ok_or(ILLEGAL_STATE)?;
        if capture.origin != on.handle {
            return Err(capture.violated(CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let capture = captures.remove(id).ok_or(ILLEGAL_STATE)?;
        match capture {
            Capture { valid: false, .. } => Err(CAPTURE_INVALIDATED),
            capture if !capture.is_joined() => Err(CAPTURE_UNJOINED),
            capture => Ok(capture.nodes),
        }
    })
}

/// Makes work a node, where the stream is captured; otherwise gives it back.
pub(crate) fn record(on: &Stream, node: Node) -> Result<Option<Node>, Code> {
    with(|captures| {
        let Some(capture) = captures.of(on.handle) else { return Ok(Some(node)) };
        if !capture.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        if let Kind::Free(address) = node.kind
            && !capture.nodes.iter().any(|node| matches!(node.kind, Kind::Allocation(at) if at == address))
            && !graph::allocated(address)
        {
            return Err(capture.violated(INVALID_VALUE));
        }
        capture.nodes.push(node);
        if let Some(branch) = capture.branches.get_mut(&on.handle) {
            *branch.before.entry(on.handle).or_default() += 1;
        }
        Ok(None)
    })
}

/// Refuses what no graph can hold, where the stream is captured.
pub(crate) fn refuse(on: &Stream) -> Result<(), Code> {
    with(|captures| {
        captures.of(on.handle).map_or(Ok(()), |capture| Err(capture.violated(CAPTURE_UNSUPPORTED)))
    })
}

/// Refuses what waits for all streams of a device, where one of them is captured.
pub(crate) fn refuse_device(device: usize) -> Result<(), Code> {
    with(|captures| captures.violated(CAPTURE_UNSUPPORTED, |capture| capture.is_of(device, false)))
}

/// Refuses calls that might wait, where a capture keeps this thread from them.
pub(crate) fn refuse_unsafe() -> Result<(), Code> {
    with(|captures| captures.violated(CAPTURE_UNSUPPORTED, Capture::forbids))
}

/// Whether a capture has a stream that the device's own stream comes after and before.
pub(crate) fn is_implicit(device: usize) -> bool {
    with(|captures| captures.all.values().any(|capture| capture.is_of(device, true)))
}

/// Refuses the use of a device's own stream, where it would depend on a captured one.
pub(crate) fn refuse_implicit(device: usize) -> Result<(), Code> {
    with(|captures| captures.violated(CAPTURE_IMPLICIT, |capture| capture.is_of(device, true)))
}

/// Takes a stream that goes away out of its capture.
pub(crate) fn leave(on: &Stream) -> Result<(), Code> {
    with(|captures| {
        let Some(&id) = captures.streams.get(&on.handle) else { return Ok(()) };
        match captures.of(on.handle) {
            Some(capture) if capture.valid => Err(capture.violated(CAPTURE_UNSUPPORTED)),
            Some(capture) if capture.origin == on.handle => {
                captures.remove(id);
                Ok(())
            }
            _ => {
                captures.streams.remove(&on.handle);
                Ok(())
            }
        }
    })
}

/// The point of the stream's capture that an event is recorded at, if there is one.
pub(crate) fn point(on: &Stream) -> Result<Option<Point>, Code> {
    with(|captures| {
        let Some(&id) = captures.streams.get(&on.handle) else { return Ok(None) };
        let Some(capture) = captures.of(on.handle) else { return Ok(None) };
        if !capture.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        let before = capture.branches.get(&on.handle).map(|branch| branch.before.clone());
        Ok(Some(Point { capture: id, before: before.unwrap_or_default() }))
    })
}

/// Refuses to ask for or wait for an event that a capture recorded.
pub(crate) fn refuse_event(point: Option<&Point>) -> Result<(), Code> {
    let Some(point) = point else { return Ok(()) };
    with(|captures| {
        if let Some(capture) = captures.all.get_mut(&point.capture) {
            capture.violated(CAPTURED_EVENT);
        }
    });
    Err(CAPTURED_EVENT)
}

/// Has a stream wait for an event: one that a capture recorded takes the stream into the capture. Whether that is all.
pub(crate) fn join(on: &Stream, point: Option<&Point>) -> Result<bool, Code> {
    with(|captures| {
        let here = captures.streams.get(&on.handle).copied();
        let Some(point) = point else {
            return captures
                .of(on.handle)
                .map_or(Ok(false), |capture| Err(capture.violated(CAPTURE_ISOLATION)));
        };
        let there = captures.all.contains_key(&point.capture);
        if here.is_some_and(|here| here != point.capture) {
            let code = if there { CAPTURE_MERGE } else { CAPTURE_ISOLATION };
            if let Some(capture) = captures.all.get_mut(&point.capture) {
                capture.violated(code);
            }
            return Err(captures.of(on.handle).map_or(code, |capture| capture.violated(code)));
        }
        let Some(capture) = captures.all.get_mut(&point.capture) else { return Err(CAPTURE_ISOLATION) };
        if !capture.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        if stream::is_own(on.handle) {
            return Err(capture.violated(CAPTURE_IMPLICIT));
        }
        let branch = capture.branches.entry(on.handle).or_insert_with(|| Branch {
            device: on.device,
            blocking: on.blocking,
            before: Before::new(),
        });
        for (&stream, &count) in &point.before {
            let before = branch.before.entry(stream).or_default();
            *before = count.max(*before);
        }
        captures.streams.insert(on.handle, point.capture);
        Ok(true)
    })
}
