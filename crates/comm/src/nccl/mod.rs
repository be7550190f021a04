//! Ranks with a CUDA device each, processes or threads, which move their data by NCCL.
//!
//! Processes meet over [`tcp`](crate::tcp), by `MASTER_ADDR`, `MASTER_PORT`, `RANK` and `WORLD_SIZE`; `LOCAL_RANK` says
//! which device is this rank's (without it, the rank modulo the number of devices): [`world`]. Threads of one process
//! have device r for rank r: [`worlds`]. What ranks have to say to each other (fingerprints, failures, NCCL's own
//! identifiers) goes over that control connection, or within the process; the elements go through NCCL. CUDA and NCCL
//! are loaded at run time; [`available`] says which, or what is missing.
//!
//! Sums are taken in the wide type, as everywhere, but in NCCL's own order: the same for every run on the same machines,
//! not the order of the ranks. Uneven parts of a sum, maxima and minima are exchanged and reduced here, in rank order.
//!
//! # Where elements lie
//!
//! A bucket [on a device](crate::Bucket::on_device) goes to NCCL where it lies, and its result is new memory of the same
//! kind, for: sums of `f32`, `f64` and `u64` (reduce_scatter with equal parts), broadcast, all_gather, all_to_all,
//! gather, send and recv of every type. Everything else, and every bucket on the host, is copied to the device and back
//! here, in the lane's own memory. Results that came on a device are copied to the host when they are looked at there.
//!
//! # Order, and who waits for whom
//!
//! The calls of a group on a channel are a lane: a thread, a stream and a communicator of their own. Starting a call
//! posts its fingerprint, queues it on the lane and returns; the caller's threads and streams never wait for NCCL. The
//! lane's thread
//!
//! 1. waits until all ranks of the call agree about it,
//! 2. asks the payload's memory for its [address](crate::transport::DeviceMemory::address), which waits for what was queued on it,
//!    and for memory for the result, likewise,
//! 3. queues NCCL's work on the lane's stream and waits for an event behind it, looking after errors of NCCL's, the
//!    other ranks and the deadline meanwhile, and then
//! 4. gives the result, of which everything is written, so that any stream may use it at once.
//!
//! The call holds the payload until then; who made it must not write to it before. Lanes run beside each other and do
//! not wait for each other.
//!
//! # When something goes wrong
//!
//! NCCL cannot cancel: when a deadline passes, a rank fails or ends, or NCCL reports an error, the communicator is
//! aborted, and the world with it. The memory of that call, payload and result, is then never freed, since the device
//! may still be at it. Communicators do not block, so neither joining nor starting can hold a thread beyond the deadline.

mod agreement;
mod buffer_place;
mod communicator;
mod error;
mod library;
mod staging;
mod stream_worker;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DriverError, sys};

pub use error::NcclError;

use self::agreement::Agreement;
use self::library::Library;
use self::stream_worker::StreamWorker;
use crate::launch;
use crate::tcp::{Rendezvous, Tcp, TcpError};
use crate::transport::inbox::lock;
use crate::transport::{Inbox, Link, Message, Outcome, PointToPoint, Request, Transport, Work};
use crate::{Call, CommError, Op, World, local};

/// Meets the other ranks as the environment says, and takes this rank's device.
///
/// # Errors
/// [`NcclError`], if CUDA or NCCL is not here, the device is not, or the ranks do not meet.
pub fn world() -> Result<World, NcclError> {
    meet(&Rendezvous::from_env().map_err(TcpError::from)?)
}

/// Meets the other ranks, and takes this rank's device; the world's deadline is the meeting's.
///
/// # Errors
/// As [`world`].
pub fn meet(meeting: &Rendezvous) -> Result<World, NcclError> {
    let local = launch::local_rank().map_err(TcpError::from)?;
    let world = Nccl::join(meeting, local).map(|transport| World::new(Arc::new(transport)))?;
    Ok(world.with_deadline(meeting.deadline))
}

/// The worlds of `ranks` ranks in this process, one for each thread: rank r has device r.
///
/// # Errors
/// [`NcclError`], if CUDA or NCCL is not here, or there are fewer devices than ranks.
pub fn worlds(ranks: usize) -> Result<Vec<World>, NcclError> {
    let library = Library::get()?;
    let devices = devices()?;
    if ranks > devices {
        return Err(NcclError::TooMany { ranks, devices });
    }
    let links = local::links(ranks).into_iter().enumerate();
    links
        .map(|(device, link)| {
            Nccl::over(Arc::new(link), device, library).map(|one| World::new(Arc::new(one)))
        })
        .collect()
}

/// The CUDA and the NCCL of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// NCCL's version, such as `2.28.3`.
    pub version: String,
    /// The file that NCCL was loaded from.
    pub path: PathBuf,
    /// The newest CUDA that the driver knows, such as `12.8`.
    pub driver: String,
    /// Devices that this process sees.
    pub devices: usize,
}

/// What there is to run on, or what is missing. Loads the libraries and touches no device.
///
/// # Errors
/// [`NcclError`], if CUDA or NCCL cannot be loaded or started.
pub fn available() -> Result<Available, NcclError> {
    let devices = devices()?;
    let library = Library::get()?;
    let mut version = 0;
    // SAFETY: the driver writes its version; `devices` found the driver.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    asked.map_err(|error| NcclError::cuda("asking for the driver's version", error))?;
    Ok(Available {
        version: library.version_text(),
        path: library.path.clone(),
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        devices,
    })
}

/// Devices that this process sees. Starts the driver, which cudarc would miss with a panic.
fn devices() -> Result<usize, NcclError> {
    // SAFETY: loads a library and lets go of it; the driver may be loaded at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(NcclError::Missing {
            library: "CUDA driver",
            mend: "install NVIDIA's driver",
            reason: "no libcuda.so.1 in the loader's path".to_owned(),
        });
    }
    match CudaContext::device_count() {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(NcclError::cuda("counting devices", error)),
    }
}

/// A link that the transport and its control connection share.
struct Shared(Arc<dyn Link>);

impl Link for Shared {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn inbox(&self) -> &Inbox {
        self.0.inbox()
    }

    fn post(&self, to: usize, message: Message) -> Result<(), CommError> {
        self.0.post(to, message)
    }

    fn stopped(&self) -> Vec<usize> {
        self.0.stopped()
    }

    fn close(&self, deadline: Duration) {
        self.0.close(deadline);
    }
}

/// How long the end of a world waits for its threads after a failure.
const PATIENCE: Duration = Duration::from_secs(5);

/// Calls in one order: the ranks of a group (of a pair, in one direction), on a channel.
type Order = (Vec<usize>, String, String);

/// A call for a lane, what the ranks say about it, and where its outcome goes.
struct Errand {
    request: Request,
    agreement: Agreement,
    slot: Arc<Slot>,
}

/// The transport of one rank.
pub struct Nccl {
    link: Arc<dyn Link>,
    library: &'static Library,
    /// What the ranks say to each other beside the data. Keeps the first error of this rank.
    control: Arc<dyn Transport>,
    /// The control connection's calls.
    says: World,
    context: Arc<CudaContext>,
    lanes: Mutex<HashMap<Order, Sender<Errand>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Nccl {
    /// Meets the other ranks. The device is number `device`, else the rank's modulo the number of devices.
    ///
    /// # Errors
    /// As [`world`].
    pub fn join(meeting: &Rendezvous, device: Option<usize>) -> Result<Self, NcclError> {
        let devices = devices()?;
        let library = Library::get()?;
        let ordinal = device.unwrap_or_else(|| meeting.rank % devices.max(1));
        if ordinal >= devices {
            return Err(NcclError::Device { rank: meeting.rank, ordinal, devices });
        }
        Self::over(Arc::new(Tcp::join(meeting)?), ordinal, library)
    }

    fn over(link: Arc<dyn Link>, ordinal: usize, library: &'static Library) -> Result<Self, NcclError> {
        let context =
            CudaContext::new(ordinal).map_err(|error| NcclError::cuda("opening the device", error))?;
        // SAFETY: memory that is allocated through this context is used on one stream only, its lane's, and cudarc's
        // events would make the first lane wait for the whole device.
        unsafe { context.disable_event_tracking() };
        let control: Arc<dyn Transport> = Arc::new(PointToPoint::new(Box::new(Shared(Arc::clone(&link)))));
        let says = World::new(Arc::clone(&control));
        let (lanes, threads) = (Mutex::default(), Mutex::default());
        Ok(Self { link, library, control, says, context, lanes, threads })
    }

    /// Queues an errand on the lane of its order, which is started if need be.
    fn queue(&self, errand: Errand) -> Result<(), CommError> {
        let Request { call, members, .. } = &errand.request;
        let (rank, other) = (self.rank(), call.root.and_then(|root| members.ranks.get(root).copied()));
        let (ranks, axis) = match (call.op, other) {
            // A pair's own lane for each direction: a ring of sends must not wait for itself.
            (Op::Send, Some(to)) => (vec![rank, to], format!("{} {rank}>{to}", members.axis)),
            (Op::Recv, Some(from)) => (vec![from, rank], format!("{} {from}>{rank}", members.axis)),
            _ => (members.ranks.clone(), members.axis.to_string()),
        };
        let mut lanes = lock(&self.lanes);
        let order = (ranks, axis, call.channel.clone());
        let lane = match lanes.get(&order) {
            Some(lane) => lane,
            None => {
                let sender = self.start_lane(&order).map_err(|error| error::of_call(rank, call, error))?;
                lanes.entry(order).or_insert(sender)
            }
        };
        // A lane ends only with its sender.
        let _ = lane.send(errand);
        Ok(())
    }

    fn start_lane(&self, (ranks, axis, channel_name): &Order) -> Result<Sender<Errand>, NcclError> {
        let rank = self.rank();
        let me = ranks.iter().position(|&one| one == rank).unwrap_or(0);
        let own = agreement::channel(&format!("lane {axis} {ranks:?} {channel_name}"));
        let broken = |error| NcclError::cuda("making a stream", error);
        let mut lane = StreamWorker {
            group: self.says.group_of(axis, ranks.clone(), me).channel(&own),
            control: Arc::clone(&self.control),
            link: Arc::clone(&self.link),
            library: self.library,
            stream: self.context.new_stream().map_err(broken)?,
            communicator: None,
        };
        let (sender, errands) = channel::<Errand>();
        let control = Arc::clone(&self.control);
        let thread = std::thread::Builder::new().name(format!("nccl {axis} {channel_name}"));
        let thread = thread.spawn(move || {
            while let Ok(Errand { request, agreement, slot }) = errands.recv() {
                // The caller's memory is the caller's code, which may panic.
                let outcome = catch_unwind(AssertUnwindSafe(|| lane.run(&request, agreement)));
                slot.fill(outcome.unwrap_or_else(|panic| {
                    let error = CommError::Panicked { rank, message: words(&*panic) };
                    control.fail(error.clone());
                    Err(error)
                }));
            }
        });
        let thread = thread.map_err(|error| NcclError::Thread { source: Arc::new(error) })?;
        lock(&self.threads).push(thread);
        Ok(sender)
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

impl Drop for Nccl {
    fn drop(&mut self) {
        lock(&self.lanes).clear();
        let threads = std::mem::take(&mut *lock(&self.threads));
        // After a failure a thread may hang in the driver; the process ends without it. The others let go of the control
        // connection, which then says its last words.
        let until = self.control.failure().map(|_| Instant::now() + PATIENCE);
        for thread in threads {
            while !thread.is_finished() && until.is_some_and(|until| Instant::now() < until) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if until.is_none() || thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Transport for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn size(&self) -> usize {
        self.control.size()
    }

    /// NCCL has an order of its own.
    fn in_rank_order(&self) -> bool {
        false
    }

    fn start(&self, request: Request) -> Box<dyn Work> {
        let slot = Arc::new(Slot::default());
        let (call, deadline) = (Arc::clone(&request.call), request.deadline);
        let ranks: Vec<usize> =
            request.members.ranks.iter().copied().filter(|&rank| rank != self.rank()).collect();
        if let Some(first) = self.control.failure() {
            slot.fill(Err(CommError::Broken { first }));
        } else {
            let agreement = Agreement::post(&self.says, &request);
            if let Err(error) = self.queue(Errand { request, agreement, slot: Arc::clone(&slot) }) {
                self.control.fail(error.clone());
                slot.fill(Err(error));
            }
        }
        Box::new(Waiting {
            slot,
            call,
            deadline,
            rank: self.rank(),
            ranks,
            control: Arc::clone(&self.control),
        })
    }

    fn fail(&self, error: CommError) {
        self.control.fail(error);
    }

    fn failure(&self) -> Option<Arc<CommError>> {
        self.control.failure()
    }
}

/// Where an outcome is put.
#[derive(Default)]
struct Slot {
    outcome: Mutex<Option<Result<Outcome, CommError>>>,
    filled: Condvar,
}

impl Slot {
    fn fill(&self, outcome: Result<Outcome, CommError>) {
        *lock(&self.outcome) = Some(outcome);
        self.filled.notify_all();
    }
}

struct Waiting {
    slot: Arc<Slot>,
    call: Arc<Call>,
    deadline: Duration,
    rank: usize,
    ranks: Vec<usize>,
    control: Arc<dyn Transport>,
}

impl Work for Waiting {
    fn ready(&self) -> bool {
        lock(&self.slot.outcome).is_some()
    }

    fn wait(self: Box<Self>) -> Result<Outcome, CommError> {
        // The lane keeps to the deadline for each of a call's steps; this is for one that is stuck in the driver.
        let until =
            Instant::now() + 4 * self.deadline.min(Duration::from_secs(24 * 3600)) + Duration::from_secs(10);
        let mut outcome = lock(&self.slot.outcome);
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                drop(outcome);
                let call = Box::new(Call::clone(&self.call));
                let (rank, ranks, deadline) = (self.rank, self.ranks.clone(), self.deadline);
                let error = CommError::Silent { rank, ranks, call, instead: Vec::new(), deadline };
                self.control.fail(error.clone());
                return Err(error);
            }
            let step = self.slot.filled.wait_timeout(outcome, left);
            outcome = step.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
