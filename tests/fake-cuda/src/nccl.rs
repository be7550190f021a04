//! NCCL's functions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::code::put;
use crate::counts::{self, RUNNING};
use crate::exchange::{Apart, Exchange, Inbox, Nothing};
use crate::fault::{self, Fault};
use crate::reduce::{reduce, width};
use crate::stream::{self, Stream};
use crate::{code, driver, lock, memory};

/// An `ncclResult_t`.
type Result = c_int;

const SUCCESS: Result = 0;
const CUDA: Result = 1;
const SYSTEM: Result = 2;
const INVALID_ARGUMENT: Result = 4;
const INVALID_USAGE: Result = 5;
const REMOTE: Result = 6;
const IN_PROGRESS: Result = 7;

/// 2.28.3, as NCCL writes it.
const VERSION: c_int = 22803;
/// What a configuration begins with.
const MAGIC: u32 = 0xcafe_beef;
/// Bytes of an identifier.
const ID: usize = 128;
/// How often the state is asked for before work starts, where the communicator does not block.
const POLLS: u32 = 2;
/// Set in the tags of sends, so that they do not meet collectives.
const PAIR: u64 = 1 << 63;

/// An `ncclUniqueId`: the name of the folder where the ranks meet.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID]);

impl Id {
    fn folder(&self) -> PathBuf {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(ID);
        base().join(String::from_utf8_lossy(&self.0[..end]).as_ref())
    }
}

fn base() -> PathBuf {
    std::env::var_os("FAKE_NCCL_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast(usize),
}

/// A collective: so many bytes for each rank.
#[derive(Clone, Copy)]
struct Collective {
    kind: Kind,
    send: u64,
    receive: u64,
    bytes: usize,
    element: u32,
    operation: u32,
}

/// A send or a receive.
#[derive(Clone, Copy)]
struct Pair {
    sends: bool,
    address: u64,
    bytes: usize,
    peer: usize,
}

enum Task {
    Collective(Collective),
    Pairs(Vec<Pair>),
}

#[derive(Default)]
struct State {
    error: Result,
    joined: bool,
    polls: u32,
    /// Work that starts when it has been asked for often enough.
    deferred: Vec<(Arc<Stream>, Task)>,
}

/// One rank of a communicator.
struct Communicator {
    me: usize,
    size: usize,
    device: usize,
    blocking: bool,
    inbox: Arc<Inbox>,
    exchange: OnceLock<Exchange>,
    state: Mutex<State>,
    operations: AtomicU64,
    collectives: AtomicU64,
    sent: Vec<AtomicU64>,
    received: Vec<AtomicU64>,
}

static COMMUNICATORS: Mutex<Option<HashMap<usize, Arc<Communicator>>>> = Mutex::new(None);
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000);

fn of(handle: usize) -> std::result::Result<Arc<Communicator>, Result> {
    lock(&COMMUNICATORS).get_or_insert_default().get(&handle).cloned().ok_or(INVALID_ARGUMENT)
}

fn given(result: std::result::Result<(), Result>) -> Result {
    result.err().unwrap_or(SUCCESS)
}

impl Communicator {
    /// Meets the others.
    fn join(&self, id: &Id) {
        let met = if fault::of(self.me, None) == Some(Fault::Init) {
            Err(SYSTEM)
        } else {
            match Exchange::join(&id.folder(), self.me, self.size, self.device as u64, &self.inbox) {
                Ok(exchange) => Ok(exchange),
                Err(Apart::Aborted) => Err(SYSTEM),
                Err(Apart::Twice) => Err(INVALID_USAGE),
                Err(Apart::System(error)) => {
                    eprintln!("fake NCCL: rank {} cannot meet the others: {error}", self.me);
                    Err(SYSTEM)
                }
            }
        };
        let mut state = lock(&self.state);
        match met {
            Ok(exchange) => drop(self.exchange.set(exchange)),
            Err(error) => state.error = error,
        }
        state.joined = true;
    }

    /// Begins a task now, or once its state has been asked for.
    fn begin(self: &Arc<Self>, on: Arc<Stream>, task: Task) -> std::result::Result<(), Result> {
        if self.exchange.get().is_none() || on.device != self.device {
            return Err(INVALID_USAGE);
        }
        counts::one(&RUNNING.collectives);
        if self.blocking {
            return self.launch(&on, task);
        }
        let mut state = lock(&self.state);
        state.polls = 0;
        state.deferred.push((on, task));
        Err(IN_PROGRESS)
    }

    fn launch(self: &Arc<Self>, on: &Stream, task: Task) -> std::result::Result<(), Result> {
        let own = Arc::clone(self);
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        on.push(move || own.run(operation, &task)).map_err(|_| CUDA)
    }

    /// What has become of it so far.
    fn poll(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        if state.error != SUCCESS {
            return state.error;
        }
        if !state.joined {
            return IN_PROGRESS;
        }
        if !state.deferred.is_empty() {
            state.polls += 1;
            if state.polls < POLLS {
                return IN_PROGRESS;
            }
            let deferred = std::mem::take(&mut state.deferred);
            drop(state);
            for (on, task) in deferred {
                if let Err(error) = self.launch(&on, task) {
                    return error;
                }
            }
        }
        SUCCESS
    }

    fn fail(&self, error: Result) {
        let mut state = lock(&self.state);
        if state.error == SUCCESS {
            state.error = error;
        }
    }

    /// A task, on its stream's thread. As a kernel of NCCL's does, it stays until it is complete or aborted.
    fn run(&self, operation: u64, task: &Task) -> std::result::Result<(), code::Code> {
        let wrong = fault::of(self.me, Some(operation));
        if let Some(wrong) = wrong {
            match wrong {
                Fault::Async => self.fail(SYSTEM),
                Fault::Stop => fault::stop(),
                Fault::Init | Fault::Hang => {}
            }
            self.inbox.wait_for_abort();
            return Ok(());
        }
        let done = match task {
            Task::Collective(collective) => {
                // Ranks without sends or receives take no part in a group: collectives have a count of their own.
                self.collective(self.collectives.fetch_add(1, Ordering::Relaxed), collective)
            }
            Task::Pairs(pairs) => self.pairs(pairs),
        };
        match done {
            Ok(()) | Err(Stop::Nothing(Nothing::Aborted)) => Ok(()),
            Err(Stop::Nothing(Nothing::Gone)) => self.hang(REMOTE),
            Err(Stop::Mismatch) => self.hang(INVALID_USAGE),
            Err(Stop::Memory(code)) => Err(code),
        }
    }

    fn hang(&self, error: Result) -> std::result::Result<(), code::Code> {
        self.fail(error);
        self.inbox.wait_for_abort();
        Ok(())
    }

    fn exchange(&self) -> std::result::Result<&Exchange, Stop> {
        self.exchange.get().ok_or(Stop::Mismatch)
    }

    /// What every rank sends to this one in a collective, in the order of ranks.
    fn parts(&self, tag: u64, own: &[u8], bytes: usize) -> std::result::Result<Vec<Vec<u8>>, Stop> {
        let part = |rank| {
            let part = if rank == self.me { own.to_vec() } else { self.inbox.take(rank, tag)? };
            if part.len() == bytes { Ok(part) } else { Err(Stop::Mismatch) }
        };
        (0..self.size).map(part).collect()
    }

    fn collective(&self, tag: u64, task: &Collective) -> std::result::Result<(), Stop> {
        let exchange = self.exchange()?;
        let Collective { kind, send, receive, bytes, element, operation } = *task;
        let to_all = |frame: &[u8]| {
            (0..self.size).filter(|&rank| rank != self.me).for_each(|rank| exchange.send(rank, tag, frame));
        };
        let result = match kind {
            Kind::AllReduce => {
                let own = memory::read(send, bytes)?;
                to_all(&own);
                reduce(element, operation, &self.parts(tag, &own, bytes)?).ok_or(Stop::Mismatch)?
            }
            Kind::ReduceScatter => {
                let all = memory::read(send, bytes * self.size)?;
                let part = |rank: usize| &all[rank * bytes..(rank + 1) * bytes];
                (0..self.size)
                    .filter(|&rank| rank != self.me)
                    .for_each(|rank| exchange.send(rank, tag, part(rank)));
                reduce(element, operation, &self.parts(tag, part(self.me), bytes)?).ok_or(Stop::Mismatch)?
            }
            Kind::AllGather => {
                let own = memory::read(send, bytes)?;
                to_all(&own);
                self.parts(tag, &own, bytes)?.concat()
            }
            Kind::Broadcast(root) if root == self.me => {
                let own = memory::read(send, bytes)?;
                to_all(&own);
                own
            }
            Kind::Broadcast(root) => {
                let got = self.inbox.take(root, tag)?;
                if got.len() == bytes { got } else { return Err(Stop::Mismatch) }
            }
        };
        Ok(memory::write(receive, &result)?)
    }

    fn pairs(&self, pairs: &[Pair]) -> std::result::Result<(), Stop> {
        let exchange = self.exchange()?;
        for pair in pairs.iter().filter(|pair| pair.sends) {
            let number = self.sent[pair.peer].fetch_add(1, Ordering::Relaxed);
            exchange.send(pair.peer, PAIR | number, &memory::read(pair.address, pair.bytes)?);
        }
        for pair in pairs.iter().filter(|pair| !pair.sends) {
            let number = self.received[pair.peer].fetch_add(1, Ordering::Relaxed);
            let frame = self.inbox.take(pair.peer, PAIR | number)?;
            if frame.len() != pair.bytes {
                return Err(Stop::Mismatch);
            }
            memory::write(pair.address, &frame)?;
        }
        Ok(())
    }
}

/// What keeps a task from its end.
enum Stop {
    Nothing(Nothing),
    /// The ranks do not do the same.
    Mismatch,
    Memory(code::Code),
}

impl From<Nothing> for Stop {
    fn from(nothing: Nothing) -> Self {
        Self::Nothing(nothing)
    }
}

impl From<code::Code> for Stop {
    fn from(code: code::Code) -> Self {
        Self::Memory(code)
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: &mut MaybeUninit<c_int>) -> Result {
    version.write(VERSION);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: Result) -> *const c_char {
    let text: &CStr = match result {
        SUCCESS => c"no error",
        CUDA => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_handle: usize) -> *const c_char {
    c"".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: &mut MaybeUninit<Id>) -> Result {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let moment = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let name = format!("nccl-{}-{number}-{moment:x}", std::process::id());
    let mut own = Id([0; ID]);
    own.0[..name.len()].copy_from_slice(name.as_bytes());
    if std::fs::create_dir_all(own.folder()).is_err() {
        return SYSTEM;
    }
    id.write(own);
    SUCCESS
}

fn create(handle: &mut MaybeUninit<usize>, size: c_int, id: Id, rank: c_int, blocking: bool) -> Result {
    let (Ok(size), Ok(me)) = (usize::try_from(size), usize::try_from(rank)) else { return INVALID_ARGUMENT };
    let Ok(device) = driver::current() else { return CUDA };
    if me >= size {
        return INVALID_ARGUMENT;
    }
    let numbers = || (0..size).map(|_| AtomicU64::new(0)).collect();
    let own = Arc::new(Communicator {
        me,
        size,
        device,
        blocking,
        inbox: Arc::default(),
        exchange: OnceLock::new(),
        state: Mutex::default(),
        operations: AtomicU64::new(0),
        collectives: AtomicU64::new(0),
        sent: numbers(),
        received: numbers(),
    });
    counts::one(&RUNNING.communicators);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&COMMUNICATORS).get_or_insert_default().insert(number, Arc::clone(&own));
    handle.write(number);
    if blocking {
        own.join(&id);
        return lock(&own.state).error;
    }
    std::thread::spawn(move || own.join(&id));
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRank(handle: &mut MaybeUninit<usize>, size: c_int, id: Id, rank: c_int) -> Result {
    create(handle, size, id, rank, true)
}

/// The beginning of an `ncclConfig_t`, as it is since 2.14.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    handle: &mut MaybeUninit<usize>,
    size: c_int,
    id: Id,
    rank: c_int,
    config: Option<&Config>,
) -> Result {
    if config.is_some_and(|config| config.magic != MAGIC || config.size < size_of::<Config>()) {
        return INVALID_ARGUMENT;
    }
    create(handle, size, id, rank, config.is_none_or(|config| config.blocking != 0))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(handle: usize, state: &mut MaybeUninit<Result>) -> Result {
    put(state, of(handle).map(|own| own.poll()))
}

/// The communicator's work ends where it is.
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: usize) -> Result {
    let Some(own) = lock(&COMMUNICATORS).get_or_insert_default().remove(&handle) else {
        return INVALID_ARGUMENT;
    };
    counts::one(&RUNNING.aborts);
    own.inbox.abort();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: usize) -> Result {
    given(of(handle).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: usize) -> Result {
    given(lock(&COMMUNICATORS).get_or_insert_default().remove(&handle).map(drop).ok_or(INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(handle: usize, count: &mut MaybeUninit<c_int>) -> Result {
    put(count, of(handle).map(|own| own.size as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommUserRank(handle: usize, rank: &mut MaybeUninit<c_int>) -> Result {
    put(rank, of(handle).map(|own| own.me as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCuDevice(handle: usize, device: &mut MaybeUninit<c_int>) -> Result {
    put(device, of(handle).map(|own| own.device as c_int))
}

fn collective(handle: usize, on: usize, count: usize, mut task: Collective) -> Result {
    given(of(handle).and_then(|own| {
        task.bytes = count * width(task.element).ok_or(INVALID_ARGUMENT)?;
        own.begin(stream::of(on).map_err(|_| CUDA)?, Task::Collective(task))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: u64,
    receive: u64,
    count: usize,
    element: u32,
    operation: u32,
    handle: usize,
    on: usize,
) -> Result {
    collective(
        handle,
        on,
        count,
        Collective { kind: Kind::AllReduce, send, receive, bytes: 0, element, operation },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: u64,
    receive: u64,
    count: usize,
    element: u32,
    operation: u32,
    handle: usize,
    on: usize,
) -> Result {
    let kind = Kind::ReduceScatter;
    collective(handle, on, count, Collective { kind, send, receive, bytes: 0, element, operation })
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: u64,
    receive: u64,
    count: usize,
    element: u32,
    handle: usize,
    on: usize,
) -> Result {
    let kind = Kind::AllGather;
    collective(handle, on, count, Collective { kind, send, receive, bytes: 0, element, operation: 0 })
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: u64,
    receive: u64,
    count: usize,
    element: u32,
    root: c_int,
    handle: usize,
    on: usize,
) -> Result {
    let kind = Kind::Broadcast(root as usize);
    collective(handle, on, count, Collective { kind, send, receive, bytes: 0, element, operation: 0 })
}

/// Sends and receives of a group that is open on this thread, by communicator and stream.
#[derive(Default)]
struct Open {
    depth: usize,
    pairs: Vec<(usize, usize, Pair)>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Result {
    OPEN.with_borrow_mut(|open| open.depth += 1);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Result {
    let pairs = OPEN.with_borrow_mut(|open| {
        open.depth = open.depth.saturating_sub(1);
        if open.depth == 0 { std::mem::take(&mut open.pairs) } else { Vec::new() }
    });
    let mut groups: Vec<((usize, usize), Vec<Pair>)> = Vec::new();
    for (handle, on, pair) in pairs {
        match groups.iter_mut().find(|(key, _)| *key == (handle, on)) {
            Some((_, group)) => group.push(pair),
            None => groups.push(((handle, on), vec![pair])),
        }
    }
    let mut result = SUCCESS;
    for ((handle, on), group) in groups {
        let begun =
            of(handle).and_then(|own| own.begin(stream::of(on).map_err(|_| CUDA)?, Task::Pairs(group)));
        if let Err(code) = begun {
            result = code;
        }
    }
    result
}

fn pair(
    sends: bool,
    address: u64,
    count: usize,
    element: u32,
    peer: c_int,
    handle: usize,
    on: usize,
) -> Result {
    given(of(handle).and_then(|own| {
        let peer = usize::try_from(peer).ok().filter(|&peer| peer < own.size && peer != own.me);
        let bytes = count * width(element).ok_or(INVALID_ARGUMENT)?;
        let one = Pair { sends, address, bytes, peer: peer.ok_or(INVALID_ARGUMENT)? };
        let grouped = OPEN.with_borrow_mut(|open| {
            if open.depth > 0 {
                open.pairs.push((handle, on, one));
            }
            open.depth > 0
        });
        if grouped { Ok(()) } else { own.begin(stream::of(on).map_err(|_| CUDA)?, Task::Pairs(vec![one])) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    address: u64,
    count: usize,
    element: u32,
    peer: c_int,
    handle: usize,
    on: usize,
) -> Result {
    pair(true, address, count, element, peer, handle, on)
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    address: u64,
    count: usize,
    element: u32,
    peer: c_int,
    handle: usize,
    on: usize,
) -> Result {
    pair(false, address, count, element, peer, handle, on)
}
