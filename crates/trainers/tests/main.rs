//! Against recordings of TRL: runs, and what scores completions; every family over ranks.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod experts;
mod families_sharded;
mod known_recordings;
mod reward_folder;
mod roofline;
mod row_cache;
