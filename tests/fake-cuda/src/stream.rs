//! Streams: queues of work, each with a thread that does it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::code::{Code, INVALID_HANDLE, NOT_READY, SUCCESS, given, put};
use crate::counts::{self, RUNNING};
use crate::node::{Kind, Node};
use crate::{capture, driver, lock, variable};

/// A piece of work, which gets the stream that does it.
type Work = Box<dyn FnOnce(&Stream) -> Result<(), Code> + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    begun: u64,
    done: u64,
    closed: bool,
}

/// A queue of work of one device.
pub(crate) struct Stream {
    pub(crate) handle: usize,
    pub(crate) device: usize,
    /// Whether it and the device's own stream wait for each other. Only captures look at that.
    pub(crate) blocking: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Nanoseconds that the work so far would have taken.
    spent: AtomicU64,
}

static STREAMS: Mutex<Option<HashMap<usize, Arc<Stream>>>> = Mutex::new(None);
/// The first handle of the others.
const NEXT_FIRST: usize = 0x1_0000;
static NEXT: AtomicUsize = AtomicUsize::new(NEXT_FIRST);
/// Handles of the devices' own streams; handles below are names for the current device's.
const OWN: usize = 16;

/// The error of a device that stays, as real ones do: the first that its work ran into.
static FAULTS: [AtomicI32; 64] = [const { AtomicI32::new(SUCCESS) }; 64];

/// Whether the device still works.
pub(crate) fn sound(device: usize) -> Result<(), Code> {
    match FAULTS.get(device).map_or(SUCCESS, |fault| fault.load(Ordering::Relaxed)) {
        SUCCESS => Ok(()),
        fault => Err(fault),
    }
}

fn streams<T>(action: impl FnOnce(&mut HashMap<usize, Arc<Stream>>) -> T) -> T {
    action(lock(&STREAMS).get_or_insert_default())
}

/// Whether a handle is one of a device's own stream: a name for it, or what it is known by here.
pub(crate) fn is_own(handle: usize) -> bool {
    handle < NEXT_FIRST
}

/// The stream of a handle, for a use of it.
pub(crate) fn of(handle: usize) -> Result<Arc<Stream>, Code> {
    if handle < OWN {
        let device = driver::current()?;
        capture::refuse_implicit(device)?;
        return Ok(streams(|all| {
            let start = || Stream::start(OWN + device, device, true);
            Arc::clone(all.entry(OWN + device).or_insert_with(start))
        }));
    }
    streams(|all| all.get(&handle).cloned()).ok_or(INVALID_HANDLE)
}

/// Work as queues keep it.
pub(crate) fn work(work: impl FnOnce(&Stream) -> Result<(), Code> + Send + 'static) -> Work {
    Box::new(work)
}

/// Waits for all work of a device that was begun before.
pub(crate) fn finish(device: usize) -> Result<(), Code> {
    let all: Vec<_> = streams(|all| all.values().filter(|one| one.device == device).cloned().collect());
    for stream in all {
        stream.wait();
    }
    sound(device)
}

impl Stream {
    fn start(handle: usize, device: usize, blocking: bool) -> Arc<Self> {
        let stream = Arc::new(Self {
            handle,
            device,
            blocking,
            queue: Mutex::default(),
            changed: Condvar::new(),
            spent: AtomicU64::new(0),
        });
        let own = Arc::clone(&stream);
        std::thread::spawn(move || own.run());
        stream
    }

    fn run(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                jitter();
                if let Err(code) = work(self)
                    && let Some(fault) = FAULTS.get(self.device)
                {
                    let _ = fault.compare_exchange(SUCCESS, code, Ordering::Relaxed, Ordering::Relaxed);
                }
                queue = lock(&self.queue);
                queue.done += 1;
                self.changed.notify_all();
            } else if queue.closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Queues work one after the other, unless the device is broken. How far the stream has come when it is done.
    pub(crate) fn queue(&self, all: impl IntoIterator<Item = Work>) -> Result<u64, Code> {
        sound(self.device)?;
        let mut queue = lock(&self.queue);
        for work in all {
            queue.begun += 1;
            queue.work.push_back(work);
        }
        let until = queue.begun;
        drop(queue);
        self.changed.notify_all();
        Ok(until)
    }

    /// Queues work that no graph can hold.
    pub(crate) fn push(&self, done: impl FnOnce() -> Result<(), Code> + Send + 'static) -> Result<(), Code> {
        capture::refuse(self)?;
        self.queue([work(|_| done())]).map(drop)
    }

    /// Queues work, or makes it a node where the stream is captured. Whether it was queued.
    pub(crate) fn take(
        &self,
        kind: Kind,
        work: impl Fn(&Self) -> Result<(), Code> + Send + Sync + 'static,
    ) -> Result<bool, Code> {
        sound(self.device)?;
        let Some(Node { kind, work }) = capture::record(self, Node { kind, work: Arc::new(work) })? else {
            return Ok(false);
        };
        kind.count();
        self.queue([self::work(move |on| work(on))]).map(|_| true)
    }

    /// Lets time pass, for the events of the stream.
    pub(crate) fn spend(&self, nanoseconds: u64) {
        self.spent.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The time of the stream, in nanoseconds.
    pub(crate) fn time(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    fn idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.done == queue.begun
    }

    /// Waits for the work that was queued before.
    pub(crate) fn wait(&self) {
        let until = lock(&self.queue).begun;
        self.wait_until(until);
    }

    /// Waits until the stream has come so far.
    pub(crate) fn wait_until(&self, until: u64) {
        let mut queue = lock(&self.queue);
        while queue.done < until {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits for a moment that is never the same.
fn jitter() {
    static STATE: AtomicU64 = AtomicU64::new(0x9E37_79B9_7F4A_7C15);
    static MOST: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let most = *MOST.get_or_init(|| variable("FAKE_CUDA_JITTER", 0));
    if most > 0 {
        let mut state =
            STATE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) ^ u64::from(std::process::id());
        state ^= state >> 31;
        state = state.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        std::thread::sleep(Duration::from_micros((state >> 33) % (most + 1)));
    }
}

fn create(flags: c_uint) -> Result<usize, Code> {
    /// `CU_STREAM_NON_BLOCKING`
    const NON_BLOCKING: c_uint = 1;
    let device = driver::current()?;
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    streams(|all| all.insert(handle, Stream::start(handle, device, flags & NON_BLOCKING == 0)));
    Ok(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: &mut MaybeUninit<usize>, flags: c_uint) -> Code {
    put(stream, create(flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(
    stream: &mut MaybeUninit<usize>,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    put(stream, create(flags))
}

/// Does not wait: the work that is queued is still done.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: usize) -> Code {
    let Some(stream) = streams(|all| all.get(&handle).cloned()) else { return INVALID_HANDLE };
    if let Err(code) = capture::leave(&stream) {
        return given(Err(code));
    }
    streams(|all| all.remove(&handle));
    lock(&stream.queue).closed = true;
    stream.changed.notify_all();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: usize) -> Code {
    counts::one(&RUNNING.synchronizations);
    given(of(handle).and_then(|stream| {
        capture::refuse(&stream)?;
        stream.wait();
        sound(stream.device)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: usize) -> Code {
    given(of(handle).and_then(|stream| {
        capture::refuse(&stream)?;
        capture::refuse_unsafe()?;
        sound(stream.device)?;
        if stream.idle() { Ok(()) } else { Err(NOT_READY) }
    }))
}
