//! Messages between the ranks' processes: what is being sent and received, and who moves it on.
//!
//! Every message is a frame, the header with a short body behind it; a long body follows as messages of its own under
//! another tag. Per pair of ranks MPI keeps both in order, and the receiver asks for a body as soon as it has the
//! frame, so bodies need no numbers. All operations are immediate ones, tested until complete: by the threads that
//! wait, and else by a thread of the engine's own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::library::{ANY_SOURCE, Code, Handle, Library, Request};
use super::{MpiError, PIECE};
use crate::CommError;
use crate::transport::inbox::lock;
use crate::transport::{Aligned, Bytes, HEADER, Inbox, Message, MessageKind};

/// Most bytes of a frame: below the size from which Open MPI's shared memory asks the receiver first.
const FRAME: usize = 3584;
/// Tag of frames.
const FRAME_TAG: i32 = 1;
/// Tag of bodies.
const BODY_TAG: i32 = 2;
/// How often the engine's own thread tests while something is under way, or was a moment ago; up to [`LONGEST_NAP`] when
/// nothing moves.
const PACE: Duration = Duration::from_micros(100);
/// How often it looks when nothing was for [`MOMENT`].
const IDLE: Duration = Duration::from_millis(5);
const MOMENT: Duration = Duration::from_millis(100);
/// For how long after a message a waiting thread does not sleep at all.
const SPIN: Duration = Duration::from_millis(1);
/// How long it sleeps at most between tests.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How long a rank waits for the others to end too after a failure.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// After how long a rank that has ended says for whom it waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes on their way out.
struct Sending {
    requests: Vec<Request>,
    to: usize,
    /// Freed once all requests are complete.
    _bytes: Bytes,
}

/// A body on its way in.
struct Receiving {
    requests: Vec<Request>,
    from: usize,
    header: [u8; HEADER],
    /// Written by MPI until all requests are complete.
    body: Aligned,
}

struct State {
    /// Where the next frame is received, by `listening`.
    frame: Box<[u8; FRAME]>,
    listening: Option<Request>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    /// Last words that came while bodies of the same rank were on their way: they must not overtake them.
    held: Vec<VecDeque<Message>>,
    /// The ranks that have ended their world.
    left: Vec<bool>,
    /// This rank, or another one, said that it failed.
    told_failure: bool,
    /// The first failure of a call of MPI, and the rank it concerned; after it MPI is not called any more.
    failed: Option<CommError>,
    /// The world ended; MPI is not called any more.
    closed: bool,
}

/// The ranks' processes as one of them sees them.
pub(super) struct Engine {
    library: &'static Library,
    within: Handle,
    rank: usize,
    size: usize,
    piece: usize,
    inbox: Inbox,
    state: Mutex<State>,
    /// Wakes the engine's own thread.
    work: Condvar,
    began: Instant,
    /// When something was last posted or came in, in microseconds since `began`.
    active: AtomicU64,
}

impl Engine {
    /// The engine of a process whose MPI is initialised. `within` is a communicator of its own; bodies travel in
    /// pieces of at most `piece` bytes.
    pub(super) fn new(
        library: &'static Library,
        within: Handle,
        piece: usize,
    ) -> Result<Arc<Self>, MpiError> {
        let (rank, size) = library.place(within).map_err(|code| library.error(0, code))?;
        let state = State {
            frame: Box::new([0; FRAME]),
            listening: None,
            sending: Vec::new(),
            receiving: Vec::new(),
            held: vec![VecDeque::new(); size],
            left: vec![false; size],
            told_failure: false,
            failed: None,
            closed: false,
        };
        library.worlds.fetch_add(1, Ordering::AcqRel);
        let engine = Arc::new(Self {
            library,
            within,
            rank,
            size,
            piece: piece.clamp(FRAME, PIECE),
            inbox: Inbox::new(),
            state: Mutex::new(state),
            work: Condvar::new(),
            began: Instant::now(),
            active: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&engine);
        let thread = std::thread::Builder::new().name(format!("mpi {rank}"));
        // Without this thread everything works, only nothing moves on while nobody waits.
        drop(thread.spawn(move || keep_moving(&weak)));
        Ok(engine)
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Begins to send a message to another rank of the world; does not wait for it.
    pub(super) fn post(&self, to: usize, message: &Message) -> Result<(), CommError> {
        let header = message.header();
        let body = &message.body;
        let inline = fits(body.len());
        let frame = if inline { [&header, body.as_bytes()].concat() } else { header.to_vec() };
        let mut state = lock(&self.state);
        state.usable(self)?;
        state.told_failure |= matches!(message.kind, MessageKind::Failed | MessageKind::Disagreed);
        self.note_activity();
        self.send(&mut state, to, FRAME_TAG, Bytes::from_vec(frame))?;
        if !inline {
            self.send(&mut state, to, BODY_TAG, body.clone())?;
        }
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    fn send(&self, state: &mut State, to: usize, tag: i32, bytes: Bytes) -> Result<(), CommError> {
        let mut sending = Sending { requests: Vec::new(), to, _bytes: bytes.clone() };
        let mut step = Ok(());
        for piece in bytes.as_bytes().chunks(self.piece) {
            let (count, peer) = (integer(piece.len()), integer(to));
            // SAFETY: `sending` keeps the bytes, which nobody can change, until all its requests are complete: it
            // is dropped by `State::move_on` then, and leaked with the state otherwise.
            match unsafe { self.library.send(piece.as_ptr(), count, peer, tag, self.within) } {
                Ok(request) => sending.requests.push(request),
                Err(code) => {
                    step = Err(state.fail(self, to, code, "sending"));
                    break;
                }
            }
        }
        state.sending.push(sending);
        step
    }

    /// Lets MPI work, and delivers what came; lets other threads run if nothing did.
    pub(super) fn poll(&self) -> Result<(), CommError> {
        let seen = self.inbox.changes();
        let step = lock(&self.state).move_on(self);
        if self.inbox.changes() == seen {
            std::thread::yield_now();
        }
        step
    }

    /// How long a waiting thread may sleep before the next [`Self::poll`]: not at all while messages are on their way,
    /// longer the longer nothing came.
    pub(super) fn poll_every(&self) -> Duration {
        let quiet = self.quiet();
        if quiet < SPIN { Duration::ZERO } else { (quiet / 20).min(LONGEST_NAP) }
    }

    fn note_activity(&self) {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.active.store(now, Ordering::Relaxed);
    }

    /// How long nothing was posted and nothing came.
    fn quiet(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_micros(self.active.load(Ordering::Relaxed)))
    }

    /// Ends this world, and with the last one MPI in this process. The last words are posted.
    ///
    /// Waits for all ranks to say that they end, as `MPI_Finalize` itself would; but after a failure, here or at another
    /// rank, only for a moment. If a rank is missing then, MPI is left as it is, and the launcher ends the job when this
    /// process exits.
    pub(super) fn close(&self) {
        let began = Instant::now();
        let mut told = false;
        loop {
            let mut state = lock(&self.state);
            if state.move_on(self).is_err() {
                return;
            }
            let missing: Vec<usize> =
                (0..self.size).filter(|&rank| rank != self.rank && !state.left[rank]).collect();
            if missing.is_empty() {
                if self.end(&mut state) {
                    self.finalize();
                }
                return;
            }
            if state.told_failure && began.elapsed() > LAST_WORDS {
                self.end(&mut state);
                return;
            }
            if began.elapsed() > PATIENCE && !told {
                told = true;
                eprintln!(
                    "transport mpi: rank {} has ended and waits for ranks {missing:?} to end",
                    self.rank
                );
            }
            drop(state);
            std::thread::sleep(self.poll_every().max(PACE));
        }
    }

    /// Ends this world; says whether it was the last.
    fn end(&self, state: &mut State) -> bool {
        // What is still on its way now was never asked for; its buffers stay, as MPI may still hold them.
        std::mem::forget(std::mem::take(&mut state.sending));
        std::mem::forget(std::mem::take(&mut state.receiving));
        if let Some(mut listening) = state.listening.take() {
            let began = Instant::now();
            let cancelled = self.library.cancel(&mut listening);
            while let (Ok(()), Ok(None)) = (cancelled, self.library.test(&mut listening)) {
                if began.elapsed() > LAST_WORDS {
                    // Not to be had: the frame stays MPI's.
                    state.listening = Some(listening);
                    break;
                }
            }
        }
        state.closed = true;
        self.library.worlds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn finalize(&self) {
        if let Err(code) = self.library.finalize() {
            eprintln!("{}", self.library.error(self.rank, code));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.listening.is_some() {
            // Not finalised: MPI may still write into these and read from those.
            std::mem::forget(std::mem::replace(&mut state.frame, Box::new([0; FRAME])));
            std::mem::forget(std::mem::take(&mut state.sending));
            std::mem::forget(std::mem::take(&mut state.receiving));
        }
    }
}

impl State {
    /// Whether MPI may be called.
    fn usable(&self, engine: &Engine) -> Result<(), CommError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.closed {
            let rank = engine.rank;
            let source = Arc::new(MpiError::Ended { rank });
            return Err(CommError::Link {
                transport: "mpi",
                operation: "a message",
                rank,
                peer: rank,
                source,
            });
        }
        Ok(())
    }

    /// Keeps the first failed call: nothing can be relied on after it.
    fn fail(&mut self, engine: &Engine, peer: usize, code: Code, operation: &'static str) -> CommError {
        let rank = engine.rank;
        let source = Arc::new(engine.library.error(rank, code));
        let error = CommError::Link { transport: "mpi", operation, rank, peer, source };
        self.failed.get_or_insert(error).clone()
    }

    /// Lets MPI work: takes in the frames and bodies that came, lets go of what is sent.
    fn move_on(&mut self, engine: &Engine) -> Result<(), CommError> {
        self.usable(engine)?;
        loop {
            let mut listening = match self.listening.take() {
                Some(listening) => listening,
                None => self.listen(engine)?,
            };
            match engine.library.test(&mut listening) {
                Ok(Some(status)) => self.take_in(engine, status.source, status.bytes)?,
                Ok(None) => {
                    self.listening = Some(listening);
                    break;
                }
                Err(code) => return Err(self.fail(engine, engine.rank, code, "receiving")),
            }
        }
        for place in (0..self.receiving.len()).rev() {
            let one = &mut self.receiving[place];
            let from = one.from;
            match complete(engine.library, &mut one.requests) {
                Ok(false) => {}
                Ok(true) => {
                    let Receiving { header, body, .. } = self.receiving.swap_remove(place);
                    self.deliver(engine, from, Message::decode(from, &header, body.freeze())?);
                }
                Err(code) => return Err(self.fail(engine, from, code, "receiving")),
            }
        }
        for place in (0..self.sending.len()).rev() {
            let one = &mut self.sending[place];
            let to = one.to;
            match complete(engine.library, &mut one.requests) {
                Ok(false) => {}
                Ok(true) => drop(self.sending.swap_remove(place)),
                Err(code) => return Err(self.fail(engine, to, code, "sending")),
            }
        }
        Ok(())
    }

    fn listen(&mut self, engine: &Engine) -> Result<Request, CommError> {
        let into = self.frame.as_mut_ptr();
        // SAFETY: the frame is boxed, is read only after the request is complete, and is leaked by the engine unless
        // the request was cancelled.
        let posted =
            unsafe { engine.library.receive(into, integer(FRAME), ANY_SOURCE, FRAME_TAG, engine.within) };
        posted.map_err(|code| self.fail(engine, engine.rank, code, "receiving"))
    }

    /// Takes in the frame that came from `from`; asks for its body if that is not in it.
    fn take_in(&mut self, engine: &Engine, from: i32, bytes: usize) -> Result<(), CommError> {
        let from = usize::try_from(from).expect("invariant: a message comes from a rank");
        engine.note_activity();
        let frame = &self.frame[..bytes.min(FRAME)];
        let length = Message::checked_body_bytes(from, frame)?;
        let Some((header, inline)) = frame.split_first_chunk::<HEADER>() else {
            let got = bytes as u64;
            return Err(CommError::Header { from, field: "header length", got, expected: "256" });
        };
        if fits(length) {
            let message = Message::decode(from, header, Aligned::copy_of(inline).freeze())?;
            self.deliver(engine, from, message);
            return Ok(());
        }
        let header = *header;
        let mut receiving = Receiving { requests: Vec::new(), from, header, body: Aligned::zeroed(length) };
        let mut step = Ok(());
        for piece in receiving.body.as_mut().chunks_mut(engine.piece) {
            let (count, peer) = (integer(piece.len()), integer(from));
            // SAFETY: `receiving` keeps the body, untouched, until all its requests are complete: it is taken out of
            // the state by `move_on` then, and leaked with the state otherwise.
            match unsafe { engine.library.receive(piece.as_mut_ptr(), count, peer, BODY_TAG, engine.within) }
            {
                Ok(request) => receiving.requests.push(request),
                Err(code) => {
                    step = Err(self.fail(engine, from, code, "receiving"));
                    break;
                }
            }
        }
        self.receiving.push(receiving);
        step
    }

    /// Delivers a message; last words only after everything that was sent before them.
    fn deliver(&mut self, engine: &Engine, from: usize, message: Message) {
        match message.kind {
            MessageKind::Call => engine.inbox.deliver(from, message),
            _ => self.held[from].push_back(message),
        }
        if self.receiving.iter().any(|one| one.from == from) {
            return;
        }
        while let Some(message) = self.held[from].pop_front() {
            match message.kind {
                MessageKind::Left => self.left[from] = true,
                _ => self.told_failure = true,
            }
            engine.inbox.deliver(from, message);
        }
    }
}

/// Whether a body travels in its frame.
fn fits(body: usize) -> bool {
    HEADER + body <= FRAME
}

/// Drops the requests that are complete; says whether none is left.
fn complete(library: &Library, requests: &mut Vec<Request>) -> Result<bool, Code> {
    while let Some(request) = requests.last_mut() {
        if library.test(request)?.is_none() {
            return Ok(false);
        }
        requests.pop();
    }
    Ok(true)
}

/// Moves on what is under way when nobody waits; ends with the engine.
fn keep_moving(engine: &Weak<Engine>) {
    let mut nap = PACE;
    // Looked up anew every time, so that the thread does not keep the engine alive.
    while let Some(engine) = engine.upgrade() {
        let mut state = lock(&engine.state);
        // A failure is kept; whoever waits or posts next gets it.
        if state.move_on(&engine).is_err() {
            drop(state);
            engine.inbox.wake();
            return;
        }
        let under_way = !state.sending.is_empty() || !state.receiving.is_empty();
        let quiet = engine.quiet();
        if under_way || quiet < MOMENT {
            drop(state);
            drop(engine);
            // Every test costs time of a core that computes; when nothing moves, look less often.
            nap = if quiet <= nap { PACE } else { (nap * 2).min(LONGEST_NAP) };
            std::thread::sleep(nap);
        } else {
            drop(engine.work.wait_timeout(state, IDLE));
        }
    }
}

/// A count, rank or length as MPI takes it.
fn integer(number: usize) -> i32 {
    i32::try_from(number).expect("invariant: ranks fit, and bodies are cut, into 31 bits")
}
