//! Turns at the processor: models that have work take them in the order in which they ask.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue of threads, one of which runs.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    tickets: Mutex<Tickets>,
    next: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// The next one that is given out.
    free: u64,
    /// The one whose turn it is.
    now: u64,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut tickets = self.tickets();
        let own = tickets.free;
        tickets.free += 1;
        while tickets.now != own {
            tickets = self.next.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.tickets().now += 1;
        self.0.next.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_and_nobody_waits_for_ever() {
        let (turns, inside, done) = (Turns::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let turn = turns.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), 400);
    }
}
