//! `Inbox`: received messages of a rank, by sender, channel and phase, until a collective takes them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Call;
use crate::transport::link::{Message, MessageKind};

/// Locks, also after a panic of another holder: what the locks here guard is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which message of which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) from: usize,
    pub(crate) channel: u64,
    pub(crate) phase: u8,
    pub(crate) index: u64,
}

/// What other ranks said of themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    /// The first rank that failed, whether for a disagreement, and its words.
    pub(crate) failed: Option<(usize, bool, String)>,
    /// Ranks that ended.
    pub(crate) left: BTreeSet<usize>,
}

#[derive(Default)]
struct Arrived {
    changes: u64,
    messages: HashMap<Key, Message>,
    notices: Notices,
}

/// A rank's messages that no call has taken yet. [`Link`](crate::transport::Link)s deliver into it; waiting calls sleep on it.
#[derive(Default)]
pub struct Inbox {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

impl Inbox {
    /// An empty inbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts in a message from rank `from` and wakes whoever waits.
    pub fn deliver(&self, from: usize, message: Message) {
        let mut arrived = lock(&self.arrived);
        match message.kind {
            MessageKind::Call => {
                let key = Key { from, channel: message.channel, phase: message.phase, index: message.index };
                arrived.messages.insert(key, message);
            }
            MessageKind::Failed | MessageKind::Disagreed => {
                if arrived.notices.failed.is_none() {
                    let reason = String::from_utf8_lossy(message.body.as_bytes()).into_owned();
                    let failed = message.index as usize;
                    arrived.notices.failed = Some((failed, message.kind == MessageKind::Disagreed, reason));
                }
            }
            MessageKind::Left => {
                arrived.notices.left.insert(from);
            }
        }
        arrived.changes += 1;
        drop(arrived);
        self.changed.notify_all();
    }

    /// Wakes whoever waits, to look again.
    pub fn wake(&self) {
        lock(&self.arrived).changes += 1;
        self.changed.notify_all();
    }

    pub(crate) fn changes(&self) -> u64 {
        lock(&self.arrived).changes
    }

    pub(crate) fn notices(&self) -> Notices {
        lock(&self.arrived).notices.clone()
    }

    pub(crate) fn take(&self, key: &Key) -> Option<Message> {
        lock(&self.arrived).messages.remove(key)
    }

    /// Calls that `from` made and this rank has not, in no order.
    pub(crate) fn calls_of(&self, from: usize) -> Vec<Call> {
        let arrived = lock(&self.arrived);
        let messages = arrived.messages.iter().filter(|(key, _)| key.from == from && key.phase == 0);
        messages.map(|(_, message)| Call::clone(&message.call)).collect()
    }

    /// Sleeps until something changes after `seen`, or until `until`.
    pub(crate) fn sleep(&self, seen: u64, until: Instant) {
        let mut arrived = lock(&self.arrived);
        while arrived.changes == seen {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            arrived = self.changed.wait_timeout(arrived, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
