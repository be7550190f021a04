//! Models by name, and the sequences that they are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use burnish_models::{Decoder, Generation, Sequence};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::ServeError;
use crate::turns::Turns;
use crate::worker::{Event, Job, Place, work};

/// How much an engine takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Sequences of one model, with the adapters that are mixed with it, that run at once (vLLM's `max_num_seqs`).
    pub max_num_seqs: usize,
    /// Sequences that are held, running or waiting; a request that does not fit is refused.
    pub max_queue: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { max_num_seqs: 16, max_queue: 256 }
    }
}

/// What an engine does, and has done.
#[derive(Debug, Default)]
pub struct Load {
    /// Sequences that are held, running or waiting.
    pub held: AtomicUsize,
    /// Sequences that run, of the model that stepped last.
    pub running: AtomicUsize,
    /// Tokens of prompts that were computed or shared.
    pub prompted: AtomicUsize,
    /// Tokens of completions that ended.
    pub generated: AtomicUsize,
}

/// Models by name, each with a thread of its own, or one for a base and adapters that are mixed with it; threads take
/// turns step by step.
#[derive(Debug)]
pub struct Engine {
    models: Mutex<BTreeMap<String, Worker>>,
    turns: Arc<Turns>,
    load: Arc<Load>,
    options: EngineOptions,
}

#[derive(Debug)]
struct Worker {
    jobs: Sender<Job>,
    /// Which of the decoder's adapters has the name.
    adapter: Option<usize>,
    /// The decoder's: of all names that it serves.
    thread: Arc<JoinHandle<()>>,
}

/// Why a request is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// There is no such model.
    NoModel,
    /// As much as there is room for is held already.
    Full,
}

/// What comes of a request's sequences.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) events: UnboundedReceiver<Event>,
    /// One for each sequence: set when nobody wants more of it.
    pub(crate) cancelled: Vec<Arc<AtomicBool>>,
}

impl Engine {
    /// An engine without a model.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        Self { models: Mutex::default(), turns: Arc::default(), load: Arc::default(), options }
    }

    /// Serves `decoder` as `name`.
    ///
    /// # Errors
    /// If the name is taken, or no thread starts.
    pub fn add(&self, name: &str, decoder: Decoder) -> Result<(), ServeError> {
        self.add_mixed(&[name], decoder)
    }

    /// Serves a decoder with [several adapters](Decoder::adapters): the base as the first of `names`, the adapters as
    /// those that follow. All that they are asked for runs in one batch.
    ///
    /// # Errors
    /// If a name is taken, or no thread starts.
    pub fn add_mixed(&self, names: &[&str], decoder: Decoder) -> Result<(), ServeError> {
        let mut models = self.models();
        let mut seen = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| models.contains_key(**name) || !seen.insert(**name)) {
            return Err(ServeError::NameTaken { name: (*name).to_owned() });
        }
        let name = names.first().copied().unwrap_or_default();
        let (jobs, received) = channel();
        let (turns, load, most) = (self.turns.clone(), self.load.clone(), self.options.max_num_seqs.max(1));
        let thread = std::thread::Builder::new()
            .name(format!("model {name}"))
            .spawn(move || work(&decoder, &received, most, &turns, &load))
            .map_err(|source| ServeError::Thread { name: name.to_owned(), source })?;
        let thread = Arc::new(thread);
        for (at, name) in names.iter().enumerate() {
            let (jobs, thread) = (jobs.clone(), thread.clone());
            models.insert((*name).to_owned(), Worker { jobs, adapter: at.checked_sub(1), thread });
        }
        Ok(())
    }

    /// Takes no more requests for `name`; those that it has are served. Whether there was such a model.
    pub fn remove(&self, name: &str) -> bool {
        self.models().remove(name).is_some()
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.models().keys().cloned().collect()
    }

    /// What it does, and has done.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Serves what it has, takes no more, and returns when that is done.
    pub fn finish(&self) {
        let models = std::mem::take(&mut *self.models());
        for (_, Worker { jobs, thread, .. }) in models {
            drop(jobs);
            // The last name of a thread waits for it; a panic of its own is reported where it happened.
            if let Some(thread) = Arc::into_inner(thread) {
                let _ = thread.join();
            }
        }
    }

    /// Asks `name` for a completion with each of `settings`, of the prompt beside it.
    pub(crate) fn submit(
        &self,
        name: &str,
        asked: Vec<(Vec<u32>, Arc<Generation>)>,
    ) -> Result<Running, NotTaken> {
        let worker = self.models().get(name).map(|worker| (worker.jobs.clone(), worker.adapter));
        let (jobs, adapter) = worker.ok_or(NotTaken::NoModel)?;
        let places: Vec<Place> =
            asked.iter().map(|_| self.place()).collect::<Option<_>>().ok_or(NotTaken::Full)?;
        let (sender, events) = unbounded_channel();
        let mut cancelled = Vec::with_capacity(asked.len());
        for (index, ((prompt, settings), place)) in asked.into_iter().zip(places).enumerate() {
            let unwanted = Arc::new(AtomicBool::new(false));
            cancelled.push(unwanted.clone());
            let sequence = Sequence { id: 0, prompt, adapter, settings };
            let job = Job { index, sequence, events: sender.clone(), cancelled: unwanted, _place: place };
            jobs.send(job).map_err(|_| NotTaken::NoModel)?;
        }
        Ok(Running { events, cancelled })
    }

    /// A place, if there is one.
    fn place(&self) -> Option<Place> {
        let (held, most) = (&self.load.held, self.options.max_queue);
        let more = |n: usize| (n < most).then_some(n + 1);
        held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Place(self.load.clone()))
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Worker>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
