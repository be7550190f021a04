//! Ranks together.
#![allow(clippy::unwrap_used, reason = "tests")]

mod conforming;
mod device_memory;
mod faults;
mod laws;
mod local;
