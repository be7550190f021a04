//! Streams: queues of work, each with a thread that does it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::code::{Code, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED, SUCCESS, given, put};
use crate::counts::{self, RUNNING};
use crate::{driver, lock, variable};

type Work = Box<dyn FnOnce() -> Result<(), Code> + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    begun: u64,
    done: u64,
    closed: bool,
}

/// A queue of work of one device.
pub(crate) struct Stream {
    pub(crate) device: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Nanoseconds that the work so far would have taken.
    spent: AtomicU64,
}

static STREAMS: Mutex<Option<HashMap<usize, Arc<Stream>>>> = Mutex::new(None);
static NEXT: AtomicUsize = AtomicUsize::new(0x1_0000);
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

/// The stream of a handle.
pub(crate) fn of(handle: usize) -> Result<Arc<Stream>, Code> {
    if handle < OWN {
        let device = driver::current()?;
        return Ok(streams(|all| {
            Arc::clone(all.entry(OWN + device).or_insert_with(|| Stream::start(device)))
        }));
    }
    streams(|all| all.get(&handle).cloned()).ok_or(INVALID_HANDLE)
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
    fn start(device: usize) -> Arc<Self> {
        let stream = Arc::new(Self {
            device,
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
                if let Err(code) = work()
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

    /// Queues work, unless the device is broken.
    pub(crate) fn push(&self, work: impl FnOnce() -> Result<(), Code> + Send + 'static) -> Result<(), Code> {
        sound(self.device)?;
        let mut queue = lock(&self.queue);
        queue.begun += 1;
        queue.work.push_back(Box::new(work));
        drop(queue);
        self.changed.notify_all();
        Ok(())
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
        let mut queue = lock(&self.queue);
        let until = queue.begun;
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

fn create() -> Result<usize, Code> {
    let device = driver::current()?;
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    streams(|all| all.insert(handle, Stream::start(device)));
    Ok(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: &mut MaybeUninit<usize>, _flags: c_uint) -> Code {
    put(stream, create())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(
    stream: &mut MaybeUninit<usize>,
    _flags: c_uint,
    _priority: c_int,
) -> Code {
    put(stream, create())
}

/// Does not wait: the work that is queued is still done.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: usize) -> Code {
    let Some(stream) = streams(|all| all.remove(&handle)) else { return INVALID_HANDLE };
    lock(&stream.queue).closed = true;
    stream.changed.notify_all();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: usize) -> Code {
    counts::one(&RUNNING.synchronizations);
    given(of(handle).and_then(|stream| {
        stream.wait();
        sound(stream.device)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: usize) -> Code {
    given(of(handle).and_then(|stream| {
        sound(stream.device)?;
        if stream.idle() { Ok(()) } else { Err(NOT_READY) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(_stream: usize, status: &mut MaybeUninit<c_int>) -> Code {
    put(status, Ok(0))
}

// Work cannot be recorded here: who asks must do without.

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(_stream: usize, _mode: c_uint) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(_stream: usize, _graph: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(_graph: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(_graph: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetNodes(_graph: usize, _nodes: usize, _count: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(_node: usize, _kind: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(_executable: usize, _graph: usize, _flags: u64) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(_graph: usize, _stream: usize) -> Code {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(_graph: usize, _stream: usize) -> Code {
    NOT_SUPPORTED
}
