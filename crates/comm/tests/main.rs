//! Ranks together.
#![allow(clippy::unwrap_used, reason = "tests")]

mod conforming;
mod faults;
mod laws;
mod local;
