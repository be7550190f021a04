//! Ranks together.
#![allow(clippy::unwrap_used, reason = "tests")]

mod first;
