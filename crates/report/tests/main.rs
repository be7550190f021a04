//! Reports as files: what is on the disk after writing, resuming, failing.
#![allow(clippy::unwrap_used, reason = "tests")]

mod card;
mod log;
mod progress;
