//! A wish to stop, heard between steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set from a signal handler, read by the loop after each step.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A run that nobody stops.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// Asks the run to save and stop after the current step. Returns whether it had been asked before.
    pub fn ask(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether it was asked.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
