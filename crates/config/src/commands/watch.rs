//! `burnish watch`: runs as they go on.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::{RunsOptions, WatchTargetOptions};

command! {
    /// Options of `burnish watch`.
    WatchOptions, "watch", "Show runs as they go on: figures, curves, time left, the last completions",
    needs ["output_dirs"], {
        /// The runs.
        runs: RunsOptions,
        /// How they are looked at.
        watch: WatchTargetOptions,
    }
}

impl WatchOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.watch.rules(checks);
    }
}
