//! Ranks as threads of one process: messages are reference counts, and peers read each other's buckets in place.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::transport::link::Message;
use crate::transport::{Inbox, Link};
use crate::{CommError, World};

/// Ranks that [`run_worlds`] has running.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How many ranks are threads of this process; one that was not started by [`run`] is one too.
#[must_use]
pub fn ranks_here() -> usize {
    RUNNING.load(Ordering::Relaxed).max(1)
}

/// Counts ranks for as long as it lives.
struct Counted(usize);

impl Counted {
    fn new(ranks: usize) -> Self {
        RUNNING.fetch_add(ranks, Ordering::Relaxed);
        Self(ranks)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The link of one rank to the others in the process.
pub struct LocalLink {
    rank: usize,
    inboxes: Arc<[Inbox]>,
}

impl LocalLink {
    pub(crate) fn alone() -> Self {
        Self { rank: 0, inboxes: Arc::new([Inbox::new()]) }
    }
}

/// The links of `ranks` ranks, to be wrapped (see [`Faulty`](crate::transport::Faulty)) or made a [`World`] each.
#[must_use]
pub fn links(ranks: usize) -> Vec<LocalLink> {
    let inboxes: Arc<[Inbox]> = (0..ranks).map(|_| Inbox::new()).collect();
    (0..ranks).map(|rank| LocalLink { rank, inboxes: Arc::clone(&inboxes) }).collect()
}

impl Link for LocalLink {
    fn name(&self) -> &'static str {
        "local"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.inboxes.len()
    }

    fn inbox(&self) -> &Inbox {
        &self.inboxes[self.rank]
    }

    fn post(&self, to: usize, message: Message) -> Result<(), CommError> {
        self.inboxes[to].deliver(self.rank, message);
        Ok(())
    }
}

/// Runs `program` on `ranks` threads, named `rank 0` and so on, and gives what each returned, in rank order. A rank that
/// panics ends the others' waiting: they get an error that names it and its message.
///
/// # Errors
/// [`CommError::Panicked`] in the place of a rank that panicked.
pub fn run<T: Send>(ranks: usize, program: impl Fn(World) -> T + Sync) -> Vec<Result<T, CommError>> {
    run_worlds(World::local(ranks), program)
}

/// [`run`] over given worlds, one thread each: with deadlines, checksums or faults.
///
/// # Errors
/// [`CommError::Panicked`] in the place of a rank that panicked.
pub fn run_worlds<T: Send>(
    worlds: Vec<World>,
    program: impl Fn(World) -> T + Sync,
) -> Vec<Result<T, CommError>> {
    let program = &program;
    let _counted = Counted::new(worlds.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| {
                let rank = world.rank();
                let thread = std::thread::Builder::new().name(format!("rank {rank}"));
                let running = thread.spawn_scoped(scope, move || {
                    // this handle outlives the program's, so that its panic is told with its message
                    let own = world.clone();
                    catch_unwind(AssertUnwindSafe(|| program(world))).map_err(|panic| {
                        let message = message_of(&*panic);
                        let error = CommError::Panicked { rank, message };
                        own.fail_with(error.clone());
                        error
                    })
                });
                (rank, running)
            })
            .collect();
        threads
            .into_iter()
            .map(|(rank, running)| match running {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| Err(CommError::Panicked { rank, message: message_of(&*panic) })),
                Err(error) => {
                    Err(CommError::Panicked { rank, message: format!("its thread did not start: {error}") })
                }
            })
            .collect()
    })
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a message".to_owned(),
    }
}
