//! A communicator of NCCL on a stream of its own.
//!
//! It does not block: what a call of NCCL's begins is under way until the communicator's state says otherwise, so that
//! every wait can be given up.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;

use super::NcclError;
use super::buffer_place::{Place, copy};
use super::library::{Config, Element, Handle, ID, IN_PROGRESS, Id, Library, SUCCESS, SUM, Stream};
use super::staging::Wide;

/// How long the end of a communicator may take.
const END: Duration = Duration::from_secs(5);

/// A new identifier, to be given to every rank of a communicator.
pub(super) fn identifier(library: &Library) -> Result<[u8; ID], NcclError> {
    let mut id = Id([0; ID]);
    // SAFETY: NCCL writes the identifier.
    library.checked("ncclGetUniqueId", unsafe { (library.functions.unique_id)(&raw mut id) })?;
    Ok(id.0)
}

/// What NCCL does over bytes that lie in one place and go to another.
#[derive(Debug, Clone)]
pub(super) enum Task {
    /// Sum of all, to all: so many bytes.
    AllReduce(Wide, usize),
    /// Sum of all, an equal part of so many bytes to each.
    ReduceScatter(Wide, usize),
    /// Equal parts of so many bytes of all, to all.
    AllGather(usize),
    /// The root's bytes, to all.
    Broadcast(usize, usize),
    /// These parts to each member, and those from each.
    Exchange(Vec<Range<usize>>, Vec<Range<usize>>),
}

/// Waits a little, and a little longer after a while.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < 64 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// This rank in a communicator.
pub(super) struct Communicator {
    library: &'static Library,
    handle: Handle,
    stream: Arc<CudaStream>,
    me: usize,
    aborted: bool,
}

// SAFETY: NCCL's calls on a communicator may come from any thread, one at a time; a lane's thread owns it.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the communicator `id` as member `me` of `size`, when the others do so. `watch` says when to give up.
    pub(super) fn new<E: From<NcclError>>(
        library: &'static Library,
        stream: Arc<CudaStream>,
        id: &[u8; ID],
        size: usize,
        me: usize,
        watch: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut handle = Handle(ptr::null_mut());
        let mut config = Config::NON_BLOCKING;
        // SAFETY: NCCL writes the handle and reads the configuration; the device's context is this thread's.
        let code = unsafe {
            (library.functions.init)(&raw mut handle, int(size), Id(*id), int(me), &raw mut config)
        };
        library.checked("ncclCommInitRankConfig", code)?;
        let mut communicator = Self { library, handle, stream, me, aborted: false };
        if let Err(error) = communicator.settle("joining a communicator", watch) {
            communicator.abort();
            return Err(error);
        }
        Ok(communicator)
    }

    /// Does `task`, and gives back the place that was written to. After an error the communicator is aborted, and both
    /// places are leaked: the device may still use them.
    pub(super) fn run<E: From<NcclError>>(
        &mut self,
        task: &Task,
        send: Place,
        receive: Place,
        watch: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Place, E> {
        match self.attempt(task, &send, &receive, watch) {
            Ok(()) => Ok(receive),
            Err(error) => {
                self.abort();
                std::mem::forget((send, receive));
                Err(error)
            }
        }
    }

    fn attempt<E: From<NcclError>>(
        &self,
        task: &Task,
        send: &Place,
        receive: &Place,
        watch: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let (from, into) = (send.address(&self.stream)?, receive.address(&self.stream)?);
        self.begin(task, from, into)?;
        self.settle("beginning an operation", watch)?;
        let recorded = self.stream.record_event(None);
        let event = recorded.map_err(|error| NcclError::cuda("recording an event", error))?;
        let mut pause = Pause::default();
        loop {
            let complete = event.try_is_complete();
            if complete.map_err(|error| NcclError::cuda("waiting for the device", error))? {
                return Ok(());
            }
            self.state("an operation under way")?;
            watch()?;
            pause.wait();
        }
    }

    /// Queues `task` on the stream.
    fn begin(&self, task: &Task, from: u64, into: u64) -> Result<(), NcclError> {
        let functions = &self.library.functions;
        let stream: Stream = self.stream.cu_stream().cast();
        let (send, receive) = (address(from), address(into).cast_mut());
        let handle = self.handle;
        // SAFETY, of every call below: both places are on this communicator's device, hold the elements that are named,
        // and live until the stream's work is complete, or for ever.
        let (function, code) = match task {
            Task::AllReduce(wide, bytes) => {
                let (kind, each) = kind(*wide);
                // SAFETY: as above.
                let code =
                    unsafe { (functions.all_reduce)(send, receive, bytes / each, kind, SUM, handle, stream) };
                ("ncclAllReduce", code)
            }
            Task::ReduceScatter(wide, part) => {
                let (kind, each) = kind(*wide);
                // SAFETY: as above.
                let code = unsafe {
                    (functions.reduce_scatter)(send, receive, part / each, kind, SUM, handle, stream)
                };
                ("ncclReduceScatter", code)
            }
            // SAFETY: as above.
            Task::AllGather(part) => ("ncclAllGather", unsafe {
                (functions.all_gather)(send, receive, *part, Element::U8, handle, stream)
            }),
            Task::Broadcast(root, bytes) => {
                // The root's are where they must be already.
                let (send, receive) =
                    if *root == self.me { (send, send.cast_mut()) } else { (receive.cast_const(), receive) };
                // SAFETY: as above.
                let code = unsafe {
                    (functions.broadcast)(send, receive, *bytes, Element::U8, int(*root), handle, stream)
                };
                ("ncclBroadcast", code)
            }
            Task::Exchange(out, back) => return self.exchange((from, out), (into, back)),
        };
        self.library.checked(function, code)
    }

    /// Sends a part to each member and receives one from each, all at once; what goes to oneself is copied.
    fn exchange(
        &self,
        (from, out): (u64, &[Range<usize>]),
        (into, back): (u64, &[Range<usize>]),
    ) -> Result<(), NcclError> {
        if !back[self.me].is_empty() {
            copy((into, &back[self.me]), (from, &out[self.me]), &self.stream)?;
        }
        let functions = &self.library.functions;
        let stream: Stream = self.stream.cu_stream().cast();
        // SAFETY: no arguments.
        self.library.checked("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let mut step = Ok(());
        for member in (0..out.len()).filter(|&member| member != self.me) {
            let (part, place) = (&out[member], &back[member]);
            if !part.is_empty() {
                let start = address(from + part.start as u64);
                // SAFETY: as in `begin`.
                let code = unsafe {
                    (functions.send)(start, part.len(), Element::U8, int(member), self.handle, stream)
                };
                step = step.and(self.library.checked("ncclSend", code));
            }
            if !place.is_empty() {
                let start = address(into + place.start as u64).cast_mut();
                // SAFETY: as in `begin`.
                let code = unsafe {
                    (functions.receive)(start, place.len(), Element::U8, int(member), self.handle, stream)
                };
                step = step.and(self.library.checked("ncclRecv", code));
            }
        }
        // SAFETY: ends the group that was started above, whatever became of its calls.
        let end = self.library.checked("ncclGroupEnd", unsafe { (functions.group_end)() });
        step.and(end)
    }

    /// Whether the communicator is still at what it was told last.
    fn state(&self, what: &'static str) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: NCCL writes the state.
        let asked = unsafe { (self.library.functions.async_error)(self.handle, &raw mut state) };
        self.library.checked("ncclCommGetAsyncError", asked)?;
        self.library.checked(what, state)?;
        Ok(state == IN_PROGRESS)
    }

    /// Waits until the communicator has taken in what it was told.
    fn settle<E: From<NcclError>>(
        &self,
        what: &'static str,
        watch: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pause = Pause::default();
        while self.state(what)? {
            watch()?;
            pause.wait();
        }
        Ok(())
    }

    fn abort(&mut self) {
        if !self.aborted {
            self.aborted = true;
            // SAFETY: the handle is a communicator's, and is not used any more. There is nothing to do about a failure.
            let _ = unsafe { (self.library.functions.abort)(self.handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.aborted {
            return;
        }
        // SAFETY: nothing is under way, as every call was waited for.
        let begun = unsafe { (self.library.functions.finalize)(self.handle) };
        let until = Instant::now() + END;
        let mut in_time = || {
            let late = NcclError::Stuck { deadline: END };
            if Instant::now() < until { Ok(()) } else { Err(late) }
        };
        let ended = self
            .library
            .checked("ncclCommFinalize", begun)
            .and_then(|()| self.settle("ending a communicator", &mut in_time));
        if ended.is_ok() {
            // SAFETY: the communicator has ended; the handle is not used any more.
            let _ = unsafe { (self.library.functions.destroy)(self.handle) };
        } else {
            self.abort();
        }
    }
}

fn address(number: u64) -> *const c_void {
    ptr::without_provenance(number as usize)
}

fn kind(wide: Wide) -> (Element, usize) {
    match wide {
        Wide::F32 => (Element::F32, 4),
        Wide::F64 => (Element::F64, 8),
        Wide::U64 => (Element::U64, 8),
    }
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("invariant: ranks fit into 31 bits")
}
