//! `burnish inspect`: what a path holds.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::InspectTargetOptions;

command! {
    /// Options of `burnish inspect`.
    InspectOptions, "inspect", "Say what a path holds: a model, an adapter, a checkpoint, a run, tensors or rows",
    needs ["path"], {
        /// What is looked at.
        target: InspectTargetOptions,
    }
}

impl InspectOptions {
    /// Whatever is there is looked at.
    #[allow(clippy::unused_self, reason = "every command has rules")]
    fn rules(&self, _: &mut Checks<'_>) {}
}
