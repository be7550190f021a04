//! Runs against recordings of TRL.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod known_recordings;
mod trl_runs;
