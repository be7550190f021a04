//! Ranks as processes with a CUDA device each, which move their data by NCCL.
//!
//! The ranks meet over [`tcp`](crate::tcp), by `MASTER_ADDR`, `MASTER_PORT`, `RANK` and `WORLD_SIZE`; `LOCAL_RANK` says
//! which device is this rank's (without it, the rank modulo the number of devices). What they have to say to each other
//! (fingerprints, failures, NCCL's own identifiers) goes that way; the elements go through NCCL, on a stream of each
//! order's own, and for now from and to host memory. CUDA and NCCL are loaded at run time.
//!
//! Sums are taken in the wide type, as everywhere, but in NCCL's own order: the same for every run on the same machines,
//! not the order of the ranks. Uneven parts, maxima and minima are exchanged and reduced here, in rank order.
//!
//! NCCL cannot cancel: when a deadline passes, or another rank fails, the communicator is aborted, and the world with it.

mod communicator;
mod error;
mod lane;
mod staging;

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;

pub use error::NcclError;

use self::lane::Lane;
use crate::inbox::lock;
use crate::tcp::{Meeting, Tcp};
use crate::{Call, CommError, Linked, Op, Outcome, Request, Transport, Work, World};

/// Meets the other ranks as the environment says, and takes this rank's device.
///
/// # Errors
/// [`NcclError`], if CUDA or NCCL is not here, the device is not, or the ranks do not meet.
pub fn world() -> Result<World, NcclError> {
    let meeting = Meeting::from_environment()?;
    let local = std::env::var("LOCAL_RANK").ok().and_then(|rank| rank.trim().parse().ok());
    Nccl::join(&meeting, local).map(|transport| World::new(Arc::new(transport)))
}

/// Calls in one order: the ranks of a group (of a pair, in one direction), on a channel.
type Order = (Vec<usize>, String, String);

/// A call for a lane, and where its outcome goes.
struct Errand {
    request: Request,
    slot: Arc<Slot>,
}

/// The transport of one rank.
pub struct Nccl {
    link: Tcp,
    /// What the ranks say to each other beside the data. Keeps the first error of this rank.
    control: Arc<dyn Transport>,
    context: Arc<CudaContext>,
    lanes: Mutex<HashMap<Order, Sender<Errand>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Nccl {
    /// Meets the other ranks. The device is number `device`, else the rank's modulo the number of devices.
    ///
    /// # Errors
    /// As [`world`].
    pub fn join(meeting: &Meeting, device: Option<usize>) -> Result<Self, NcclError> {
        communicator::present()?;
        let devices =
            CudaContext::device_count().map_err(|error| NcclError::cuda("counting devices", error))?;
        let devices = usize::try_from(devices).unwrap_or(0);
        let ordinal = device.unwrap_or_else(|| meeting.rank % devices.max(1));
        if ordinal >= devices {
            return Err(NcclError::Device { rank: meeting.rank, ordinal, devices });
        }
        let context =
            CudaContext::new(ordinal).map_err(|error| NcclError::cuda("opening the device", error))?;
        let link = Tcp::join(meeting)?;
        let control: Arc<dyn Transport> = Arc::new(Linked::new(Box::new(link.clone())));
        Ok(Self { link, control, context, lanes: Mutex::default(), threads: Mutex::default() })
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
                let (ranks, axis, channel_name) = &order;
                let control = World::new(Arc::clone(&self.control));
                let me = ranks.iter().position(|&one| one == rank).unwrap_or(0);
                let group =
                    control.group_of(axis, ranks.clone(), me).channel(&format!("nccl {channel_name}"));
                let broken = |error| error::link(rank, "a stream", NcclError::cuda("making a stream", error));
                let stream = self.context.new_stream().map_err(broken)?;
                let (sender, errands) = channel::<Errand>();
                let mut lane = Lane::new(group, Arc::clone(&self.control), self.link.clone(), stream);
                let thread = std::thread::Builder::new().name(format!("nccl {axis} {channel_name}"));
                let thread = thread.spawn(move || {
                    while let Ok(Errand { request, slot }) = errands.recv() {
                        slot.fill(lane.run(&request));
                    }
                });
                lock(&self.threads).push(thread.map_err(|error| {
                    error::link(rank, "a thread", NcclError::Thread { source: Arc::new(error) })
                })?);
                lanes.entry(order).or_insert(sender)
            }
        };
        // A lane ends only with its sender.
        let _ = lane.send(errand);
        Ok(())
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        lock(&self.lanes).clear();
        let threads = std::mem::take(&mut *lock(&self.threads));
        // After a failure a thread may hang in the driver; the process ends without it.
        if self.control.failure().is_none() {
            for thread in threads {
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

    fn start(&self, request: Request) -> Box<dyn Work> {
        let slot = Arc::new(Slot::default());
        let (call, deadline) = (Arc::clone(&request.call), request.deadline);
        let ranks: Vec<usize> =
            request.members.ranks.iter().copied().filter(|&rank| rank != self.rank()).collect();
        if let Some(first) = self.control.failure() {
            slot.fill(Err(CommError::Broken { first }));
        } else if let Err(error) = self.queue(Errand { request, slot: Arc::clone(&slot) }) {
            self.control.fail(error.clone());
            slot.fill(Err(error));
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
        let until = Instant::now() + 3 * self.deadline.min(Duration::from_secs(24 * 3600));
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
