//! Faults on purpose: a link that drops, delays, corrupts and kills.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use burnish_core::random::Stream;

use crate::transport::inbox::lock;
use crate::transport::link::{Message, MessageKind};
use crate::transport::{Aligned, Inbox, Link};
use crate::{Call, CommError};

/// What happens to one call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The rank's messages of this call get lost on the way.
    Drop,
    /// The rank's messages of this call are late.
    Delay(Duration),
    /// One bit of each of the rank's messages of this call flips on the way. Seen only with
    /// [`World::with_checksums`](crate::World::with_checksums); otherwise the numbers are wrong.
    Corrupt,
    /// The rank panics as it makes the call.
    Panic,
    /// From this call on nothing leaves the rank, not even a last word, as if its machine had lost power.
    Vanish,
}

/// Which faults happen, and when. The same plan and seed give the same faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    seed: u64,
    faults: Vec<(usize, u64, Fault)>,
    delays: Option<Duration>,
}

impl FaultPlan {
    /// No faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// `fault` happens to world rank `rank` at its call `call`, counted from 0 over all its groups and channels.
    #[must_use]
    pub fn at(mut self, rank: usize, call: u64, fault: Fault) -> Self {
        self.faults.push((rank, call, fault));
        self
    }

    /// Every message takes a random time of up to `most`, so that messages overtake each other.
    #[must_use]
    pub fn delays(mut self, most: Duration) -> Self {
        self.delays = Some(most);
        self
    }
}

/// A message on its way: when it is due, its place in the order of posting, where to.
struct Late {
    due: Instant,
    place: u64,
    to: usize,
    message: Message,
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.place).cmp(&(other.due, other.place))
    }
}

#[derive(Default)]
struct State {
    calls: u64,
    /// Calls that a fault lies on.
    struck: Vec<(Call, Fault)>,
    vanished: bool,
    posted: u64,
    /// Until when the last message to each rank is under way.
    under_way: Vec<Option<Instant>>,
    postman: Option<(Sender<Late>, JoinHandle<()>)>,
}

/// A [`Link`] with faults.
pub struct Faulty<L: Link + 'static> {
    link: Arc<L>,
    plan: FaultPlan,
    delays: Stream,
    state: Mutex<State>,
}

impl<L: Link + 'static> Faulty<L> {
    /// `link` with the faults of `plan`.
    #[must_use]
    pub fn new(link: L, plan: FaultPlan) -> Self {
        let delays = Stream::new(plan.seed, "delays").at(link.rank() as u64);
        let state = Mutex::new(State { under_way: vec![None; link.size()], ..State::default() });
        Self { link: Arc::new(link), plan, delays, state }
    }

    /// Posts at `due`, from another thread.
    fn post_late(&self, state: &mut State, late: Late) -> Result<(), CommError> {
        let (sender, _) = state.postman.get_or_insert_with(|| {
            let (sender, receiver) = channel();
            let link = Arc::clone(&self.link);
            (sender, std::thread::spawn(move || deliver(&*link, &receiver)))
        });
        match sender.send(late) {
            Ok(()) => Ok(()),
            // the thread ends only with its sender, or by a panic of the link below: then post from here
            Err(unsent) => self.link.post(unsent.0.to, unsent.0.message),
        }
    }
}

/// Posts what comes in when it is due; ends when all is posted and nothing more can come.
fn deliver<L: Link>(link: &L, receiver: &Receiver<Late>) {
    let mut waiting = BinaryHeap::new();
    let mut open = true;
    while open || !waiting.is_empty() {
        let now = Instant::now();
        while waiting.peek().is_some_and(|Reverse(late): &Reverse<Late>| late.due <= now) {
            if let Some(Reverse(late)) = waiting.pop() {
                // the receiver will miss it; that is its error to report
                let _ = link.post(late.to, late.message);
            }
        }
        let wait = waiting.peek().map_or(Duration::from_secs(60), |Reverse(late)| late.due - now);
        if !open {
            std::thread::sleep(if waiting.is_empty() { Duration::ZERO } else { wait });
            continue;
        }
        match receiver.recv_timeout(wait) {
            Ok(late) => waiting.push(Reverse(late)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
    }
}

impl<L: Link + 'static> Link for Faulty<L> {
    fn name(&self) -> &'static str {
        self.link.name()
    }

    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn size(&self) -> usize {
        self.link.size()
    }

    fn inbox(&self) -> &Inbox {
        self.link.inbox()
    }

    fn begin(&self, call: &Call) -> Result<(), CommError> {
        let mut state = lock(&self.state);
        let (rank, number) = (self.link.rank(), state.calls);
        state.calls += 1;
        for &(at, fault_at, fault) in &self.plan.faults {
            if (at, fault_at) != (rank, number) {
                continue;
            }
            match fault {
                Fault::Panic => {
                    drop(state);
                    panic!("killed by the fault plan at call {number}: {call}");
                }
                Fault::Vanish => {
                    state.vanished = true;
                    return Err(CommError::Vanished {
                        rank,
                        call_number: number,
                        call: Box::new(call.clone()),
                    });
                }
                Fault::Drop | Fault::Delay(_) | Fault::Corrupt => state.struck.push((call.clone(), fault)),
            }
        }
        drop(state);
        self.link.begin(call)
    }

    fn post(&self, to: usize, mut message: Message) -> Result<(), CommError> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.vanished {
            return Ok(());
        }
        let place = state.posted;
        state.posted += 1;
        let now = Instant::now();
        let mut due = now;
        let mut late = false;
        if message.kind == MessageKind::Call {
            if let Some(most) = self.plan.delays {
                due += most.mul_f64(self.delays.uniform_f64(place));
            }
            for (call, fault) in &state.struck {
                if *call != *message.call {
                    continue;
                }
                match fault {
                    Fault::Drop => return Ok(()),
                    Fault::Delay(delay) => due += *delay,
                    Fault::Corrupt => corrupt(&mut message, self.delays.word(place)),
                    Fault::Panic | Fault::Vanish => {}
                }
            }
            state.under_way[to] = state.under_way[to].max((due > now).then_some(due));
        } else if let Some(last) = state.under_way[to] {
            // last words do not overtake
            due = due.max(last);
            late = true;
        }
        if late || due > now {
            return self.post_late(state, Late { due, place, to, message });
        }
        drop(guard);
        self.link.post(to, message)
    }

    fn poll(&self) -> Result<(), CommError> {
        self.link.poll()
    }

    fn poll_every(&self) -> Option<Duration> {
        self.link.poll_every()
    }

    fn stopped(&self) -> Vec<usize> {
        self.link.stopped()
    }

    fn close(&self, deadline: Duration) {
        let postman = lock(&self.state).postman.take();
        if let Some((sender, thread)) = postman {
            drop(sender);
            // its panic is one of the link below and has been printed
            let _ = thread.join();
        }
        self.link.close(deadline);
    }
}

fn corrupt(message: &mut Message, random: u32) {
    if message.body.is_empty() {
        return;
    }
    let mut damaged = Aligned::copy_of(message.body.as_bytes());
    let at = random as usize % message.body.len();
    damaged.as_mut()[at] ^= 1 << (random >> 29);
    message.body = damaged.freeze();
}
