//! `LaterStats`: statistics of tokens that may still be on their way from the device.

use std::fmt;
use std::sync::LazyLock;

use super::TokenStats;

/// Per-token facts that are looked at when they are needed, by which time the device has done with them.
pub struct LaterStats(LazyLock<TokenStats, Box<dyn FnOnce() -> TokenStats + Send>>);

impl LaterStats {
    /// What `wait` gives when it is first asked for.
    pub(crate) fn new(wait: impl FnOnce() -> TokenStats + Send + 'static) -> Self {
        Self(LazyLock::new(Box::new(wait)))
    }

    /// The facts; the first call waits for them.
    #[must_use]
    pub fn get(&self) -> &TokenStats {
        &self.0
    }
}

impl From<TokenStats> for LaterStats {
    fn from(stats: TokenStats) -> Self {
        let there = Self::new(|| stats);
        let _ = there.get();
        there
    }
}

impl fmt::Debug for LaterStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
