//! Against recordings of TRL: runs, and what scores completions.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod known_recordings;
mod reward_folder;
