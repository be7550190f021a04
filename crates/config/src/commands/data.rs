//! `burnish data`: what a run will see of its rows.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::ViewOptions;

command! {
    /// Options of `burnish data`; the trainer's own stand beside them.
    DataOptions, "data", "Show what a run will see of its rows: tokens, what is learned of them, lengths, and what is odd",
    needs [], {
        /// What is shown.
        view: ViewOptions,
    }
}

impl DataOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.view.rules(checks);
    }
}
