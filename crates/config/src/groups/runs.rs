//! Output folders of runs that are looked at.

use std::path::PathBuf;

use crate::checks::Checks;
use crate::table::options;

options! {
    /// Runs that are looked at.
    RunsOptions, "Runs";
    /// Output folders.
    Burnish output_dirs: Vec<String> = Vec::new();
    /// Write a page for a browser to this file, one that needs nothing else.
    Burnish html: Option<PathBuf> = None;
}

options! {
    /// How runs that go on are looked at.
    WatchTargetOptions, "Watch";
    /// Seconds between two looks.
    Burnish interval: f64 = 2.0;
    /// Look once, and end, although runs go on.
    Burnish once: bool = false;
}

impl WatchTargetOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        let some = (0.1..=3600.0).contains(&self.interval);
        checks.range("interval", some, "0.1 to 3600 seconds");
    }
}
