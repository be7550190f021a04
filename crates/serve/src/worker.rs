//! One decoder's thread: sequences wait, join, are stepped and leave.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

use burnish_models::{Completion, ContinuousBatch, Decoder, FinishReason, ModelError, Sequence, Token};
use tokio::sync::mpsc::UnboundedSender;

use crate::engine::Load;
use crate::turns::Turns;

/// What comes of a sequence, with its index in the request.
#[derive(Debug)]
pub(crate) enum Event {
    /// A token was chosen.
    Token(usize, Token),
    /// There are no more.
    Done(usize, FinishReason),
    /// The model failed.
    Failed(Arc<ModelError>),
}

/// A sequence that somebody wants.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its index in the request.
    pub(crate) index: usize,
    pub(crate) sequence: Sequence,
    pub(crate) events: UnboundedSender<Event>,
    /// Set when nobody wants more of it.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Its place among those that the engine holds.
    pub(crate) _place: Place,
}

/// A place in the engine; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(pub(crate) Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Job {
    fn wanted(&self) -> bool {
        !self.cancelled.load(Ordering::Relaxed) && !self.events.is_closed()
    }
}

/// What runs, by the batch's id.
#[derive(Default)]
struct Running(BTreeMap<u64, Job>);

impl Running {
    /// Passes a token on; whether more is wanted.
    fn hear(&self, id: u64, token: &Token) -> bool {
        let Some(job) = self.0.get(&id) else { return false };
        job.wanted() && job.events.send(Event::Token(job.index, token.clone())).is_ok()
    }

    fn end(&mut self, done: Vec<(u64, Completion)>, generated: &AtomicUsize) {
        for (id, completion) in done {
            generated.fetch_add(completion.token_ids.len(), Ordering::Relaxed);
            if let Some(job) = self.0.remove(&id) {
                let _ = job.events.send(Event::Done(job.index, completion.finish_reason));
            }
        }
    }
}

/// Serves `jobs` until nobody can send any; at most `most` sequences run at once.
pub(crate) fn work(decoder: &Decoder, jobs: &Receiver<Job>, most: usize, turns: &Turns, load: &Load) {
    let (mut running, mut waiting) = (Running::default(), VecDeque::new());
    let mut batch = ContinuousBatch::new(decoder);
    let mut ids = 0_u64..;
    loop {
        if running.0.is_empty() && waiting.is_empty() {
            match jobs.recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => return,
            }
        }
        let open = loop {
            match jobs.try_recv() {
                Ok(job) => waiting.push_back(job),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        waiting.retain(Job::wanted);
        let turn = turns.take();
        let stepped = step(&mut batch, &mut running, &mut waiting, &mut ids, most, load);
        drop(turn);
        load.running.store(running.0.len(), Ordering::Relaxed);
        if let Err(error) = stepped {
            // What was computed for these is lost; those that wait have a batch of their own.
            let error = Arc::new(error);
            for (_, job) in std::mem::take(&mut running.0) {
                let _ = job.events.send(Event::Failed(error.clone()));
            }
            batch = ContinuousBatch::new(decoder);
        }
        if !open && running.0.is_empty() && waiting.is_empty() {
            return;
        }
    }
}

fn step(
    batch: &mut ContinuousBatch<'_>,
    running: &mut Running,
    waiting: &mut VecDeque<Job>,
    ids: &mut impl Iterator<Item = u64>,
    most: usize,
    load: &Load,
) -> Result<(), ModelError> {
    // Those that run go first: a prompt that joins is a long step for them.
    let done = batch.step(&mut |id, token| running.hear(id, token))?;
    running.end(done, &load.generated);
    let free = most.saturating_sub(batch.len());
    let mut joining = Vec::new();
    for mut job in waiting.drain(..waiting.len().min(free)) {
        if let Err(error) = batch.check(job.index, &job.sequence.prompt) {
            // Its own fault: those that run beside it go on.
            let _ = job.events.send(Event::Failed(Arc::new(error)));
            continue;
        }
        let id = ids.next().unwrap_or_default();
        let prompt = std::mem::take(&mut job.sequence.prompt);
        load.prompted.fetch_add(prompt.len(), Ordering::Relaxed);
        let (adapter, settings) = (job.sequence.adapter, job.sequence.settings.clone());
        joining.push(Sequence { id, prompt, adapter, settings });
        running.0.insert(id, job);
    }
    let next = waiting.front().map(|job| job.sequence.adapted());
    let done = batch.join(joining, next, &mut |id, token| running.hear(id, token))?;
    running.end(done, &load.generated);
    Ok(())
}
