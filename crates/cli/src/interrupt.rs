//! Wishes to stop: Ctrl-C, and SIGTERM.

use std::time::{Duration, Instant};

use crate::refusal::refusal;

/// Signals within this time are one wish: launchers and `timeout` send a process one of its own and one to its group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// Calls `first` at the first wish to stop. A second one is not to wait any longer: it ends the process.
pub(crate) fn listen(first: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut asked: Option<Instant> = None;
    let hear = move || match asked {
        None => {
            asked = Some(Instant::now());
            first();
        }
        Some(at) if at.elapsed() < ONE_WISH => {}
        Some(_) => std::process::exit(130),
    };
    ctrlc::set_handler(hear).map_err(|error| refusal!(BadEnvironment, "cannot listen for Ctrl-C: {error}"))
}
