//! The result of a call that is still under way.

use crate::CommError;
use crate::transport::{Outcome, Work};

type Finish<T> = Box<dyn FnOnce(Outcome) -> T + Send>;

enum State<T> {
    Known(Result<T, CommError>),
    Under { work: Box<dyn Work>, finish: Finish<T> },
}

/// The result of a call under way. The buffers belong to the call until [`Pending::wait`].
///
/// A dropped handle gives up the result only: the call itself is completed with the other ranks, by the next calls of
/// this rank or when its last handle of the world goes.
#[must_use = "the buffers come back, and errors surface, in `wait`"]
pub struct Pending<T> {
    state: State<T>,
}

impl<T> Pending<T> {
    pub(crate) fn known(result: Result<T, CommError>) -> Self {
        Self { state: State::Known(result) }
    }

    pub(crate) fn under(work: Box<dyn Work>, finish: impl FnOnce(Outcome) -> T + Send + 'static) -> Self {
        Self { state: State::Under { work, finish: Box::new(finish) } }
    }

    #[cfg(all(feature = "cuda", unix))]
    pub(crate) fn map<U>(self, then: impl FnOnce(T) -> U + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        match self.state {
            State::Known(result) => Pending::known(result.map(then)),
            State::Under { work, finish } => Pending::under(work, move |outcome| then(finish(outcome))),
        }
    }

    /// Whether [`Pending::wait`] would return at once.
    #[must_use]
    pub fn ready(&self) -> bool {
        match &self.state {
            State::Known(_) => true,
            State::Under { work, .. } => work.ready(),
        }
    }

    /// Blocks until the call is complete. The thread parks meanwhile.
    ///
    /// # Errors
    /// Wrong arguments; disagreement, silence or failure of a rank; all [`CommError`]s.
    pub fn wait(self) -> Result<T, CommError> {
        match self.state {
            State::Known(result) => result,
            State::Under { work, finish } => work.wait().map(finish),
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.ready() { "Pending(ready)" } else { "Pending(under way)" })
    }
}
