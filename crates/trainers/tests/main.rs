//! Runs against recordings of TRL.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod trl_runs;
