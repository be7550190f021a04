//! Launches that are recorded once and then run as one (CUDA's graphs).
//!
//! A launch costs the host ten times what it costs a device, and a step of decoding has hundreds of small ones.

use std::fmt;
use std::thread::{self, ThreadId};

use cubecl_core::client::Graph;
use cubecl_core::prelude::Client;

/// Why launches were not recorded, or what was recorded did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRecorded(String);

impl fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launches were not recorded: {}", self.0)
    }
}

impl std::error::Error for NotRecorded {}

/// On one line, without where it was found.
fn refused(why: &dyn fmt::Display) -> NotRecorded {
    let said = why.to_string();
    let lines = said.lines().map(str::trim).take_while(|line| !line.starts_with("Backtrace"));
    NotRecorded(lines.collect::<Vec<_>>().join(" "))
}

/// Before a recording: what this thread launches runs as ever, and the memory that it takes is there for the same launches
/// when they are recorded, which may not ask the driver for any.
pub struct Rehearsal {
    client: Client,
    open: bool,
}

impl Rehearsal {
    /// Begins.
    ///
    /// # Errors
    /// If the device records nothing, or this thread rehearses or records already.
    pub fn new(client: &Client) -> Result<Self, NotRecorded> {
        client.graph_prepare().map_err(|why| refused(&why))?;
        Ok(Self { client: client.clone(), open: true })
    }

    /// Records what `work` launches and runs none of it; what `work` gives is what the recording will write.
    ///
    /// `work` launches what was rehearsed. It may neither read from the device nor write to it.
    ///
    /// # Errors
    /// If it did, took more memory than was rehearsed, or failed itself. What it would have written must then not be read,
    /// nor what it would have written to.
    pub fn record<T, E: fmt::Display>(
        mut self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Recording, T), NotRecorded> {
        if let Err(why) = self.client.start_capture() {
            self.open = false;
            return Err(refused(&why));
        }
        let made = work();
        self.open = false;
        let graph = self.client.stop_capture().map_err(|why| refused(&why));
        let made = made.map_err(|why| refused(&why))?;
        Ok((Recording { graph: graph?, thread: thread::current().id() }, made))
    }
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        if self.open {
            // Ends it; that there is no recording to give is what is wanted.
            let _ = self.client.stop_capture();
        }
    }
}

/// Launches in their order, with the memory that each was given: nobody else gets that memory while this lives.
///
/// What changes from run to run is written to that memory between runs, by the thread that recorded.
#[derive(Debug)]
pub struct Recording {
    graph: Graph,
    thread: ThreadId,
}

impl Recording {
    /// Runs all of it once more; waits for nothing.
    ///
    /// # Errors
    /// If the device refuses, or this is another thread than that which recorded.
    pub fn run(&self) -> Result<(), NotRecorded> {
        if thread::current().id() != self.thread {
            return Err(NotRecorded("another thread recorded them".to_owned()));
        }
        // SAFETY: CubeCL guards the pages of all memory that was recorded with for as long as the graph lives, so that nothing
        // else comes to lie there; only this thread's stream, on which the run is queued too, uses it.
        unsafe { self.graph.replay() }.map_err(|why| refused(&why))
    }
}
