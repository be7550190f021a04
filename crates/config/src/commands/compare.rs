//! `burnish compare`: runs beside each other.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::RunsOptions;

command! {
    /// Options of `burnish compare`.
    CompareOptions, "compare", "Compare runs: options that differ, last figures, and what seeds say of the difference",
    needs ["output_dirs"], {
        /// The runs.
        runs: RunsOptions,
    }
}

impl CompareOptions {
    /// Whatever is there is compared.
    #[allow(clippy::unused_self, reason = "every command has rules")]
    fn rules(&self, _: &mut Checks<'_>) {}
}
