//! The ranks along one axis, as one of them sees them, and what they do together.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burnish_core::Dtype;

use crate::bucket::part_of_map;
use crate::call::hash_counts;
use crate::transport::inbox::lock;
use crate::transport::{Bytes, DeviceMemory, Members, Outcome, Payload, Request, Transport};
use crate::{Bucket, Call, CommError, Gathered, Op, Pending, Reduction, Traffic, Wire};

/// Calls of a group on a channel so far.
#[derive(Default)]
struct Order {
    group: u64,
    sent: HashMap<usize, u64>,
    received: HashMap<usize, u64>,
}

/// Ranks, axis and channel.
type OrderKey = (Vec<usize>, String, String);

/// What all groups of a rank share.
pub(crate) struct Core {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) checksums: bool,
    orders: Mutex<HashMap<OrderKey, Arc<Mutex<Order>>>>,
    traffic: Mutex<Traffic>,
}

impl Core {
    pub(crate) fn new(transport: Arc<dyn Transport>, checksums: bool) -> Self {
        Self { transport, checksums, orders: Mutex::default(), traffic: Mutex::default() }
    }
}

/// This rank's view of the ranks along one axis. Cheap to clone; may be used from any thread of the rank, one thread per
/// [channel](Group::channel) at a time.
///
/// Every rank of the group makes the same calls in the same order, with the same `what` (a parameter, unit or bucket:
/// it appears in errors). Ranks are counted within the group here, within the world in errors.
///
/// ```
/// use burnish_comm::{Bucket, Reduction, local};
///
/// let sums = local::run(2, |world| {
///     let group = world.group();
///     let mine = vec![group.rank() as f32, 1.0];
///     group.all_reduce(Bucket::new(mine), Reduction::Sum, "example").wait().map(Bucket::into_vec)
/// });
/// for sum in sums {
///     assert_eq!(sum.unwrap().unwrap(), [1.0, 2.0]);
/// }
/// ```
#[derive(Clone)]
pub struct Group {
    core: Arc<Core>,
    members: Arc<Members>,
    channel: Arc<str>,
    order: Arc<Mutex<Order>>,
    deadline: Duration,
}

impl Group {
    pub(crate) fn of(core: Arc<Core>, members: Arc<Members>, channel: &str, deadline: Duration) -> Self {
        let key = (members.ranks.clone(), members.axis.to_string(), channel.to_owned());
        let order = Arc::clone(lock(&core.orders).entry(key).or_default());
        Self { core, members, channel: Arc::from(channel), order, deadline }
    }

    /// One rank on its own: every call completes with what it was given.
    #[must_use]
    pub fn alone() -> Self {
        crate::World::alone().group()
    }

    /// This rank in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.members.me
    }

    /// Ranks of the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.size()
    }

    /// The mesh axis; `world` for all ranks.
    #[must_use]
    pub fn axis(&self) -> &str {
        &self.members.axis
    }

    /// The world rank of `member`; `None` beyond the group.
    #[must_use]
    pub fn global_rank(&self, member: usize) -> Option<usize> {
        self.members.ranks.get(member).copied()
    }

    /// The world ranks of all members, in the order of the group.
    #[must_use]
    pub fn global_ranks(&self) -> &[usize] {
        &self.members.ranks
    }

    /// The same ranks with an order of calls of its own, so that a second thread of the rank may communicate, or calls
    /// of another kind need no place in the first order. Two channels of one name are the same channel; between two
    /// ranks a channel is one order over all their common groups.
    #[must_use]
    pub fn channel(&self, name: &str) -> Self {
        Self::of(Arc::clone(&self.core), Arc::clone(&self.members), name, self.deadline)
    }

    /// The same group with another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long a call may wait for the other ranks.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The transport's name.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.core.transport.name()
    }

    /// The reduction of all ranks' buckets, the same bits on every rank.
    ///
    /// # Errors
    /// In [`Pending::wait`]: a reduction that the type does not have; everything of a call under way.
    pub fn all_reduce<E: Wire>(
        &self,
        bucket: Bucket<E>,
        reduction: Reduction,
        what: &str,
    ) -> Pending<Bucket<E>> {
        let mut call = self.call(Op::AllReduce, E::DTYPE, what);
        call.elements = bucket.len();
        call.reduction = Some(reduction);
        if let Err(error) = check_reduction::<E>(&call, reduction) {
            return self.refuse(error);
        }
        let map = bucket.map().cloned();
        self.start(call, payload(bucket.into_bytes()), move |outcome| Bucket::received(one(outcome), map))
    }

    /// This rank's part of the reduction. Every rank's bucket holds all parts in rank order, part r having `counts[r]`
    /// elements; parts may be empty.
    ///
    /// # Errors
    /// In [`Pending::wait`]: counts that do not fit the group or the bucket; a reduction that the type does not have;
    /// everything of a call under way.
    pub fn reduce_scatter_v<E: Wire>(
        &self,
        bucket: Bucket<E>,
        counts: &[usize],
        reduction: Reduction,
        what: &str,
    ) -> Pending<Bucket<E>> {
        let mut call = self.call(Op::ReduceScatter, E::DTYPE, what);
        call.elements = counts.iter().sum();
        call.counts = hash_counts(counts);
        call.reduction = Some(reduction);
        let checked = self
            .check_counts(&call, counts)
            .and_then(|()| check_elements(&call, call.elements, bucket.len()))
            .and_then(|()| check_reduction::<E>(&call, reduction));
        if let Err(error) = checked {
            return self.refuse(error);
        }
        let start: usize = counts[..self.rank()].iter().sum();
        let map = bucket.map().map(|map| part_of_map(map, &(start..start + counts[self.rank()])));
        let payload = Payload { send: counts.to_vec(), ..payload(bucket.into_bytes()) };
        self.start(call, payload, move |outcome| Bucket::received(one(outcome), map))
    }

    /// Every rank's part, `counts[r]` elements from rank r; parts may be empty.
    ///
    /// # Errors
    /// In [`Pending::wait`]: counts that do not fit the group or the part; everything of a call under way.
    pub fn all_gather_v<E: Wire>(
        &self,
        part: Bucket<E>,
        counts: &[usize],
        what: &str,
    ) -> Pending<Gathered<E>> {
        let mut call = self.call(Op::AllGather, E::DTYPE, what);
        call.elements = counts.iter().sum();
        call.counts = hash_counts(counts);
        let checked = self
            .check_counts(&call, counts)
            .and_then(|()| check_elements(&call, counts[self.rank()], part.len()));
        if let Err(error) = checked {
            return self.refuse(error);
        }
        let payload = Payload { receive: counts.to_vec(), ..payload(part.into_bytes()) };
        self.start(call, payload, |outcome| Gathered::new(many(outcome)))
    }

    /// Part r of this rank's bucket (`send[r]` elements) goes to rank r; from rank r come `receive[r]` elements. A rank
    /// that sends another number than the receiver states is an error.
    ///
    /// # Errors
    /// In [`Pending::wait`]: counts that do not fit the group or the bucket; everything of a call under way.
    pub fn all_to_all_v<E: Wire>(
        &self,
        bucket: Bucket<E>,
        send: &[usize],
        receive: &[usize],
        what: &str,
    ) -> Pending<Gathered<E>> {
        let mut call = self.call(Op::AllToAll, E::DTYPE, what);
        call.elements = send.iter().sum();
        let checked = self
            .check_counts(&call, send)
            .and_then(|()| self.check_counts(&call, receive))
            .and_then(|()| check_elements(&call, call.elements, bucket.len()))
            .and_then(|()| check_elements(&call, receive[self.rank()], send[self.rank()]));
        if let Err(error) = checked {
            return self.refuse(error);
        }
        let payload =
            Payload { send: send.to_vec(), receive: receive.to_vec(), ..payload(bucket.into_bytes()) };
        self.start(call, payload, |outcome| Gathered::new(many(outcome)))
    }

    /// The root's bucket. On the other ranks the given bucket states the number of elements, and by lying on a device
    /// that the result should; its contents are ignored.
    ///
    /// # Errors
    /// In [`Pending::wait`]: a root that the group does not have; everything of a call under way.
    pub fn broadcast<E: Wire>(&self, bucket: Bucket<E>, root: usize, what: &str) -> Pending<Bucket<E>> {
        let mut call = self.call(Op::Broadcast, E::DTYPE, what);
        call.elements = bucket.len();
        call.root = Some(root);
        if let Err(error) = self.check_member(&call, root, false) {
            return self.refuse(error);
        }
        let map = bucket.map().cloned();
        let like = bucket.device().map(|(memory, _)| Arc::clone(memory));
        let bytes = if root == self.rank() { bucket.into_bytes() } else { Bytes::empty() };
        self.start(call, Payload { like, ..payload(bytes) }, move |outcome| {
            Bucket::received(one(outcome), map)
        })
    }

    /// Every rank's part at the root; nothing on the other ranks.
    ///
    /// # Errors
    /// In [`Pending::wait`]: counts that do not fit the group or the part, a root that the group does not have;
    /// everything of a call under way.
    pub fn gather<E: Wire>(
        &self,
        part: Bucket<E>,
        counts: &[usize],
        root: usize,
        what: &str,
    ) -> Pending<Option<Gathered<E>>> {
        let mut call = self.call(Op::Gather, E::DTYPE, what);
        call.elements = counts.iter().sum();
        call.counts = hash_counts(counts);
        call.root = Some(root);
        let checked = self
            .check_counts(&call, counts)
            .and_then(|()| check_elements(&call, counts[self.rank()], part.len()))
            .and_then(|()| self.check_member(&call, root, false));
        if let Err(error) = checked {
            return self.refuse(error);
        }
        let payload = Payload { receive: counts.to_vec(), ..payload(part.into_bytes()) };
        self.start(call, payload, |outcome| match outcome {
            Outcome::Gathered(parts) => Some(Gathered::new(parts)),
            Outcome::Nothing | Outcome::One(_) => None,
        })
    }

    /// Sends a bucket to one member. Complete when the transport has taken it over.
    ///
    /// # Errors
    /// In [`Pending::wait`]: a member that the group does not have, or this one; everything of a call under way.
    pub fn send<E: Wire>(&self, bucket: Bucket<E>, to: usize, what: &str) -> Pending<()> {
        let mut call = self.call(Op::Send, E::DTYPE, what);
        call.elements = bucket.len();
        call.root = Some(to);
        if let Err(error) = self.check_member(&call, to, true) {
            return self.refuse(error);
        }
        self.start(call, payload(bucket.into_bytes()), |_| ())
    }

    /// Receives `elements` elements from one member.
    ///
    /// # Errors
    /// In [`Pending::wait`]: a member that the group does not have, or this one; everything of a call under way.
    pub fn recv<E: Wire>(&self, from: usize, elements: usize, what: &str) -> Pending<Bucket<E>> {
        self.receive(from, elements, None, what)
    }

    /// As [`Group::recv`], into memory of the kind of `like` where the transport can do that.
    ///
    /// # Errors
    /// As [`Group::recv`].
    pub fn recv_like<E: Wire>(
        &self,
        from: usize,
        elements: usize,
        like: &Arc<dyn DeviceMemory>,
        what: &str,
    ) -> Pending<Bucket<E>> {
        self.receive(from, elements, Some(Arc::clone(like)), what)
    }

    fn receive<E: Wire>(
        &self,
        from: usize,
        elements: usize,
        like: Option<Arc<dyn DeviceMemory>>,
        what: &str,
    ) -> Pending<Bucket<E>> {
        let mut call = self.call(Op::Recv, E::DTYPE, what);
        call.elements = elements;
        call.root = Some(from);
        if let Err(error) = self.check_member(&call, from, true) {
            return self.refuse(error);
        }
        let payload = Payload { like, ..payload(Bytes::empty()) };
        self.start(call, payload, |outcome| Bucket::received(one(outcome), None))
    }

    /// Returns when every rank has called.
    ///
    /// # Errors
    /// Everything of a call under way.
    pub fn barrier(&self, what: &str) -> Result<(), CommError> {
        self.start(self.call(Op::Barrier, Dtype::U8, what), payload(Bytes::empty()), |_| ()).wait()
    }

    /// The parts of all ranks, which do not know each other's lengths: those travel first.
    ///
    /// # Errors
    /// Everything of a call under way.
    pub fn all_gather_any<E: Wire>(&self, part: Bucket<E>, what: &str) -> Result<Gathered<E>, CommError> {
        let own = Bucket::new(vec![part.len() as u64]);
        let lengths = self.all_gather_v(own, &vec![1; self.size()], what).wait()?;
        let lengths: Vec<usize> = lengths.iter().flatten().map(|&length| length as usize).collect();
        self.all_gather_v(part, &lengths, what).wait()
    }

    /// Sums of a few scalars over the ranks, in rank order.
    ///
    /// # Errors
    /// Everything of a call under way.
    pub fn sum_f64(&self, values: &[f64], what: &str) -> Result<Vec<f64>, CommError> {
        self.all_reduce(Bucket::new(values.to_vec()), Reduction::Sum, what).wait().map(Bucket::into_vec)
    }

    /// Calls and elements of this rank so far, over all its groups and channels.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        lock(&self.core.traffic).clone()
    }

    /// Starts the counts of [`Group::traffic`] afresh and gives those so far.
    pub fn clear_traffic(&self) -> Traffic {
        std::mem::take(&mut *lock(&self.core.traffic))
    }

    fn call(&self, op: Op, dtype: Dtype, what: &str) -> Call {
        Call::new(op, dtype, &self.members.axis, &self.channel, what)
    }

    fn start<T>(
        &self,
        mut call: Call,
        payload: Payload,
        finish: impl FnOnce(Outcome) -> T + Send + 'static,
    ) -> Pending<T> {
        lock(&self.core.traffic).record(call.op, call.dtype, call.elements);
        // held until the transport knows of the call, so that its order is that of the sequence numbers
        let mut order = lock(&self.order);
        let next = match (call.op, call.root) {
            (Op::Send, Some(to)) => order.sent.entry(to).or_default(),
            (Op::Recv, Some(from)) => order.received.entry(from).or_default(),
            _ => &mut order.group,
        };
        call.sequence = *next;
        *next += 1;
        let work = self.core.transport.start(Request {
            call: Arc::new(call),
            members: Arc::clone(&self.members),
            payload,
            deadline: self.deadline,
            checksums: self.core.checksums,
        });
        drop(order);
        Pending::under(work, finish)
    }

    /// A call that this rank cannot make: the others must not wait for it.
    fn refuse<T>(&self, error: CommError) -> Pending<T> {
        self.core.transport.fail(error.clone());
        Pending::known(Err(error))
    }

    fn check_counts(&self, call: &Call, counts: &[usize]) -> Result<(), CommError> {
        if counts.len() == self.size() {
            return Ok(());
        }
        let (expected, got) = (self.size(), counts.len());
        Err(CommError::Counts { op: call.op, what: call.what.clone(), expected, got })
    }

    fn check_member(&self, call: &Call, member: usize, other: bool) -> Result<(), CommError> {
        if member < self.size() && !(other && member == self.rank()) {
            return Ok(());
        }
        let (size, me) = (self.size(), self.rank());
        Err(CommError::Member { op: call.op, what: call.what.clone(), member, size, me })
    }
}

fn check_elements(call: &Call, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got {
        return Ok(());
    }
    Err(CommError::Elements { op: call.op, what: call.what.clone(), expected, got })
}

fn check_reduction<E: Wire>(call: &Call, reduction: Reduction) -> Result<(), CommError> {
    if reduction.is_for(E::DTYPE) {
        return Ok(());
    }
    Err(CommError::Reduction { op: call.op, what: call.what.clone(), reduction, dtype: E::DTYPE })
}

fn payload(bytes: Bytes) -> Payload {
    Payload { bytes, send: Vec::new(), receive: Vec::new(), like: None }
}

fn one(outcome: Outcome) -> Bytes {
    match outcome {
        Outcome::One(bytes) => bytes,
        Outcome::Nothing | Outcome::Gathered(_) => Bytes::empty(),
    }
}

fn many(outcome: Outcome) -> Vec<Bytes> {
    match outcome {
        Outcome::Gathered(parts) => parts,
        Outcome::One(bytes) => vec![bytes],
        Outcome::Nothing => Vec::new(),
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, rank {} of {}", self.members.axis, self.rank(), self.size())?;
        write!(f, ", {}, channel `{}`)", self.transport(), self.channel)
    }
}
