//! `burnish doctor`: what this machine has.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::DeviceOptions;

command! {
    /// Options of `burnish doctor`.
    DoctorOptions, "doctor", "Say what this machine has of what each device and transport needs, and try one",
    needs [], {
        /// What is tried.
        device: DeviceOptions,
    }
}

impl DoctorOptions {
    /// Any device may be asked for: what it lacks is the answer.
    #[allow(clippy::unused_self, reason = "every command has rules")]
    fn rules(&self, _: &mut Checks<'_>) {}
}
