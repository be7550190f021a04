//! The checks themselves, on the processor.
#![allow(clippy::unwrap_used, reason = "tests")]

mod program;
mod trl_runs;
